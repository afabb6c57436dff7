package gateway

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// keeper knows addresses that the gateway does not.
type keeper struct {
	w     *fixture
	known map[string]policy.Policy
	asked atomic.Int64
	hold  chan struct{} // answers wait for it, if there is one
}

func (k *keeper) ask(ctx context.Context, addr netip.Addr) bool {
	k.asked.Add(1)
	if k.hold != nil {
		select {
		case <-k.hold:
		case <-ctx.Done():
			return false
		}
	}
	p, known := k.known[addr.String()]
	if known {
		k.w.admit(addr.String(), p)
	}
	return known
}

func newKeeperFixture(t *testing.T, known map[string]policy.Policy, options ...option) (*fixture, *keeper) {
	t.Helper()
	k := &keeper{known: known}
	k.w = newFixture(t, append(options, func(c *Config) { c.Unknown = k.ask })...)
	return k.w, k
}

// unknown is how many connections of addresses that are not admitted are counted.
func (w *fixture) strangers() (n int) {
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	for l := range w.g.listeners {
		l.mu.Lock()
		n += l.unknown
		l.mu.Unlock()
	}
	return n
}

func TestAnAddressThatIsNotKnownIsAskedAboutBeforeItIsRefused(t *testing.T) {
	needLoopbacks(t)
	s := web(t, func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "hello") })
	w, k := newKeeperFixture(t, map[string]policy.Policy{jailA: policy.PublicWeb()})
	w.public("web.example", "93.184.216.2", s.Listener.Addr())
	resp, body := w.raw(jailA, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n")
	if resp.StatusCode != http.StatusOK || body != "hello" || !resp.Close {
		t.Errorf("the first request of a new jail: %d %q, closed %t", resp.StatusCode, body, resp.Close)
	}
	if resp, body := w.raw(jailA, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n"); resp.StatusCode != http.StatusOK {
		t.Errorf("the second: %d %q", resp.StatusCode, body)
	}
	if n := k.asked.Load(); n != 1 {
		t.Errorf("it was asked %d times about one address", n)
	}
	if a, ok := w.g.Activity(netip.MustParseAddr(jailA)); !ok || a.Requests != 2 {
		t.Errorf("activity %+v, %t: both requests are the jail's", a, ok)
	}
	testenv.Eventually(t, patience, func() bool { a, _ := w.g.Activity(netip.MustParseAddr(jailA)); return a.Open == 0 }, "a connection stays in the books")
	testenv.Eventually(t, patience, func() bool { return w.strangers() == 0 }, "it is counted among the strangers for good")
}

func TestAStrangerThatNobodyKnowsIsRefusedAndNotAskedAboutAgainAtOnce(t *testing.T) {
	needLoopbacks(t)
	var now atomic.Int64
	w, k := newKeeperFixture(t, nil, func(c *Config) {
		c.Now = func() time.Time { return time.Unix(1_800_000_000, now.Load()) }
	})
	for range 3 {
		resp, body := w.raw(jailA, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n")
		if code, _ := refusal(t, resp, body); code != problem.UnknownCaller {
			t.Errorf("code %s", code)
		}
	}
	if n := k.asked.Load(); n != 1 {
		t.Errorf("three requests asked %d times", n)
	}
	now.Add(int64(askPatience))
	w.raw(jailA, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n")
	w.raw(jailB, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n")
	if n := k.asked.Load(); n != 3 {
		t.Errorf("later, and another address: asked %d times", n)
	}
}

func TestOneQuestionIsForAllThatWait(t *testing.T) {
	needLoopbacks(t)
	w, k := newKeeperFixture(t, nil)
	k.hold = make(chan struct{})
	var all sync.WaitGroup
	for range 5 {
		c := w.dial(jailA)
		all.Go(func() {
			_, _ = io.WriteString(c, "GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\n\r\n")
			_, _ = io.ReadAll(c)
		})
	}
	testenv.Eventually(t, patience, func() bool { return k.asked.Load() == 1 }, "nobody asks")
	close(k.hold)
	all.Wait()
	if n := k.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestForgettingEndsWhatAStrangerHasOpenSinceItWasKnown(t *testing.T) {
	needLoopbacks(t)
	w, _ := newKeeperFixture(t, map[string]policy.Policy{jailA: policy.PublicWeb(policy.Rule{Name: "raw", Action: policy.Allow,
		Host: policy.MustParsePattern("tunnel.example"), Ports: policy.Ports(443), Opaque: true})})
	w.public("tunnel.example", "93.184.216.1", server(t, echo).Addr())
	began, finish := make(chan struct{}), make(chan struct{})
	s := web(t, func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		select {
		case <-finish:
		case <-r.Context().Done():
		}
	})
	defer close(finish)
	w.public("web.example", "93.184.216.2", s.Listener.Addr())
	waiting := w.dial(jailA)
	if _, err := io.WriteString(waiting, "GET http://web.example/wait HTTP/1.1\r\nHost: web.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-began
	_, tunnel := w.connect(jailA, "tunnel.example:443")
	if err := w.g.Forget(netip.MustParseAddr(jailA), ""); err != nil {
		t.Fatal(err)
	}
	closedSoon(t, "the request of the stranger that was known", bufio.NewReader(waiting))
	closedSoon(t, "the tunnel", tunnel)
}
