package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
)

func newSessionCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "session",
		Short: "Open, use and close browser sessions",
		Long: "Open, use and close browser sessions. These commands talk to the control plane that `clawjail up` runs, or to the one at $" +
			urlVariable + " with the key in $" + keyVariable + ".",
	})
	cmd.AddCommand(newSessionOpen(p), described(p, op.ListSessions()), described(p, op.ShowSession()), newSessionClose(p))
	cmd.AddCommand(newSessionOperations(p)...)
	cmd.AddCommand(newSessionFiles(p), newSessionCDP(p), described(p, op.ListSessionTokens()), described(p, op.RevokeSessionToken()), newSessionRecording(p))
	cmd.AddCommand(newSessionWatch(p), described(p, op.TakeOver()), described(p, op.HandBack()))
	return cmd
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func newSessionClose(p *program) *cobra.Command {
	var all, wait bool
	cmd := &cobra.Command{
		Use:               "close ID…",
		Short:             "Close sessions",
		Long:              "Close sessions. From then on nobody reaches their browsers; the jails are removed behind that, which --wait waits for.",
		Example:           "  sudo clawjail session close s_abcdefgh23456789\n  sudo clawjail session close --all --wait",
		Args:              arguments(0, -1),
		ValidArgsFunction: p.completeAll(sessionIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage(cmd, "name the sessions to close, or give --all")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			if all {
				open, err := c.List(cmd.Context(), false)
				if err != nil {
					return err
				}
				for _, s := range open {
					args = append(args, s.ID)
				}
			}
			return closeSessions(cmd, c, args, wait)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "close every session")
	cmd.Flags().BoolVar(&wait, "wait", false, "return when nothing of them is left")
	return cmd
}

// closeSessions closes all, also when one cannot be. All are told first, and waited for afterwards.
func closeSessions(cmd *cobra.Command, c *client.Client, ids []string, wait bool) error {
	var closed []string
	err := each(cmd, ids, func(id string) error {
		err := c.Close(cmd.Context(), id, false)
		if err == nil {
			closed = append(closed, id)
		}
		return err
	})
	if !wait {
		return err
	}
	late := each(cmd, closed, func(id string) error { return c.Close(cmd.Context(), id, true) })
	if late == nil {
		return err
	}
	if err != nil {
		report(cmd.ErrOrStderr(), err)
	}
	return late
}

// completeSessions completes the id of an open session.
func (p *program) completeSessions(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return p.completeFirst(sessionIDs)(cmd, args, begun)
}

func sessionIDs(ctx context.Context, c *client.Client, _ string) ([]string, error) {
	open, err := c.List(ctx, false)
	return namesOf(open, err, func(s session.Session) (string, string) { return s.ID, s.Browser + " " + s.Label })
}

// complete gives a flag its words.
func complete(cmd *cobra.Command, flag string, words ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
}

// printable is a page's text for a terminal: the page chose every character of it.
func printable(s string) string { return texts.Printable(s, ' ') }
