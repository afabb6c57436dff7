package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/gateway/hostport"
	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// Surface is the way in which a request came.
type Surface string

// The surfaces.
const (
	// SurfaceForward is a plain request in absolute form, or one that came
	// through a tunnel.
	SurfaceForward Surface = "forward"
	// SurfaceConnect is a tunnel.
	SurfaceConnect Surface = "connect"
	// SurfaceExecute is one request that the gateway makes with a credential; see package gateway/execute.
	SurfaceExecute Surface = "execute"
	// SurfaceService is a reverse route for unmodified tools; see package gateway/service.
	SurfaceService Surface = "service"
	// SurfaceLLM is a request to a model; see package gateway/llm.
	SurfaceLLM Surface = "llm"
)

// Codes of refusals that only the gateway knows; the others are those of the
// packages policy and problem.
const (
	codeHostMismatch     = "host_mismatch"
	codeProtocolDenied   = "protocol_denied"
	codeAuditUnavailable = "audit_unavailable"
)

// Decision is what the gateway decided about one request, and why. It holds no
// path, no header and no body.
type Decision struct {
	Time    time.Time
	Source  netip.Addr
	Jail    string
	Session string
	Surface Surface
	Scheme  policy.Scheme
	Method  string
	Host    hostport.Host
	Port    uint16
	Allowed bool
	// Rule is the policy's rule that decided; "" when none did.
	Rule string
	// Code, Reason and Hint say why a request was refused; see package problem.
	Code   string
	Reason string
	Hint   string
	// Targets are the addresses that were checked; one of them is dialled.
	Targets []netip.AddrPort
}

// exchange is one request on its way through the gateway.
type exchange struct {
	Decision
	gateway *Gateway
	who     *caller
	meter   meter
	private bool           // Targets is a private destination of the configuration
	dialled netip.AddrPort // the target that answered
	err     error          // the private half of a refusal; for the log
}

func (g *Gateway) newExchange(who *caller, surface Surface, method string) *exchange {
	who.requests.Add(1)
	x := &exchange{gateway: g, who: who}
	x.Decision = Decision{
		Time: g.now(), Source: who.addr, Jail: who.Jail, Session: who.Session, Surface: surface, Method: method,
	}
	x.meter = meter{gateway: g, who: who}
	x.meter.touch()
	return x
}

// open takes a request from its host to an open connection: policy, resolve,
// netguard, record, dial. Several schemes are asked for when it is not known yet
// what will travel; one that is allowed is enough.
func (x *exchange) open(ctx context.Context, to hostport.Endpoint, schemes ...policy.Scheme) (net.Conn, *problem.Error) {
	x.Host, x.Port = to.Host(), to.Port()
	decided := x.ask(to, schemes)
	x.Rule, x.Allowed = decided.Rule, decided.Allowed
	if !decided.Allowed {
		return nil, problem.New(string(decided.Code), decided.Hint, "%s", decided.Reason)
	}
	x.Reason = decided.Reason
	targets, refusal := x.targets(ctx, to, decided)
	if refusal != nil {
		return nil, refusal
	}
	x.Targets = targets
	if err := x.gateway.record(ctx, x.Decision); err != nil {
		return nil, problem.Wrap(err, codeAuditUnavailable, "Do not retry at once; tell the operator that the audit log cannot be written.",
			"nothing may leave the jail because it cannot be recorded")
	}
	ctx, cancel := context.WithTimeout(ctx, x.gateway.limits.ConnectTimeout)
	defer cancel()
	conn, dialled, err := dialAny(ctx, x.gateway.dial, targets, x.check)
	if err != nil {
		return nil, problem.Wrap(err, problem.UpstreamUnreachable, "The gateway allows this host, but it does not answer. Check the name and the port; one later retry is reasonable.",
			"%s is allowed, but no connection could be made", to)
	}
	x.dialled = dialled
	return conn, nil
}

// ask returns the decision on the first scheme that is allowed, else that on the
// first scheme.
func (x *exchange) ask(to hostport.Endpoint, schemes []policy.Scheme) policy.Decision {
	var first policy.Decision
	for i, scheme := range schemes {
		d := x.decide(to, scheme)
		if i == 0 {
			first, x.Scheme = d, scheme
		}
		if d.Allowed {
			x.Scheme = scheme
			return d
		}
	}
	return first
}

func (x *exchange) decide(to hostport.Endpoint, scheme policy.Scheme) policy.Decision {
	return x.who.Policy.Decide(policy.Request{Scheme: scheme, Host: to.Host(), Port: to.Port(), Method: x.Method})
}

// targets finds the addresses of an allowed host and has them checked.
func (x *exchange) targets(ctx context.Context, to hostport.Endpoint, decided policy.Decision) ([]netip.AddrPort, *problem.Error) {
	guard := x.gateway.currentGuard()
	if private, ok := guard.Lookup(to); ok {
		x.private = true
		if !decided.Exact {
			return nil, problem.New(problem.HostDenied,
				"Do not retry: private destinations need a rule that names the host exactly. Ask the operator for one if the task needs it.",
				"%s is a private destination, and no rule names it", to)
		}
		if err := guard.CheckDestination(private); err != nil {
			return nil, addressDenied(err, to)
		}
		return []netip.AddrPort{private}, nil
	}
	answers := []netip.Addr{to.Host().Addr()}
	if !to.Host().IsAddr() {
		var refusal *problem.Error
		if answers, refusal = x.resolve(ctx, to); refusal != nil {
			return nil, refusal
		}
	}
	targets, err := guard.Targets(answers, to.Port())
	if err != nil {
		return nil, addressDenied(err, to)
	}
	return targets, nil
}

// addressDenied keeps the address itself in the private half: what a name means
// inside the operator's network is nothing that a jail needs to learn.
func addressDenied(err error, to hostport.Endpoint) *problem.Error {
	return problem.Wrap(err, problem.AddressDenied,
		"Do not retry: only public addresses are reachable. If the task needs this host, ask the operator to add it as a private destination.",
		"%s leads to an address that jails may not reach", to)
}

func (x *exchange) resolve(ctx context.Context, to hostport.Endpoint) ([]netip.Addr, *problem.Error) {
	ctx, cancel := context.WithTimeout(ctx, x.gateway.limits.ResolveTimeout)
	defer cancel()
	answers, err := x.gateway.resolver.LookupNetIP(ctx, "ip", to.Host().Name()+".")
	if err == nil && len(answers) > 0 {
		return answers, nil
	}
	var dns *net.DNSError
	if err == nil || errors.As(err, &dns) && dns.IsNotFound {
		return nil, problem.Wrap(err, problem.DNSFailed, "Check the spelling; retrying will not help.", "the name %s has no address", to.Host())
	}
	return nil, problem.Wrap(err, problem.DNSFailed, "The gateway's name server did not answer; one later retry is reasonable.", "the name %s could not be looked up", to.Host())
}

// check is asked by the dialer for the address that is about to be used.
func (x *exchange) check(actual netip.AddrPort) error {
	guard := x.gateway.currentGuard()
	if x.private {
		return guard.CheckDestination(actual)
	}
	return guard.CheckPublic(actual)
}

// refused notes why the request ends, records it, and returns the same problem
// with the details that its reader gets.
func (x *exchange) refused(ctx context.Context, p *problem.Error) *problem.Error {
	x.Allowed, x.Code, x.Reason, x.Hint, x.err = false, p.Code, p.Message, p.Hint, p.Err
	// The request is refused in any case, so a record that cannot be written
	// changes nothing for the caller; the log line says so.
	if p.Code != codeAuditUnavailable {
		x.err = errors.Join(x.err, x.gateway.record(context.WithoutCancel(ctx), x.Decision))
	}
	if !x.Host.IsZero() {
		p = p.With("host", x.Host.String()).With("port", x.Port)
	}
	if x.Rule != "" {
		p = p.With("rule", x.Rule)
	}
	return p
}

// badHost refuses a target that has no canonical form.
func badHost(err error) *problem.Error {
	return problem.Wrap(err, problem.BadHost,
		"Write the host as a plain name, or an address as 1.2.3.4 or [2001:db8::1], with a port from 1 to 65535 and without user name.",
		"%s", strings.ReplaceAll(err.Error(), "\n", "; "))
}
