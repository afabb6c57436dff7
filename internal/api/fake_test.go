package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSessions answers what it is told, and keeps what it was asked.
type fakeSessions struct {
	mu      sync.Mutex
	calls   []string
	request session.Request
	url     string
	timeout time.Duration
	picture browser.ScreenshotOptions
	all     bool
	fail    error
	wait    chan struct{} // Open waits for it
}

const someID = "s_abcdefgh23456789"

func (f *fakeSessions) called(name, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, strings.TrimSpace(name+" "+id))
	return f.fail
}

func (f *fakeSessions) Open(ctx context.Context, r session.Request) (session.Session, error) {
	err := f.called("open", "")
	f.mu.Lock()
	f.request = r
	wait := f.wait
	f.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return session.Session{}, ctx.Err()
		}
	}
	return session.Session{ID: someID, State: session.StateReady}, err
}

func (f *fakeSessions) Get(_ context.Context, id string) (session.Session, error) {
	return session.Session{ID: id}, f.called("get", id)
}

func (f *fakeSessions) List(_ context.Context, all bool) ([]session.Session, error) {
	f.all = all
	return []session.Session{}, f.called("list", "")
}

func (f *fakeSessions) Close(_ context.Context, id string) (session.Session, error) {
	return session.Session{ID: id, State: session.StateClosing}, f.called("close", id)
}

func (f *fakeSessions) WaitGone(_ context.Context, id string) (session.Session, error) {
	return session.Session{ID: id, State: session.StateClosed}, f.called("wait", id)
}

func (f *fakeSessions) Navigate(_ context.Context, id, url string, timeout time.Duration) (browser.Result, error) {
	f.url, f.timeout = url, timeout
	return browser.Result{URL: url, Status: 200}, f.called("navigate", id)
}

func (f *fakeSessions) Screenshot(_ context.Context, id string, o browser.ScreenshotOptions, timeout time.Duration) ([]byte, error) {
	f.picture, f.timeout = o, timeout
	return []byte("picture"), f.called("screenshot", id)
}

func (f *fakeSessions) Recorded(_ context.Context, id string, number int) ([]byte, string, error) {
	return []byte("old picture"), "jpeg", f.called("recorded", id)
}

func (f *fakeSessions) Status() session.Status { return session.Status{MaxSessions: 7} }

// door is an API with its key.
type door struct {
	*API
	key      string
	sessions *fakeSessions
	clock    time.Time
}

func newDoor(t testing.TB, change ...func(*Options)) *door {
	t.Helper()
	d := &door{key: NewKey(), sessions: &fakeSessions{}, clock: time.Unix(1_700_000_000, 0)}
	key, err := ParseKey(d.key)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Sessions: d.sessions, Key: key, Version: "v1.2.3", Listen: netip.MustParseAddrPort("127.0.0.1:18780"),
		Now:  func() time.Time { return d.clock },
		Host: func(context.Context) (HostInfo, error) { return HostInfo{Installation: "abcd"}, nil },
	}
	for _, f := range change {
		f(&o)
	}
	if d.API, err = New(o); err != nil {
		t.Fatal(err)
	}
	return d
}

type asked struct {
	*http.Response
	body string
}

// ask makes a request with the key, as a program on this machine does.
func (d *door) ask(t testing.TB, method, path, body string, change ...func(*http.Request)) asked {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, path, reader)
	r.Host, r.RemoteAddr = "127.0.0.1:18780", "127.0.0.1:40000"
	r.Header.Set(KeyHeader, d.key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return asked{w.Result(), w.Body.String()}
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func without(name string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Del(name) }
}

// wantProblem checks that an answer is a problem as RFC 9457 and this API have it.
func (a asked) wantProblem(t testing.TB, status int, code string) Problem {
	t.Helper()
	var p Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("the answer is no JSON: %v: %s", err, a.body)
	}
	if a.StatusCode != status || p.Status != status || p.Code != code || a.Header.Get("Content-Type") != problemType ||
		p.Type != "about:blank" || p.Title == "" || p.Detail == "" {
		t.Errorf("%d %s %s, want %d %s", a.StatusCode, a.Header.Get("Content-Type"), a.body, status, code)
	}
	return p
}

func noCalls(t *testing.T, d *door) {
	t.Helper()
	if len(d.sessions.calls) > 0 {
		t.Errorf("the service was asked for %q", d.sessions.calls)
	}
}
