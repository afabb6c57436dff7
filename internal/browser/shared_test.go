//go:build unix

package browser

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	devtools "github.com/chromedp/cdproto/browser"
	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/storage"
	"github.com/chromedp/cdproto/systeminfo"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/testenv"
)

// shelf has the browsers that tests use one after the other: to start one costs more than most tests do with it. A test has one
// for itself, with a browser session of its own, before a proxy of its own. Afterwards all that a test can leave is taken away.
// One for which that does not work, or whose test has failed, is ended.
type shelf struct {
	mu   sync.Mutex
	idle map[Build][]*lent
}

// browsers are lent by open. TestMain ends them.
var browsers shelf

// mostIdle bounds those of one build that nobody uses.
const mostIdle = 2

// lent is a browser that outlives the test that has started it.
type lent struct {
	build Build
	conn  *cdp.Conn
	mux   *cdp.Mux
	road  *road
	ends  []func() // what the helpers that started it leave to be done
}

// lasting is a test for helpers whose work outlives it.
type lasting struct {
	testing.TB
	l *lent
}

func (k lasting) Cleanup(end func()) { k.l.ends = append(k.l.ends, end) }

// Failed is about a test that is over by then.
func (k lasting) Failed() bool { return false }

// take is one from the shelf, or a new one.
func (s *shelf) take(t testing.TB, build Build) *lent {
	t.Helper()
	for {
		l := s.pick(build)
		if l == nil {
			break
		}
		if l.conn.Err() == nil {
			return l
		}
		l.end()
	}
	l := &lent{build: build}
	l.road = newRoad(t)
	l.ends = append(l.ends, l.road.end)
	ready := false
	defer func() {
		if !ready {
			l.end()
		}
	}()
	l.conn, _, _ = launch(lasting{t, l}, build, "http://"+l.road.listener.Addr().String())
	l.mux = cdp.NewMux(l.conn)
	ready = true
	return l
}

func (s *shelf) pick(build Build) *lent {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.idle[build]
	if len(all) == 0 {
		return nil
	}
	l := all[len(all)-1]
	s.idle[build] = all[:len(all)-1]
	return l
}

// put gives one back that is tidy.
func (s *shelf) put(l *lent) {
	s.mu.Lock()
	full := len(s.idle[l.build]) >= mostIdle
	if !full {
		if s.idle == nil {
			s.idle = make(map[Build][]*lent)
		}
		s.idle[l.build] = append(s.idle[l.build], l)
	}
	s.mu.Unlock()
	if full {
		l.end()
	}
}

func (s *shelf) end() {
	for _, build := range []Build{Shell, Full} {
		for l := s.pick(build); l != nil; l = s.pick(build) {
			l.end()
		}
	}
}

// end kills the browser.
func (l *lent) end() {
	for n := len(l.ends) - 1; n >= 0; n-- {
		l.ends[n]()
	}
	if l.mux != nil {
		_ = l.mux.Close() // the browser is gone, which is the only thing that it could say
	}
}

// open lends a browser that is as if it had just been started with a proxy. What ends a browser, breaks it or asks how it
// starts takes one of its own, by openOwn.
func open(t testing.TB, build Build, proxy string) *Browser {
	t.Helper()
	testenv.Time(t)
	if _, measured := t.(*testing.B); measured {
		return openOwn(t, build, proxy) // without what the lending takes
	}
	l := browsers.take(t, build)
	at, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	l.road.lead(at.Host)
	client, err := l.mux.Attach(context.Background(), cdp.ClientOptions{})
	if err != nil {
		l.end()
		t.Fatal(err)
	}
	conn, wait := connect(t, client)
	t.Cleanup(func() {
		detached := errors.Join(conn.Close(), client.Close())
		wait()
		if t.Failed() {
			l.end()
			return
		}
		if err := errors.Join(detached, l.tidy()); err != nil {
			t.Logf("the browser is not lent again: %v", err)
			l.end()
			return
		}
		browsers.put(l)
	})
	b, err := Open(within(t, 30*time.Second), conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close() // so that the browser stays
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// connect is a connection to a browser by a client of it, as if the client were its pipe. wait waits for what carries its
// messages, when both are closed.
func connect(t testing.TB, client *cdp.Client) (conn *cdp.Conn, wait func()) {
	t.Helper()
	commands, theirCommands := io.Pipe()
	theirReplies, replies := io.Pipe()
	conn, err := cdp.New(theirReplies, theirCommands, cdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		defer commands.Close()
		for in := bufio.NewReader(commands); ; {
			frame, err := in.ReadBytes(0)
			if err != nil || client.Send(context.Background(), frame[:len(frame)-1]) != nil {
				return
			}
		}
	})
	tasks.Go(func() {
		defer replies.Close()
		for {
			frame, err := client.Receive(context.Background())
			if err != nil {
				return
			}
			if _, err := replies.Write(append(frame, 0)); err != nil {
				return
			}
		}
	})
	return conn, tasks.Wait
}

// tidy takes away what a test has left: its pages, contexts, cookies, files and connections.
func (l *lent) tidy() error {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience*5*time.Second)
	defer cancel()
	defer l.road.lead("")
	root := l.conn.Browser()
	// Before the others go: full Chromium exits with its last window.
	fresh, err := cdp.Do(ctx, root, target.CreateTarget, target.CreateTargetParams{URL: blank})
	if err != nil {
		return err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left, err := l.left(ctx, fresh.TargetID)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		for _, id := range left {
			// An error means that it is gone already.
			_, _ = cdp.Do(ctx, root, target.CloseTarget, target.CloseTargetParams{TargetID: id})
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("close %d pages: %w", len(left), context.Cause(ctx))
		}
	}
	// Chromium ends itself a minute after a context that was disposed of before a hidden page of it.
	contexts, err := cdp.Do(ctx, root, target.GetBrowserContexts, protocol.Empty{})
	if err != nil {
		return err
	}
	for _, id := range contexts.BrowserContextIDs {
		if _, err := cdp.Do(ctx, root, target.DisposeBrowserContext, target.DisposeBrowserContextParams{BrowserContextID: id}); err != nil {
			return err
		}
	}
	return errors.Join(l.forget(ctx, fresh.TargetID), root.Call(ctx, devtools.ResetPermissions.Method, nil, nil))
}

// left lists the pages but one.
func (l *lent) left(ctx context.Context, but target.ID) (ids []target.ID, err error) {
	all, err := cdp.Do(ctx, l.conn.Browser(), target.GetTargets, target.GetTargetsParams{Filter: pagesOnly()})
	if err != nil {
		return nil, err
	}
	for _, info := range all.TargetInfos {
		if info.TargetID != but && !ofWindow(info.URL) {
			ids = append(ids, info.TargetID)
		}
	}
	return ids, nil
}

// forget empties what the browser keeps, by a page.
func (l *lent) forget(ctx context.Context, id target.ID) error {
	root, flatten := l.conn.Browser(), true
	attached, err := cdp.Do(ctx, root, target.AttachToTarget, target.AttachToTargetParams{TargetID: id, Flatten: &flatten})
	if err != nil {
		return err
	}
	page := l.conn.Session(string(attached.SessionID))
	_, stored := cdp.Do(ctx, page, storage.ClearDataForOrigin, storage.ClearDataForOriginParams{Origin: "*", StorageTypes: "all"})
	_, jar := cdp.Do(ctx, page, storage.ClearCookies, storage.ClearCookiesParams{})
	_, cached := cdp.Do(ctx, page, network.ClearBrowserCache, protocol.Empty{})
	_, err = cdp.Do(ctx, root, target.DetachFromTarget, target.DetachFromTargetParams(attached))
	return errors.Join(stored, jar, cached, err)
}

// road is the proxy of a browser that is lent: all that comes goes on to the proxy of the test that has the browser.
type road struct {
	listener net.Listener
	tasks    sync.WaitGroup

	mu     sync.Mutex
	to     string // empty: nowhere
	coming map[net.Conn]struct{}
}

func newRoad(t testing.TB) *road {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &road{listener: listener, coming: make(map[net.Conn]struct{})}
	r.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.tasks.Go(func() { r.carry(conn) })
		}
	})
	return r
}

// lead has what comes from now on go to an address, and ends what has come before.
func (r *road) lead(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	for conn := range r.coming {
		conn.Close()
	}
}

func (r *road) carry(conn net.Conn) {
	defer conn.Close()
	r.mu.Lock()
	to := r.to
	r.coming[conn] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.coming, conn)
	}()
	if to == "" {
		return
	}
	onward, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer onward.Close()
	r.tasks.Go(func() {
		defer onward.Close()
		_, _ = io.Copy(onward, conn) // an end is an end, whatever its reason
	})
	_, _ = io.Copy(conn, onward)
}

func (r *road) end() {
	r.listener.Close()
	r.lead("")
	r.tasks.Wait()
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
