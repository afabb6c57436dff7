package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/op"
)

func newAuditCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "audit",
		Short: "Read the audit log, and verify it",
		Long: "Every sensitive action is logged before it runs: who did what to whom. Most have two rows, an intent " +
			"and an outcome. No row holds the value of a credential.",
	})
	cmd.AddCommand(newAuditTail(p), described(p, op.ListAudit()), newAuditVerify(p), newAuditExport(p))
	return cmd
}

func newAuditTail(p *program) *cobra.Command {
	var query op.AuditQuery
	var asJSON bool
	var values *given
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
			if err := values.check(nil, ""); err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			now := p.now()
			for row, err := range c.AuditTail(cmd.Context(), query) {
				if err != nil {
					if query.Follow && errors.Is(err, context.Canceled) {
						return nil // how following ends
					}
					return err
				}
				if err := tailRow(cmd.OutOrStdout(), row, now, asJSON); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&query.Follow, "follow", "f", false, "go on with rows as they are written")
	cmd.Flags().IntVarP(&query.Limit, "rows", "n", 20, "`number` of rows to begin with")
	values = &given{p: p, cmd: cmd}
	values.add(reflect.ValueOf(&query.AuditFilter).Elem())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one row a line")
	return cmd
}

// tailRow prints a row in a line. Rows come one by one, so their columns have a width that suits most.
func tailRow(w io.Writer, row op.AuditRow, now time.Time, asJSON bool) error {
	if asJSON {
		return encoder(w).Encode(row)
	}
	widths := []int{len(time.DateTime), 16, 7, 10}
	var line strings.Builder
	for n, value := range row.Cells() {
		cell := dash(legible(value, now))
		if n < len(widths) {
			fmt.Fprintf(&line, "%-*s  ", widths[n], cell)
		} else if cell != "-" {
			line.WriteString(cell + "  ")
		}
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	return err
}

// moment reads a time: how long ago, or when.
func moment(cmd *cobra.Command, flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := texts.Duration(text); err == nil && ago >= 0 {
		return now.Add(-ago).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, usage(cmd, "--%s %q is not a time: write how long ago, such as 1h or 7d, or 2026-01-02T15:04:05Z", flag, text)
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
			"standard output, which is the default. The file can be verified with `clawjail audit verify --export " +
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
			began := p.now().UTC().Format(time.RFC3339)
			made, err := output(cmd, file, 0o600, func(w io.Writer) error { return c.AuditExport(cmd.Context(), w, node) })
			if err != nil || !made {
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
