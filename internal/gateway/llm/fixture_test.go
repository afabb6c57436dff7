package llm

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/vault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// canary is the key in the vault.
const canary = "sk-canary-0123456789abcdef"

const patience = 5 * time.Second

// headerRefusal has the code of a refusal.
const headerRefusal = gateway.HeaderRefusal

// fixture is a handler with a provider behind it and an agent in front of it.
type fixture struct {
	*Handler
	t        testing.TB
	upstream *httptest.Server
	front    *httptest.Server
	caller   gateway.Caller
	log      *testenv.Buffer
	book     *fakeBook
	secrets  map[vault.SecretName]string

	mu        sync.Mutex
	providers []egress.Provider
	requests  []*http.Request // what the provider got, bodies read
	bodies    []string
	errands   []gateway.OutboundRequest
	answer    http.HandlerFunc
	refusal   *problem.Error                     // of Send, before anything is sent
	limited   *problem.Error                     // of Take
	fail      func(*http.Request) *problem.Error // of Send, when the key is in
	used      []vault.SecretName
	now       time.Time // zero: the real one
}

// fakeBook adds up, and refuses what would go beyond its limit as the real one does.
type fakeBook struct {
	mu      sync.Mutex
	limit   int64 // tokens; 0 is none
	sum     int64
	cost    int64
	charges []charge
	err     error
	day     string
}

type charge struct {
	who             egress.Who
	provider, model string
	requests        int64
	egress.Tokens
}

func (b *fakeBook) Day() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.day
}

func (b *fakeBook) Charge(ctx context.Context, w egress.Who, provider, model string, requests int64, t egress.Tokens) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if amount := t.Input + t.Output; requests > 0 && b.limit > 0 && (b.sum >= b.limit || b.sum+amount > b.limit) {
		return problem.New(problem.BudgetExceeded, "it is whole again tomorrow", "the budget of the day is used up")
	}
	b.charges = append(b.charges, charge{w, provider, model, requests, t})
	b.sum = max(b.sum+t.Input+t.Output, 0)
	b.cost = max(b.cost+t.MicroCost, 0)
	return nil
}

// total is what has been debited in the end.
func (b *fakeBook) total() (out egress.Tokens) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.charges {
		out.Input += c.Input
		out.Output += c.Output
		out.MicroCost += c.MicroCost
	}
	return out
}

func (b *fakeBook) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.charges)
}

// fakeView has the providers that are the agent's or everybody's.
type fakeView struct {
	w     *fixture
	agent string
}

func (v fakeView) Providers() (out []egress.Provider) {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	for _, p := range v.w.providers {
		if p.Agent == "" || p.Agent == v.agent {
			out = append(out, p)
		}
	}
	return out
}

func (v fakeView) Provider(wire egress.Wire, model string) (egress.Provider, *policy.Compiled, bool) {
	for _, p := range v.Providers() {
		for _, pattern := range p.Models {
			if p.Wire == wire && matches(pattern, model) {
				return p, &policy.Compiled{}, true
			}
		}
	}
	return egress.Provider{}, nil, false
}

// fakeGateway sends to the upstream without any of the gateway's checks.
type fakeGateway struct{ w *fixture }

func (g fakeGateway) Take(gateway.Caller, gateway.Surface) *problem.Error {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	return g.w.limited
}

func (g fakeGateway) Send(ctx context.Context, e gateway.OutboundRequest, r *http.Request) (*http.Response, *problem.Error) {
	g.w.mu.Lock()
	g.w.errands = append(g.w.errands, e)
	refusal := g.w.refusal
	g.w.mu.Unlock()
	if refusal != nil {
		return nil, refusal
	}
	out := r.Clone(ctx)
	if err := e.Inject(out); err != nil {
		return nil, problem.Wrap(err, problem.Internal, "", "inject")
	}
	if g.w.fail != nil {
		return nil, g.w.fail(out)
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	resp, err := transport.RoundTrip(out)
	if err != nil {
		return nil, problem.Wrap(err, problem.UpstreamUnreachable, "", "the provider does not answer")
	}
	return resp, nil
}

// UseSecret has the agent's own secret, or the tenant's.
func (w *fixture) UseSecret(_ context.Context, n vault.SecretName, _ vault.Destination, use func(secret.Value) error) error {
	w.mu.Lock()
	text, ok := w.secrets[n]
	if !ok {
		text, ok = w.secrets[vault.SecretName{Tenant: n.Tenant, Service: n.Service}]
	}
	w.mu.Unlock()
	if !ok {
		return problem.New(problem.NotFound, "", "there is no secret of the service %s", n.Service)
	}
	v := secret.New([]byte(text))
	defer v.Wipe()
	return use(v)
}

// newFixture makes a fixture with a provider per wire, whose upstream answers with answer.
func newFixture(t testing.TB, answer http.HandlerFunc) *fixture {
	t.Helper()
	w := &fixture{
		t: t, log: &testenv.Buffer{}, book: &fakeBook{}, answer: answer,
		caller:  gateway.Caller{Jail: "bot-jail", Tenant: "default", Agent: "agent-1", Actor: "agent:agent-1"},
		secrets: map[vault.SecretName]string{},
	}
	w.upstream = httptest.NewServer(http.HandlerFunc(w.serveUpstream))
	for _, wire := range []egress.Wire{egress.WireOpenAI, egress.WireAnthropic, egress.WireOllama} {
		w.providers = append(w.providers, egress.Provider{
			Meta: egress.Meta{ID: "id-" + string(wire), Version: 1}, Name: string(wire), Wire: wire,
			Upstream: egress.Upstream{BaseURL: w.upstream.URL}, Models: []string{string(wire) + "-*"},
			Prices: []egress.Price{{Model: "*-mini", Input: 1, Output: 2}, {Model: "*", Input: 10, Output: 30}},
		})
		w.secrets[vault.SecretName{Tenant: "default", Service: string(wire)}] = canary
	}
	h, err := New(Options{Book: w.book, Options: access.Options{
		Gateway: fakeGateway{w}, Views: func(gateway.Caller) *egress.EffectivePolicy { return nil }, Secrets: w,
		Used: func(n vault.SecretName) { w.mu.Lock(); w.used = append(w.used, n); w.mu.Unlock() },
		Log:  slog.New(slog.NewTextHandler(w.log, nil)), Now: w.clock,
	}})
	if err != nil {
		t.Fatal(err)
	}
	h.views = func(c gateway.Caller) view { return fakeView{w, c.Agent} }
	w.Handler = h
	w.front = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		c := w.caller
		w.mu.Unlock()
		h.ServeHTTP(rw, r.WithContext(gateway.WithCaller(r.Context(), c)))
	}))
	t.Cleanup(func() {
		w.front.Close()
		w.upstream.Close()
	})
	return w
}

func (w *fixture) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now.IsZero() {
		return time.Now()
	}
	return w.now
}

func (w *fixture) serveUpstream(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.mu.Lock()
	w.requests = append(w.requests, r)
	w.bodies = append(w.bodies, string(body))
	answer := w.answer
	w.mu.Unlock()
	answer(rw, r)
}

func (w *fixture) provider(wire egress.Wire, change func(*egress.Provider)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.providers {
		if w.providers[i].Wire == wire {
			change(&w.providers[i])
		}
	}
}

// reached is how many requests came to the provider.
func (w *fixture) reached() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.requests)
}

// last is the last request that the provider got, and its body.
func (w *fixture) last() (*http.Request, string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.requests) == 0 {
		w.t.Fatal("the provider got no request")
	}
	return w.requests[len(w.requests)-1], w.bodies[len(w.bodies)-1]
}

// reply is an answer that the agent got.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (w *fixture) request(method, path, body string, headers ...string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.front.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body == "" {
		r.Body = http.NoBody
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func (w *fixture) do(method, path, body string, headers ...string) reply {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * patience}
	resp, err := client.Do(w.request(method, path, body, headers...))
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(all), err}
}

func (w *fixture) post(path, body string, headers ...string) reply {
	w.t.Helper()
	return w.do(http.MethodPost, path, body, headers...)
}

// jsonAnswer answers with a body.
func jsonAnswer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// eventAnswer answers with a stream.
func eventAnswer(kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		fmt.Fprint(w, body)
	}
}

func chatBody(model string) string {
	return `{"model":"` + model + `","messages":[{"role":"user","content":"hi"}]}`
}

// askBody asks for a model at an endpoint.
func askBody(path, model string) string {
	switch path {
	case pathResponses, "/v1/embeddings":
		return `{"model":"` + model + `","input":"hi"}`
	case "/api/generate":
		return `{"model":"` + model + `","prompt":"hi"}`
	}
	return chatBody(model)
}
