//go:build unix

package browser

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/systeminfo"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/cdp/cdptest/shelf"
	"github.com/clawjail/clawjail/internal/testenv"
)

// browsers are lent by open.
var browsers shelf.Shelf

// open lends a browser that is as if it had just been started with a proxy. A test that ends a browser, breaks it or asks how it
// starts takes one of its own, by openOwn.
func open(t testing.TB, build Build, proxy string) *Browser {
	t.Helper()
	testenv.Time(t)
	if _, measured := t.(*testing.B); measured {
		return openOwn(t, build, proxy) // without what the lending takes
	}
	lent := browsers.Take(t, string(build), func(t testing.TB, proxy string) *cdptest.Browser {
		return begin(t, launchOptions(t, build, proxy))
	})
	t.Cleanup(func() { lent.Return(t) })
	at, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	lent.Proxy.Lead(at.Host)
	replies, commands := lent.Pipe(t)
	conn, err := cdp.New(replies, commands, cdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	b, err := Open(within(t, 30*time.Second), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close() // so that the browser stays
		if err := b.Close(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
	})
	return b
}

// A browser that is lent again has nothing of the test before, whatever that one has left.
func TestABrowserThatIsLentAgainIsAsNew(t *testing.T) {
	// A site that is secure without a certificate, so that it may keep everything.
	const here = "http://localhost"
	const has = `(async () => { await fetch('/kept.js'); return [document.cookie, localStorage.kept, (await caches.keys()).length,
		(await indexedDB.databases()).length, (await navigator.serviceWorker.getRegistrations()).length].join() })()`
	eachBuild(t, func(t *testing.T, build Build) {
		var process int64
		for _, turn := range []string{"first", "second"} {
			t.Run(turn, func(t *testing.T) {
				var asked atomic.Int64
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "text/html; charset=utf-8")
					if strings.HasSuffix(r.URL.Path, ".js") {
						asked.Add(1)
						w.Header().Set("Content-Type", "text/javascript")
						w.Header().Set("Cache-Control", "max-age=3600")
						return
					}
					io.WriteString(w, "<title>page</title>")
				}))
				t.Cleanup(server.Close)
				b := open(t, build, server.URL)
				list, err := cdp.Do(within(t, 10*time.Second), b.conn.Browser(), systeminfo.GetProcessInfo, protocol.Empty{})
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range list.ProcessInfo {
					if p.Type == "browser" && turn == "first" {
						process = p.ID
					} else if p.Type == "browser" && p.ID != process {
						t.Errorf("it is the process %d, and not %d", p.ID, process)
					}
				}
				contexts, err := b.Contexts(within(t, 10*time.Second))
				tabs := do[TabsResult](t, b, Tabs{}).Tabs
				if err != nil || len(contexts) != 0 || len(tabs) != 1 || tabs[0].URL != blank || tabs[0].TabID != "t1" || tabs[0].Attached {
					t.Errorf("it has the contexts %q and the tabs %+v, %v", contexts, tabs, err)
				}
				do[Result](t, b, Navigate{URL: here + "/"})
				if got := must[EvalResult](t, b, Eval{JS: has, Await: true}).Value; got != ",,0,0,0" || asked.Load() != 1 {
					t.Errorf("it has %v, and has asked for the file %d times", got, asked.Load())
				}
				must[EvalResult](t, b, Eval{Await: true, JS: `(async () => { document.cookie = 'kept=1; max-age=3600'; localStorage.kept = 1; await caches.open('kept');
					await new Promise(ok => indexedDB.open('kept').onsuccess = ok); await navigator.serviceWorker.register('/worker.js') })()`})
				if got := must[EvalResult](t, b, Eval{JS: has, Await: true}).Value; got != "kept=1,1,1,1,1" || asked.Load() != 2 {
					t.Errorf("the test leaves %v, and has asked for files %d times", got, asked.Load())
				}
				must[ActResult](t, b, Act{Kind: "resize", Width: 700, Height: 500})
				do[OpenTabResult](t, b, OpenTab{URL: here + "/another"})
				newContext(t, b)
			})
		}
	})
}
