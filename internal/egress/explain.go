package egress

import (
	"cmp"
	"context"
	"net/netip"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxQuestions bounds one call of [Book.Explain].
const maxQuestions = 10_000

// maxLookups is how many names one call has looked up: each may take seconds.
const maxLookups = 10

// The surfaces of a Question.
const (
	surfaceProxy   = "proxy"
	surfaceExecute = "execute"
	surfaceService = "service"
	surfaceBrowser = "browser"
)

// Question is one request to be explained.
type Question struct {
	Tenant string `json:"tenant,omitempty"`
	Agent  string `json:"agent,omitempty"` // its name; empty: a clean session
	// Session is the id of a session that is open, as which the request is decided. Agent is then left out.
	Session string `json:"session,omitempty"`
	// Surface is proxy when it is empty; execute and service need Service. Browser is a clean session that the agent opens.
	Surface string `json:"surface,omitempty"`
	Service string `json:"service,omitempty"`
	// Method is CONNECT for a tunnel. Without one it is CONNECT for https through the proxy, else GET.
	Method string `json:"method"`
	// URL is absolute; for a service also what follows its route, from the slash on.
	URL string `json:"url"`
	// Lookup has a name that is allowed looked up, as the gateway would. It takes the right to change rules: other callers would
	// learn without a record which names there are inside. One call looks up at most 10.
	Lookup bool `json:"lookup,omitzero"`
}

// Explanation is a decision, and the rule that made it. An address is checked as the gateway checks it. A name that was not
// looked up may still lead to an address that is closed.
type Explanation struct {
	Question
	Allowed  bool   `json:"allowed"`
	Reported bool   `json:"reported,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Code     string `json:"code,omitempty"`
	Reason   string `json:"reason"`
	Hint     string `json:"hint,omitempty"`
	// LookedUp says that the name was looked up, or that there was none to look up.
	LookedUp bool `json:"looked_up,omitzero"`
}

// Explain decides requests without doing them. At most 10 000 at once. An agent may ask about itself, also
// without naming an agent.
func (b *Book) Explain(ctx context.Context, by identity.Principal, q []Question) ([]Explanation, error) {
	if len(q) > maxQuestions {
		return nil, problem.New(problem.BadLimit, "ask in parts", "%d questions are more than %d", len(q), maxQuestions)
	}
	views := map[asked]*EffectivePolicy{}
	lookups := maxLookups
	out := make([]Explanation, len(q))
	for n, question := range q {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		key := asked{by.TenantOr(question.Tenant), question.Agent, question.Session, question.Surface == surfaceBrowser}
		v := views[key]
		if v == nil {
			who, err := b.asks(ctx, by, key)
			if err != nil {
				return nil, err
			}
			v = b.View(who)
			views[key] = v
		}
		var to target
		if out[n], to = v.explain(question); out[n].Allowed && b.o.Way != nil {
			lookup := question.Lookup && lookups > 0 && identity.Can(by, identity.RuleChange, key.tenant) == nil
			if lookup {
				lookups--
			}
			out[n].reaches(ctx, b.o.Way, to, lookup)
		}
	}
	return out, nil
}

// asked is whose request a question is about.
type asked struct {
	tenant, agent, session string
	browser                bool
}

// asks finds the caller that the gateway would have before it.
func (b *Book) asks(ctx context.Context, by identity.Principal, key asked) (Who, error) {
	if key.session != "" {
		return b.inSession(ctx, by, key)
	}
	of, err := b.scopeOf(ctx, by, identity.RuleExplain, key.tenant, key.agent)
	if err != nil {
		return Who{}, err
	}
	if of.agent != "" && !key.browser {
		return Who{Tenant: of.tenant, Agent: of.agent, Base: policy.Only()}, nil
	}
	// No session has such an id, so this is any session.
	who := Who{Tenant: of.tenant, Session: "any session", Opener: of.agent, Base: policy.PublicWeb()}
	if b.o.Way != nil {
		who.Base = b.o.Way.Clean()
	}
	if of.agent != "" {
		who.Base.Advice = Advice(key.agent)
	}
	return who, nil
}

// inSession is the caller of a session that is open. An agent may ask about those that it has opened.
func (b *Book) inSession(ctx context.Context, by identity.Principal, key asked) (Who, error) {
	missing := problem.New(problem.NotFound, "list those that are open: clawjail session ls", "no session %q is open; its rules went with it", clip(key.session))
	if key.agent != "" {
		return Who{}, problem.New(problem.BadRequest, "leave the agent out: the session says whose it is", "a question is about an agent or about a session")
	}
	own := scope{tenant: by.TenantOr("")}
	if by.Kind == identity.KindAgent {
		own.agent = by.ID
	}
	var who Who
	found := false
	if b.o.Way != nil {
		who, found = b.o.Way.CallerIn(key.session)
	}
	if !found || by.Kind == identity.KindAgent && who.Opener != by.ID {
		// A caller who may not ask at all learns no more than that.
		return Who{}, cmp.Or(b.mayWith(ctx, by, identity.RuleExplain, own, missing), error(missing))
	}
	return who, b.mayWith(ctx, by, identity.RuleExplain, scope{who.Tenant, who.Opener}, missing)
}

// target is where an allowed request goes.
type target struct {
	to      hostport.Endpoint
	private netip.Addr
}

// reaches goes on where the rules end: what they allow may lead to an address that is closed.
func (e *Explanation) reaches(ctx context.Context, way Way, t target, lookup bool) {
	e.LookedUp = lookup || t.private.IsValid() || t.to.Host().IsAddr()
	refusal := way.Reach(ctx, t.to, t.private, lookup)
	switch {
	case refusal == nil:
	case refusal.Code == problem.DNSFailed:
		// This is no refusal: where the name leads is not known now.
		e.LookedUp = false
		e.Code, e.Reason, e.Hint = refusal.Code, e.Reason+"; but "+refusal.Message, refusal.Hint
	default:
		e.Allowed, e.Reported = false, false
		e.Code, e.Reason, e.Hint = refusal.Code, refusal.Message, refusal.Hint
	}
}

func (v *EffectivePolicy) explain(q Question) (Explanation, target) {
	out := Explanation{Question: q}
	permit, address, refusal := v.permitFor(q)
	var req policy.Request
	var to hostport.Endpoint
	if refusal == nil {
		req, to, refusal = request(q, address, v.takesSlashes(q))
	}
	if refusal != nil {
		out.Code, out.Reason, out.Hint = refusal.Code, refusal.Message, refusal.Hint
		return out, target{}
	}
	d := permit.Decide(req)
	out.Allowed, out.Reported, out.Rule = d.Allowed, d.Reported, d.Rule
	out.Code, out.Reason, out.Hint = string(d.Code), d.Reason, d.Hint
	if q.Surface == surfaceExecute && !d.Allowed && d.Rule == "" {
		out.Code = problem.ToolDenied
	}
	return out, target{to, d.Address}
}

// takesSlashes says whether a question is about a service that takes encoded slashes.
func (v *EffectivePolicy) takesSlashes(q Question) bool {
	s, _, found := v.Service(q.Service)
	return found && q.Surface == surfaceService && s.EncodedSlash == EncodedSlashAllow
}

// permitFor finds what decides about a question, and the URL that it is about.
func (v *EffectivePolicy) permitFor(q Question) (*policy.Compiled, string, *problem.Error) {
	switch q.Surface {
	case "", surfaceProxy, surfaceBrowser:
		return v.Proxy(), q.URL, nil
	case surfaceExecute:
		return v.Tool(q.Service), q.URL, nil
	case surfaceService:
		s, permit, found := v.Service(q.Service)
		if !found {
			return nil, "", problem.New(problem.ServiceUnknown, "Do not retry: ask the operator for the service.", "there is no service %q", clip(q.Service))
		}
		if strings.HasPrefix(q.URL, "/") {
			return permit, strings.TrimSuffix(s.BaseURL, "/") + q.URL, nil
		}
		return permit, q.URL, nil
	}
	return nil, "", problem.New(problem.BadRequest, "proxy, browser, execute or service", "%q is not a surface", clip(q.Surface))
}

// request is a request as the gateway would have it decided.
func request(q Question, address string, slashes bool) (policy.Request, hostport.Endpoint, *problem.Error) {
	if len(address) > 8<<10 {
		return policy.Request{}, hostport.Endpoint{}, problem.New(problem.BadURL, "shorten it", "the URL is longer than 8 KiB")
	}
	u, err := url.Parse(address)
	if err != nil {
		return policy.Request{}, hostport.Endpoint{}, problem.New(problem.BadURL, "such as https://api.example.com/v1", "%q is not a URL", clip(address))
	}
	to, err := hostport.FromURL(u)
	if err != nil {
		return policy.Request{}, hostport.Endpoint{}, problem.Wrap(err, problem.BadURL, "such as https://api.example.com/v1", "%q is not an absolute URL of a host: %v", clip(address), err)
	}
	req := policy.Request{Scheme: policy.Scheme(u.Scheme), Host: to.Host(), Port: to.Port(), Method: strings.ToUpper(q.Method)}
	if u.Scheme == "wss" {
		req.Scheme = policy.HTTPS
	}
	proxied := q.Surface == "" || q.Surface == surfaceProxy || q.Surface == surfaceBrowser
	if proxied && (req.Method == policy.Connect || req.Scheme == policy.HTTPS) {
		// Requests in the tunnel are not seen.
		req.Method = policy.Connect
		return req, to, nil
	}
	if req.Method == "" {
		req.Method = "GET"
	}
	if !made(req.Method, 32, upper) || req.Method == policy.Connect {
		return policy.Request{}, hostport.Endpoint{}, problem.New(problem.BadRequest, "such as GET", "%q is not a method", clip(q.Method))
	}
	if req.Path = u.EscapedPath(); req.Path == "" {
		req.Path = "/"
	}
	req.EncodedSlash = slashes
	if _, plain := policy.Canonical(req.Path, slashes); !plain && !proxied {
		return policy.Request{}, hostport.Endpoint{}, problem.New(problem.PathDenied, "Do not retry: write the path plainly.", "the path can be read in two ways")
	}
	return req, to, nil
}

// Advice is how an operator lets the browsers of an agent reach more, as [policy.Policy] has it. It is empty for no agent.
func Advice(agent string) string {
	if agent == "" {
		return ""
	}
	return "the browser has the rules of the agent that opened it; `clawjail rules add allow HOST --agent " + agent +
		"` adds one, and `browser: open` in its declaration allows the public web"
}
