//go:build linux

package testkit

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Upstream answers like a provider of models, and keeps what it was sent.
type Upstream struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string
}

// NewUpstream starts one that ends with the test.
func NewUpstream(t *testing.T) *Upstream {
	u := &Upstream{}
	rest := make(chan struct{}, 1)
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		u.seen = append(u.seen, r.URL.Path+" "+r.Header.Get("Authorization")+" "+string(body))
		u.mu.Unlock()
		switch r.URL.Path {
		case "/stored": // the body comes back, and the end of the line after a request for /rest
			_, _ = w.Write(body)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-rest:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "\nend\n")
			return
		case "/rest":
			select {
			case rest <- struct{}{}:
			case <-r.Context().Done():
			}
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"c","object":"chat.completion","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":10}}`)
	}))
	t.Cleanup(u.Close)
	return u
}

// Taken are the requests since it was last asked.
func (u *Upstream) Taken() (out []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	out, u.seen = u.seen, nil
	return out
}

// Port is where it listens.
func (u *Upstream) Port() string { return u.URL[strings.LastIndex(u.URL, ":")+1:] }
