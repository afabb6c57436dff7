package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mark is what a line begins with: a sign for people, a word for programs and for terminals without the sign.
func mark(s Status, signs bool) string {
	if !signs {
		return fmt.Sprintf("%-4s", s)
	}
	switch s {
	case OK:
		return "✓"
	case Warn:
		return "!"
	case Fail:
		return "✗"
	}
	return "-"
}

// Write writes the report for people: one line per check, hints below it, and the count at the end. With signs there is
// one character instead of a word, for terminals.
func (r Report) Write(w io.Writer, signs bool) error {
	width := 0
	for _, c := range r.Checks {
		width = max(width, utf8.RuneCountInString(c.Name))
	}
	var b strings.Builder
	for _, c := range r.Checks {
		start := mark(c.Status, signs) + " "
		// A text that goes on in the next line (a list of mistakes) stays in its column.
		indent := strings.Repeat(" ", utf8.RuneCountInString(start)+width+2)
		fmt.Fprintf(&b, "%s%-*s  %s\n", start, width, c.Name, below(c.Message, indent))
		if c.Hint != "" && c.Status != OK {
			fmt.Fprintf(&b, "%shint: %s\n", indent, below(c.Hint, indent+"      "))
		}
	}
	if r.Pace >= 2 {
		fmt.Fprintf(&b, "\nthis machine is about %.0f times slower than usual now, and the checks had as much more time\n", r.Pace)
	}
	fmt.Fprintf(&b, "\n%d checks: %d ok, %d warn, %d fail, %d skip\n", len(r.Checks), r.Count(OK), r.Count(Warn), r.Count(Fail), r.Count(Skip))
	_, err := io.WriteString(w, b.String())
	return err
}

// below indents all lines but the first. Other control characters come from the host's files and programs, and must not
// reach a terminal.
func below(text, indent string) string {
	text = strings.Map(func(c rune) rune {
		if c != '\n' && unicode.IsControl(c) {
			return '�'
		}
		return c
	}, strings.TrimRight(text, "\n"))
	return strings.ReplaceAll(text, "\n", "\n"+indent)
}
