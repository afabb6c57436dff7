package cli

import (
	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/op"
)

func newTenantCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "tenant",
		Short: "Separate groups that share an installation",
		Long: "A tenant owns agents, accounts and sessions, and sees nothing of other tenants. The tenant default exists from " +
			"the start. Tenants are made by an admin of all tenants.",
	})
	cmd.AddCommand(described(p, op.ListTenants()), described(p, op.ShowTenant()), described(p, op.CreateTenant()), described(p, op.SetTenant()),
		described(p, op.DisconnectTenant()))
	return cmd
}
