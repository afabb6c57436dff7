package cli

import (
	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/op"
)

func newNodeCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "node",
		Short: "Control planes that share a database",
		Long:  "Each control plane that uses the database is a node, with the name in node of its configuration, or the installation's id.",
	})
	cmd.AddCommand(described(p, op.ListNodes()))
	return cmd
}
