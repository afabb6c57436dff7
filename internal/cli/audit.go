package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
)

func newAuditCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "audit",
		Short: "Read the record of what was done, and prove it",
		Long: "Every action that matters is on record before it is done: who did what to whom. Most have two rows, an intent " +
			"and an outcome. Values of credentials are in none.",
	})
	cmd.AddCommand(newAuditTail(p), newAuditList(p), newAuditVerify(p), newAuditExport(p))
	return cmd
}

// auditFlags are the filters that tail and ls share.
func auditFlags(p *program, cmd *cobra.Command, q *api.AuditQuery) {
	f := cmd.Flags()
	f.StringVar(&q.Action, "action", "", "rows of this `action` only, such as grant.issue; session. stands for all that begin so")
	f.StringVar(&q.Actor, "actor", "", "rows of this `actor` only: admin, system, operator:ID or agent:ID")
	f.StringVar(&q.Session, "session", "", "rows about this `session` only")
	f.StringVar(&q.Result, "result", "", "rows with this result only: ok, refused, failed or unknown")
	f.StringVar(&q.Node, "node", "", "rows of this `node` only")
	p.tenantFlag(cmd, &q.Tenant)
	complete(cmd, "result", "ok", "refused", "failed", "unknown")
	if err := cmd.RegisterFlagCompletionFunc("session", p.completeSessions); err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
}

func newAuditTail(p *program) *cobra.Command {
	var query api.AuditQuery
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Show the newest rows, and follow",
		Long: "Shows the newest rows, oldest first, and with -f those that follow, until it is interrupted. With --json every " +
			"row is one line.",
		Example: "  clawjail audit tail -f --action session.\n  clawjail audit tail -n 100 --result refused",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if query.Limit < 1 {
				return usage(cmd, "-n %d: how many rows to show is at least 1", query.Limit)
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			zone := p.now().Location()
			for row, err := range c.AuditTail(cmd.Context(), query) {
				if err != nil {
					if query.Follow && errors.Is(err, context.Canceled) {
						return nil // how following ends
					}
					return err
				}
				if err := tailRow(cmd.OutOrStdout(), row, zone, asJSON); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&query.Follow, "follow", "f", false, "go on with rows as they are written")
	cmd.Flags().IntVarP(&query.Limit, "rows", "n", 20, "`number` of rows to begin with")
	auditFlags(p, cmd, &query)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one row a line")
	return cmd
}

// tailRow prints a row in a line. Rows come one by one, so their columns have a width that suits most.
func tailRow(w io.Writer, row api.AuditRow, zone *time.Location, asJSON bool) error {
	if asJSON {
		e := encoder(w)
		return e.Encode(row)
	}
	widths := []int{len(time.DateTime), 16, 7, 10}
	var line strings.Builder
	for n, cell := range auditCells(row, zone) {
		if n < len(widths) {
			fmt.Fprintf(&line, "%-*s  ", widths[n], cell)
		} else if cell != "-" {
			line.WriteString(cell + "  ")
		}
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	return err
}

// auditCells are the columns of a row. What is in them was chosen by whoever did something, and is for no terminal.
func auditCells(row api.AuditRow, zone *time.Location) []string {
	how := row.Result
	if how == "" {
		how = row.Phase // an intent has no result
	}
	detail := string(row.Detail)
	if detail == "{}" {
		detail = "" // nothing to say
	}
	cells := []string{row.Time.In(zone).Format(time.DateTime), row.Action, how, row.Actor, row.Tenant, row.Session, row.Target, detail}
	for n, cell := range cells {
		cells[n] = dash(printable(cell))
	}
	return cells
}

func newAuditList(p *program) *cobra.Command {
	var query api.AuditQuery
	var since, until string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "Find rows",
		Long: "Finds rows, and shows the newest of them, oldest first. A time is a duration before now, such as 1h, or written " +
			"as 2026-01-02T15:04:05Z.",
		Example: "  clawjail audit ls --since 1h --result refused\n  clawjail audit ls --session s_abcdefgh23456789 --json",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if query.Limit < 1 {
				return usage(cmd, "--limit %d: how many rows to show is at least 1", query.Limit)
			}
			var err error
			if query.Since, err = moment(cmd, "since", since, p.now()); err != nil {
				return err
			}
			if query.Until, err = moment(cmd, "until", until, p.now()); err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			rows, err := c.Audit(cmd.Context(), query)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), rows)
			}
			return table(cmd.OutOrStdout(), auditRows(rows, p.now()))
		},
	}
	f := cmd.Flags()
	f.StringVar(&since, "since", "", "rows from this `time` on")
	f.StringVar(&until, "until", "", "rows before this `time`")
	f.IntVar(&query.Limit, "limit", 100, "`number` of rows to show, at most 1000")
	auditFlags(p, cmd, &query)
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func auditRows(found []api.AuditRow, now time.Time) [][]string {
	rows := [][]string{{"TIME", "ACTION", "RESULT", "ACTOR", "TENANT", "SESSION", "TARGET", "DETAIL"}}
	for _, row := range found {
		rows = append(rows, auditCells(row, now.Location()))
	}
	return manyTenants(rows, 4)
}

// moment reads a time: how long ago, or when.
func moment(cmd *cobra.Command, flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, usage(cmd, "--%s %q is not a time: write how long ago, such as 1h, or 2026-01-02T15:04:05Z", flag, text)
	}
	return at.UTC(), nil
}

func newAuditExport(p *program) *cobra.Command {
	var file, node string
	var lines bool
	cmd := &cobra.Command{
		Use:   "export --jsonl",
		Short: "Write the audit log to a file",
		Long: "Writes all rows, with their hashes, as one line of JSON each. A file is there whole or not at all; - is " +
			"standard output, which is the default. What was written can be proved with `clawjail audit verify --export " +
			"FILE`.",
		Example: "  sudo clawjail audit export --jsonl -o audit.jsonl",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !lines {
				return usage(cmd, "the format is missing: --jsonl is the only one")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			export := func(w io.Writer) error { return c.AuditExport(cmd.Context(), w, node) }
			if file == standardInput {
				return export(cmd.OutOrStdout())
			}
			began := p.now().UTC().Format(time.RFC3339)
			if err := writeWhole(file, 0o600, export); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s; to prove it: clawjail audit verify --export %s --as-of %s\n", file, file, began)
			return err
		},
	}
	cmd.Flags().BoolVar(&lines, "jsonl", false, "write JSON, one row a line")
	cmd.Flags().StringVarP(&file, "output", "o", standardInput, "`file` to write")
	cmd.Flags().StringVar(&node, "node", "", "rows of this `node` only")
	return cmd
}
