package accesstest

import (
	"context"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Real is a fixture whose gateway is the real one, on a listener of loopback, with the agent's jail at 127.0.0.1. Names
// lead to servers of the test by the address of a rule.
type Real struct {
	*Fixture
	Gateway *gateway.Gateway
	URL     string
	// Certificates are trusted.
	Certificates *x509.CertPool

	mu       sync.Mutex // guards what follows
	local    http.Handler
	begun    []gateway.Decision
	refused  []gateway.Decision
	outcomes []gateway.Outcome
}

// NewReal starts the gateway.
func NewReal(t testing.TB) *Real {
	t.Helper()
	r := &Real{Fixture: New(t), Certificates: x509.NewCertPool()}
	g, err := gateway.New(gateway.Config{
		Records: r, Roots: r.Certificates, Limits: gateway.DefaultLimits(), Logger: slog.New(slog.DiscardHandler), Resolver: nobody{},
		Networks: func() *netguard.Networks { return netguard.NewNetworks(nil, nil) },
		Local:    http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.handler().ServeHTTP(w, req) }),
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		ln.Close()
		<-served
	})
	if err := g.Admit(netip.MustParseAddr("127.0.0.1"), gateway.Caller{Jail: "jail", Tenant: r.Caller.Tenant, Agent: r.Caller.Agent, Actor: r.Caller.Actor, Policy: policy.Policy{Default: policy.Deny}}); err != nil {
		t.Fatal(err)
	}
	r.Gateway, r.URL = g, "http://"+ln.Addr().String()
	return r
}

// nobody is a resolver that knows no name: only rules lead anywhere.
type nobody struct{}

func (nobody) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func (r *Real) handler() http.Handler {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.local
}

// Options are those of a surface with the real gateway.
func (r *Real) Options() access.Options {
	o := r.Fixture.Options()
	o.Gateway = r.Gateway
	return o
}

// Handle sets who answers what is for the gateway itself.
func (r *Real) Handle(h http.Handler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.local = h
}

// Lead starts an upstream by a name, with TLS for https, and returns its origin and the rule that leads requests for all of it there.
func (r *Real) Lead(scheme, name string, h http.Handler) (origin string, rule policy.Rule) {
	r.t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if scheme == "https" {
		s.StartTLS()
		r.Certificates.AddCert(s.Certificate())
	} else {
		s.Start()
	}
	r.t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	origin = scheme + "://" + name + ":" + port
	rule = r.Tool(origin + "/**")
	rule.Address = netip.MustParseAddr("127.0.0.1")
	return origin, rule
}

// Begin implements gateway.Records.
func (r *Real) Begin(_ context.Context, d gateway.Decision) (gateway.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = append(r.begun, d)
	return (*record)(r), nil
}

// Refused implements gateway.Records.
func (r *Real) Refused(d gateway.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = append(r.refused, d)
}

type record Real

// End implements gateway.Record.
func (r *record) End(o gateway.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes = append(r.outcomes, o)
}

// Begun are the decisions so far whose request was let through.
func (r *Real) Begun() []gateway.Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.begun)
}

// Denied are the refusals so far.
func (r *Real) Denied() []gateway.Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.refused)
}

// Ended waits for n outcomes, which are recorded after the answer was sent.
func (r *Real) Ended(n int) []gateway.Outcome {
	r.t.Helper()
	var out []gateway.Outcome
	testenv.Eventually(r.t, 5*time.Second, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		out = slices.Clone(r.outcomes)
		return len(out) >= n
	}, "%d outcomes", n)
	return out
}

// Do sends a request of the agent's and reads the answer, which must not have the credential in it.
func (r *Real) Do(method, path, body string, header ...string) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if strings.Contains(string(raw), Token) {
		r.t.Errorf("the answer has the credential: %s", raw)
	}
	return resp, string(raw)
}
