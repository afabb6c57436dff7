//go:build unix

package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// Each of these plants something that sees keys, in the way of an agent's script, and looks whether it has seen one that was
// pressed afterwards. Every one does without Renew, or it would prove nothing.
func TestNothingThatAScriptLeftSeesAKeyAfterRenew(t *testing.T) {
	listen := `addEventListener('keydown', e => localStorage.seen = (localStorage.seen || '') + e.key)`
	plants := map[string]func(t *testing.T, b *Browser){
		"a listener": func(t *testing.T, b *Browser) { read(t, b, listen) },
		"an observer": func(t *testing.T, b *Browser) {
			read(t, b, `new MutationObserver(() => localStorage.seen = 'z').observe(document.body, {attributes: true, childList: true, subtree: true})`)
		},
		"an opener": func(t *testing.T, b *Browser) {
			// The current tab keeps a reference to another one, and looks for new documents in it.
			read(t, b, `(window.w = open('/victim'), setInterval(() => { try { if (w.document.seenBy !== 1) { w.document.seenBy = 1; w.addEventListener('keydown', e => localStorage.seen = 'z') } } catch {} }, 1), 0)`)
			nextTab(t, b)
			becomes(t, b, "document.title + document.seenBy", "victim1")
		},
		"a document that was written": func(t *testing.T, b *Browser) {
			read(t, b, `(window.f = document.createElement('iframe'), f.srcdoc = "<script>top.`+listen+`<\/script>", document.body.append(f), new Promise(ok => f.onload = ok), 0)`)
			becomes(t, b, "frames[0].document.readyState", "complete")
		},
		"a client that is gone": func(t *testing.T, b *Browser) {
			conn := b.Conn()
			p, err := b.Page(within(t, 5*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			var attached struct {
				SessionID string `json:"sessionId"`
			}
			root := conn.Browser()
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(root.Call(within(t, 5*time.Second), "Target.attachToTarget", map[string]any{"targetId": p.ID(), "flatten": true}, &attached))
			s := conn.Session(attached.SessionID)
			must(s.Call(within(t, 5*time.Second), "Runtime.enable", nil, nil))
			must(s.Call(within(t, 5*time.Second), "Page.enable", nil, nil))
			must(s.Call(within(t, 5*time.Second), "Runtime.addBinding", map[string]any{"name": "tell"}, nil))
			must(s.Call(within(t, 5*time.Second), "Page.addScriptToEvaluateOnNewDocument", map[string]any{
				"source": "window.planted = 1; " + listen}, nil))
			arrive(t, b, "/page")
			becomes(t, b, "window.planted + typeof tell", "1function")
			must(root.Call(within(t, 5*time.Second), "Target.detachFromTarget", map[string]any{"sessionId": attached.SessionID}, nil))
		},
		"a shared worker": func(t *testing.T, b *Browser) {
			read(t, b, `(window.w = new SharedWorker('/shared.js'), w.port.onmessage = e => window.pong = e.data, w.port.start(), addEventListener('keydown', e => w.port.postMessage(e.key)), 0)`)
			becomes(t, b, "window.pong", "up")
			read(t, b, `(addEventListener('keydown', () => localStorage.seen = 'z'), 0)`)
		},
	}
	for name, plant := range plants {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			for _, renew := range []bool{false, true} {
				t.Run(fmt.Sprintf("renewed %t", renew), func(t *testing.T) {
					b := liveSite(t, Shell, map[string]string{
						"/page":      `<title>page</title><body><input id=i autofocus oninput="document.body.append('x')">`,
						"/victim":    `<title>victim</title><body><input id=i autofocus>`,
						"/shared.js": `let n = 0; onconnect = e => { e.ports[0].postMessage(n++ ? 'old' : 'up') }`,
					})
					arrive(t, b, "/page")
					plant(t, b)
					l := takeOver(t, b)
					if renew {
						if err := l.Renew(within(t, 30*time.Second)); err != nil {
							t.Fatal(err)
						}
					}
					becomes(t, b, "document.readyState", "complete")
					read(t, b, "document.querySelector('#i').focus()")
					give(t, b, strike("z", "KeyZ", 0)...)
					becomes(t, b, "document.querySelector('#i').value", "z")
					if seen := read(t, b, "localStorage.seen"); (seen != "undefined") == renew {
						t.Errorf("renewed %v: it has seen %q", renew, seen)
					}
					if name == "a shared worker" {
						read(t, b, `(window.w2 = new SharedWorker('/shared.js'), w2.port.onmessage = e => window.pong2 = e.data, w2.port.start(), 0)`)
						becomes(t, b, "window.pong2", map[bool]string{false: "old", true: "up"}[renew])
					}
				})
			}
		})
	}
}

// nextTab makes the tab that was opened last the current one.
func nextTab(t *testing.T, b *Browser) {
	t.Helper()
	var last Tab
	for deadline := time.Now().Add(20 * time.Second); ; {
		tabs, err := b.Tabs(within(t, 5*time.Second))
		if err != nil || time.Now().After(deadline) {
			t.Fatal(tabs, err)
		}
		if len(tabs) > 1 {
			last = tabs[len(tabs)-1]
			break
		}
	}
	do[Done](t, b, FocusTab{TargetID: last.TabID})
}

func TestRenewKeepsTabsHistoryAndStorage(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{
			"/one": `<title>one</title><body>`, "/two": `<title>two</title><body><iframe src="/one"></iframe><script>
				onbeforeunload = e => { e.preventDefault(); e.returnValue = 'x' }</script>`,
		})
		arrive(t, b, "/one")
		arrive(t, b, "/two")
		read(t, b, `(sessionStorage.kept = 'kept', window.stale = 1, history.replaceState({}, '', '/two#here'), 0)`)
		// A document that a script has put into a frame does not come back with the history.
		read(t, b, `(frames[0].location.replace('data:text/html,<title>planted</title>'), 0)`)
		opened := do[OpenTabResult](t, b, OpenTab{URL: "about:blank", NewTab: true})
		read(t, b, `(document.body.innerHTML = '<p>written', window.stale = 1, 0)`)
		l := takeOver(t, b)
		give(t, b, clicked(10, 10)...)
		if err := l.Renew(within(t, 30*time.Second)); err != nil {
			t.Fatal(err)
		}
		if got := read(t, b, "document.body.innerText + window.stale"); got != "undefined" {
			t.Errorf("the empty tab has %q", got)
		}
		tabs, err := b.Tabs(within(t, 5*time.Second))
		if err != nil || len(tabs) != 2 || tabs[0].TabID != "t1" || tabs[1].TabID != opened.TabID {
			t.Fatalf("tabs %+v, %v", tabs, err)
		}
		do[Done](t, b, FocusTab{TargetID: "t1"})
		becomes(t, b, "document.readyState + document.title + location.hash", "completetwo#here")
		if got := read(t, b, "sessionStorage.kept + window.stale"); got != "keptundefined" {
			t.Errorf("got %q", got)
		}
		if got := read(t, b, "(() => { try { return frames[0].location.pathname } catch (e) { return e.message } })()"); got != "/one" {
			t.Errorf("the frame shows %q", got)
		}
		give(t, b, LiveInput{Type: "back"})
		becomes(t, b, "document.title", "one")
	})
}

// With the cache for back and forward, an old document would come back to life with its listeners.
func TestNoDocumentComesBackToLife(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{"/one": `<title>one</title>`, "/two": `<title>two</title>`})
		arrive(t, b, "/one")
		read(t, b, "(window.stale = 1, 0)")
		arrive(t, b, "/two")
		l := takeOver(t, b)
		if err := l.Renew(within(t, 30*time.Second)); err != nil {
			t.Fatal(err)
		}
		give(t, b, LiveInput{Type: "back"})
		becomes(t, b, "document.title", "one")
		if got := read(t, b, "window.stale"); got != "undefined" {
			t.Error("the old document is back")
		}
	})
}

func TestRenewFreesATabThatHangs(t *testing.T) {
	for name, script := range map[string]string{
		"once":            `onload = () => setTimeout(() => { for (;;); }, 50)`,
		"again and again": `onload = () => setInterval(() => { for (;;); }, 50)`,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			b := liveSite(t, Shell, map[string]string{"/busy": "<title>Busy</title><script>" + script + "</script>", "/": "<title>Tiny</title>"})
			arrive(t, b, "/busy")
			time.Sleep(300 * time.Millisecond) // it hangs by then
			l := takeOver(t, b)
			if err := l.Renew(within(t, 30*time.Second)); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, 10*time.Second, func() bool {
				tabs, err := b.Tabs(within(t, 5*time.Second))
				return err == nil && len(tabs) == 1 && tabs[0].TabID == "t1" && tabs[0].Title == "Busy"
			}, "the page does not come back")
			give(t, b, LiveInput{Type: "go", URL: site + "/"})
			becomes(t, b, "document.title", "Tiny")
		})
	}
}

// A page that begins to hang while a person leaves it is left all the same.
func TestAPageThatBeginsToHangIsLeft(t *testing.T) {
	next, heard := make(chan struct{}), make(chan struct{})
	ask := sync.OnceFunc(func() { close(next) })
	hear := sync.OnceFunc(func() { time.AfterFunc(200*time.Millisecond, func() { close(heard) }) })
	b := open(t, Shell, newGateway(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		switch r.URL.Path {
		case "/asked": // answered when the next page was asked for; the script that hears it never ends
			<-next
			hear()
		case "/next":
			ask()
			<-heard
			io.WriteString(w, "<title>next</title>")
		default:
			io.WriteString(w, `<title>old</title><script>addEventListener('keydown', () => fetch('/asked').then(() => { for (;;); }))</script>`)
		}
	})).URL)
	arrive(t, b, "/old")
	takeOver(t, b)
	give(t, b, strike("z", "KeyZ", 0)...)
	give(t, b, LiveInput{Type: "go", URL: site + "/next"})
	becomes(t, b, "document.title", "next")
}

// Workers are of a browser context. Those of one whose client was just cut are not all that there are.
func TestRenewEndsServiceWorkersOfEveryContext(t *testing.T) {
	for _, renew := range []bool{false, true} {
		t.Run(fmt.Sprintf("renewed %t", renew), func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/sw.js" {
					w.Header().Set("Content-Type", "text/javascript")
					io.WriteString(w, `onactivate = e => e.waitUntil(clients.claim()); oninstall = () => skipWaiting();
						onfetch = e => e.respondWith(new Response("<title>planted</title>", {headers: {"Content-Type": "text/html"}}))`)
					return
				}
				w.Header().Set("Content-Type", "text/html")
				io.WriteString(w, "<title>page</title>")
			}))
			t.Cleanup(server.Close)
			b := open(t, Shell, server.URL)
			if _, err := b.Navigate(within(t, 20*time.Second), "http://localhost/"); err != nil {
				t.Fatal(err)
			}
			read(t, b, "(navigator.serviceWorker.register('/sw.js'), 0)")
			becomes(t, b, "!!navigator.serviceWorker.controller", "true")
			for range 4 {
				var made struct {
					ID string `json:"browserContextId"`
				}
				root := b.Conn().Browser()
				if err := root.Call(within(t, 5*time.Second), "Target.createBrowserContext", nil, &made); err != nil {
					t.Fatal(err)
				}
				if err := root.Call(within(t, 5*time.Second), "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": made.ID}, nil); err != nil {
					t.Fatal(err)
				}
			}
			l := takeOver(t, b)
			if renew {
				if err := l.Renew(within(t, 30*time.Second)); err != nil {
					t.Fatal(err)
				}
			}
			do[Done](t, b, FocusTab{TargetID: "t1"})
			give(t, b, LiveInput{Type: "go", URL: "http://localhost/again"})
			becomes(t, b, "location.pathname + document.title", "/again"+map[bool]string{false: "planted", true: "page"}[renew])
		})
	}
}
