//go:build linux

package task

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/browser/browsertest"
	"github.com/clawjail/clawjail/internal/cdp/cdptest/shelf"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/auditlog"
	"github.com/clawjail/clawjail/internal/gateway/llm"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/servicetest"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/vault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(shelf.Tests{M: m, Shelf: &browsers}) }

// browsers are lent to the sessions of the tests.
var browsers shelf.Shelf

const (
	providerKey = "sk-canary-of-the-provider-1234567890"
	cookieValue = "canary-of-a-cookie-0987654321"
	limit       = 60 * time.Second
)

// fixture is a control plane without jails: the sessions, the gateway, its model endpoints, the book of rules, the vault and
// the audit log are real, and so is Chromium, which runs beside the test.
type fixture struct {
	*Service
	t        testing.TB
	identity *identity.Service
	book     *egress.Book
	vault    *vault.Vault
	log      *audit.Log
	grants   *grant.Issuer
	sessions *session.Service
	site     *sites
	models   *models
	written  *testenv.Buffer // the operator's log
	admin    identity.Principal
	// agents of the tenants acme and beta, which have a provider each.
	acme, beta identity.Principal
	operator   identity.Principal // of acme
	// left is how long the agents have, and leftErr why they have no time.
	left    time.Duration
	leftErr error
}

// sites are all servers outside, told apart by their names.
type sites struct {
	*http.ServeMux
	server *httptest.Server
	mu     sync.Mutex
	asked  []string // host, method, path and form of every request
	cookie []string
}

func (s *sites) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	host, _, _ := strings.Cut(r.Host, ":")
	s.mu.Lock()
	s.asked = append(s.asked, host+" "+r.Method+" "+r.URL.RequestURI()+" "+string(body))
	s.cookie = append(s.cookie, host+" "+r.Header.Get("Cookie"))
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	s.ServeMux.ServeHTTP(w, r)
}

// took says whether a host was asked for something.
func (s *sites) took(part string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(strings.Join(s.asked, "\n"), part)
}

func (s *sites) port() uint16 { return uint16(s.server.Listener.Addr().(*net.TCPAddr).Port) }

func (s *sites) url(host, path string) string {
	return fmt.Sprintf("http://%s:%d%s", host, s.port(), path)
}

// models is a server of models that answers as a test says, in all three dialects.
type models struct {
	server *httptest.Server
	// act is the arguments of the call that is answered; an empty one is an answer without a call. It may wait for the end of
	// the request.
	act func(ctx context.Context, turn int, prompt string) string
	// refuse answers instead, where it is set.
	refuse func(turn int, w http.ResponseWriter) bool

	mu      sync.Mutex
	bodies  []string
	keys    []string
	prompts []string
}

func (m *models) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var in struct {
		Messages []struct {
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Input []struct {
			Content json.RawMessage `json:"content"`
		} `json:"input"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var content json.RawMessage
	for _, one := range append(in.Messages, in.Input...) {
		content = one.Content
	}
	prompt := ""
	if json.Unmarshal(content, &prompt) != nil {
		var parts []struct{ Text string }
		_ = json.Unmarshal(content, &parts) // an empty prompt fails the test
		for _, p := range parts {
			prompt += p.Text
		}
	}
	m.mu.Lock()
	m.bodies = append(m.bodies, r.URL.Path+" "+string(body))
	m.prompts = append(m.prompts, prompt)
	m.keys = append(m.keys, r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"))
	turn := len(m.bodies)
	m.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if m.refuse != nil && m.refuse(turn, w) {
		return
	}
	arguments := m.act(r.Context(), turn, prompt)
	text := func(v any) string { out, _ := json.Marshal(v); return string(out) } // texts always encode
	switch r.URL.Path {
	case "/v1/messages":
		block := `{"type":"text","text":"hm"}`
		if arguments != "" {
			block = `{"type":"tool_use","id":"tu_1","name":"act","input":` + arguments + `}`
		}
		fmt.Fprintf(w, `{"id":"m","type":"message","role":"assistant","model":"m","content":[%s],"usage":{"input_tokens":1000,"output_tokens":10}}`, block)
	case "/v1/chat/completions":
		message := `{"role":"assistant","content":"hm"}`
		if arguments != "" {
			message = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"act","arguments":` + text(arguments) + `}}]}`
		}
		fmt.Fprintf(w, `{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":%s,"finish_reason":"stop"}],`+
			`"usage":{"prompt_tokens":1000,"completion_tokens":10,"total_tokens":1010}}`, message)
	default:
		item := `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"hm","annotations":[]}]}`
		if arguments != "" {
			item = `{"type":"function_call","id":"fc_1","call_id":"call_1","name":"act","arguments":` + text(arguments) + `,"status":"completed"}`
		}
		fmt.Fprintf(w, `{"id":"r","object":"response","status":"completed","model":"m","output":[%s],"usage":{"input_tokens":1000,"output_tokens":10,"total_tokens":1010}}`, item)
	}
}

func (m *models) asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.bodies)
}

func (m *models) all() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.bodies, "\n")
}

// says answers one act after the other, the last one again and again. A $name stands for the ref of the line with that name.
func says(acts ...string) func(context.Context, int, string) string {
	turn := 0
	return func(_ context.Context, _ int, prompt string) string {
		act := acts[min(turn, len(acts)-1)]
		turn++
		for l := range strings.Lines(prompt) {
			before, after, found := strings.Cut(l, "[ref=")
			if !found {
				continue
			}
			ref, _, _ := strings.Cut(after, "]")
			if parts := strings.Split(before, `"`); len(parts) > 2 {
				act = strings.ReplaceAll(act, "$"+parts[1]+"$", ref)
			}
		}
		return act
	}
}

// here are browsers that run beside the test instead of in jails. Each has a way to the gateway with an address of its own.
type here struct {
	t     testing.TB
	proxy string // the gateway
	mu    sync.Mutex
	jails map[jail.Name]*hosted
	made  int
}

// hosted is one of them.
type hosted struct {
	*shelf.Browser
	gone chan struct{}
}

func (h *here) Create(context.Context, jail.Spec) (*jail.Jail, error) {
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	j := &hosted{Browser: browsers.Take(h.t, "shell", browsertest.Shell), gone: make(chan struct{})}
	replies, commands := j.Pipe(h.t)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.made++
	name, from := jail.Name(fmt.Sprintf("btest%05d", h.made)), netip.AddrFrom4([4]byte{127, 0, 1, byte(h.made)})
	h.jails[name] = j
	j.Proxy.LeadFrom(from, h.proxy)
	return &jail.Jail{Name: name, Lease: jail.Lease{Addr: from}, Stdio: &jail.Stdio{In: commands, Out: replies, Err: nothing}}, nil
}

func (h *here) Admit(context.Context, jail.Name) error { return nil }

func (h *here) process(name jail.Name) *hosted {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.jails[name]
}

func (h *here) Wait(ctx context.Context, name jail.Name) (jail.Exit, error) {
	p := h.process(name)
	if p == nil {
		return jail.Exit{}, jail.ErrNotFound
	}
	select {
	case <-p.gone:
		return jail.Exit{}, nil
	case <-p.Conn.Done():
		return jail.Exit{}, nil
	case <-ctx.Done():
		return jail.Exit{}, ctx.Err()
	}
}

func (h *here) Inspect(context.Context, jail.Name) (jail.Status, error) { return jail.Status{}, nil }

func (h *here) Destroy(_ context.Context, name jail.Name) error {
	h.mu.Lock()
	p := h.jails[name]
	delete(h.jails, name)
	h.mu.Unlock()
	if p != nil {
		close(p.gone)
		p.Return(h.t)
	}
	return nil
}

// Template implements session.Templates.
func (h *here) Template(context.Context, string) (session.Template, error) {
	return session.Template{Digest: "sha256:test", Programs: map[string]string{"shell": "/opt/shell", "full": "/opt/full"}}, nil
}

// way is the gateway as sessions see it.
type way struct{ *gateway.Gateway }

func (w way) Admit(addr netip.Addr, who session.Caller) error {
	return w.Gateway.Admit(addr, gateway.Caller{Jail: string(who.Jail), Session: who.Session, Tenant: who.Tenant, Opener: who.Opener,
		Actor: who.Actor, Policy: who.Policy, Confined: who.Confined, Vet: who.Vet})
}

func (w way) LastActivity(addr netip.Addr) time.Time {
	a, _ := w.Gateway.Activity(addr)
	return a.Last
}

// siteNames are those of the servers outside; the last is nobody's to reach.
func siteNames() []string { return []string{"shop.example.com", "www.example.org", "evil.example.net"} }

// newFixture makes it. open are the sites that agents' browsers may reach; nil is all of them.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	closing := func(end func() error) {
		t.Cleanup(func() {
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
	w := &fixture{t: t, written: new(testenv.Buffer), site: &sites{ServeMux: http.NewServeMux()}, models: &models{act: says(`{"do":"done","answer":"nothing"}`)}, left: MaxTimeout}
	log := slog.New(slog.NewTextHandler(w.written, nil))
	w.site.server = httptest.NewServer(w.site)
	t.Cleanup(w.site.server.Close)
	w.models.server = httptest.NewServer(w.models)
	t.Cleanup(w.models.server.Close)

	s := servicetest.New(t, servicetest.Options{})
	db := s.DB
	w.log, w.vault, w.grants, w.identity, w.admin = s.Log, s.Vault, s.Grants, s.Identity, s.Admin
	var err error
	known := func(key string) identity.Principal {
		p, err := w.identity.Authenticate(ctx, key, netip.Addr{})
		must(err)
		return p
	}
	w.book, err = egress.Open(ctx, egress.Options{Store: db, Identity: w.identity, Audit: w.log, Now: time.Now, Recheck: time.Hour})
	must(err)
	closing(func() error { w.book.Close(); return nil })

	views := func(c gateway.Caller) *egress.EffectivePolicy { return w.book.View(access.Who(c)) }
	exit, err := gateway.New(gateway.Config{Records: auditlog.New(w.log), Networks: func() *netguard.Networks { return netguard.NewNetworks(nil, nil) },
		Limits: gateway.DefaultLimits(), Logger: log, Policy: func(c gateway.Caller) *policy.Compiled { return views(c).Proxy() },
		Used: func(ctx context.Context, rule string) (bool, bool) {
			return w.book.Used(ctx, rule), egress.ForOneUse(rule)
		}})
	must(err)
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	must(err)
	served := make(chan error, 1)
	go func() { served <- exit.Serve(context.Background(), listener) }()
	closing(func() error {
		err := exit.Close()
		if served := <-served; err == nil {
			err = served
		}
		return err
	})
	handler, err := llm.New(llm.Options{Options: access.Options{Gateway: exit, Views: views, Secrets: w.vault, Log: log, Now: time.Now}, Book: w.book})
	must(err)

	var private []policy.Rule
	for n, name := range siteNames() {
		host, err := hostport.ParseHost(name)
		must(err)
		private = append(private, policy.Rule{Name: fmt.Sprintf("private-destination-%d", n+1), Action: policy.Allow, Host: policy.ExactHost(host),
			Ports: policy.Ports(w.site.port()), Address: netip.MustParseAddr("127.0.0.1")})
	}
	c := config.Default()
	driver := &here{t: t, proxy: listener.Addr().String(), jails: map[jail.Name]*hosted{}}
	w.sessions, err = session.New(session.Options{Driver: driver, Gateway: way{exit}, Templates: driver, Connect: session.Dialer(time.Second),
		Sessions: c.Sessions, Quotas: c.Quotas, Limits: c.Limits, Proxy: "http://" + driver.proxy, Policy: policy.PublicWeb(private...),
		Authority: w.identity, Records: w.log, Accounts: session.Accounts{Grants: w.grants, Vault: w.vault, Leases: db, Node: "n1"},
		Recordings: filepath.Join(t.TempDir(), "recordings"), Log: log})
	must(err)
	closing(func() error { return w.sessions.Shutdown(context.Background()) })

	for _, tenant := range []string{"acme", "beta"} {
		_, err := w.identity.CreateTenant(ctx, w.admin, tenant, identity.Policy{})
		must(err)
		token, agent, err := w.identity.CreateAgent(ctx, w.admin, tenant, "worker-of-"+tenant, identity.NeverExpires)
		must(err)
		principal := known(token.Reveal())
		if tenant == "acme" {
			w.acme = principal
			operator, _, err := w.identity.CreateOperator(ctx, w.admin, identity.NewOperator{Name: "op", Tenant: tenant, Role: identity.RoleOperator, Life: identity.NeverExpires})
			must(err)
			w.operator = known(operator.Reveal())
		} else {
			w.beta = principal
		}
		for _, wire := range []egress.Wire{egress.WireAnthropic, egress.WireOpenAI} {
			base := "http://models.example.com:" + w.models.port()
			_, err = w.book.PutProvider(ctx, w.admin, egress.Provider{Meta: egress.Meta{Tenant: tenant}, Name: tenant + "-" + string(wire), Wire: wire,
				Upstream: egress.Upstream{BaseURL: base, Address: netip.MustParseAddr("127.0.0.1"), Secret: "models"}, Models: []string{tenant + "-" + string(wire)}})
			must(err)
		}
		to, err := vault.ParseDestinations([]string{"http://models.example.com:" + w.models.port()})
		must(err)
		must(w.vault.PutSecret(ctx, vault.SecretName{Tenant: tenant, Service: "models"}, secret.New([]byte(providerKey+tenant)), to...))
		_, err = w.book.PutSettings(ctx, w.admin, egress.Settings{Meta: egress.Meta{Tenant: tenant, Agent: agent.ID}, Browser: egress.BrowserOpen})
		must(err)
	}
	w.Service, err = New(Options{Sessions: w.sessions, Identity: w.identity, Models: exit.Watched(gateway.SurfaceLLM, handler), Views: views, Log: log,
		Left:  func(context.Context, identity.Agent) (time.Duration, error) { return w.left, w.leftErr },
		Audit: w.log})
	must(err)
	return w
}

func (m *models) port() string {
	_, port, _ := net.SplitHostPort(m.server.Listener.Addr().String())
	return port
}

// run does a task, and returns its steps as well.
func (w *fixture) run(ctx context.Context, by identity.Principal, r Request) (Result, []Step, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var steps []Step
	out, err := w.Run(ctx, by, r, func(s Step) { steps = append(steps, s) })
	return out, steps, err
}

// open are the sessions that are open.
func (w *fixture) open() int {
	w.t.Helper()
	all, err := w.sessions.List(context.Background(), w.admin, "", false)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(all)
}

// rows are the records of an action.
func (w *fixture) rows(action string) []audit.Row {
	w.t.Helper()
	rows, err := w.log.List(context.Background(), audit.Filter{ActionPrefix: action, Limit: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}
