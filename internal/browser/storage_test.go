//go:build unix

package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault/secret"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// storing is an origin with entries: names and values in turn.
func storing(origin string, pairs ...string) weblogin.Origin {
	o := weblogin.Origin{Origin: origin}
	for n := 0; n+1 < len(pairs); n += 2 {
		o.Local = append(o.Local, weblogin.Item{Name: pairs[n], Value: secret.New([]byte(pairs[n+1]))})
	}
	return o
}

// outside is the proxy of a browser: it writes down what comes, and answers with a page.
type outside struct {
	*httptest.Server
	mu   sync.Mutex
	came []string
}

func newOutside(t testing.TB, pages map[string]string) *outside {
	t.Helper()
	o := &outside{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.came = append(o.came, r.Method+" "+r.Host+" "+r.URL.Path)
		o.mu.Unlock()
		if strings.HasSuffix(r.URL.Path, ".js") {
			w.Header().Set("Content-Type", "text/javascript")
		} else {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
		}
		if r.Method == http.MethodConnect {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		io.WriteString(w, pages[r.URL.Path])
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *outside) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.came)
}

// telling is a page that says in its title what it has when its first script runs.
const telling = `<script>document.title = JSON.stringify(Object.entries(localStorage).sort())</script>`

func mustStore(t testing.TB, b *Browser, id string, list ...weblogin.Origin) {
	t.Helper()
	back, err := b.Store(within(t, 20*time.Second), id, list)
	if err != nil {
		t.Fatal(err)
	}
	if bad := weblogin.Compare(list, back); len(bad) > 0 {
		t.Errorf("put in and not kept: %q", bad)
	}
}

func mustRead(t testing.TB, b *Browser, id string, origins ...string) string {
	t.Helper()
	list, err := b.Stored(within(t, 20*time.Second), id, origins)
	if err != nil {
		t.Fatal(err)
	}
	return string(weblogin.EncodeOrigins(list))
}

// What pages had stored is there when the first script of the site runs; until then the site is asked for nothing.
func TestStorageIsThereBeforeTheFirstDocumentOfASite(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		o := newOutside(t, map[string]string{"/": telling})
		b := open(t, build, o.URL)
		app := storing("http://app.example.com", "token", planted+"token", "ü 😀", "line\nNUL\x00\"\\<", "", "empty name", "empty", "")
		port, secure := storing("http://example.com:8080", "token", "of another port"), storing("https://secure.example.com", "token", "of https")
		mustStore(t, b, "", app, port, secure)
		// A full Chromium connects ahead where no policy forbids it, as those of a jail do (NetworkPredictionOptions).
		came := slices.DeleteFunc(o.requests(), func(r string) bool { return build == Full && strings.HasPrefix(r, "CONNECT ") })
		if len(came) > 0 {
			t.Errorf("the sites were asked: %q", came)
		}
		if tabs := do[TabsResult](t, b, Tabs{}).Tabs; len(tabs) != 1 || tabs[0].URL != blank || tabs[0].TabID != "t1" {
			t.Errorf("the tabs are %+v", tabs)
		}
		for address, want := range map[string]string{
			"http://app.example.com/":      `[["","empty name"],["empty",""],["token","value-of-token"],["ü 😀","line\nNUL\u0000\"\\<"]]`,
			"http://example.com:8080/":     `[["token","of another port"]]`,
			"http://other.example.com/":    `[]`,
			"http://app.example.com:8080/": `[]`,
			"http://example.com/":          `[]`,
			"http://secure.example.com/":   `[]`,
			"http://example.org/":          `[]`,
		} {
			if got := do[Result](t, b, Navigate{URL: address}); got.Title != want {
				t.Errorf("%s sees %s, want %s", address, got.Title, want)
			}
		}
		if got := mustRead(t, b, "", "https://secure.example.com", "http://example.org"); got != `[{"origin":"https://secure.example.com","localStorage":[{"name":"token","value":"of https"}]}]` {
			t.Errorf("https has %s", got)
		}
		if got := mustRead(t, b, newContext(t, b), "http://app.example.com"); got != "[]" {
			t.Errorf("another context has %s", got)
		}
	})
}

// The pages of our own are no tabs, whatever is opened at the same time.
func TestReadingWhatIsStoredOpensNoTab(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		o := newOutside(t, map[string]string{"/": telling, "/frames": `<iframe src="http://login.example.com/"></iframe><iframe src="http://ads.test/"></iframe>`})
		b := open(t, build, o.URL)
		do[Result](t, b, Navigate{URL: "http://example.com/frames"})
		var reading sync.WaitGroup
		reading.Go(func() {
			for range 5 {
				mustRead(t, b, "", "http://example.com")
			}
		})
		for n := range 5 {
			do[OpenTabResult](t, b, OpenTab{URL: fmt.Sprintf("http://example.com/%d", n), NewTab: true})
		}
		reading.Wait()
		var handles []string
		for _, tab := range do[TabsResult](t, b, Tabs{}).Tabs {
			handles = append(handles, tab.TabID)
		}
		if !slices.Equal(handles, []string{"t1", "t2", "t3", "t4", "t5", "t6"}) {
			t.Errorf("the tabs are %q", handles)
		}
		// What a person looks at is drawn as before.
		mustRead(t, b, "", "http://example.com")
		drawn := must[EvalResult](t, b, Eval{Await: true, JS: "Promise.race([new Promise(ok => requestAnimationFrame(() => ok('drawn'))), new Promise(ok => setTimeout(ok, 5000, 'not drawn'))])"})
		if drawn.Value != "drawn" {
			t.Errorf("the tab is %v", drawn.Value)
		}
		got, err := b.Origins(within(t, 5*time.Second))
		if want := []string{"http://example.com", "http://login.example.com"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("visited were %q, %v; want %q", got, err, want)
		}
	})
}

// A service worker answers for its site. It is not asked when what is stored is read.
func TestWhatIsStoredIsReadPastServiceWorkers(t *testing.T) {
	o := newOutside(t, map[string]string{"/": "<title>page</title>",
		"/sw.js": `onactivate = e => e.waitUntil(clients.claim()); oninstall = () => skipWaiting();
			onfetch = e => e.respondWith(new Response("<script>localStorage.seen = 'by a script of the site'</script>", {headers: {"Content-Type": "text/html"}}))`})
	b := open(t, Shell, o.URL)
	do[Result](t, b, Navigate{URL: "http://localhost/"})
	read(t, b, "(localStorage.token = 't', navigator.serviceWorker.register('/sw.js'), 0)")
	becomes(t, b, "!!navigator.serviceWorker.controller", "true")
	before := len(o.requests())
	for range 2 {
		if got := mustRead(t, b, "", "http://localhost"); got != `[{"origin":"http://localhost","localStorage":[{"name":"token","value":"t"}]}]` {
			t.Errorf("it has %s", got)
		}
	}
	if came := o.requests(); len(came) != before {
		t.Errorf("the site was asked: %q", came[before:])
	}
	// The control: with a page as others open it, the worker answers, and its script runs.
	do[Result](t, b, Navigate{URL: "http://localhost/"})
	if got := mustRead(t, b, "", "http://localhost"); !strings.Contains(got, "by a script of the site") {
		t.Errorf("it has %s", got)
	}
}

func TestStorageThatABrowserDoesNotTakeIsRefused(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, deadAddress(t))
		large := strings.Repeat(planted, 3<<20/len(planted))
		back, err := b.Store(within(t, 20*time.Second), newContext(t, b), []weblogin.Origin{storing("http://example.com", "a", large, "b", large)})
		if problem.CodeOf(err) != problem.BadStorage || back != nil || strings.Contains(fmt.Sprintf("%+v", err), planted) {
			t.Errorf("too much together: %v", err)
		}
		// And the browser is as good as before.
		mustStore(t, b, "", storing("http://example.com", "a", large), storing("http://example.org", "token", planted))
		if _, err := b.Stored(within(t, 20*time.Second), "0123456789ABCDEF", []string{"http://example.com"}); err == nil {
			t.Error("a context that is not there is read")
		}
	})
}

func TestWhatIsNoTextIsNamedAndLeftOut(t *testing.T) {
	o := newOutside(t, map[string]string{"/": telling})
	b := open(t, Shell, o.URL)
	do[Result](t, b, Navigate{URL: "http://example.com/"})
	read(t, b, `(localStorage.half = 'a\ud800', localStorage['b\udc00'] = 'c', localStorage.whole = '😀', 0)`)
	list, err := b.Stored(within(t, 20*time.Second), "", []string{"http://example.com"})
	if err != nil || len(list) != 1 || len(list[0].Local) != 1 || list[0].Local[0].Name != "whole" ||
		!slices.Equal(list[0].Left, []string{"2 of localStorage, which are no text in Unicode"}) {
		t.Errorf("it has %+v, %v", list, err)
	}
}

func TestStorageOfABrowserThatIsGone(t *testing.T) {
	b := openOwn(t, Shell, deadAddress(t))
	mustStore(t, b, "", storing("http://example.com", "a", planted))
	if err := b.Close(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err := b.Store(within(t, 10*time.Second), "", []weblogin.Origin{storing("http://example.com", "a", planted)})
	if problem.CodeOf(err) != problem.BrowserExited || strings.Contains(fmt.Sprintf("%+v", err), planted) {
		t.Errorf("it is %v", err)
	}
}

// BenchmarkStore is what an origin with 20 entries takes to be put in and read back.
func BenchmarkStore(b *testing.B) {
	shell := open(b, Shell, deadAddress(b))
	o := weblogin.Origin{Origin: "https://app.example.com"}
	for n := range 20 {
		o.Local = append(o.Local, weblogin.Item{Name: fmt.Sprint("entry", n), Value: secret.New([]byte(strings.Repeat("v", 100*n)))})
	}
	for b.Loop() {
		back, err := shell.Store(b.Context(), "", []weblogin.Origin{o})
		if err != nil || len(weblogin.Compare([]weblogin.Origin{o}, back)) > 0 {
			b.Fatal(err)
		}
	}
}
