// Package accesstest stands in for the gateway, the vault and the Book in tests of the surfaces that use credentials.
package accesstest

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

// Token is the secret of tests. It is not in any text by accident.
const Token = "tok-ZmR2-99f1c0ffee/+= end"

// Fixture is everything around a surface.
type Fixture struct {
	t     testing.TB
	mu    sync.Mutex // guards what follows
	steps []string
	hosts map[string]string
	sent  []gateway.OutboundRequest
	used  []vault.SecretName

	// Secrets are the vault's, by service.
	Secrets map[vault.SecretName]string
	// Tools and Services are the Book's. A service that is not in Tools has none.
	Tools    map[string]*policy.Compiled
	Named    map[string]*policy.Compiled // of Tools, those that name the service; all of them where nothing is said
	Services map[string]egress.Service
	Permits  map[string]*policy.Compiled
	// Refuse is what Take says, and Fail what Send says after its checks.
	Refuse, Fail *problem.Error
	// Caller is the caller of all requests.
	Caller gateway.Caller

	transport *http.Transport
}

// New makes a fixture of one agent without anything.
func New(t testing.TB) *Fixture {
	w := &Fixture{
		t: t, hosts: map[string]string{}, Secrets: map[vault.SecretName]string{}, Tools: map[string]*policy.Compiled{}, Named: map[string]*policy.Compiled{},
		Services: map[string]egress.Service{}, Permits: map[string]*policy.Compiled{},
		Caller: gateway.Caller{Jail: "jail", Tenant: "tenant", Agent: "agent-1", Actor: "agent:agent-1"},
	}
	w.transport = &http.Transport{
		DisableCompression: true, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			w.mu.Lock()
			to, ok := w.hosts[address]
			w.mu.Unlock()
			if !ok {
				return nil, &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", to)
		},
	}
	t.Cleanup(w.transport.CloseIdleConnections)
	return w
}

// Options are those of a surface in this fixture. Views is never asked: tests set what it would return.
func (w *Fixture) Options() access.Options {
	return access.Options{
		Gateway: w, Views: func(gateway.Caller) *egress.EffectivePolicy { return nil }, Secrets: w,
		Used: func(n vault.SecretName) { w.mu.Lock(); defer w.mu.Unlock(); w.used = append(w.used, n) },
		Log:  slog.New(slog.DiscardHandler), Now: time.Now,
	}
}

// View is what the agent may.
func (w *Fixture) View(gateway.Caller) access.View { return view{w} }

type view struct{ w *Fixture }

func (v view) Tool(service string) *policy.Compiled { return v.w.Tools[service] }

func (v view) ToolNaming(service string) *policy.Compiled {
	if named, said := v.w.Named[service]; said {
		return named
	}
	return v.w.Tools[service]
}

func (v view) Service(name string) (egress.Service, *policy.Compiled, bool) {
	s, ok := v.w.Services[name]
	return s, v.w.Permits[name], ok
}

// Allow compiles a policy of tools: a URL pattern each, and its methods.
func (w *Fixture) Allow(tools ...policy.Rule) *policy.Compiled {
	w.t.Helper()
	c, err := policy.Compile(policy.Only(tools...))
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// Tool is one tool.
func (w *Fixture) Tool(pattern string, methods ...string) policy.Rule {
	w.t.Helper()
	r, err := policy.ParseURL(pattern)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Name, r.Action, r.Methods = "tool "+pattern, policy.Allow, methods
	return r
}

// Upstream serves a name and its port on a listener of its own.
func (w *Fixture) Upstream(address string, h http.Handler) *httptest.Server {
	w.t.Helper()
	s := httptest.NewServer(h)
	w.t.Cleanup(s.Close)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[address] = s.Listener.Addr().String()
	return s
}

// Serve serves a surface to the agent.
func (w *Fixture) Serve(h http.Handler) *httptest.Server {
	w.t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(rw, r.WithContext(gateway.WithCaller(r.Context(), w.Caller)))
	}))
	w.t.Cleanup(s.Close)
	return s
}

func (w *Fixture) step(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, s)
}

// Steps are what happened, in order: decide, resolve, secret.
func (w *Fixture) Steps() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.steps)
}

// Sent are the errands that were sent.
func (w *Fixture) Sent() []gateway.OutboundRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sent)
}

// Used are the secrets that went into requests.
func (w *Fixture) Used() []vault.SecretName {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.used)
}

// Take implements access.Sender.
func (w *Fixture) Take(gateway.Caller, gateway.Surface) *problem.Error {
	w.step("take")
	return w.Refuse
}

// Send implements access.Sender in the order of the gateway.
func (w *Fixture) Send(ctx context.Context, e gateway.OutboundRequest, r *http.Request) (*http.Response, *problem.Error) {
	w.step("decide " + r.URL.Scheme + "://" + r.URL.Host + r.URL.EscapedPath())
	w.mu.Lock()
	w.sent = append(w.sent, e)
	w.mu.Unlock()
	to, err := hostport.FromURL(r.URL)
	if err != nil {
		return nil, problem.Wrap(err, problem.BadHost, "", "no host")
	}
	d := e.Permit().Decide(policy.Request{Scheme: policy.Scheme(r.URL.Scheme), Host: to.Host(), Port: to.Port(), Method: r.Method, Path: r.URL.EscapedPath(), EncodedSlash: e.EncodedSlash})
	if !d.Allowed {
		p := problem.New(string(d.Code), d.Hint, "%s", d.Reason).With("host", to.Host().String())
		if d.Rule != "" {
			p = p.With("rule", d.Rule)
		}
		return nil, p
	}
	w.step("resolve " + to.String())
	if w.Fail != nil {
		return nil, w.Fail
	}
	out := r.Clone(ctx)
	out.URL.Host = to.String()
	out.Host = to.HostHeader(r.URL.Scheme)
	if e.Inject != nil {
		if err := e.Inject(out); err != nil {
			return nil, problem.Wrap(err, problem.Internal, "", "inject")
		}
	}
	resp, err := w.transport.RoundTrip(out)
	if err != nil {
		return nil, problem.Wrap(err, problem.UpstreamUnreachable, "retry later", "%s did not answer", to)
	}
	return resp, nil
}

// UseSecret implements access.Secrets.
func (w *Fixture) UseSecret(_ context.Context, n vault.SecretName, _ vault.Destination, use func(secret.Value) error) error {
	w.step("secret " + n.Service)
	value, ok := w.Secrets[n]
	if !ok {
		n.Agent = ""
		value, ok = w.Secrets[n]
	}
	if !ok {
		return problem.New(problem.NotFound, "", "there is no secret of the service %s", n.Service)
	}
	v := secret.New([]byte(value))
	defer v.Wipe()
	return use(v)
}

// Secret stores one of the agent's tenant.
func (w *Fixture) Secret(service, value string) {
	w.Secrets[vault.SecretName{Tenant: w.Caller.Tenant, Service: service}] = value
}

// Seen keeps the requests that an upstream got, with their bodies.
type Seen struct {
	mu   sync.Mutex
	list []Request
}

// Request is one of them.
type Request struct {
	Method, Target, Host, Body string
	Header                     http.Header
	Length                     int64
	Encoding                   []string
}

// Handler keeps requests, then answers with next.
func (s *Seen) Handler(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		s.mu.Lock()
		s.list = append(s.list, Request{r.Method, r.RequestURI, r.Host, string(body), r.Header.Clone(), r.ContentLength, r.TransferEncoding})
		s.mu.Unlock()
		if next != nil {
			next(w, r)
		}
	})
}

// All are those so far.
func (s *Seen) All() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// Last is the last one.
func (s *Seen) Last(t testing.TB) Request {
	t.Helper()
	all := s.All()
	if len(all) == 0 {
		t.Fatal("the upstream saw no request")
	}
	return all[len(all)-1]
}

// Query is the query of a request as the upstream reads it.
func (r Request) Query(t testing.TB) url.Values {
	t.Helper()
	u, err := url.ParseRequestURI(r.Target)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query()
}
