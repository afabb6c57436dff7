//go:build unix

package session

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/browsertest"
	"github.com/clawjail/clawjail/internal/cdp/cdptest/shelf"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// typingPage has one field, and tells the server what is in it.
const typingPage = `<!doctype html><title>typing</title><body style="margin:0">
<input id=field autofocus style="width:100%;height:100vh;font-size:40px">
<script>field.addEventListener("input", () => fetch("/seen?" + encodeURIComponent(field.value)))</script>`

// keyLogger tells the server every key, from every document and as soon as it is run.
const keyLogger = `addEventListener("keydown", e => fetch("/logged?" + encodeURIComponent(e.key)), true)`

// siteAddress is where the site is, through the proxy that it is too.
const siteAddress = "http://typing.test"

// listener is a site that hears what is typed.
type listener struct {
	*httptest.Server
	mu    sync.Mutex
	heard map[string][]string
}

func newListener(t *testing.T) *listener {
	t.Helper()
	l := &listener{heard: map[string][]string{}}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" || r.URL.Path == "/two" {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, typingPage)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.heard[r.URL.Path] = append(l.heard[r.URL.Path], r.URL.RawQuery)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *listener) all(path string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.heard[path], " ")
}

// hears waits until something was heard, doing something again and again meanwhile.
func (l *listener) hears(t *testing.T, path, want string, meanwhile func()) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(l.all(path), want) {
		if time.Now().After(deadline) {
			t.Fatalf("%s heard %q, not %q", path, l.all(path), want)
		}
		meanwhile()
		<-tick.C
	}
}

// commander speaks the DevTools protocol as a client of a session.
type commander struct {
	Devtools
	last int
}

func (c *commander) call(t *testing.T, session, method string, params any) (result map[string]any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c.last++
	frame, err := json.Marshal(map[string]any{"id": c.last, "method": method, "params": params, "sessionId": session})
	if session == "" {
		frame, err = json.Marshal(map[string]any{"id": c.last, "method": method, "params": params})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(ctx, frame); err != nil {
		t.Fatal(err)
	}
	for {
		raw, err := c.Receive(ctx)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		var reply struct {
			ID     int            `json:"id"`
			Result map[string]any `json:"result"`
			Error  map[string]any `json:"error"`
		}
		if err := json.Unmarshal(raw, &reply); err != nil {
			t.Fatal(err)
		}
		if reply.ID != c.last {
			continue // an event
		}
		if reply.Error != nil {
			t.Fatalf("%s: %v", method, reply.Error)
		}
		return reply.Result
	}
}

// page attaches to the first page of the browser.
func (c *commander) page(t *testing.T) (session string) {
	t.Helper()
	for _, info := range c.call(t, "", "Target.getTargets", map[string]any{})["targetInfos"].([]any) {
		one := info.(map[string]any)
		if one["type"] == "page" {
			return c.call(t, "", "Target.attachToTarget", map[string]any{"targetId": one["targetId"], "flatten": true})["sessionId"].(string)
		}
	}
	t.Fatal("there is no page")
	return ""
}

// browsers are lent by dialThrough.
var browsers shelf.Shelf

// dialThrough connects to a real headless shell as sessions have it, with a proxy of the test's.
func dialThrough(ctx context.Context, t *testing.T, proxy *httptest.Server) (Browser, error) {
	lent := browsers.Take(t, "shell", browsertest.Shell)
	t.Cleanup(func() { lent.Return(t) })
	lent.Proxy.Lead(proxy.Listener.Addr().String())
	replies, commands := lent.Pipe(t)
	return dial(ctx, &jail.Stdio{In: commands, Out: replies}, browser.DialogWait)
}

// A script that an agent has put into its pages before hears every key, until somebody takes its session over.
func TestAfterATakeOverNoScriptOfTheAgentsHearsAKey(t *testing.T) {
	site := newListener(t)
	w := newFixture(t)
	svc, err := New(w.options(func(o *Options) {
		o.Connect = func(ctx context.Context, _ *jail.Stdio) (Browser, error) { return dialThrough(ctx, t, site.Server) }
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := svc.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	out := openOf(t, svc, worker, OpenRequest{})
	going := func(path string) browser.Navigate { return browser.Navigate{URL: siteAddress + path} }
	if _, err := svc.Drive(t.Context(), worker, out.ID, going("/")); err != nil {
		t.Fatal(err)
	}
	attached, err := svc.Attach(t.Context(), worker, out.ID)
	if err != nil {
		t.Fatal(err)
	}
	client := &commander{Devtools: attached}
	page := client.page(t)
	client.call(t, page, "Page.enable", map[string]any{})
	client.call(t, page, "Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": keyLogger, "runImmediately": true})
	client.call(t, page, "Runtime.evaluate", map[string]any{"expression": keyLogger})
	// It works, as long as the agent has the session.
	site.hears(t, "/logged", "z", func() {
		client.call(t, page, "Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": "z", "text": "z"})
	})

	if _, err := svc.TakeOver(t.Context(), ann, out.ID, false); err != nil {
		t.Fatal(err)
	}
	select {
	case <-client.Done():
	default:
		t.Error("the client is still there")
	}
	wantCode(t, client.Err(), problem.TakenOver)
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	_, err = svc.Drive(t.Context(), worker, out.ID, going("/two"))
	wantCode(t, err, problem.TakenOver)

	hers := watch(t, svc, ann, out.ID)
	input := func(in browser.LiveInput) {
		t.Helper()
		if _, err := hers.Input(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
	typing := func(key string) func() {
		return func() {
			input(browser.LiveInput{Type: "down", X: 50, Y: 50, Button: "left", Buttons: 1, Clicks: 1})
			input(browser.LiveInput{Type: "up", X: 50, Y: 50, Button: "left", Clicks: 1})
			input(browser.LiveInput{Type: "keydown", Key: key, Code: "Key" + strings.ToUpper(key)})
			input(browser.LiveInput{Type: "keyup", Key: key, Code: "Key" + strings.ToUpper(key)})
		}
	}
	site.hears(t, "/seen", "q", typing("q"))
	// A new document has no script of the agent's either.
	input(browser.LiveInput{Type: "go", URL: siteAddress + "/two"})
	site.hears(t, "/seen", "w", typing("w"))
	if logged := site.all("/logged"); strings.ContainsAny(logged, "qw") {
		t.Errorf("the agent's script heard %q", logged)
	}
	// A page that is gone back to has what was typed into it.
	input(browser.LiveInput{Type: "go", URL: siteAddress + "/"})
	site.hears(t, "/seen", "e", typing("e"))
	input(browser.LiveInput{Type: "back"})
	site.hears(t, "/seen", "rw", typing("r"))
	input(browser.LiveInput{Type: "go", URL: siteAddress + "/"})
	site.hears(t, "/seen", "t", typing("t"))

	if _, err := svc.HandBack(t.Context(), ann, out.ID, false); err != nil {
		t.Fatal(err)
	}
	again, err := svc.Attach(t.Context(), worker, out.ID)
	if err != nil {
		t.Fatal(err)
	}
	client = &commander{Devtools: again}
	page = client.page(t)
	entries := client.call(t, page, "Page.getNavigationHistory", map[string]any{})["entries"].([]any)
	if len(entries) != 1 {
		t.Errorf("the agent could go back to what a person has typed: %v", entries)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if _, err := svc.Drive(t.Context(), worker, out.ID, going("/")); err != nil {
		t.Error(err)
	}
}
