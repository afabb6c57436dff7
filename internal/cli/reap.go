package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func newReapCommand(p *program) *cobra.Command {
	var o jail.ReapOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reap",
		Short: "Remove leftovers of jails from this machine",
		Long: "Removes jails whose owner is gone, and remains of jails that were " +
			"killed. The host daemon does the same by itself, now and then. It touches only what this installation has made.",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.config()
			if err != nil {
				return err
			}
			// An error may come with a report, which is complete all the same.
			found, reapErr := hostd.NewClient(hostd.SocketPath(c), nil).Reap(cmd.Context(), o)
			if problem.CodeOf(reapErr) == problem.HostdUnreachable {
				found, reapErr = p.reapWithout(cmd, o)
			}
			if reapErr != nil && found.Findings == nil {
				return reapErr
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), found)
			} else {
				err = showReap(cmd, found, o.DryRun)
			}
			return errors.Join(reapErr, err)
		},
	}
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only say what would be removed")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// reapWithout does what the host daemon would do, when it does not run.
func (p *program) reapWithout(cmd *cobra.Command, o jail.ReapOptions) (jail.ReapReport, error) {
	c, _, err := p.trusted()
	if err != nil {
		return jail.ReapReport{}, err
	}
	log, err := logger(c.Log, cmd.ErrOrStderr())
	if err != nil {
		return jail.ReapReport{}, err
	}
	return hostd.ReapWithout(cmd.Context(), hostd.RunOptions{Config: c, Substrate: hostd.ThisHost(), Log: log, Now: p.now}, o)
}

func showReap(cmd *cobra.Command, r jail.ReapReport, dryRun bool) error {
	w := cmd.OutOrStdout()
	if len(r.Findings) == 0 {
		jails, they := fmt.Sprintf("%d jails are", r.Jails), "they"
		if r.Jails == 1 {
			jails, they = "1 jail is", "it"
		}
		_, err := fmt.Fprintf(w, "nothing to remove; %s as %s should be\n", jails, they)
		return err
	}
	rows := [][]string{{"JAIL", "WHAT", "WHY", "DONE"}}
	for _, f := range r.Findings {
		what, name := "jail", string(f.Name)
		if f.Resource != nil {
			what = string(f.Resource.Kind)
			if f.Resource.ID != "" {
				what += " " + f.Resource.ID
			}
		}
		done := "removed"
		switch {
		case f.Error != "":
			done = "error: " + f.Error
		case dryRun:
			done = "would be removed"
		case !f.Removed:
			done = "left"
		}
		rows = append(rows, []string{dash(name), what, f.Reason, done})
	}
	return table(w, rows)
}
