//go:build linux || freebsd

package freebsd

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
)

// jails finds the jails of the host with jls(8), and their processes with ps(1).
type jails struct{ run hostcmd.Runner }

// jailRow is what jls says of one jail.
type jailRow struct {
	jid   int
	name  string
	path  string
	dying bool // removed, but something still holds it
}

// list returns all jails, dying ones included. jls prints one line for each: values that need it are quoted (-q), and a
// boolean is its name, or the name after "no".
func (j *jails) list(ctx context.Context) ([]jailRow, error) {
	text, err := j.run.Run(ctx, "jls", "-d", "-n", "-q", "jid", "name", "path", "dying")
	if err != nil {
		return nil, fmt.Errorf("list jails: %w", err)
	}
	var out []jailRow
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		p, err := parseRow(line)
		if err != nil {
			return nil, fmt.Errorf("list jails: %w", err)
		}
		out = append(out, p)
	}
	return out, nil
}

// find returns the jail of a name. A living one comes before dying ones of the same name.
func (j *jails) find(ctx context.Context, name jail.Name) (p jailRow, there bool, err error) {
	all, err := j.list(ctx)
	for _, one := range all {
		if one.name == string(name) && (!there || !one.dying) {
			p, there = one, true
		}
	}
	return p, there, err
}

func parseRow(line string) (p jailRow, err error) {
	seen := 0
	for _, word := range splitQuoted(line) {
		key, value, assigned := strings.Cut(word, "=")
		switch {
		case key == "jid" && assigned:
			p.jid, err = strconv.Atoi(value)
		case key == "name" && assigned:
			p.name = value
		case key == "path" && assigned:
			p.path = value
		case (key == "dying" || key == "nodying") && !assigned:
			p.dying = key == "dying"
		default:
			return p, fmt.Errorf("cannot parse the line %q of jls", line)
		}
		if err != nil {
			return p, fmt.Errorf("cannot parse the line %q of jls: %w", line, err)
		}
		seen++
	}
	if seen != 4 || p.jid <= 0 || p.name == "" {
		return p, fmt.Errorf("cannot parse the line %q of jls", line)
	}
	return p, nil
}

// splitQuoted splits at blanks outside of quotes. In quotes a backslash escapes the next character.
func splitQuoted(line string) []string {
	var out []string
	var word strings.Builder
	quote, inWord := rune(0), false
	escaped := false
	for _, r := range strings.TrimSpace(line) {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case quote != 0 && r == '\\':
			escaped = true
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, inWord = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if inWord {
				out = append(out, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if inWord {
		out = append(out, word.String())
	}
	return out
}
