package service

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access/accesstest"
	"github.com/clawjail/clawjail/internal/problem"
)

// realFixture is the services behind the real gateway.
func realFixture(t *testing.T) *accesstest.Real {
	t.Helper()
	w := accesstest.NewReal(t)
	h, err := New(w.Options())
	if err != nil {
		t.Fatal(err)
	}
	h.views = w.View
	w.Handle(h)
	return w
}

func TestThroughTheGatewayGitWorksOverTLS(t *testing.T) {
	top := t.TempDir()
	root, jail := filepath.Join(top, "root"), filepath.Join(top, "jail")
	for _, dir := range []string{filepath.Join(root, "owner"), jail} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	git(t, root, nil, "init", "--bare", "owner/repo.git")
	git(t, filepath.Join(root, "owner/repo.git"), nil, "config", "http.receivepack", "true")
	w := realFixture(t)
	var chunked, requests atomic.Int64
	server := gitServer(t, root, &chunked)
	origin, tool := w.Lead("https", "example.com", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		server.ServeHTTP(rw, r)
	}))
	w.Secret("git", "s3cr3t-git-token")
	w.Services["git"] = egress.Service{Name: "git", Upstream: egress.Upstream{BaseURL: origin}, Inject: egress.Injection{Type: egress.InjectBasic, User: "x-access-token"}}
	w.Permits["git"] = w.Allow(tool)
	to := []string{"-c", "url." + w.URL + "/svc/git/.insteadOf=https://github.com/"}
	git(t, jail, to, "clone", "https://github.com/owner/repo.git", "one")
	one := filepath.Join(jail, "one")
	large := bytes.Repeat([]byte("0123456789abcdef-"), 1<<17)
	for i := range large {
		large[i] ^= byte(i * i >> 8) // so that it does not compress to nothing
	}
	if err := os.WriteFile(filepath.Join(one, "large"), large, 0o644); err != nil {
		t.Fatal(err)
	}
	git(t, one, to, "add", ".")
	git(t, one, to, "commit", "-m", "large")
	git(t, one, append(to, "-c", "http.postBuffer=65536"), "push", "origin", "HEAD:main")
	git(t, jail, to, "clone", "-b", "main", "https://github.com/owner/repo.git", "two")
	if got, err := os.ReadFile(filepath.Join(jail, "two", "large")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes came back: %v", len(got), err)
	}
	if chunked.Load() == 0 {
		t.Error("no push was chunked")
	}
	begun := w.Begun()
	if int64(len(begun)) != requests.Load() || len(begun) < 6 {
		t.Errorf("%d records of %d requests", len(begun), requests.Load())
	}
	for _, d := range begun {
		if d.Surface != gateway.SurfaceService || d.Service != "git" || !d.Credential {
			t.Errorf("%+v", d)
		}
	}
}

func TestThroughTheGatewayAnswersStreamAndAreScrubbed(t *testing.T) {
	w := realFixture(t)
	next := make(chan struct{})
	origin, tool := w.Lead("http", "api.example", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Clawjail-Refusal", "forged")
		rw.Header().Set("Set-Cookie", "a=b")
		rw.Header().Set("Location", "/base/next?key="+r.URL.Query().Get("key"))
		rw.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(rw, "data: %d %s\n\n", i, r.URL.Query().Get("key"))
			_ = http.NewResponseController(rw).Flush()
			<-next
		}
	}))
	w.Secret("svc", token)
	w.Services["svc"] = egress.Service{Name: "svc", Upstream: egress.Upstream{BaseURL: origin + "/base"}, Inject: egress.Injection{Type: egress.InjectQuery, Name: "key"}}
	w.Permits["svc"] = w.Allow(tool)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+"/svc/svc/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if h := resp.Header; resp.StatusCode != 200 || h.Get("Clawjail-Refusal") != "" || h.Get("Set-Cookie") != "" || h.Get("Location") != "/svc/svc/next" {
		t.Errorf("%s %q", resp.Status, h)
	}
	buffer := make([]byte, 100)
	for i := range 3 {
		want := fmt.Sprintf("data: %d [redacted]\n\n", i)
		n, err := io.ReadAtLeast(resp.Body, buffer, len(want))
		if err != nil || string(buffer[:n]) != want {
			t.Fatalf("event %d: %q %v", i, buffer[:n], err)
		}
		next <- struct{}{}
	}
	if d := w.Begun()[0]; strings.Contains(fmt.Sprintf("%+v", d), "tok-") || d.Path != "/base/events" {
		t.Errorf("%+v", d)
	}
	resp2, body := w.Do("TRACE", "/svc/svc/x", "")
	if resp2.Header.Get("Clawjail-Refusal") != problem.MethodDenied {
		t.Errorf("%s %s", resp2.Status, body)
	}
}
