//go:build unix

package browser

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/cdp/cdptest/shelf"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(shelf.Tests{M: m, Shelf: &browsers}) }

// eachBuild runs a test with both programs, side by side: a test mostly waits. It is the last thing that a test calls.
func eachBuild(t *testing.T, test func(t *testing.T, build Build)) {
	runBuilds(t, test, func(t testing.TB) {
		if testing.Short() {
			t.Skip("SKIPPED: -short leaves full Chromium out, which starts four times as slowly; run `make test`")
		}
	})
}

// anyBuild is eachBuild for a test that asks nothing in which the programs differ: `make test` has one of them do.
func anyBuild(t *testing.T, test func(t *testing.T, build Build)) { runBuilds(t, test, testenv.Long) }

func runBuilds(t *testing.T, test func(t *testing.T, build Build), full func(testing.TB)) {
	for _, build := range []Build{Shell, Full} {
		t.Run(string(build), func(t *testing.T) {
			if build == Full {
				full(t)
			}
			t.Parallel()
			test(t, build)
		})
	}
}

// launch starts a browser with the launch line of this package, and returns the connection to it.
func launch(t testing.TB, build Build, proxy string) (*cdp.Conn, *cdptest.Browser, Options) {
	t.Helper()
	testenv.Time(t)
	o := launchOptions(t, build, proxy)
	process, conn := start(t, o)
	return conn, process, o
}

// launchOptions are those of a browser with a folder of its own.
func launchOptions(t testing.TB, build Build, proxy string) Options {
	t.Helper()
	home := cdptest.Dir(t)
	o := Options{Build: build, Proxy: proxy, ProfileDir: home + "/profile", Home: home}
	switch build {
	case Shell:
		o.Binary = testenv.Chromium(t)
	default:
		o.Binary = testenv.ChromiumFull(t)
	}
	return o
}

func start(t testing.TB, o Options) (*cdptest.Browser, *cdp.Conn) {
	t.Helper()
	process := begin(t, o)
	conn, err := cdp.New(process.Replies, process.Commands, cdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return process, conn
}

func begin(t testing.TB, o Options) *cdptest.Browser {
	t.Helper()
	line, err := Command(o)
	if err != nil {
		t.Fatal(err)
	}
	env, err := Environment(o)
	if err != nil {
		t.Fatal(err)
	}
	return cdptest.Start(t, line, env)
}

// openOwn starts a browser that is the test's alone, and waits until it is ready.
func openOwn(t testing.TB, build Build, proxy string) *Browser {
	t.Helper()
	conn, _, _ := launch(t, build, proxy)
	b, err := Open(within(t, 30*time.Second), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if conn.Err() == nil {
			if err := b.Close(within(t, 10*time.Second)); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience*d)
	t.Cleanup(cancel)
	return ctx
}

// gateway is a small proxy of the test: it writes down every request, carries those for its site to the test's own
// server, and refuses the rest.
type gateway struct {
	URL string

	mu   sync.Mutex
	seen []string
}

// site is the only host that the test's gateway lets through.
const site = "http://site.test"

func newGateway(t testing.TB, pages http.Handler) *gateway {
	t.Helper()
	g := new(gateway)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.seen = append(g.seen, r.Method+" "+r.RequestURI)
		g.mu.Unlock()
		switch {
		case r.Method == http.MethodConnect:
			http.Error(w, "refused", http.StatusForbidden)
		case r.URL.Host == "site.test":
			pages.ServeHTTP(w, r)
		case r.URL.Host == "dead.test":
			// A server that hangs up without a word.
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				conn.Close()
			}
		default:
			http.Error(w, "refused by the gateway", http.StatusForbidden)
		}
	}))
	t.Cleanup(server.Close)
	g.URL = server.URL
	return g
}

func (g *gateway) requests() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.seen...)
}

// tinySite are pages that do one thing each.
func tinySite(hang <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	page := func(path, html string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, html)
		})
	}
	page("/", `<title>Tiny</title><body style="margin:0;background:#00f"><h1>hello</h1>`)
	page("/tall", `<title>Tall</title><body style="margin:0"><div style="height:5000px;background:#0f0"></div>`)
	page("/endless", `<title>Endless</title><body style="margin:0"><div style="height:200000px"></div>`)
	page("/alert", `<title>Alert</title><script>alert('one'); const a = confirm('two'); prompt('three'); document.title = 'confirmed ' + a</script>`)
	page("/stay", `<title>Stay</title><script>onbeforeunload = e => { e.preventDefault(); e.returnValue = 'x' }</script>`)
	mux.Handle("GET /away", http.RedirectHandler("https://refused.test/there?a=b", http.StatusFound))
	page("/hop", `<title>Hop</title><script>location = '/missing'</script><img src="/hang">`)
	page("/arrived", `<title>Arrived</title>`)
	page("/stop", `<title>Stopped</title><script>stop()</script><img src="/hang">`)
	page("/slow", `<title>Slow</title><img src="/hang">`)
	page("/surrogate", `<title>x</title><script>document.title = 'half \ud83d' + 'x'.repeat(100000)</script>`)
	page("/busy", `<title>Busy</title><script>onload = () => setTimeout(() => { for (;;); }, 50)</script>`)
	mux.HandleFunc("GET /missing", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `<title>Not here</title>`)
	})
	mux.HandleFunc("GET /redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, site+"/arrived?from=redirect", http.StatusFound)
	})
	mux.HandleFunc("GET /download", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Disposition", "attachment; filename=x.bin")
		io.WriteString(w, "bytes")
	})
	mux.HandleFunc("GET /hang", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	return mux
}

// openSite opens a browser before a gateway with the tiny site behind it.
func openSite(t testing.TB, build Build) (*Browser, *gateway) {
	t.Helper()
	hang := make(chan struct{})
	g := newGateway(t, tinySite(hang))
	t.Cleanup(func() { close(hang) }) // before the server closes, which waits
	return open(t, build, g.URL), g
}

// deadAddress is an address of loopback that nothing listens on.
func deadAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("http://127.0.0.1:%d", testenv.FreePort(t))
}

func foreign(requests []string, own string) []string {
	var out []string
	for _, request := range requests {
		_, target, _ := strings.Cut(request, " ")
		if u, err := url.Parse(target); err != nil || u.Hostname() != own {
			out = append(out, request)
		}
	}
	return out
}
