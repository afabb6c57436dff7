package llm

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
)

// whole is the handler behind the real gateway, with the real book and its database. Two agents have a jail each.
type whole struct {
	*fixture // of which only the upstream, the secrets and the log are used
	t        *testing.T
	db       *sqlite.DB
	book     *egress.Book
	addr     string
	records  *records
	touched  atomic.Int64 // connections to what must not be dialled
	inside   string       // its address
}

const (
	jailOfOne = "127.0.0.2"
	jailOfTwo = "127.0.0.3"
)

// records is the audit log of the gateway.
type records struct {
	mu   sync.Mutex
	list []gateway.Decision
}

func (r *records) Begin(_ context.Context, d gateway.Decision) (gateway.Record, error) {
	r.Refused(d)
	return r, nil
}

func (r *records) Refused(d gateway.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, d)
}

// End implements gateway.Record.
func (r *records) End(gateway.Outcome) {}

func (r *records) all() []gateway.Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]gateway.Decision(nil), r.list...)
}

// nobody stands for what the book asks only when operators change something.
type nobody struct {
	egress.Authority
	audit.Records
}

// only answers with one address, whatever the name.
type only netip.Addr

func (o only) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.Addr(o)}, nil
}

func newWhole(t *testing.T, answer http.HandlerFunc) *whole {
	t.Helper()
	w := &whole{fixture: newFixture(t, answer), t: t, records: &records{}}
	trap := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { w.touched.Add(1) }))
	trap.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			w.touched.Add(1)
		}
	}
	t.Cleanup(trap.Close)
	w.inside = trap.URL

	db, err := sqlite.Open(t.Context(), t.TempDir())
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	w.db = db
	now := time.Now()
	for _, id := range []string{"agent-1", "agent-2"} {
		must(t, db.CreateAgent(t.Context(), store.Agent{ID: id, Tenant: "default", Name: id, CreatedAt: now}))
	}
	w.book, err = egress.Open(t.Context(), egress.Options{Store: db, Identity: nobody{}, Audit: nobody{}, Now: time.Now, Recheck: 5 * time.Millisecond})
	must(t, err)
	t.Cleanup(w.book.Close)

	var handler http.Handler
	g, err := gateway.New(gateway.Config{
		Networks: func() *netguard.Networks { return netguard.NewNetworks(nil, nil) },
		Resolver: only(netip.MustParseAddr("127.0.0.1")), Records: w.records, Limits: gateway.DefaultLimits(),
		Local: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { handler.ServeHTTP(rw, r) }),
	})
	must(t, err)
	handler, err = New(Options{Book: w.book, Options: access.Options{
		Gateway: g, Views: func(c gateway.Caller) *egress.EffectivePolicy { return w.book.View(access.Who(c)) }, Secrets: w.fixture,
		Log: slog.New(slog.NewTextHandler(w.log, nil)), Now: time.Now,
	}})
	must(t, err)
	var listen net.ListenConfig
	ln, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	w.addr = ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		must(t, g.Close())
		must(t, <-served)
	})
	for jail, agent := range map[string]string{jailOfOne: "agent-1", jailOfTwo: "agent-2"} {
		must(t, g.Admit(netip.MustParseAddr(jail), gateway.Caller{
			Jail: "jail-of-" + agent, Tenant: "default", Agent: agent, Actor: "agent:" + agent, Policy: policy.Only(),
		}))
	}
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// entry writes what operators decided into the database, and waits until the book has read it.
func (w *whole) entry(kind, agent, name string, body any, there func() bool) {
	w.t.Helper()
	text, err := json.Marshal(body)
	must(w.t, err)
	now := time.Now()
	must(w.t, w.db.CreateEntry(w.t.Context(), store.Entry{
		ID: kind + "-" + name + agent, Kind: kind, Tenant: "default", Agent: agent, Name: name, Body: text, CreatedAt: now, UpdatedAt: now,
	}))
	testenv.Eventually(w.t, patience, there, "the book does not read the %s %s", kind, name)
}

// serve makes a provider whose upstream is the fixture's, at an address that only an operator can give.
func (w *whole) serve(agent string, change func(*egress.Provider)) {
	w.t.Helper()
	_, port, err := net.SplitHostPort(w.upstream.Listener.Addr().String())
	must(w.t, err)
	p := egress.Provider{
		Name: "models", Wire: egress.WireOpenAI, Models: []string{"gpt-*"}, Priority: 100,
		Upstream: egress.Upstream{BaseURL: "http://models.example:" + port, Address: netip.MustParseAddr("127.0.0.1"), Secret: "openai"},
		Prices:   []egress.Price{{Model: "*", Input: 1, Output: 2}},
	}
	if change != nil {
		change(&p)
	}
	w.entry("provider", agent, p.Name, p, func() bool {
		_, _, ok := w.book.View(egress.Who{Tenant: "default", Agent: "agent-1"}).Provider(p.Wire, "gpt-1")
		return ok
	})
}

// ask sends a request from a jail.
func (w *whole) ask(jail, path, body string) reply {
	w.t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+w.addr+path, strings.NewReader(body))
	must(w.t, err)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(jail)}}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}, Timeout: 4 * patience}
	resp, err := client.Do(r)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(all), err}
}

func TestThroughTheRealGatewayAndBook(t *testing.T) {
	w := newWhole(t, eventAnswer("text/event-stream", chatStream))
	w.serve("", nil)
	got := w.ask(jailOfOne, pathChat, `{"model":"gpt-1","stream":true}`)
	if got.status != http.StatusOK || got.err != nil || got.body != strings.Replace(chatStream, chatUsageEvent, "", 1) {
		t.Fatalf("%d %v %s", got.status, got.err, got.body)
	}
	r, _ := w.last()
	if r.Header.Get("Authorization") != "Bearer "+canary || r.URL.Path != pathChat || !strings.HasPrefix(r.Host, "models.example:") {
		t.Errorf("the provider got %s %s %v", r.Host, r.URL, r.Header)
	}
	testenv.Eventually(t, patience, func() bool { return strings.Contains(w.log.String(), "estimated=false") }, "not settled")
	usage, err := w.db.ListUsage(t.Context(), "default", "2000-01-01")
	must(t, err)
	found := false
	for _, u := range usage {
		if u.Provider == "models" {
			found = true
			if u.Agent != "agent-1" || u.Model != "gpt-1" || u.Requests != 1 || u.InputTokens != 19 || u.OutputTokens != 10 || u.MicroCost != 39 {
				t.Errorf("%+v", u)
			}
		}
	}
	if !found {
		t.Errorf("nothing was debited: %+v", usage)
	}
	if all := w.records.all(); len(all) != 1 || !all[0].Allowed || all[0].Surface != gateway.SurfaceLLM || all[0].Service != "models" || !all[0].Credential {
		t.Errorf("recorded %+v", all)
	}
}

func TestPrivateBaseURLNeedsAnAddress(t *testing.T) {
	w := newWhole(t, jsonAnswer(http.StatusOK, chatAnswer))
	port := w.inside[strings.LastIndexByte(w.inside, ':'):]
	for name, base := range map[string]string{"literal": "http://127.0.0.1" + port, "name": "http://models.example" + port, "mapped": "http://[::ffff:127.0.0.1]" + port} {
		w.entry("provider", "", name, egress.Provider{
			Name: name, Wire: egress.WireOpenAI, Models: []string{name + "-*"}, Priority: 100, Upstream: egress.Upstream{BaseURL: base, Secret: "openai"},
		}, func() bool {
			got := w.ask(jailOfOne, pathChat, `{"model":"`+name+`-1"}`)
			// An address in the base URL is not even a provider; a name is one, and where it leads is seen when it is used.
			return name == "name" && got.status == http.StatusForbidden || name != "name" && got.status == http.StatusNotFound
		})
	}
	if n := w.touched.Load(); n != 0 {
		t.Errorf("%d connections to the inside", n)
	}
	usage, err := w.db.ListUsage(t.Context(), "default", "2000-01-01")
	must(t, err)
	for _, u := range usage {
		if u.InputTokens != 0 || u.OutputTokens != 0 || u.MicroCost != 0 {
			t.Errorf("debited %+v", u)
		}
	}
	// With an address the same upstream is reached.
	w.serve("", nil)
	if got := w.ask(jailOfOne, pathChat, `{"model":"gpt-1"}`); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestDenyRulesStandBeforeProviders(t *testing.T) {
	w := newWhole(t, jsonAnswer(http.StatusOK, chatAnswer))
	w.serve("", nil)
	if got := w.ask(jailOfOne, pathChat, `{"model":"gpt-1"}`); got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.body)
	}
	w.entry("rule", "", "no-models", egress.Rule{Priority: 100, Rule: policy.Rule{
		Name: "no-models", Action: policy.Deny, Host: policy.MustParsePattern("models.example"), Ports: policy.AnyPort(),
	}}, func() bool { return w.ask(jailOfOne, pathChat, `{"model":"gpt-1"}`).status == http.StatusForbidden })
}

func TestProvidersOfOneAgentAreItsOwn(t *testing.T) {
	w := newWhole(t, jsonAnswer(http.StatusOK, chatAnswer))
	w.serve("agent-1", nil)
	if got := w.ask(jailOfOne, pathChat, `{"model":"gpt-1"}`); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := w.ask(jailOfTwo, pathChat, `{"model":"gpt-1"}`); got.status != http.StatusNotFound {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := w.ask(jailOfTwo, pathModels, ""); strings.Contains(got.body, "gpt") {
		t.Errorf("%s", got.body)
	}
}

func TestRealBudgetHolds(t *testing.T) {
	w := newWhole(t, jsonAnswer(http.StatusOK, `{"usage":{"prompt_tokens":100,"completion_tokens":300}}`))
	w.serve("", nil)
	w.entry("settings", "agent-1", "settings", egress.Settings{Budget: egress.Budget{TokensPerDay: 2000}}, func() bool {
		return w.book.View(egress.Who{Tenant: "default", Agent: "agent-1"}).Settings().Budget.TokensPerDay == 2000
	})
	passed := 0
	for range 6 {
		got := w.ask(jailOfOne, pathChat, `{"model":"gpt-1","max_tokens":200}`)
		switch {
		case got.status == http.StatusOK:
			passed++
		case got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "budget_exceeded"):
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	// Two cost 400 each, and a third may cost more than what is left.
	if passed != 2 || w.reached() != passed {
		t.Errorf("%d requests passed, %d reached the provider", passed, w.reached())
	}
	if got := w.ask(jailOfTwo, pathChat, `{"model":"gpt-1"}`); got.status != http.StatusOK {
		t.Errorf("another agent: %d %s", got.status, got.body)
	}
}

func TestEventsArriveInTimeThroughTheRealGateway(t *testing.T) {
	s := newStepped("text/event-stream", events(chatStream)...)
	w := newWhole(t, s.serve)
	w.serve("", nil)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.addr+pathChat,
		strings.NewReader(`{"model":"gpt-1","stream":true,"stream_options":{"include_usage":true}}`))
	must(t, err)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(jailOfOne)}}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}
	resp, err := transport.RoundTrip(r)
	must(t, err)
	defer resp.Body.Close()
	for _, piece := range s.pieces {
		s.next <- struct{}{}
		readExactly(t, resp.Body, piece)
	}
}
