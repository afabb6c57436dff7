package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/session"
)

func newRecordingCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "recording",
		Short: "List and remove recordings of sessions",
		Long: "Recordings for audit are kept for a week after their sessions have ended, and take room on the disk, of which a tenant and an " +
			"agent have a share. `clawjail session recording` saves one as a page.",
	})
	cmd.AddCommand(newRecordingList(p), newRecordingRemove(p))
	return cmd
}

func newRecordingList(p *program) *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List recordings, the largest first",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			all, err := c.Recordings(cmd.Context(), tenant)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), all)
			}
			return table(cmd.OutOrStdout(), recordingRows(all, p.now()))
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "only those of this `tenant`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func recordingRows(all []session.Recording, now time.Time) [][]string {
	rows := [][]string{{"SESSION", "TENANT", "OPENED BY", "LABEL", "RECORD", "SIZE", "BEGAN", "ENDED"}}
	for _, r := range all {
		ended := "live"
		switch {
		case r.EndedAt != nil:
			ended = when(*r.EndedAt, now)
		case !r.Live:
			ended = "-"
		}
		rows = append(rows, []string{r.Session, r.Tenant, printable(r.OpenedBy), printable(r.Label), string(r.Record), size(r.Bytes), when(r.CreatedAt, now), ended})
	}
	return rows
}

func newRecordingRemove(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "rm SESSION…",
		Short: "Remove recordings of sessions that have ended",
		Long: "Removes what was recorded of sessions that have ended, for good. It takes an admin of the tenant, and is on record: a recording is " +
			"what others look at to see what was done. One of a session that is still recorded is refused.",
		Example:           "  clawjail recording rm s_abcdefgh23456789",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeRecordings(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args, func(id string) error { return c.RemoveRecording(cmd.Context(), id) })
		},
	}
}

func (p *program) completeRecordings() cobra.CompletionFunc {
	return p.completer(func(ctx context.Context, c *client.Client, _ string) ([]string, error) {
		all, err := c.Recordings(ctx, "")
		return namesOf(all, err, func(r session.Recording) (string, string) { return r.Session, r.Label })
	})
}
