package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/jail"
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
	cmd.AddCommand(newSessionOpen(p), newSessionList(p), newSessionShow(p), newSessionClose(p))
	cmd.AddCommand(newSessionOperations(p)...)
	cmd.AddCommand(newSessionFiles(p), newSessionCDP(p), described(p, op.ListSessionTokens()), described(p, op.RevokeSessionToken()), newSessionRecording(p))
	cmd.AddCommand(newSessionWatch(p), newSessionTakeOver(p), newSessionHandBack(p))
	return cmd
}

func newSessionList(p *program) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List sessions",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := p.listSessions(cmd.Context(), all)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), found)
			}
			return sessionTable(cmd.OutOrStdout(), found, p.now())
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that are closing, or ended in the last ten minutes")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (p *program) listSessions(ctx context.Context, all bool) ([]session.Session, error) {
	c, err := p.client()
	if err != nil {
		return nil, err
	}
	return c.List(ctx, all)
}

func sessionTable(w io.Writer, sessions []session.Session, now time.Time) error {
	rows := [][]string{{"ID", "TENANT", "STATE", "AGE", "MODE", "BROWSER", "JAIL", "ADDRESS", "WARM", "LABEL"}}
	for _, s := range sessions {
		state := string(s.State)
		if s.Ended != nil && s.Ended.Cause != session.CauseClosed && s.State != session.StateFailed {
			state += " (" + string(s.Ended.Cause) + ")"
		}
		if s.Ended == nil && len(s.NeedsRefresh) > 0 {
			state += " (needs refresh)"
		}
		if s.Ended == nil && s.Control != nil {
			state += " (in hand)"
		}
		rows = append(rows, []string{s.ID, s.Tenant, state, age(now.Sub(s.Created)), s.CredentialMode, s.Browser, dash(s.Jail), dash(s.Address),
			yesNo(s.Warm), printable(s.Label)})
	}
	return table(w, manyTenants(rows, 1))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func newSessionShow(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "show ID",
		Short:             "Show a session: what it uses, or why it ended",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			s, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), s)
			}
			return showSession(cmd.OutOrStdout(), s, p.now())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showSession(w io.Writer, s session.Session, now time.Time) error {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	pairs := [][2]string{
		{"id", s.ID}, {"label", printable(s.Label)}, {"state", string(s.State)}, {"tenant", s.Tenant}, {"opened by", s.OpenedBy},
		{"mode", s.CredentialMode}, {"domains", strings.Join(s.Domains, ", ")}, {"access", accessOf(s)}, {"grant", s.Grant},
		{"browser", strings.TrimSpace(s.Browser + " " + s.BrowserVersion)}, {"template", s.Template}, {"record", s.Record},
		{"jail", s.Jail}, {"address", s.Address}, {"warm", yesNo(s.Warm)},
		{"age", age(now.Sub(s.Created))}, {"idle until", at(s.IdleUntil)}, {"expires", at(s.ExpiresAt)},
	}
	if s.Control != nil {
		pairs = append(pairs, [2]string{"in hand of", inHandOf(*s.Control)})
	}
	for _, r := range s.NeedsRefresh {
		pairs = append(pairs, [2]string{"needs refresh", needsRefresh(r)})
	}
	if t := s.Timing; s.Warm && t.Total > 0 {
		pairs = append(pairs, [2]string{"opened in", fmt.Sprintf("%.1f ms", t.Total)})
	} else if t.Total > 0 {
		pairs = append(pairs, [2]string{"opened in", fmt.Sprintf("%.1f ms (clone %.1f, attach %.1f, start %.1f, verify %.1f, ready %.1f)",
			t.Total, t.Clone, t.Attach, t.Start, t.Verify, t.Ready)})
	}
	if u := s.Usage; u != nil {
		pairs = append(pairs, [][2]string{
			{"memory", size(u.MemoryBytes) + ", at most " + size(u.MemoryPeak) + " so far"},
			{"processor", fmt.Sprintf("%.1f s", u.CPU/1000)}, {"tasks", strconv.Itoa(u.Tasks)},
			{"disk", size(u.DiskBytes)}, {"open files", strconv.Itoa(u.OpenFiles)}, {"limits hit", limitNames(u.LimitsHit)},
		}...)
	}
	if len(s.Screenshots) > 0 {
		pairs = append(pairs, [2]string{"screenshots", strconv.Itoa(len(s.Screenshots)) + " kept"})
	}
	if e := s.Ended; e != nil {
		pairs = append(pairs, [][2]string{
			{"ended", e.At.UTC().Format(time.RFC3339)}, {"cause", string(e.Cause) + ": " + e.Message}, {"limits hit", limitNames(e.LimitsHit)},
			{"teardown", e.TeardownError},
		}...)
		if e.Teardown != nil && e.TeardownError == "" {
			pairs = append(pairs, [2]string{"removed in", fmt.Sprintf("%.1f ms", *e.Teardown)})
		}
	}
	if err := fields(w, pairs); err != nil {
		return err
	}
	if s.Ended == nil || len(s.Ended.Stderr) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\nThe browser's last lines:\n  %s\n", strings.Join(s.Ended.Stderr, "\n  "))
	return err
}

// accessOf is what an operator session may be steered with. A clean one has nothing that it would protect.
func accessOf(s session.Session) string {
	if s.CredentialMode != session.ModeOperator {
		return ""
	}
	return s.Access
}

// inHandOf says which person has a session's browser.
func inHandOf(c session.Control) string {
	who := c.By
	if c.Name != "" && c.Name != c.By {
		who = c.Name + " (" + c.By + ")"
	}
	return printable(who) + " since " + c.Since.UTC().Format(time.RFC3339)
}

// needsRefresh says which account somebody has to log in to again, and why.
func needsRefresh(r session.Refresh) string {
	text := r.Domain + ": somebody has to log in there again"
	if len(r.Cookies) > 0 {
		var names []string
		for _, name := range r.Cookies {
			names = append(names, cookies.Printable(name))
		}
		text += "; expired: " + strings.Join(names, ", ")
	}
	return printable(text)
}

func limitNames(hit []jail.LimitName) string {
	names := make([]string, len(hit))
	for n, h := range hit {
		names[n] = string(h)
	}
	return strings.Join(names, ", ")
}

func newSessionClose(p *program) *cobra.Command {
	var all, wait bool
	cmd := &cobra.Command{
		Use:               "close ID…",
		Short:             "Close sessions",
		Long:              "Close sessions. From then on nobody reaches their browsers; the jails are removed behind that, which --wait waits for.",
		Example:           "  sudo clawjail session close s_abcdefgh23456789\n  sudo clawjail session close --all --wait",
		Args:              arguments(0, -1),
		ValidArgsFunction: p.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage(cmd, "name the sessions to close, or give --all")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			if all {
				open, err := p.listSessions(cmd.Context(), false)
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

// closeSessions closes all, also when one cannot be, and fails with the first error.
func closeSessions(cmd *cobra.Command, c *client.Client, ids []string, wait bool) error {
	// All are told first, and waited for afterwards.
	var first error
	for _, waiting := range []bool{false, true} {
		if waiting && !wait {
			break
		}
		for _, id := range ids {
			err := c.Close(cmd.Context(), id, waiting)
			if err == nil {
				continue
			}
			if first == nil {
				first = err
			} else if !waiting {
				report(cmd.ErrOrStderr(), err)
			}
		}
	}
	return first
}

// completeSessions completes the ids of open sessions.
func (p *program) completeSessions(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() != "close" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.completer(sessionIDs)(cmd, args, "")
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
