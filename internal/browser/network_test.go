//go:build unix

package browser

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/systeminfo"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// beating is a site that logs in who comes, and whose page and its worker ask for something all the time. It asks about
// each new connection, as the gateway does, and counts what came.
type beating struct {
	vet func() error

	known, strangers, refused atomic.Int64
	mu                        sync.Mutex
	vetted                    map[string]bool // connections, by the address of the other end
}

func (s *beating) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/in":
		http.SetCookie(w, &http.Cookie{Name: "sid", Value: "1", Path: "/", HttpOnly: true, MaxAge: 3600})
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, `<title>In</title><script>const beat = "setInterval(() => fetch('http://site.test/beat', {credentials: 'include'}).catch(() => 0), 10)"
			eval(beat); new Worker('/worker.js')</script>`)
	case "/worker.js":
		w.Header().Set("Content-Type", "text/javascript")
		io.WriteString(w, `setInterval(() => fetch('/beat').catch(() => 0), 10)`)
	case "/beat":
		_, err := r.Cookie("sid")
		allowed := s.allows(r.RemoteAddr)
		switch {
		case !allowed:
			s.refused.Add(1)
			w.Header().Set("Connection", "close")
			http.Error(w, "refused", http.StatusForbidden)
		case err != nil:
			s.strangers.Add(1)
		default:
			s.known.Add(1)
		}
	}
}

func (s *beating) allows(connection string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	allowed, asked := s.vetted[connection]
	if !asked {
		allowed = s.vet() == nil
		s.vetted[connection] = allowed
	}
	return allowed
}

// kill ends the processes of a type, and says how many there were.
func kill(t *testing.T, b *Browser, kind string) (n int) {
	t.Helper()
	list, err := cdp.Do(within(t, 5*time.Second), b.conn.Browser(), systeminfo.GetProcessInfo, protocol.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.ProcessInfo {
		if p.Type == kind {
			n++
			if err := syscall.Kill(int(p.ID), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// When the network process dies, Chromium goes on with another one and an empty jar. Requests of pages then come on
// connections that are known to be a stranger's. Without the question, those requests would be strangers.
func TestNoRequestPassesWithoutTheCookiesThatWereThere(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		s := &beating{vetted: map[string]bool{}}
		b := openOwn(t, build, newGateway(t, s).URL)
		s.vet = func() error { return b.Network(within(t, 15*time.Second)) }
		if err := s.vet(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if t.Failed() {
				_, marked, lost := b.network.state()
				t.Logf("%d came with the cookie, %d without, %d were refused; marked %v, lost %v", s.known.Load(), s.strangers.Load(), s.refused.Load(), marked, lost)
			}
		}()
		do[Result](t, b, Navigate{URL: site + "/in"})
		testenv.Eventually(t, 10*time.Second, func() bool { return s.known.Load() > 20 }, "the page asks with its cookie")

		// Processes that have no cookies may end.
		for _, kind := range []string{"GPU", "storage.mojom.StorageService"} {
			before := s.known.Load()
			n := kill(t, b, kind)
			testenv.Eventually(t, 10*time.Second, func() bool { return s.known.Load() > before+20 }, "the page goes on without %d %s", n, kind)
			if err := s.vet(); err != nil {
				t.Errorf("%d of %s ended: %v", n, kind, err)
			}
		}
		if got := do[Result](t, b, Navigate{URL: site + "/in?again"}); got.Title != "In" {
			t.Errorf("then the page is %+v", got)
		}

		// A page that was fetched now may not set the cookie anew: only its beats are to be seen.
		if n := kill(t, b, "network.mojom.NetworkService"); n != 1 {
			t.Fatalf("there are %d network processes", n)
		}
		testenv.Eventually(t, 10*time.Second, func() bool { return s.refused.Load() > 20 }, "the page goes on as a stranger, and is refused")
		if n := s.strangers.Load(); n != 0 {
			t.Errorf("%d requests passed without the cookie", n)
		}
		for range 2 {
			if err := s.vet(); problem.CodeOf(err) != problem.CookiesLost {
				t.Errorf("got %v", err)
			}
		}
	})
}

// Many who ask first make one mark, which nobody else sees.
func TestTheCookiesAreMarkedOnce(t *testing.T) {
	b := open(t, Shell, deadAddress(t))
	var asking sync.WaitGroup
	errs := make([]error, 20)
	for n := range errs {
		asking.Go(func() { errs[n] = b.Network(within(t, 15*time.Second)) })
	}
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	all, err := cdp.Do(within(t, 5*time.Second), b.conn.Browser(), target.GetBrowserContexts, protocol.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	id, marked, lost := b.network.state()
	if len(all.BrowserContextIDs) != 1 || string(all.BrowserContextIDs[0]) != id || !marked || lost || !b.HiddenContext(id) {
		t.Errorf("there are the contexts %v, the mark is in %q: %v, lost %v", all.BrowserContextIDs, id, marked, lost)
	}
	if shown, err := b.Contexts(within(t, 5*time.Second)); err != nil || len(shown) != 0 {
		t.Errorf("others see the contexts %v, %v", shown, err)
	}
}
