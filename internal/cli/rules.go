package cli

import (
	"context"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

func newRulesCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "rules",
		Short: "Decide which hosts agents and browsers may reach",
		Long: "Rules say what may leave a jail. Those of a lower priority come first; of equal ones, a rule that denies comes before " +
			"one that allows. A request that no rule of an agent allows is denied; a clean browser session may also see the public web.",
	})
	cmd.AddCommand(described(p, op.ListRules()), described(p, op.AddRule()), described(p, op.RemoveRule()), newRulesExplain(p), newRulesTest(p), newRulesRecord(p))
	return cmd
}

// exclusive refuses flags of which only one can be meant.
func exclusive(cmd *cobra.Command, flags ...string) error {
	var said []string
	for _, flag := range flags {
		if cmd.Flags().Changed(flag) {
			said = append(said, "--"+flag)
		}
	}
	if len(said) > 1 {
		return usage(cmd, "%s: only one of them can be", strings.Join(said, " and "))
	}
	return nil
}

// address reads a flag that is an address.
func address(cmd *cobra.Command, text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, usage(cmd, "--address %q is not an address such as 192.168.1.20", text)
	}
	return addr, nil
}

// upper makes methods of what was typed.
func upper(methods []string) []string {
	var out []string
	for _, m := range methods {
		if m = strings.ToUpper(strings.TrimSpace(m)); m != "" {
			out = append(out, m)
		}
	}
	return out
}

func ruleIDs(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListRules(), op.OfTenant{Tenant: tenant})
	return namesOf(all.Rules, err, func(r op.Rule) (string, string) { return r.ID, string(r.Action) + " " + r.Subject() })
}

func newRulesExplain(p *program) *cobra.Command {
	var q egress.Question
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain URL",
		Short: "Explain how a request would be decided, and by which rule",
		Long: "Decides a request without making it, and names the rule that decided. It ends with 0 when the request is allowed and with 1 " +
			"when it is not. Without --agent it is the request of a clean browser session; --session is one that is open, also with accounts. An agent " +
			"asks about itself. An allowed name is looked up and its address checked, as the gateway does; for agents names are not looked up.",
		Example: "  clawjail rules explain https://github.com/ --agent writer\n" +
			"  clawjail rules explain https://api.github.com/user --agent writer --surface execute --service github\n" +
			"  clawjail rules explain https://example.com/ --session ID",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := exclusive(cmd, "agent", "session"); err != nil {
				return err
			}
			q.Lookup = true
			if q.Service == "" && q.Surface == surfaceService {
				return usage(cmd, "the surface service needs --service")
			}
			q.URL, q.Method = args[0], strings.ToUpper(q.Method)
			if q.Method == "" {
				q.Method = usualMethod(q)
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			out, err := client.Call(cmd.Context(), c, op.ExplainRules(), op.Questions{Body: op.With(op.ExplainRequest{Questions: []egress.Question{q}})})
			if err != nil {
				return err
			}
			if n := len(out.Explanations); n != 1 {
				return problem.New(problem.ControlPlaneUnreachable, notOurAnswer, "the control plane gave %d answers to one question", n)
			}
			return showExplanation(cmd, out.Explanations[0], asJSON)
		},
	}
	p.tenantFlag(cmd, &q.Tenant)
	f := cmd.Flags()
	f.StringVar(&q.Agent, "agent", "", "`name` of the agent that asks; without it, a clean browser session")
	f.StringVar(&q.Session, "session", "", "`id` of the session that asks, which is open")
	f.StringVar(&q.Method, "method", "", "HTTP `method` (default CONNECT for https through the proxy, else GET)")
	f.StringVar(&q.Surface, "surface", "", "the way it comes: proxy, execute, service, or browser for one that the agent opens (default proxy)")
	f.StringVar(&q.Service, "service", "", "`name` of the service whose credential it needs")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	p.completeFlag(cmd, "agent", agentNames)
	p.completeFlag(cmd, "session", sessionIDs)
	p.completeFlag(cmd, "service", namesOfEntries(serviceEntries))
	complete(cmd, "surface", surfaceProxy, surfaceExecute, surfaceService, surfaceBrowser)
	return cmd
}

// notOurAnswer is the hint for an answer that no control plane gives.
const notOurAnswer = "is the control plane of the same version? `clawjail version` says this one's"

// The surfaces of a question.
const (
	surfaceProxy   = "proxy"
	surfaceExecute = "execute"
	surfaceService = "service"
	surfaceBrowser = "browser"
)

// usualMethod is what a program would send: https goes through the proxy in a tunnel.
func usualMethod(q egress.Question) string {
	if (q.Surface == "" || q.Surface == surfaceProxy || q.Surface == surfaceBrowser) && !strings.HasPrefix(strings.ToLower(q.URL), "http://") {
		return policy.Connect
	}
	return "GET"
}

// showExplanation prints a decision. One that is no is also an error, so that a script sees it.
func showExplanation(cmd *cobra.Command, e egress.Explanation, asJSON bool) error {
	if e.Code == problem.BadURL || e.Code == problem.BadRequest {
		return problem.New(problem.BadUsage, printable(e.Hint), "%s", printable(e.Reason)) // no request at all
	}
	verdict := "denied"
	if e.Allowed {
		verdict = "allowed"
	}
	if e.Reported {
		verdict = "allowed, because refusals are only reported"
	}
	rule := e.Rule
	if rule == "" {
		rule = "(no rule: the default)"
	}
	var err error
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), e)
	} else {
		err = fields(cmd.OutOrStdout(), [][2]string{{"verdict", verdict}, {"rule", printable(rule)}, {"code", printable(e.Code)},
			{"reason", printable(e.Reason)}, {"hint", printable(e.Hint)}})
	}
	if err == nil && !e.Allowed {
		hint := e.Hint
		if e.Session == "" && e.Code != problem.ToolDenied && byPolicy(e.Code) {
			hint = "allow it: clawjail rules add allow TARGET"
		}
		return problem.New(problem.HostDenied, printable(hint), "the request would be denied")
	}
	return err
}
