package op

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// RuleRequest is the body that makes a rule.
type RuleRequest struct {
	Whose
	Action   policy.Action `json:"action" enum:"allow,deny" arg:"1" example:"deny"`
	Target   string        `json:"target" doc:"hosts or URLs that the rule is for: example.com, *.example.com:8000-8080, https://example.com/repos/**" arg:"2" example:"example.org"`
	Session  string        `json:"session,omitempty" doc:"the id of the session that it is for" flag:"session" value:"id" usage:"id of the session that it is for" complete:"sessions"`
	Methods  []string      `json:"methods,omitempty" nullable:"false" doc:"such as GET; all when it is left out" flag:"method" value:"methods" usage:"HTTP methods that it is about, such as GET,POST; without it, all" is:"methods" offer:"GET,HEAD,POST,PUT,PATCH,DELETE,CONNECT"`
	Priority int           `json:"priority,omitzero" doc:"1 to 999, lower first; 100 when it is left out" flag:"priority" usage:"1 to 999, lower first (default 100)" is:"positive"`
	Address  netip.Addr    `json:"address,omitzero" doc:"address of a private destination: requests go there without DNS" flag:"address" value:"address" usage:"private address that requests for the host go to, without DNS; only an admin of the installation may"`
	Opaque   bool          `json:"opaque,omitzero" doc:"let tunnels carry what is neither TLS nor HTTP" flag:"opaque" usage:"let tunnels carry what is neither TLS nor HTTP, such as SSH"`
	Once     bool          `json:"once,omitzero" doc:"the rule is removed with its first use" flag:"once" usage:"remove the rule with its first use"`
	For      string        `json:"for,omitempty" doc:"how long it holds, such as 1h; without an end when it is left out" flag:"for" usage:"how long it holds, such as 1h (default without an end)" is:"duration"`
	Name     string        `json:"name,omitempty" doc:"shown in refusals and logs; made from the id when it is left out" flag:"name" usage:"shown in refusals and logs"`
	Note     string        `json:"note,omitempty" doc:"for people" flag:"note" value:"text" usage:"a text for people"`
}

// Rule reads the texts. Whether their values are allowed is the service's to say.
func (r RuleRequest) Rule(now time.Time) (egress.Rule, error) {
	if r.Target == "" {
		return egress.Rule{}, problem.New(problem.BadRequest, "send target, such as https://example.com/repos/**", "the target is missing")
	}
	out := egress.Rule{Session: r.Session, Priority: r.Priority, Once: r.Once}
	var err error
	if out.Rule, err = policy.ParseURL(r.Target); err != nil {
		return egress.Rule{}, problem.Wrap(err, problem.BadURL, "write it like example.com, *.example.com:8443 or https://example.com/repos/**",
			"the target %s cannot be read: %v", quote(r.Target), err)
	}
	out.Name, out.Action, out.Methods, out.Address, out.Opaque = r.Name, r.Action, r.Methods, r.Address, r.Opaque
	out.Note = r.Note
	if r.For != "" {
		d, err := texts.Duration(r.For)
		if err != nil || d <= 0 {
			return egress.Rule{}, problem.New(problem.BadLimit, "give a time such as 1h or 30d", "%s is not a positive duration", quote(r.For))
		}
		out.ExpiresAt = now.Add(d).UTC()
	}
	return out, nil
}

// Rule is a rule as it is answered.
type Rule struct {
	egress.Rule
	AgentName string `json:"agent_name,omitempty"`
}

// Subject is what the rule is about, as `rules add` reads it.
func (r Rule) Subject() string {
	out := r.Target()
	if r.Address.IsValid() {
		out += " at " + r.Address.String()
	}
	if r.Opaque {
		out += " (opaque)"
	}
	return out
}

// Rules is the answer to a listing.
type Rules struct {
	Rules []Rule `json:"rules" nullable:"false"`
}

// ExplainRequest is the body that asks what would be decided.
type ExplainRequest struct {
	Questions []egress.Question `json:"questions" nullable:"false" doc:"at most 10000"`
}

// Explanations are the decisions, in the order of the questions.
type Explanations struct {
	Explanations []egress.Explanation `json:"explanations" nullable:"false"`
}

type (
	// NewRule is a rule to be made.
	NewRule struct{ Body[RuleRequest] }

	// RuleNamed names a rule.
	RuleNamed struct {
		ID string `path:"id" maxLength:"64" doc:"the rule's id" arg:"1" complete:"rules"`
	}

	// Questions are asked of the rules.
	Questions struct{ Body[ExplainRequest] }
)

// ListRules lists the rules of the way out.
func ListRules() Op[OfTenant, Rules] {
	return Op[OfTenant, Rules]{Method: http.MethodGet, Path: "/v1/rules", ID: "list-rules", Summary: "List the rules of the gateway", Right: identity.RuleList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Short: "List rules",
			Long: "Lists rules in the order in which they are looked at. Rules of sessions with accounts come from their grants, and are not listed."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OfTenant) (Rules, error) {
			all, err := named(ctx, s, by, in, s.Egress.Rules, func(r egress.Rule, names map[string]string) Rule { return Rule{r, names[r.Agent]} })
			return Rules{all}, err
		},
		View: func(all Rules) []Block {
			out := table(all.Rules, []any{"PRIORITY", "ACTION", "TARGET", "METHODS", "TENANT", "AGENT", "SESSION", "ENDS", "NAME", "ID"}, func(r Rule) []any {
				var ends any = Ends(r.ExpiresAt)
				if r.Once {
					ends = Joined{"once, ", ends}
				}
				return []any{r.Priority, r.Action, r.Subject(), r.Methods, allWhenNone(r.Tenant), cmp.Or(r.AgentName, r.Agent), r.Session, ends, r.Name, r.ID}
			})
			out.Folds = 5
			return []Block{out}
		}}
}

// AddRule makes a rule.
func AddRule() Op[NewRule, Rule] {
	return Op[NewRule, Rule]{Method: http.MethodPost, Path: "/v1/rules", ID: "add-rule", Summary: "Make a rule", Right: identity.RuleChange, Status: http.StatusCreated,
		Command: Command{Use: "add allow|deny TARGET",
			Long: "Makes a rule, which takes effect at once, also for tunnels that are open. TARGET is a host (example.com), all names below one " +
				"(*.example.com), either with a port (example.com:8443, example.com:*), or a URL (https://example.com/repos/**), in whose path " +
				"* stands for one segment and ** at the end for any number. Paths and methods can only be seen in what is not encrypted: inside a " +
				"tunnel, a rule that allows some of them allows nothing. A private address needs --address.",
			Example: "  clawjail rules add allow github.com --agent writer\n  clawjail rules add deny '*.example.com' --priority 10\n" +
				"  clawjail rules add allow http://wiki.internal:8080 --address 192.168.1.20 --for 8h"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewRule) (Rule, error) {
			rule, err := in.Of.Rule(s.Now())
			if err != nil {
				return Rule{}, err
			}
			if rule.Tenant, rule.Agent, err = in.Of.Whose.Of(ctx, s.People, by, identity.RuleChange); err != nil {
				return Rule{}, err
			}
			made, err := s.Egress.AddRule(ctx, by, rule)
			return Rule{made, in.Of.Agent}, err
		},
		View: func(r Rule) []Block { return []Block{line("rule %s: %s %s", r.ID, r.Action, r.Subject())} }}
}

// RemoveRule removes a rule.
func RemoveRule() Op[RuleNamed, None] {
	return Op[RuleNamed, None]{Method: http.MethodDelete, Path: "/v1/rules/{id}", ID: "remove-rule", Summary: "Remove a rule", Right: identity.RuleChange,
		Command: Command{Use: "rm ID…", Aliases: []string{"remove"}, Short: "Remove rules", Long: "Removes rules. Connections that only they allowed end at once."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in RuleNamed) (None, error) {
			return None{}, s.Egress.RemoveRule(ctx, by, in.ID)
		}}
}

// maxQuestions is how many requests are explained at once.
const maxQuestions = 10_000

// ExplainRules decides requests without doing them, and answers in their order. Its command is no listing: it fails when the
// request would be refused.
func ExplainRules() Op[Questions, Explanations] {
	return Op[Questions, Explanations]{Method: http.MethodPost, Path: "/v1/rules/explain", ID: "explain-rules", Summary: "Explain how requests would be decided",
		Right: identity.RuleExplain,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in Questions) (Explanations, error) {
			asked := in.Of.Questions
			if len(asked) == 0 || len(asked) > maxQuestions {
				return Explanations{}, problem.New(problem.BadRequest, "send 1 to 10000 questions", "there are %d questions", len(asked))
			}
			for n := range asked {
				q := &asked[n]
				if err := errors.Join(CheckTenant(q.Tenant), CheckName("agent", q.Agent)); err != nil {
					return Explanations{}, err
				}
				q.Tenant = by.TenantOr(q.Tenant)
				if by.Kind == identity.KindAgent && q.Agent == "" {
					q.Agent = by.Name
				}
			}
			all, err := s.Egress.Explain(ctx, by, asked)
			return Explanations{listOf(all, same)}, err
		}}
}
