package egress

import (
	"context"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/gateway/hostport"
	"github.com/clawjail/clawjail/internal/gateway/policy"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxQuestions bounds one call of [Book.Explain].
const maxQuestions = 10_000

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
	// Surface is proxy when it is empty; execute and service need Service. Browser is a clean session that the agent opens.
	Surface string `json:"surface,omitempty"`
	Service string `json:"service,omitempty"`
	// Method is CONNECT for a tunnel. Without one it is CONNECT for https through the proxy, else GET.
	Method string `json:"method"`
	// URL is absolute; for a service also what follows its route, from the slash on.
	URL string `json:"url"`
}

// Explanation is a decision, and the rule that made it. Addresses are not looked up: what the rules allow may still lead
// to one that is closed.
type Explanation struct {
	Question
	Allowed  bool   `json:"allowed"`
	Reported bool   `json:"reported,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Code     string `json:"code,omitempty"`
	Reason   string `json:"reason"`
	Hint     string `json:"hint,omitempty"`
}

// Explain decides requests without doing them. At most 10 000 at once. An agent may ask about itself, and is what is
// meant when it names nobody.
func (b *Book) Explain(ctx context.Context, by identity.Principal, q []Question) ([]Explanation, error) {
	if len(q) > maxQuestions {
		return nil, problem.New(problem.BadLimit, "ask in parts", "%d questions are more than %d", len(q), maxQuestions)
	}
	type asked struct {
		tenant, agent string
		browser       bool
	}
	views := map[asked]*View{}
	out := make([]Explanation, len(q))
	for n, question := range q {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		key := asked{by.TenantOr(question.Tenant), question.Agent, question.Surface == surfaceBrowser}
		v := views[key]
		if v == nil {
			of, err := b.scopeOf(ctx, by, identity.RuleExplain, key.tenant, key.agent)
			if err != nil {
				return nil, err
			}
			who := Who{Tenant: of.tenant, Agent: of.agent, Base: policy.Only()}
			if of.agent == "" || key.browser {
				// No session has such an id, so this is any session.
				who.Agent, who.Session, who.Opener, who.Base = "", "any session", of.agent, policy.PublicWeb()
				who.Base.Advice = Advice(question.Agent)
			}
			v = b.View(who)
			views[key] = v
		}
		out[n] = v.explain(question)
	}
	return out, nil
}

func (v *View) explain(q Question) Explanation {
	out := Explanation{Question: q}
	permit, target, refusal := v.permitFor(q)
	if refusal != nil {
		out.Code, out.Reason, out.Hint = refusal.Code, refusal.Message, refusal.Hint
		return out
	}
	req, refusal := request(q, target)
	if refusal != nil {
		out.Code, out.Reason, out.Hint = refusal.Code, refusal.Message, refusal.Hint
		return out
	}
	d := permit.Decide(req)
	out.Allowed, out.Reported, out.Rule = d.Allowed, d.Reported, d.Rule
	out.Code, out.Reason, out.Hint = string(d.Code), d.Reason, d.Hint
	if q.Surface == surfaceExecute && !d.Allowed && d.Rule == "" {
		out.Code = problem.ToolDenied
	}
	return out
}

// permitFor finds what decides about a question, and the URL that it is about.
func (v *View) permitFor(q Question) (*policy.Compiled, string, *problem.Error) {
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
func request(q Question, target string) (policy.Request, *problem.Error) {
	if len(target) > 8<<10 {
		return policy.Request{}, problem.New(problem.BadURL, "shorten it", "the URL is longer than 8 KiB")
	}
	u, err := url.Parse(target)
	if err != nil {
		return policy.Request{}, problem.New(problem.BadURL, "such as https://api.example.com/v1", "%q is not a URL", clip(target))
	}
	to, err := hostport.FromURL(u)
	if err != nil {
		return policy.Request{}, problem.Wrap(err, problem.BadURL, "such as https://api.example.com/v1", "%q is not an absolute URL of a host: %v", clip(target), err)
	}
	req := policy.Request{Scheme: policy.Scheme(u.Scheme), Host: to.Host(), Port: to.Port(), Method: strings.ToUpper(q.Method)}
	if u.Scheme == "wss" {
		req.Scheme = policy.HTTPS
	}
	proxied := q.Surface == "" || q.Surface == surfaceProxy || q.Surface == surfaceBrowser
	if proxied && (req.Method == policy.Connect || req.Scheme == policy.HTTPS) {
		// What travels in the tunnel is not seen.
		req.Method = policy.Connect
		return req, nil
	}
	if req.Method == "" {
		req.Method = "GET"
	}
	if !made(req.Method, 32, upper) || req.Method == policy.Connect {
		return policy.Request{}, problem.New(problem.BadRequest, "such as GET", "%q is not a method", clip(q.Method))
	}
	if req.Path = u.EscapedPath(); req.Path == "" {
		req.Path = "/"
	}
	if policy.Ambiguous(req.Path) && !proxied {
		return policy.Request{}, problem.New(problem.PathDenied, "Do not retry: write the path plainly.", "the path can be read in two ways")
	}
	return req, nil
}

// Advice is how an operator lets the browsers of an agent reach more, as [policy.Policy] has it. It is empty for nobody.
func Advice(agent string) string {
	if agent == "" {
		return ""
	}
	return "the browser has the rules of the agent that opened it; `clawjail rules add allow HOST --agent " + agent +
		"` adds one, and `browser: open` in its declaration allows the public web"
}
