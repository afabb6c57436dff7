package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

func newCookiesDisallow(p *program) *cobra.Command {
	var tenant, agent string
	cmd := &cobra.Command{
		Use:   "disallow DOMAIN --agent NAME",
		Short: "Take back an agent's permission to use an account",
		Long: "Takes back a permission of `clawjail cookies allow`, and ends the sessions that were opened with it. Sessions that were opened with a " +
			"grant go on.",
		Example:           "  clawjail cookies disallow example.com --agent shopper",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(domainsAllowed),
		RunE: func(cmd *cobra.Command, args []string) error {
			if agent == "" {
				return usage(cmd, "from whom to take it is missing: --agent NAME")
			}
			if args[0] == "" {
				return usage(cmd, "the domain is empty")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			if tenant, err = tenantMeant(cmd.Context(), c, tenant); err != nil {
				return err
			}
			all, err := client.Call(cmd.Context(), c, op.ListPermissions(), op.PermissionsListed{OfTenant: op.OfTenant{Tenant: tenant}, Domain: args[0], Agent: agent})
			if err != nil {
				return err
			}
			if len(all.Permissions) == 0 {
				return problem.New(problem.NotFound, "list them: clawjail cookies allowed", "%s has no permission to use the account of %s",
					printable(agent), printable(args[0]))
			}
			out, err := client.Call(cmd.Context(), c, op.DisallowAccount(), op.PermissionNamed{ID: all.Permissions[0].ID, Tenant: tenant})
			if err != nil {
				return err
			}
			return said(cmd, "%s may no longer use the account of %s; %s ended", out.AgentName, out.Domain, count(out.SessionsEnded, "session"))
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().StringVar(&agent, "agent", "", "`name` of the agent")
	p.completeFlag(cmd, "agent", agentNames)
	return cmd
}

// domainsAllowed are those of accounts that agents may use.
func domainsAllowed(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListPermissions(), op.PermissionsListed{OfTenant: op.OfTenant{Tenant: tenant}})
	return namesOf(all.Permissions, err, func(p grant.Permission) (string, string) { return p.Domain, p.AgentName })
}
