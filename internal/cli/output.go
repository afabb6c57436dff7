package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// writeJSON writes a result for programs.
func writeJSON(w io.Writer, v any) error {
	e := encoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// encoder writes values as JSON, one a line. It is the only way in which this package prints JSON.
func encoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(escaping{w})
	e.SetEscapeHTML(false)
	return e
}

// escaping writes what is in JSON, but obeyed or hidden by terminals, as \u escapes: C1 controls, such as U+009B, which begins a
// command, and what changes the order of a line or has no width. To programs it is the same value. encoding/json escapes C0.
type escaping struct{ to io.Writer }

func (e escaping) Write(data []byte) (int, error) {
	var out []byte
	done := 0
	for n := 0; n < len(data); {
		r, size := utf8.DecodeRune(data[n:])
		if r == 0x7f || r >= 0x80 && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			out = append(out, data[done:n]...)
			for _, unit := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
			done = n + size
		}
		n += size
	}
	if _, err := e.to.Write(append(out, data[done:]...)); err != nil {
		return 0, err
	}
	return len(data), nil
}

// table writes rows in columns, each as wide as its widest cell. The first row is the heading.
func table(w io.Writer, rows [][]string) error {
	var widths []int
	for _, row := range rows {
		for n, cell := range row {
			if n == len(widths) {
				widths = append(widths, 0)
			}
			widths[n] = max(widths[n], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for n, cell := range row {
			line.WriteString(cell)
			if n < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[n]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fields writes names and values, one pair per line. Pairs with an empty value are left out.
func fields(w io.Writer, pairs [][2]string) error {
	var rows [][]string
	for _, p := range pairs {
		if p[1] != "" {
			rows = append(rows, []string{p[0] + ":", p[1]})
		}
	}
	return table(w, rows)
}

// age is a duration as people read it: the two largest units.
func age(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// size is a number of bytes as people read it.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// terminal reports whether something is a terminal, and how wide.
func terminal(w any) (width int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return width, true
}
