package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

func newGrantCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "grant",
		Short: "Permit one session to use accounts",
		Long: "A grant permits one session to use the accounts of named domains, once, within a limited time. Its token is for " +
			"the client that opens that session.",
	})
	cmd.AddCommand(described(p, op.IssueGrant()), described(p, op.ListGrants()), newGrantRevoke(p), described(p, op.ListGrantKeys()),
		described(p, op.RotateGrantKeys()))
	return cmd
}

func newGrantRevoke(p *program) *cobra.Command {
	var tenant string
	var closing bool
	cmd := &cobra.Command{
		Use:   "revoke ID…",
		Short: "Revoke grants",
		Long: "Revokes grants, so that nobody can use them any more. A session that one of them has opened runs on; --close " +
			"closes it too.",
		Example:           "  clawjail grant revoke g_abcdefgh23456789abcd --close",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(grantIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args, func(id string) error { return revokeGrant(cmd, c, tenant, id, closing) })
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&closing, "close", false, "close the session that the grant has opened")
	return cmd
}

func revokeGrant(cmd *cobra.Command, c *client.Client, tenant, id string, closing bool) error {
	g, err := client.Call(cmd.Context(), c, op.RevokeGrant(), op.GrantNamed{ID: id, Tenant: tenant})
	if err != nil || g.UsedBy == "" {
		return err
	}
	used := printable(g.UsedBy)
	if !closing {
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "the session %s was opened with it and may run on; to close it: clawjail "+
			"session close %s\n", used, used)
		return err
	}
	err = c.Close(cmd.Context(), g.UsedBy, false)
	switch problem.CodeOf(err) {
	case problem.NotFound, problem.SessionClosed:
		return nil // it is what was wanted
	}
	return err
}

func grantIDs(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListGrants(), op.GrantsListed{OfTenant: op.OfTenant{Tenant: tenant}, Usable: true})
	return namesOf(all.Grants, err, func(g op.Grant) (string, string) { return g.ID, strings.Join(g.Domains, ", ") })
}
