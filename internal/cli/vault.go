package cli

import (
	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/op"
)

func newVaultCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "vault",
		Short: "Look at the key of the vault, and change it",
		Long: "The vault keeps cookie sets and secrets encrypted in the database, with a key that is in a file beside it. " +
			"Both together open the accounts; back them up to different places.",
	})
	cmd.AddCommand(described(p, op.ShowVault()), described(p, op.RotateVault()))
	return cmd
}
