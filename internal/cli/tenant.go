package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/quota"
)

func newTenantCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "tenant",
		Short: "Separate those who share an installation",
		Long: "A tenant owns agents, accounts and sessions, and sees nothing of other tenants. The tenant default exists from " +
			"the start. Tenants are made by an admin of all tenants.",
	})
	cmd.AddCommand(newTenantList(p), newTenantShow(p), newTenantCreate(p), newTenantSet(p), newTenantDisconnect(p))
	return cmd
}

func newTenantList(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List tenants",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			tenants, err := c.Tenants(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), tenants)
			}
			return table(cmd.OutOrStdout(), tenantRows(tenants, p.now()))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func tenantRows(tenants []api.Tenant, now time.Time) [][]string {
	rows := [][]string{{"ID", "MADE", "OPERATOR MODE"}}
	for _, t := range tenants {
		rows = append(rows, []string{t.ID, when(t.CreatedAt, now), operatorMode(t)})
	}
	return rows
}

func newTenantShow(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a tenant, and what it holds of what all share",
		Long: "Shows a tenant, and what it holds of what all tenants share, such as places for sessions. How much one tenant and one agent may " +
			"hold is in the configuration, in quotas.",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(tenantNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			t, err := c.Tenant(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), t)
			}
			if err := showTenant(cmd.OutOrStdout(), t.Tenant, false); err != nil {
				return err
			}
			rows := [][]string{{"OF", "HELD", "AT MOST", "ONE AGENT", "IN ALL"}}
			for _, u := range t.Quotas {
				rows = append(rows, []string{u.Kind, shareOf(u, u.Held), shareOf(u, u.Most), shareOf(u, u.MostAgent), shareOf(u, u.All)})
			}
			return table(cmd.OutOrStdout(), rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// shareOf is a number of what is divided between tenants.
func shareOf(u quota.Use, n int64) string {
	if u.Unit == "bytes" {
		return size(n)
	}
	return fmt.Sprint(n)
}

func operatorMode(t api.Tenant) string {
	switch {
	case t.ForbidOperatorMode:
		return "forbidden"
	case t.ForbidAccountPermissions:
		return "allowed with a grant"
	}
	return "allowed"
}

// The flags of a tenant's policy.
const (
	forbidFlag            = "forbid-operator-mode"
	forbidPermissionsFlag = "forbid-account-permissions"
	forbidPermissions     = "refuse those that an agent opens with a permission and without a grant"
)

func newTenantCreate(p *program) *cobra.Command {
	var request api.TenantRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "create ID",
		Short:   "Make a tenant",
		Example: "  sudo clawjail tenant create acme\n  sudo clawjail operator create ada --tenant acme --role admin",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			request.ID = args[0]
			t, err := c.CreateTenant(cmd.Context(), request)
			if err != nil {
				return err
			}
			return showTenant(cmd.OutOrStdout(), t, asJSON)
		},
	}
	cmd.Flags().BoolVar(&request.ForbidOperatorMode, forbidFlag, false, "refuse every session that uses accounts")
	cmd.Flags().BoolVar(&request.ForbidAccountPermissions, forbidPermissionsFlag, false, forbidPermissions)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showTenant(w io.Writer, t api.Tenant, asJSON bool) error {
	if asJSON {
		return writeJSON(w, t)
	}
	_, err := fmt.Fprintf(w, "tenant %s: sessions that use accounts are %s\n", t.ID, operatorMode(t))
	return err
}

func newTenantSet(p *program) *cobra.Command {
	var forbidMode, forbidStanding bool
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "set ID --" + forbidFlag + "=true|false",
		Short: "Change what a tenant may do",
		Long: "Changes what a tenant may do. Sessions that are open stay open: close them, or end what its principals have " +
			"open with `clawjail tenant disconnect`.",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(tenantNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			var policy api.TenantPolicy
			if cmd.Flags().Changed(forbidFlag) {
				policy.ForbidOperatorMode = &forbidMode
			}
			if cmd.Flags().Changed(forbidPermissionsFlag) {
				policy.ForbidAccountPermissions = &forbidStanding
			}
			if policy == (api.TenantPolicy{}) {
				return usage(cmd, "say what to change: --%s=true or --%s=false", forbidFlag, forbidFlag)
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			t, err := c.SetTenant(cmd.Context(), args[0], policy)
			if err != nil {
				return err
			}
			return showTenant(cmd.OutOrStdout(), t, asJSON)
		},
	}
	cmd.Flags().BoolVar(&forbidMode, forbidFlag, false, "refuse every session that uses accounts")
	cmd.Flags().BoolVar(&forbidStanding, forbidPermissionsFlag, false, forbidPermissions)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newTenantDisconnect(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "disconnect ID",
		Short: "End everything that is open for a tenant's principals",
		Long: "Ends every connection and every session that the principals of a tenant have open. Their keys stay good: revoke " +
			"them as well, or they come back.",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(tenantNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			ended, err := c.DisconnectTenant(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "ended %s\n", count(ended, "connection"))
			return err
		},
	}
}
