//go:build linux

package testkit

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
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
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		u.seen = append(u.seen, r.URL.Path+" "+r.Header.Get("Authorization")+" "+string(body))
		u.mu.Unlock()
		if r.URL.Path == "/stored" { // what was sent comes back, and the end of the line a moment later
			_, _ = w.Write(body)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(100 * time.Millisecond)
			_, _ = io.WriteString(w, "\nend\n")
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
