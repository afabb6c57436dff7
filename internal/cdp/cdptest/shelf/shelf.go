//go:build unix

// Package shelf lends browsers to tests, one after the other: to start one costs more than most tests do with it. A test has one
// for itself, before a proxy of its own. Afterwards all that a test can leave is taken away. One for which that does not work, or
// whose test has failed, is ended. Only tests import it.
package shelf

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	devtools "github.com/chromedp/cdproto/browser"
	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/storage"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Shelf has the unused browsers. An empty one is good as it is. [Tests] end it.
type Shelf struct {
	mu   sync.Mutex
	idle map[string][]*Browser
}

// maxIdle bounds the unused ones of one kind.
const maxIdle = 2

// Browser is a browser that outlives the test that has started it.
type Browser struct {
	Conn *cdp.Conn
	Mux  *cdp.Mux
	// Proxy is the way out of the browser, where it was started with one. It leads nowhere until the test says where.
	Proxy *testenv.Relay

	shelf *Shelf
	kind  string
	ends  []func() // what the helpers that started it leave to be done
	plug  *plug
}

// lasting is a test for helpers whose work outlives it.
type lasting struct {
	testing.TB
	b *Browser
}

func (l lasting) Cleanup(end func()) { l.b.ends = append(l.b.ends, end) }

// Failed is about a test that is over by then.
func (l lasting) Failed() bool { return false }

// Take is an unused browser of a kind, or one that start has started, before the proxy that it is given. The test of
// start is over when the browser is ended. The caller returns it.
func (s *Shelf) Take(t testing.TB, kind string, start func(t testing.TB, proxy string) *cdptest.Browser) *Browser {
	t.Helper()
	for b := s.pick(kind); b != nil; b = s.pick(kind) {
		if b.Conn.Err() == nil {
			return b
		}
		b.end()
	}
	b := &Browser{shelf: s, kind: kind}
	ready := false
	defer func() {
		if !ready {
			b.end()
		}
	}()
	b.Proxy = testenv.NewRelay(lasting{t, b}, nil)
	process := start(lasting{t, b}, "http://"+b.Proxy.Addr())
	var err error
	if b.Conn, err = cdp.New(process.Replies, process.Commands, cdp.Options{}); err != nil {
		t.Fatal(err)
	}
	b.Mux = cdp.NewMux(b.Conn)
	ready = true
	return b
}

func (s *Shelf) pick(kind string) *Browser {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.idle[kind]
	if len(all) == 0 {
		return nil
	}
	b := all[len(all)-1]
	s.idle[kind] = all[:len(all)-1]
	return b
}

// put has one that is tidy lent again.
func (s *Shelf) put(b *Browser) {
	s.mu.Lock()
	full := len(s.idle[b.kind]) >= maxIdle
	if !full {
		if s.idle == nil {
			s.idle = make(map[string][]*Browser)
		}
		s.idle[b.kind] = append(s.idle[b.kind], b)
	}
	s.mu.Unlock()
	if full {
		b.end()
	}
}

// Tests are those of a package that lends browsers from a shelf. It is ended after them.
type Tests struct {
	*testing.M
	Shelf *Shelf
}

// Run runs them.
func (t Tests) Run() int {
	defer t.Shelf.End()
	return t.M.Run()
}

// End kills the unused browsers.
func (s *Shelf) End() {
	s.mu.Lock()
	all := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, kind := range all {
		for _, b := range kind {
			b.end()
		}
	}
}

// end kills the browser. It may be called more than once.
func (b *Browser) end() {
	if b.Conn != nil {
		_, _ = b.Conn.Close(), b.Mux.Close() // the browser goes, which is the only thing that they could say
	}
	for n := len(b.ends) - 1; n >= 0; n-- {
		b.ends[n]()
	}
	b.ends = nil
}

// Return gives the browser back. Its test has closed by then what it attached.
func (b *Browser) Return(t testing.TB) {
	t.Helper()
	detached := b.unplug()
	if t.Failed() {
		b.end()
		return
	}
	if err := errors.Join(detached, b.tidy()); err != nil {
		t.Logf("the browser is not lent again: %v", err)
		b.end()
		return
	}
	b.shelf.put(b)
}

// plug is a client of the browser that looks like the pipe of one.
type plug struct {
	client   *cdp.Client
	commands *os.File // that the client sends
	replies  *os.File // where what it receives goes
	tasks    sync.WaitGroup
}

// Pipe is a pipe to the browser with a browser session of its own, as if the browser were the caller's alone. The caller closes
// both ends, which ends nothing but them. There is one at a time, until the browser is returned.
func (b *Browser) Pipe(t testing.TB) (replies, commands *os.File) {
	t.Helper()
	p := new(plug)
	var err error
	if p.client, err = b.Mux.Attach(context.Background(), cdp.ClientOptions{}); err == nil {
		if p.commands, commands, err = os.Pipe(); err == nil {
			replies, p.replies, err = os.Pipe()
		}
	}
	if err != nil {
		b.end()
		t.Fatal(err)
	}
	p.tasks.Go(func() {
		for in := bufio.NewReader(p.commands); ; {
			frame, err := in.ReadBytes(0)
			if err != nil || p.client.Send(context.Background(), frame[:len(frame)-1]) != nil {
				return
			}
		}
	})
	p.tasks.Go(func() {
		defer p.replies.Close()
		for {
			frame, err := p.client.Receive(context.Background())
			if err != nil {
				return
			}
			if _, err := p.replies.Write(append(frame, 0)); err != nil {
				return
			}
		}
	})
	b.plug = p
	return replies, commands
}

func (b *Browser) unplug() error {
	p := b.plug
	if p == nil {
		return nil
	}
	b.plug = nil
	err := p.client.Close()
	_, _ = p.commands.Close(), p.replies.Close() // closed already, where the other end has gone first
	p.tasks.Wait()
	return err
}

// tidy takes away what a test has left: its pages, contexts, cookies, files and connections.
func (b *Browser) tidy() error {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience*5*time.Second)
	defer cancel()
	defer b.Proxy.Lead("")
	root := b.Conn.Browser()
	// Before the others go: full Chromium exits with its last window.
	fresh, err := cdp.Do(ctx, root, target.CreateTarget, target.CreateTargetParams{URL: "about:blank"})
	if err != nil {
		return err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left, err := b.left(ctx, fresh.TargetID)
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
	return errors.Join(b.forget(ctx, fresh.TargetID), root.Call(ctx, devtools.ResetPermissions.Method, nil, nil))
}

// left lists the pages but one, and those that are parts of the browser's window, which cannot be closed.
func (b *Browser) left(ctx context.Context, but target.ID) (ids []target.ID, err error) {
	all, err := cdp.Do(ctx, b.Conn.Browser(), target.GetTargets, target.GetTargetsParams{Filter: target.Filter{{Type: "page"}, {Exclude: true}}})
	if err != nil {
		return nil, err
	}
	for _, info := range all.TargetInfos {
		host, _, _ := strings.Cut(strings.TrimPrefix(info.URL, "chrome://"), "/")
		if info.TargetID != but && !strings.HasSuffix(host, ".top-chrome") {
			ids = append(ids, info.TargetID)
		}
	}
	return ids, nil
}

// forget empties what the browser keeps, by a page.
func (b *Browser) forget(ctx context.Context, id target.ID) error {
	root := b.Conn.Browser()
	page, err := root.Attach(ctx, id)
	if err != nil {
		return err
	}
	_, stored := cdp.Do(ctx, page, storage.ClearDataForOrigin, storage.ClearDataForOriginParams{Origin: "*", StorageTypes: "all"})
	_, jar := cdp.Do(ctx, page, storage.ClearCookies, storage.ClearCookiesParams{})
	_, cached := cdp.Do(ctx, page, network.ClearBrowserCache, protocol.Empty{})
	return errors.Join(stored, jar, cached, root.Detach(ctx, page))
}
