package grant

import "testing"

// BenchmarkUse is a grant's use alone, on SQLite on this disk: verify, look up, take. Issuing is not counted.
func BenchmarkUse(b *testing.B) {
	w := newWorld(b)
	for b.Loop() {
		b.StopTimer()
		token, _ := w.issue()
		b.StartTimer()
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
