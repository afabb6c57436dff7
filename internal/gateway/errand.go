package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// Errand is a request that the gateway makes itself because a caller asked for it on one of the surfaces that know what
// they carry: execute, service routes, model endpoints.
type Errand struct {
	Caller  Caller
	Surface Surface
	// Permit decides. Nil denies.
	Permit *policy.Compiled
	// Service names what is used, for the record: a service, a provider. Credential says whether one is injected.
	Service    string
	Credential bool
	// Inject puts the credential into the request, once every check has passed, the intent is on record and the
	// connection is open. Nil puts nothing. It may be called again, for another connection.
	Inject func(*http.Request) error
	// HeaderTimeout bounds the wait for the header of the answer; IdleTimeout ends what has not moved a byte for so
	// long, Lifetime everything. Zero means the gateway's own.
	HeaderTimeout, IdleTimeout, Lifetime time.Duration
}

// Send takes a request through every step of the gateway: policy, resolve, netguard, record, dial. It does not follow
// redirects. r has an absolute http or https URL, and headers without hop-by-hop fields; Send sends its Host from its
// URL. The caller closes the body of the answer, which also ends the record. What the gateway itself refuses is an
// error whose problem code says why; what the upstream answers is none, whatever its status.
func (g *Gateway) Send(ctx context.Context, e Errand, r *http.Request) (*http.Response, *problem.Error) {
	return nil, problem.New(problem.Unsupported, "", "not yet")
}

// Take takes one request of a surface from the caller's rate; rate_limited with the detail retry_after (seconds) when
// none is left.
func (g *Gateway) Take(c Caller, s Surface) *problem.Error { return nil }

// RoundTripper is Send for packages that want one, such as httputil.ReverseProxy. Its errors are *problem.Error.
func (g *Gateway) RoundTripper(e Errand) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, refusal := g.Send(r.Context(), e, r)
		if refusal != nil {
			return nil, refusal
		}
		return resp, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// WithCaller returns a context in which [CallerOf] finds the caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Refuse answers with a problem: JSON (RFC 9457), or a small page for a browser that shows it to a person. A detail
// retry_after in seconds becomes Retry-After. The header Clawjail-Refusal holds the code: no upstream's answer has it, so a status of
// the gateway's and one of an upstream's cannot be confused.
func Refuse(w http.ResponseWriter, r *http.Request, p *problem.Error) { refuse(w, r, p) }
