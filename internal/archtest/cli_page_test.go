package archtest

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/clawjail/clawjail/internal/cli"
	"github.com/clawjail/clawjail/internal/testenv"
)

// shown are the commands below one, without those that cobra brings along.
func shown(cmd *cobra.Command) (out []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			out = append(out, c)
		}
	}
	return out
}

// printed is a text in a page: <words> in it are no markup.
func printed(text string) string {
	return strings.NewReplacer("<", "&lt;", ">", "&gt;").Replace(strings.TrimSpace(text))
}

func writeCommand(out *bytes.Buffer, cmd *cobra.Command, depth int) {
	fmt.Fprintf(out, "\n%s %s\n\n%s.\n", strings.Repeat("#", min(depth+1, 4)), cmd.CommandPath(), printed(cmd.Short))
	if long := cmd.Long; long != "" {
		fmt.Fprintf(out, "\n%s\n", printed(long))
	}
	if below := shown(cmd); len(below) > 0 {
		out.WriteString("\n| command | |\n|---|---|\n")
		for _, c := range below {
			fmt.Fprintf(out, "| [%s](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), printed(c.Short))
		}
		for _, c := range below {
			writeCommand(out, c, depth+1)
		}
		return
	}
	fmt.Fprintf(out, "\n```text\n%s\n```\n", cmd.UseLine())
	if cmd.Example != "" {
		var lines []string
		for line := range strings.Lines(strings.TrimRight(cmd.Example, "\n ")) {
			lines = append(lines, strings.TrimPrefix(strings.TrimRight(line, " \n"), "  "))
		}
		fmt.Fprintf(out, "\n```text\n%s\n```\n", strings.Join(lines, "\n"))
	}
	var flags []string
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, text := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if kind != "" {
			name += " " + kind
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" && f.DefValue != "[]" && !strings.Contains(text, "default") {
			text += " (default " + f.DefValue + ")"
		}
		flags = append(flags, fmt.Sprintf("| `%s` | %s |", name, strings.ReplaceAll(printed(text), "|", "\\|")))
	})
	if len(flags) > 0 {
		fmt.Fprintf(out, "\n| flag | |\n|---|---|\n%s\n", strings.Join(flags, "\n"))
	}
}

// pageOfCommands is docs/cli.md.
func pageOfCommands(root *cobra.Command) string {
	var out bytes.Buffer
	out.WriteString(`# Which commands are there?

A command exits with 0 when it did what was asked, 1 when it did not, 2 when the command line was not valid, 3 when a session was opened and its first page
was not, 130 when it was interrupted, and with the status of a program that it ran. Results go to standard output; errors, with a hint, to standard error. Listings have ` + "`--json`" + `. Nothing asks a question where standard input is no
terminal; acts that cannot be undone need ` + "`--yes`" + ` there. Every command takes ` + "`--config file`" + ` (default ` + "`$CLAWJAIL_CONFIG`" + `, else ` +
		"`~/.config/clawjail/clawjail.yml`, which is not read as root, else `/etc/clawjail/clawjail.yml`" + `) and ` + "`--help`" + `.
The command ` + "`completion`" + ` prints what shells need to complete them.

This page is written from the commands themselves (` + "`go test ./internal/archtest -run PageOfCommands -update`" + `).

| command | |
|---|---|
`)
	for _, c := range shown(root) {
		fmt.Fprintf(&out, "| [%s](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), printed(c.Short))
	}
	for _, c := range shown(root) {
		writeCommand(&out, c, 1)
	}
	return out.String()
}

func TestPageOfCommandsIsWhatTheCommandsSay(t *testing.T) {
	page := pageOfCommands(cli.New("v1.2.3"))
	name := filepath.Join(testenv.Repository(t), "docs", "cli.md")
	testenv.Golden(t, name, page)
	headings := anchors(page)
	for _, want := range []string{"clawjail-session-open", "clawjail-up", "clawjail-agent-sync"} {
		if !slices.Contains(headings, want) {
			t.Errorf("the page has no chapter %s", want)
		}
	}
}
