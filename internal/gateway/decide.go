package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
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
	codeHostMismatch   = "host_mismatch"
	codeProtocolDenied = "protocol_denied"
)

// Decision is what the gateway decided about one request, and why. It holds no
// query, no header and no body.
type Decision struct {
	Time   time.Time
	Source netip.Addr // not valid for an agent outside of all jails
	// Confined is the caller's; see [Caller].
	Confined bool
	// Jail, Session, Tenant, Agent and Actor are the caller's; see [Caller].
	Jail, Session, Tenant, Agent, Actor string
	Surface                             Surface
	Scheme                              policy.Scheme
	Method                              string
	Host                                hostport.Host
	Port                                uint16
	// Path is as it was sent, at most [maxPath] bytes of it; empty for a tunnel.
	Path    string
	Allowed bool
	// Reported says that the request is allowed only because nothing is enforced; Code says what would have happened.
	Reported bool
	// Rule is the policy's rule that decided; "" when none did.
	Rule string
	// Service is the service or the model provider that is used, and Credential says that its credential is put in.
	Service    string
	Credential bool
	// Code, Reason and Hint say why a request was refused; see package problem.
	Code   string
	Reason string
	Hint   string
	// Targets are the addresses that were checked; one of them is dialled.
	Targets []netip.AddrPort
}

// OwnCodes are the codes of refusals that only the gateway knows.
func OwnCodes() []string {
	return []string{codeHostMismatch, codeProtocolDenied, problem.AuditUnavailable, string(policy.SchemeDenied)}
}

// maxPath bounds the path in a record.
const maxPath = 512

// maxMethod bounds the method in a record. It is longer than any that a rule can have, so that what was cut is none of those.
const maxMethod = 64

// exchange is one request on its way through the gateway.
type exchange struct {
	Decision
	gateway *Gateway
	who     *caller
	permit  *policy.Compiled // as it was decided; see permitNow
	// errand and encodedSlash are Permit and EncodedSlash of [OutboundRequest]; errand is nil for what goes through the proxy.
	errand       func() *policy.Compiled
	encodedSlash bool
	path         string // whole, unlike the one that is recorded
	// hidden says that a part of the path is a credential, which no rule sees.
	hidden  bool
	meter   meter
	private netip.Addr     // where an operator leads the host, if somewhere
	dialled netip.AddrPort // the target that answered
	record  Record         // nil until the intent is written
	tunnel  *tunnel        // of a CONNECT request
	opaque  bool           // nothing in the tunnel is looked at
	reused  bool
	once    bool // what allowed it was for one use, and is gone
	taken   bool // it has been taken from the rate of its caller
	status  int
	failure string // the code of what went wrong with a request that was allowed
	err     error  // the private half of a refusal; for the log
	// denied is why a review, or a newer tunnel, ended it.
	denied atomic.Pointer[policy.Decision]
	// finished keeps the end from being told twice.
	finished atomic.Bool

	mu     sync.Mutex // guards what follows
	endNow func()     // ends what is under way; nil when nothing is
}

func (g *Gateway) newExchange(who *caller, surface Surface, method, path string) *exchange {
	who.requests.Add(1)
	x := &exchange{gateway: g, who: who}
	x.Decision = Decision{
		Time: g.now(), Source: who.addr, Jail: who.Jail, Session: who.Session, Tenant: who.Tenant, Agent: who.Agent, Actor: who.Actor, Confined: who.Confined,
		Surface: surface, Method: method[:min(len(method), maxMethod)], Path: path[:min(len(path), maxPath)],
	}
	x.meter = meter{gateway: g, who: who}
	x.meter.touch()
	return x
}

// admit asks the policy and the rates. Several schemes are asked for when it is not known yet what will travel; one that is
// allowed is enough. path is whole, unlike the one that is recorded.
func (x *exchange) admit(ctx context.Context, to hostport.Endpoint, path string, schemes ...policy.Scheme) *problem.Error {
	x.Host, x.Port, x.path = to.Host(), to.Port(), path
	proxied := x.Surface == SurfaceForward || x.Surface == SurfaceConnect
	asks := proxied && x.gateway.ask != nil && x.Agent != ""
	// Each round has a rule less, or an answer more.
	for range 4 {
		decided := x.decideFirst(schemes)
		x.Rule, x.Allowed, x.Reported = decided.Rule, decided.Allowed, decided.Reported
		x.Code, x.Reason, x.Hint = string(decided.Code), decided.Reason, decided.Hint
		// Before anybody is asked: that costs the operator and the database something.
		if refusal := x.take(); refusal != nil {
			return refusal
		}
		if asks && (!decided.Allowed || decided.Reported) && decided.Rule == "" {
			asks = false
			if x.gateway.ask(ctx, x.who.Caller, to.String()) {
				x.permit = x.gateway.permit(x.who)
				continue
			}
		}
		if !decided.Allowed {
			return problem.New(string(decided.Code), decided.Hint, "%s", decided.Reason)
		}
		ok := true
		if decided.Rule != "" && x.gateway.used != nil {
			ok, x.once = x.gateway.used(ctx, decided.Rule)
		}
		if !ok {
			if !proxied {
				// The rules of the proxy say nothing about what may be sent with a credential.
				return problem.New(problem.HostDenied, "Do not retry: ask for it again if the task needs it once more.",
					"what allowed this was for one use, and has been used")
			}
			x.permit = x.gateway.permit(x.who)
			continue
		}
		x.private = decided.Address
		return nil
	}
	return problem.New(problem.HostDenied, "Retry once.", "the rules for %s changed while the request was looked at", to)
}

// decideFirst returns the decision on the first scheme that is allowed, else that on the first scheme.
func (x *exchange) decideFirst(schemes []policy.Scheme) policy.Decision {
	var first policy.Decision
	for i, scheme := range schemes {
		d := x.decide(x.permit, scheme)
		if i == 0 {
			first, x.Scheme = d, scheme
		}
		if d.Allowed && !d.Reported {
			x.Scheme = scheme
			return d
		}
	}
	return first
}

func (x *exchange) decide(permit *policy.Compiled, scheme policy.Scheme) policy.Decision {
	asked := policy.Request{Scheme: scheme, Host: x.Host, Port: x.Port, Method: x.Method, Path: x.path, EncodedSlash: x.encodedSlash}
	decided := permit.Decide(asked)
	if x.hidden && decided.Allowed {
		asked.Path = "" // which rules that deny a path take for theirs
		if denied := permit.Decide(asked); denied.Rule != "" && !denied.Allowed {
			return denied
		}
	}
	return decided
}

// intend writes down what is about to happen. Nothing leaves without it.
func (x *exchange) intend(ctx context.Context) *problem.Error {
	record, err := x.gateway.records.Begin(ctx, x.Decision)
	if err != nil {
		return problem.Wrap(err, problem.AuditUnavailable, "Do not retry at once; tell the operator that the audit log cannot be written.",
			"nothing may leave the jail because it cannot be recorded")
	}
	x.record = record
	x.who.reaches(x.Host)
	x.gateway.observer.Decided(x.Decision, x.gateway.now().Sub(x.Time))
	return nil
}

// open takes an admitted request to an open connection: resolve, netguard, record, dial.
func (x *exchange) open(ctx context.Context, to hostport.Endpoint) (net.Conn, *problem.Error) {
	targets, refusal := x.gateway.targets(ctx, to, x.private)
	if refusal != nil {
		return nil, refusal
	}
	x.Targets = targets
	if refusal := x.intend(ctx); refusal != nil {
		return nil, refusal
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

// reach takes an admitted request to a connection that speaks HTTP: one that the caller has already, or a new one.
func (x *exchange) reach(ctx context.Context, to hostport.Endpoint, scheme string, replayable bool) (*upstream, *problem.Error) {
	key := upstreamKey{scheme: scheme, to: to, private: x.private}
	if x.Credential {
		key.credential = x.Service
	}
	now := x.gateway.now()
	wait := idleUpstream
	if !replayable {
		wait = freshUpstream
	}
	if u := x.who.idle.take(key, now.Add(-wait)); u != nil {
		if x.check(u.addr) == nil {
			x.Targets, x.reused = []netip.AddrPort{u.addr}, true
			if refusal := x.intend(ctx); refusal != nil {
				u.close()
				return nil, refusal
			}
			x.dialled = u.addr
			u.conn.meter.Store(&x.meter)
			return u, nil
		}
		u.close() // the address was closed in between
	}
	return x.connect(ctx, to, key)
}

func (x *exchange) connect(ctx context.Context, to hostport.Endpoint, key upstreamKey) (*upstream, *problem.Error) {
	x.reused = false
	conn, refusal := x.open(ctx, to)
	if refusal != nil {
		return nil, refusal
	}
	within, cancel := context.WithTimeout(ctx, x.gateway.limits.ConnectTimeout)
	defer cancel()
	u, err := x.gateway.speak(within, conn, x.dialled, key, &x.meter)
	if err != nil {
		return nil, problem.Wrap(err, problem.UpstreamFailed, "The gateway allows this host, but no connection could be made that it trusts. Tell the operator; retrying will not help.",
			"%s is allowed, but TLS with it failed", to)
	}
	return u, nil
}

// Reach says why the gateway would not connect to a host that is allowed; private is where an operator leads it, if
// anywhere. Without lookup a name is not resolved, and only an address is checked. Nothing is sent to the host.
func (g *Gateway) Reach(ctx context.Context, to hostport.Endpoint, private netip.Addr, lookup bool) *problem.Error {
	if !lookup && !private.IsValid() && !to.Host().IsAddr() {
		return nil
	}
	_, refusal := g.targets(ctx, to, private)
	return refusal
}

// targets finds the addresses of an allowed host and has them checked.
func (g *Gateway) targets(ctx context.Context, to hostport.Endpoint, private netip.Addr) ([]netip.AddrPort, *problem.Error) {
	guard := g.currentGuard()
	if private.IsValid() {
		// Checked as it was written: unwrapping loses a zone.
		if err := guard.CheckDestination(netip.AddrPortFrom(private, to.Port())); err != nil {
			return nil, addressDenied(err, to)
		}
		return []netip.AddrPort{netip.AddrPortFrom(private.Unmap(), to.Port())}, nil
	}
	answers := []netip.Addr{to.Host().Addr()}
	if !to.Host().IsAddr() {
		var refusal *problem.Error
		if answers, refusal = g.resolve(ctx, to); refusal != nil {
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

func (g *Gateway) resolve(ctx context.Context, to hostport.Endpoint) ([]netip.Addr, *problem.Error) {
	ctx, cancel := context.WithTimeout(ctx, g.limits.ResolveTimeout)
	defer cancel()
	answers, err := g.resolver.LookupNetIP(ctx, "ip", to.Host().Name()+".")
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
	if x.private.IsValid() {
		return guard.CheckDestination(actual)
	}
	return guard.CheckPublic(actual)
}

// take takes the request from the rate of its caller, once. The other surfaces take one for all that they send.
func (x *exchange) take() *problem.Error {
	if x.taken || x.Surface != SurfaceForward && x.Surface != SurfaceConnect {
		return nil
	}
	x.taken = true
	return x.gateway.Take(x.who.Caller, x.Surface)
}

// refused notes why the request ends, records it, and returns the same problem
// with the details that its reader gets.
func (x *exchange) refused(_ context.Context, p *problem.Error) *problem.Error {
	// A request that is refused before it is decided about counts as well: a refusal is a record in the audit log.
	if limited := x.take(); limited != nil {
		p = limited
	}
	x.Allowed, x.Reported, x.Code, x.Reason, x.Hint, x.err = false, false, p.Code, p.Message, p.Hint, p.Err
	switch {
	case x.record != nil:
		// The intent stands, and its outcome says what became of it.
	case p.Code == problem.RateLimited, p.Code == problem.AuditUnavailable:
		// A caller that asks too often would fill the audit log with it. The log line and the counters tell.
		x.gateway.observer.Decided(x.Decision, x.gateway.now().Sub(x.Time))
	default:
		x.gateway.records.Refused(x.Decision)
		x.gateway.observer.Decided(x.Decision, x.gateway.now().Sub(x.Time))
	}
	if !x.Host.IsZero() {
		p = p.With("host", x.Host.String()).With("port", x.Port)
		if to, err := hostport.NewEndpoint(x.Host, x.Port); err == nil {
			x.who.refuse(refusedWay{to, x.gateway.now(), p})
		}
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
