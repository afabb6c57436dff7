package grant

import (
	"fmt"
	"testing"
)

// BenchmarkUse is a grant's use alone, on SQLite on this disk: verify, look up, take. Issuing is not counted.
func BenchmarkUse(b *testing.B) {
	w := newFixture(b)
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
	w := newFixture(b)
	token, _ := w.issue()
	for b.Loop() {
		if _, err := w.Verify(b.Context(), token, want()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUseWithVerify is what a session with a grant in hand waits for: it is verified, and then used.
func BenchmarkUseWithVerify(b *testing.B) {
	w := newAgents(b)
	for b.Loop() {
		b.StopTimer()
		token, _ := w.issue()
		b.StartTimer()
		if _, err := w.Verify(b.Context(), token, want()); err != nil {
			b.Fatal(err)
		}
		if _, err := w.Use(b.Context(), token, want()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPermission is the same with a permission, of as many as a tenant may have.
func BenchmarkPermission(b *testing.B) {
	w := newAgents(b)
	for n := range maxPermissions - 1 {
		w.allow(func(r *PermissionRequest) { r.Agent, r.Domain = "a2", fmt.Sprintf("d%d.com", n) })
	}
	w.allow()
	for b.Loop() {
		w.opens(asking())
	}
}
