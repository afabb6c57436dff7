//go:build unix

package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/cdp/cdptest/shelf"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(shelf.Tests{M: m, Shelf: &lending}) }

// lending has the browsers that open lends.
var lending shelf.Shelf

const patience = 30 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eachBuild runs a test with both programs.
func eachBuild(t *testing.T, test func(t *testing.T, program string, flags ...string)) {
	t.Run("shell", func(t *testing.T) { test(t, shell(t)) })
	t.Run("full", func(t *testing.T) {
		if testing.Short() {
			t.Skip("SKIPPED: -short leaves full Chromium out, which starts four times as slowly; run `make test`")
		}
		test(t, testenv.ChromiumFull(t), "--headless=new", "--no-first-run", "--disable-features=PreloadTopChromeWebUI") // as sessions have it
	})
}

// process starts a browser that reaches nothing but this machine, under some more names.
func process(t testing.TB, program string, flags ...string) (*cdptest.Browser, string) {
	t.Helper()
	dir := cdptest.Dir(t)
	line := append([]string{program, "--user-data-dir=" + dir, "--disable-gpu", "--disable-background-networking", "--site-per-process",
		"--disable-component-update", "--host-resolver-rules=MAP *.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"}, flags...)
	return cdptest.Start(t, append(line, "about:blank"),
		[]string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=/usr/bin:/bin", "LANG=C.UTF-8"}), dir
}

// open lends a browser that is as if it had just been started. A test that breaks one, or looks at all that is in it, takes one of its
// own, by openOwn.
func open(t testing.TB, program string, flags ...string) (*cdp.Conn, *cdp.Mux) {
	t.Helper()
	lent := lending.Take(t, program, func(t testing.TB, _ string) *cdptest.Browser {
		b, _ := process(t, program, append(flags, "--remote-debugging-pipe")...)
		return b
	})
	t.Cleanup(func() { lent.Return(t) })
	return lent.Conn, lent.Mux
}

// openOwn starts a browser that is the test's alone.
func openOwn(t testing.TB, program string, flags ...string) *cdp.Mux {
	t.Helper()
	b, _ := process(t, program, append(flags, "--remote-debugging-pipe")...)
	conn, err := cdp.New(b.Replies, b.Commands, cdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mux := cdp.NewMux(conn)
	t.Cleanup(func() {
		mux.Close()
		conn.Close()
	})
	return mux
}

// message is one message as a client reads it.
type message struct {
	ID        int             `json:"id"`
	SessionID string          `json:"sessionId"`
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
	Result    json.RawMessage `json:"result"`
	Error     *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// user is a client that remembers all that it received.
type user struct {
	t        testing.TB
	client   *cdp.Client
	last     int
	received []message
	raw      []string
	onEvent  func(m message)
}

func guarded(t testing.TB, mux *cdp.Mux, o Options) *user {
	t.Helper()
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return join(t, mux, g)
}

func join(t testing.TB, mux *cdp.Mux, filter cdp.Filter) *user {
	t.Helper()
	client, err := mux.Attach(within(t), cdp.ClientOptions{Filter: filter})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &user{t: t, client: client}
}

func (u *user) post(session, method, params string) (id int) {
	u.t.Helper()
	u.last++
	frame := fmt.Sprintf(`{"id":%d,"method":%q,"params":%s`, u.last, method, params)
	if session != "" {
		frame += fmt.Sprintf(`,"sessionId":%q`, session)
	}
	id = u.last
	if err := u.client.Send(within(u.t), []byte(frame+"}")); err != nil {
		u.t.Fatalf("%s: %v", method, err)
	}
	return id
}

func (u *user) receive() message {
	u.t.Helper()
	frame, err := u.client.Receive(within(u.t))
	if err != nil {
		u.t.Fatalf("receive: %v", err)
	}
	var m message
	if err := json.Unmarshal(frame, &m); err != nil {
		u.t.Fatal(err)
	}
	u.received, u.raw = append(u.received, m), append(u.raw, string(frame))
	if m.Method != "" && u.onEvent != nil {
		u.onEvent(m)
	}
	return m
}

// call sends a command and reads until its reply.
func (u *user) call(session, method, params string) message {
	u.t.Helper()
	id := u.post(session, method, params)
	return u.until(method, func(m message) bool { return m.Method == "" && m.ID == id })
}

// until reads until a message is there, if it was not before.
func (u *user) until(what string, is func(message) bool) message {
	u.t.Helper()
	for _, m := range u.received {
		if is(m) {
			return m
		}
	}
	for {
		if m := u.receive(); is(m) {
			return m
		}
	}
}

func (u *user) event(method string) message {
	u.t.Helper()
	return u.until(method, func(m message) bool { return m.Method == method })
}

// must is a call that succeeds.
func (u *user) must(session, method, params string) json.RawMessage {
	u.t.Helper()
	m := u.call(session, method, params)
	if m.Error != nil {
		u.t.Fatalf("%s %s: %s", method, params, m.Error.Message)
	}
	return m.Result
}

// page opens a page and attaches to it.
func (u *user) page(context string) (target, session string) {
	u.t.Helper()
	params := `{"url":"about:blank"}`
	if context != "" {
		params = fmt.Sprintf(`{"url":"about:blank","browserContextId":%q}`, context)
	}
	target = findText([]byte(u.must("", "Target.createTarget", params)), "targetId")
	return target, u.attach(target)
}

func (u *user) attach(target string) string {
	u.t.Helper()
	result := u.must("", "Target.attachToTarget", fmt.Sprintf(`{"targetId":%q,"flatten":true}`, target))
	return findText([]byte(result), "sessionId")
}

// evaluate runs a script in a page and returns its text.
func (u *user) evaluate(session, script string) string {
	u.t.Helper()
	result := u.must(session, "Runtime.evaluate", fmt.Sprintf(`{"expression":%s,"awaitPromise":true,"returnByValue":true}`, quoted(script)))
	return findText(find([]byte(result), "result"), "value")
}

// has says which messages have a text in them.
func (u *user) has(secret string) (names []string) {
	for i, raw := range u.raw {
		if strings.Contains(raw, secret) {
			name := u.received[i].Method
			if name == "" {
				name = fmt.Sprintf("reply %d", u.received[i].ID)
			}
			names = append(names, name)
		}
	}
	return names
}

// Values of cookies: one that was put into the jar, and three that the site sets.
const (
	injected = "injected-7d1f0c55aa93"
	fresh    = "fresh-1b2c3d4e5f607182"
	moved    = "moved-99aabbccddeeff00"
	basic    = "dXNlcjpwYXNzd29yZC1vZi1pdA"
)

// site is a small web site.
type site struct {
	*httptest.Server
	mu      sync.Mutex
	cookies map[string]string // by path, the cookie header that came
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{cookies: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<title>Site</title><h1>hello</h1><input type=file><a href=/file download>get</a>`)
	})
	mux.HandleFunc("/set", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "fresh", Value: fresh, HttpOnly: true, Path: "/"})
		http.SetCookie(w, &http.Cookie{Name: "blocked", Value: fresh, HttpOnly: true, Domain: "other.test"})
	})
	mux.HandleFunc("/move", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "moved", Value: moved, HttpOnly: true, Path: "/"})
		http.Redirect(w, r, "/api", http.StatusFound)
	})
	mux.HandleFunc("/api", func(w http.ResponseWriter, r *http.Request) {})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Cookie")) })
	mux.HandleFunc("/basic", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		http.Error(w, "who?", http.StatusUnauthorized)
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Disposition", `attachment; filename="report.txt"`)
		fmt.Fprint(w, "report")
	})
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err == nil {
			conn.Close(websocket.StatusNormalClosure, "")
		}
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.cookies[r.URL.Path] = r.Header.Get("Cookie")
		s.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *site) cookie(path string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cookies[path]
}

// inject puts the cookie into the jar, as the control plane does.
func inject(t testing.TB, conn *cdp.Conn, s *site) {
	t.Helper()
	err := conn.Browser().Call(within(t), "Storage.setCookies", map[string]any{"cookies": []any{map[string]any{
		"name": "sid", "value": injected, "url": s.URL, "httpOnly": true}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

// writable makes a folder that the browser may write to.
func writable(t testing.TB, files ...string) string {
	t.Helper()
	dir := cdptest.Dir(t)
	for _, name := range files {
		if err := os.WriteFile(dir+"/"+name, []byte("content of "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cdptest.Give(t, dir)
	return dir
}

// shell is the build that starts fast, for tests of what is the same in both.
func shell(t testing.TB) string {
	t.Helper()
	testenv.Time(t)
	return testenv.Chromium(t)
}
