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

// jails looks at the jails of the host, and knows no other way to learn whether there is one.
type jails struct{ run hostcmd.Runner }

// prison is a jail of the kernel's.
type prison struct {
	jid   int
	name  string
	path  string
	dying bool // removed, and held by something
}

// list is all of them, dying ones included. jls(8) prints one line for each: values that need it are quoted (-q), and a
// boolean is its name, or the name after "no".
func (j *jails) list(ctx context.Context) ([]prison, error) {
	text, err := j.run.Run(ctx, "jls", "-d", "-n", "-q", "jid", "name", "path", "dying")
	if err != nil {
		return nil, fmt.Errorf("list jails: %w", err)
	}
	var out []prison
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		p, err := parsePrison(line)
		if err != nil {
			return nil, fmt.Errorf("list jails: %w", err)
		}
		out = append(out, p)
	}
	return out, nil
}

// look finds the jail of a name. Of a living one and dying ones of the same name it is the living one.
func (j *jails) look(ctx context.Context, name jail.Name) (p prison, there bool, err error) {
	all, err := j.list(ctx)
	for _, one := range all {
		if one.name == string(name) && (!there || !one.dying) {
			p, there = one, true
		}
	}
	return p, there, err
}

func parsePrison(line string) (p prison, err error) {
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
			return p, fmt.Errorf("jls says %q", line)
		}
		if err != nil {
			return p, fmt.Errorf("jls says %q: %w", line, err)
		}
		seen++
	}
	if seen != 4 || p.jid <= 0 || p.name == "" {
		return p, fmt.Errorf("jls says %q", line)
	}
	return p, nil
}

// splitQuoted splits at blanks outside of quotes. Inside a backslash takes the next character as it is.
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
