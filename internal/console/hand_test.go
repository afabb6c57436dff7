//go:build hand

package console

import (
	"net/http"
	"os"
	"testing"
	"time"
)

// TestByHand serves a console for looking at it: CONSOLE=127.0.0.1:PORT go test -tags hand -run TestByHand -timeout 1h.
// Whoever comes is the admin. It ends when the file in CONSOLE_END is there.
func TestByHand(t *testing.T) {
	w := newWorld(t)
	furnish(w)
	s := &http.Server{Addr: os.Getenv("CONSOLE"), Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, err := r.Cookie(cookieName(r)); err != nil {
			r.AddCookie(&http.Cookie{Name: cookieName(r), Value: "admin"})
		}
		w.ServeHTTP(rw, r)
	})}
	go func() {
		for {
			time.Sleep(time.Second)
			if _, err := os.Stat(os.Getenv("CONSOLE_END")); err == nil {
				s.Close()
				return
			}
		}
	}()
	_ = s.ListenAndServe()
}
