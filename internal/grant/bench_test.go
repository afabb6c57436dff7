package grant

import "testing"

// BenchmarkUse is a grant's use alone, on SQLite on this disk: verify, look up, take. Issuing is not counted.
func BenchmarkUse(b *testing.B) {
	w := newWorld(b)
	var ready []Token
	for b.Loop() {
		if len(ready) == 0 {
			b.StopTimer() // seldom: stopping and starting takes longer than a use
			for range 200 {
				token, _ := w.issue()
				ready = append(ready, token)
			}
			b.StartTimer()
		}
		token := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		if _, err := w.Use(b.Context(), token, want()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	w := newWorld(b)
	token, _ := w.issue()
	for b.Loop() {
		if _, err := w.Verify(b.Context(), token, want()); err != nil {
			b.Fatal(err)
		}
	}
}
