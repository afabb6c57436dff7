// Package access is what the surfaces of the gateway that use credentials share: it admits agents, makes a URL and a
// method such that they cannot be misread, puts a secret into a request that is allowed, and bounds how long a client may
// take.
package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/vault"
)

// Sender makes requests for callers. *gateway.Gateway is one.
type Sender interface {
	Send(ctx context.Context, e gateway.OutboundRequest, r *http.Request) (*http.Response, *problem.Error)
	Take(c gateway.Caller, s gateway.Surface) *problem.Error
}

// Secrets gives out values. *vault.Vault is one.
type Secrets interface {
	UseSecret(ctx context.Context, n vault.SecretName, to vault.Destination, use func(secret.Value) error) error
}

// View is what a caller may. *egress.EffectivePolicy is one.
type View interface {
	// Tool decides about execute for a service, ToolNaming about what its credential may go with.
	Tool(service string) *policy.Compiled
	ToolNaming(service string) *policy.Compiled
	Service(name string) (egress.Service, *policy.Compiled, bool)
}

// Options of a surface. All are required, except Used.
type Options struct {
	Gateway Sender
	Views   func(gateway.Caller) *egress.EffectivePolicy
	Secrets Secrets
	// Used is told which secret has gone into a request. It must return at once.
	Used func(vault.SecretName)
	Log  *slog.Logger
	Now  func() time.Time
	// Quotas and Tenants divide the memory of requests; see [quota.GateOptions].
	Quotas  config.Quotas
	Tenants func() int
}

// Validate reports everything that is missing at once.
func (o Options) Validate() error {
	var errs []error
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"gateway", o.Gateway == nil}, {"views", o.Views == nil}, {"secrets", o.Secrets == nil}, {"log", o.Log == nil}, {"clock", o.Now == nil},
	} {
		if f.missing {
			errs = append(errs, fmt.Errorf("%s: is missing", f.name))
		}
	}
	return errors.Join(errs...)
}

// Who converts a caller of the gateway to the type of package egress.
func Who(c gateway.Caller) egress.Who {
	return egress.Who{Tenant: c.Tenant, Agent: c.Agent, Session: c.Session, Opener: c.Opener, Base: c.Policy, Confined: c.Confined}
}

// Admit returns the agent whose jail a request came from. Web pages are kept out: a page that a browser in the jail
// shows is not the agent. One case remains: in a browser that the agent has given another User-Agent, a page can make GET
// requests, whose answers it does not see.
func Admit(r *http.Request) (gateway.Caller, *problem.Error) {
	c := gateway.CallerOf(r.Context())
	if c.Agent == "" {
		return c, problem.New(problem.Unauthorized, "Do not retry: only the jail of an agent may use this.", "the request does not come from the jail of an agent")
	}
	switch {
	case !sameOrigin(r):
		return c, problem.New(problem.Forbidden, "Call the gateway from a program, not from a web page.", "requests of web pages are refused")
	case c.Jail != "" && ofPage(r): // a caller outside of a jail has shown a token, which no page has
		return c, problem.New(problem.Forbidden, "A program sets a User-Agent of its own, and neither a Referer of another host nor Upgrade-Insecure-Requests.",
			"the request looks like one of a browser, for a web page")
	}
	return c, nil
}

// sameOrigin reports whether a request comes from a program or from a page of this server. Answers of upstreams are
// sandboxed, see [Sandbox], so that their pages are not of this server.
func sameOrigin(r *http.Request) bool {
	if sites := r.Header.Values("Sec-Fetch-Site"); len(sites) > 1 || len(sites) == 1 && !slices.Contains([]string{"none", "same-origin"}, sites[0]) {
		return false
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	u, err := url.Parse(origins[0])
	return len(origins) == 1 && err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, r.Host)
}

// ofPage says whether a browser has sent a request, perhaps for a page of somebody else. Browsers say nothing of the page in a request
// to an address without TLS when it asks for a picture, a script or a document (https://www.w3.org/TR/fetch-metadata/#fetch-and-http;
// an Origin comes with all other methods). But they say who they are, which a page cannot change where its browser asks nobody
// first.
func ofPage(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return false // which is decided
	}
	from, err := url.Parse(r.Header.Get("Referer"))
	name := r.UserAgent()
	return err != nil || from.Host != "" && !strings.EqualFold(from.Host, r.Host) || r.Header.Get("Upgrade-Insecure-Requests") != "" ||
		strings.HasPrefix(name, "Mozilla/") && (strings.Contains(name, "AppleWebKit/") || strings.Contains(name, "Gecko/"))
}

// Sandbox makes a browser show an answer as a page with an opaque origin: it runs no script, and is not of the gateway's origin.
func Sandbox(h http.Header) {
	h.Add("Content-Security-Policy", "sandbox")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
