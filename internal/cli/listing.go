package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/problem"
)

// when is a time as people read it, in the zone of now. It is to the second; --json has all of it.
func when(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(now.Location()).Format(time.DateTime)
}

// since is how long something has been so.
func since(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return age(now.Sub(t))
}

// until is a time that may never come.
func until(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return when(t, now)
}

// manyTenants leaves the column of tenants out of a table when there is no more than one of them.
func manyTenants(rows [][]string, column int) [][]string {
	for n := 2; n < len(rows); n++ {
		if rows[n][column] != rows[1][column] {
			return rows
		}
	}
	out := make([][]string, len(rows))
	for n, row := range rows {
		out[n] = append(append([]string{}, row[:column]...), row[column+1:]...)
	}
	return out
}

// each does something with every argument, also after one with which it could not be done. It fails with the last error,
// and reports those before it. Of several arguments, an error says which it is about.
func each(cmd *cobra.Command, args []string, do func(string) error) error {
	var last error
	for _, arg := range args {
		err := do(arg)
		if err == nil {
			continue
		}
		if last != nil {
			report(cmd.ErrOrStderr(), last)
		}
		last = err
		if p, ok := problem.As(err); ok && len(args) > 1 && !strings.Contains(p.Message, arg) {
			about := *p
			about.Message = printable(arg) + ": " + p.Message
			last = &about
		}
	}
	return last
}
