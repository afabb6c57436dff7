package clawbots

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/problem"
)

// shownWidth is how much of a line of the file is shown, in characters.
const shownWidth = 110

// Explain is an error of [Parse] for a terminal: each mistake with the line of the file, and a caret beneath the place. Values of
// variables are left out, and what looks like a secret is starred. Other errors are shown as they are.
func Explain(err error, text []byte) string {
	if err == nil {
		return ""
	}
	flaws, source, ok := flawsOf(err)
	if !ok {
		return err.Error()
	}
	lines := strings.Split(strings.TrimPrefix(string(text), "\ufeff"), "\n")
	private := privateLines(flaws, lines)
	shown := map[int][]rune{} // lines are long, and may have many mistakes
	var out strings.Builder
	for _, flaw := range flaws {
		one := problem.ValidationError{Source: source, Flaws: []problem.Flaw{flaw}}
		out.WriteString(printable(one.Error()) + "\n")
		if flaw.Line < 1 || flaw.Line > len(lines) {
			continue
		}
		if _, done := shown[flaw.Line]; !done {
			shown[flaw.Line] = presentableLine(lines[flaw.Line-1], private[flaw.Line])
		}
		line, caret := excerpt(shown[flaw.Line], flaw.Column)
		number := fmt.Sprintf("%5d", flaw.Line)
		fmt.Fprintf(&out, "%s | %s\n%s | %s^\n", number, line, strings.Repeat(" ", len(number)), strings.Repeat(" ", caret))
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// flawsOf finds the list in an error, also in one that has come over the API.
func flawsOf(err error) (flaws []problem.Flaw, source string, ok bool) {
	var many *problem.ValidationError
	if errors.As(err, &many) {
		return many.Flaws, many.Source, true
	}
	p, found := problem.As(err)
	if !found || p.Details["errors"] == nil {
		return nil, "", false
	}
	data, err := json.Marshal(p.Details["errors"])
	if err != nil || json.Unmarshal(data, &flaws) != nil || len(flaws) == 0 || len(flaws) > 10*maxFlaws {
		return nil, "", false
	}
	return flaws, "", true
}

// privateLines are those on which a variable has a flaw, and all that stand below env, which may have values, or on its line.
func privateLines(flaws []problem.Flaw, lines []string) map[int]bool {
	out := map[int]bool{}
	for _, flaw := range flaws {
		if strings.Contains(flaw.Field, ".env") {
			out[flaw.Line] = true
		}
	}
	below := -1 // the indentation of the env that the line stands below
	for i, line := range lines {
		text := strings.TrimLeft(line, " ")
		indent := len(line) - len(text)
		if text != "" && indent <= below {
			below = -1
		}
		if at := strings.Index(line, "env:"); at >= 0 { // a map in braces has the values on the same line
			if below = indent; strings.Trim(line[:at], " -") == "" {
				below = at // it may be the first key of an entry
			}
		}
		if below >= 0 {
			out[i+1] = true
		}
	}
	return out
}

// presentableLine is a line of the file without what must not be shown.
func presentableLine(line string, private bool) []rune {
	if private {
		line = withoutValues(line)
	}
	return []rune(mask(printable(line)))
}

// excerpt is the part of a line around a column, which counts characters from 1, and how far in it the caret is.
func excerpt(shown []rune, column int) (string, int) {
	caret := min(max(column-1, 0), len(shown))
	begin := 0
	if len(shown) > shownWidth && caret > shownWidth*3/4 {
		begin = caret - shownWidth/2
	}
	end := min(begin+shownWidth, len(shown))
	out := string(shown[begin:end])
	caret -= begin
	if begin > 0 {
		out, caret = "…"+out, caret+1
	}
	if end < len(shown) {
		out += "…"
	}
	return out, caret
}

// withoutValues leaves of a line its first key.
func withoutValues(line string) string {
	if at := strings.Index(line, ":"); at >= 0 && !secret.Within(line[:at]) {
		return line[:at+1] + " …"
	}
	return "…"
}

// printable makes a text of the file harmless for a terminal. Each character stays one.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case r == '\n':
			return r
		case r == utf8.RuneError || !unicode.IsPrint(r) || unicode.Is(unicode.Bidi_Control, r):
			return '\ufffd'
		}
		return r
	}, strings.TrimSuffix(text, "\r"))
}
