package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
)

func newRecordingCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "recording",
		Short: "List and remove recordings of sessions",
		Long: "Recordings for audit are kept for a week after their sessions have ended, and take room on the disk, of which a tenant and an " +
			"agent have a share. `clawjail session recording` saves one as a page.",
	})
	cmd.AddCommand(described(p, op.ListRecordings()), described(p, op.RemoveRecording()))
	return cmd
}

func recordingIDs(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListRecordings(), op.OfTenant{Tenant: tenant})
	return namesOf(all.Recordings, err, func(r session.Recording) (string, string) { return r.Session, r.Label })
}
