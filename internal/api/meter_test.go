package api

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// smallMeters leaves room for 8 MiB of bodies and answers, 4 for a tenant and 2 for an agent, and one more for strangers.
func smallMeters() *meters {
	return &meters{
		known: quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: 8 << 20, Agent: 2 << 20,
			Quotas: config.Quotas{Tenant: 50, Agent: 100}, Tenants: func() int { return 2 }}),
		unknown: quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: 1 << 20}),
	}
}

// metering serves requests of whoever is named, or of a stranger: it reads the body, waits, and answers.
type metering struct {
	*fixture
	t       *testing.T
	handler http.Handler
	read    chan error    // what came of reading each body
	release chan struct{} // closed: the requests end
	served  sync.WaitGroup
}

func newMetering(t *testing.T, answer []byte) *metering {
	w := newFixture(t)
	w.meters = smallMeters()
	m := &metering{fixture: w, t: t, read: make(chan error, 100), release: make(chan struct{})}
	m.handler = w.metered(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if who := r.Header.Get("Who"); who != "" {
			by, err := w.identity.Authenticate(r.Context(), w.keys[who], netip.Addr{})
			if err != nil {
				t.Error(err)
				return
			}
			leave, err := w.identity.Enter(r.Context(), by, func(error) {})
			if err != nil {
				t.Error(err)
				return
			}
			defer leave()
		}
		_, err := io.ReadAll(r.Body)
		m.read <- err
		if err != nil {
			out.WriteHeader(http.StatusBadRequest) // as a handler does that knows no better
			return
		}
		if answer == nil {
			<-m.release
		}
		out.WriteHeader(http.StatusOK)
		_, _ = out.Write(answer)
	}))
	return m
}

// send serves a request, and says whether its body was read. Its answer comes later.
func (m *metering) send(who string, body int, out http.ResponseWriter) error {
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(make([]byte, body)))
	r.Header.Set("Who", who)
	m.served.Go(func() { m.handler.ServeHTTP(out, r) })
	return <-m.read
}

func (m *metering) nothingIsHeld() {
	m.t.Helper()
	for _, gate := range []*quota.Gate{m.meters.known, m.meters.unknown} {
		if a := gate.Amounts(quota.Holder{}); a[0].Held.All != 0 {
			m.t.Errorf("%d bytes are counted at the end", a[0].Held.All)
		}
	}
}

func TestBodiesOfOneAgentAndOneTenantLeaveMemoryForOthers(t *testing.T) {
	m := newMetering(t, nil)
	fill := func(who string) (n int) {
		for ; n < 20; n++ {
			out := httptest.NewRecorder()
			if err := m.send(who, 1<<20, out); err != nil {
				if problem.CodeOf(err) != problem.RateLimited {
					t.Errorf("%s: %v", who, err)
				}
				return n
			}
		}
		t.Fatalf("%s sends as much as it wants", who)
		return n
	}
	if n := fill("acme agent"); n != 2 {
		t.Errorf("an agent has %d bodies of a MiB in memory", n)
	}
	if n := fill("acme operator"); n != 2 {
		t.Errorf("its operator has %d more", n)
	}
	if err := m.send("acme operator", meterStep, httptest.NewRecorder()); err != nil {
		t.Errorf("a small body: %v", err)
	}
	if n := fill("beta operator"); n != 4 {
		t.Errorf("another tenant has %d", n)
	}
	out := httptest.NewRecorder()
	if err := m.send("acme agent", 1<<20, out); err == nil {
		t.Error("there is room again")
	}
	close(m.release)
	m.served.Wait()
	if out.Code != http.StatusTooManyRequests || !strings.Contains(out.Body.String(), problem.RateLimited) {
		t.Errorf("it is told %d %s", out.Code, out.Body)
	}
	m.nothingIsHeld()
}

// Who has shown no key has room of their own for bodies and answers, and takes none of others.
func TestStrangersTakeNoMemoryOfOthers(t *testing.T) {
	m := newMetering(t, nil)
	ask := func(body int) error { return m.send("", body, httptest.NewRecorder()) }
	if err := ask(1 << 20); err != nil {
		t.Errorf("a stranger's first body: %v", err)
	}
	for range 10 {
		if err := ask(1 << 20); problem.CodeOf(err) != problem.RateLimited {
			t.Errorf("a stranger more: %v", err)
		}
	}
	if err := ask(meterStep); err != nil {
		t.Errorf("a stranger's small body: %v", err)
	}
	for _, who := range []string{"admin", "admin", "admin", "admin", "beta operator", "beta operator", "beta operator", "beta operator"} {
		if err := m.send(who, 1<<20, httptest.NewRecorder()); err != nil {
			t.Errorf("%s: %v", who, err)
		}
	}
	close(m.release)
	m.served.Wait()
	m.nothingIsHeld()
}

// stuck takes no piece of an answer until it is released.
type stuck struct {
	*httptest.ResponseRecorder
	came, release chan struct{}
}

func (s stuck) Write(b []byte) (int, error) {
	s.came <- struct{}{}
	<-s.release
	return s.ResponseRecorder.Write(b)
}

func TestAnswersThatNobodyTakesLeaveMemoryForOthers(t *testing.T) {
	m := newMetering(t, make([]byte, 1<<20))
	release := make(chan struct{})
	ask := func(who string) (*httptest.ResponseRecorder, chan struct{}) {
		out := stuck{httptest.NewRecorder(), make(chan struct{}, 1), release}
		if err := m.send(who, 0, out); err != nil {
			t.Fatal(err)
		}
		return out.ResponseRecorder, out.came
	}
	for range 2 {
		_, came := ask("acme agent")
		<-came
	}
	refused, came := ask("acme agent")
	<-came // it is told something, too
	other, came := ask("beta operator")
	<-came
	close(release)
	m.served.Wait()
	if refused.Code != http.StatusTooManyRequests || refused.Body.Len() > 1000 {
		t.Errorf("a third answer is %d, with %d bytes", refused.Code, refused.Body.Len())
	}
	if other.Code != http.StatusOK || other.Body.Len() != 1<<20 {
		t.Errorf("another tenant's is %d, with %d bytes", other.Code, other.Body.Len())
	}
	m.nothingIsHeld()
}
