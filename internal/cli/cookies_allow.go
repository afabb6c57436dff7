package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/problem"
)

func newCookiesAllow(p *program) *cobra.Command {
	var request api.AllowRequest
	var times int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "allow DOMAIN --agent NAME",
		Short: "Let an agent use an account in many sessions",
		Long: "Permits an agent to open sessions with an account without a grant in hand: for each of them a grant is issued, used and recorded at " +
			"once. What the agent was permitted with the account before is replaced; its open sessions go on, unless their access is wider than " +
			"it may be now. `clawjail cookies disallow` takes a permission back, and ends the sessions that have it. Removing the agent or the " +
			"account ends it too.",
		Example: "  clawjail cookies allow example.com --agent shopper\n  clawjail cookies allow example.com --agent shopper --for 30d --times 20 " +
			"--hours 08-18 --ask first",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(domainsOfSets),
		RunE: func(cmd *cobra.Command, args []string) error {
			if request.Agent == "" {
				return usage(cmd, "whom it is for is missing: --agent NAME")
			}
			if cmd.Flags().Changed("times") {
				request.Times = &times
			}
			if _, err := grant.ParseFor(request.For); err != nil {
				return usage(cmd, "--for %q is not a time from 1s to 366d: write a number with d, h or m, such as 30d", request.For)
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			request.Domain = args[0]
			made, err := c.AllowAccount(cmd.Context(), request)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), made)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), describePermission(made, p.now()))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&request.Agent, "agent", "", "`name` of the agent")
	f.StringVar(&request.For, "for", "", "for how long, such as 30d or 12h; for good when it is left out")
	f.IntVar(&times, "times", 0, "for how many sessions; any `number` when it is left out")
	f.StringVar(&request.Access, "access", "", "widest access of its sessions: tools (the default), or cdp: "+grant.CDPReads)
	f.StringVar(&request.Ask, "ask", "", "ask a person before each use (always), before the first (first), or never, which is the default")
	f.StringVar(&request.Hours, "hours", "", "`hours` of the day in which it is good, in UTC, such as 08-18 or 22-06")
	f.StringSliceVar(&request.EgressDomains, "egress-domain", nil,
		"`domain` or host that its sessions may reach besides; may be repeated; those that are kept with the account when it is left out")
	p.tenantFlag(cmd, &request.Tenant)
	f.BoolVar(&asJSON, "json", false, "print JSON")
	p.completeFlag(cmd, "agent", agentNames)
	complete(cmd, "access", string(grant.AccessTools), string(grant.AccessCDP))
	complete(cmd, "ask", string(grant.AskNever), string(grant.AskFirst), string(grant.AskAlways))
	return cmd
}

// describePermission says in words what an agent may.
func describePermission(p grant.Permission, now time.Time) string {
	text := fmt.Sprintf("%s may use the account of %s with %s", printable(p.AgentName), printable(p.Domain), p.Access)
	if p.Left != nil {
		text += " in " + count(*p.Left, "session")
	}
	if p.Hours != "" {
		text += ", in the hours " + string(p.Hours) + " (UTC)"
	}
	if p.ExpiresAt.IsZero() {
		text += ", until it is taken back"
	} else {
		text += ", until " + when(p.ExpiresAt, now)
	}
	switch p.Ask {
	case grant.AskFirst:
		text += "; a person is asked before the first use"
	case grant.AskAlways:
		text += "; a person is asked before each use"
	}
	if len(p.EgressDomains) > 0 {
		text += "; its sessions may also reach " + printable(strings.Join(p.EgressDomains, ", "))
	}
	return text
}

func newCookiesDisallow(p *program) *cobra.Command {
	var tenant, agent string
	cmd := &cobra.Command{
		Use:   "disallow DOMAIN --agent NAME",
		Short: "Take back that an agent may use an account",
		Long: "Takes back what `clawjail cookies allow` has given, and ends the sessions that were opened with it. Those that were opened with a " +
			"grant go on.",
		Example:           "  clawjail cookies disallow example.com --agent shopper",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(domainsAllowed),
		RunE: func(cmd *cobra.Command, args []string) error {
			if agent == "" {
				return usage(cmd, "from whom to take it is missing: --agent NAME")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			if tenant, err = tenantMeant(cmd.Context(), c, tenant); err != nil {
				return err
			}
			all, err := c.Permissions(cmd.Context(), tenant)
			if err != nil {
				return err
			}
			n := slices.IndexFunc(all, func(one grant.Permission) bool {
				return strings.EqualFold(one.Domain, args[0]) && (one.AgentName == agent || one.Agent == agent)
			})
			if n < 0 {
				return problem.New(problem.NotFound, "list them: clawjail cookies allowed", "%s has no permission to use the account of %s",
					printable(agent), printable(args[0]))
			}
			out, err := c.DisallowAccount(cmd.Context(), tenant, all[n].ID)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s may no longer use the account of %s; %s ended\n", printable(out.AgentName), printable(out.Domain),
				count(out.SessionsEnded, "session"))
			return err
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().StringVar(&agent, "agent", "", "`name` of the agent")
	p.completeFlag(cmd, "agent", agentNames)
	return cmd
}

// domainsAllowed are those of accounts that agents may use.
func domainsAllowed(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := c.Permissions(ctx, tenant)
	return namesOf(all, err, func(p grant.Permission) (string, string) { return p.Domain, p.AgentName })
}

func newCookiesAllowed(p *program) *cobra.Command {
	var tenant, agent string
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "allowed [DOMAIN]",
		Short:             "List which agents may use which accounts",
		Args:              arguments(0, 1),
		ValidArgsFunction: p.completeFirst(domainsAllowed),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			all, err := c.Permissions(cmd.Context(), tenant)
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(one grant.Permission) bool {
				return len(args) > 0 && !strings.EqualFold(one.Domain, args[0]) || agent != "" && one.AgentName != agent && one.Agent != agent
			})
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), all)
			}
			return table(cmd.OutOrStdout(), permissionRows(all, p.now()))
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().StringVar(&agent, "agent", "", "only those of the agent with this `name`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	p.completeFlag(cmd, "agent", agentNames)
	return cmd
}

func permissionRows(all []grant.Permission, now time.Time) [][]string {
	rows := [][]string{{"DOMAIN", "TENANT", "AGENT", "ACCESS", "SINCE", "UNTIL", "LEFT", "HOURS (UTC)", "ASK", "USED", "LAST USED", "BY"}}
	for _, p := range all {
		left := "any"
		if p.Left != nil {
			left = strconv.Itoa(*p.Left)
		}
		by := printable(p.By)
		if p.Declared {
			by += " (clawbots.yml)"
		}
		rows = append(rows, []string{printable(p.Domain), p.Tenant, printable(p.AgentName), string(p.Access), when(p.CreatedAt, now), until(p.ExpiresAt, now),
			left, dash(string(p.Hours)), string(p.Ask), strconv.Itoa(p.Used), when(p.LastUsedAt, now), by})
	}
	return manyTenants(rows, 1)
}
