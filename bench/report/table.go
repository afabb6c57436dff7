package report

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Width is the most columns that a table has.
const Width = 110

// GoPrefix begins what a Go benchmark measured, behind the subject.
const GoPrefix = "Go, "

// ordered are the figures as the table has them, by their subjects; the parts of the program by themselves stand behind the whole.
// Those that stand beside another one are not among them.
func (r *Run) ordered() []string {
	peers := map[string]bool{}
	for _, c := range r.Comparisons {
		peers[c.Peer] = true
	}
	for _, c := range r.Comparisons {
		delete(peers, c.Name) // it is compared itself
	}
	order := []string{"start", "close", "load", "memory", "idle", "growth", "clones", "network", "hostd", "drive", "snapshot", "arena", "console",
		"gateway", "identity", "agents", "spawn", "templates"} // others follow
	key := func(name string) string {
		subject, what := subject(name)
		return fmt.Sprintf("%03d %s %t %s", uint8(slices.Index(order, subject)), subject, strings.HasPrefix(what, GoPrefix), name)
	}
	names := slices.DeleteFunc(slices.Collect(maps.Keys(r.Figures)), func(name string) bool { return peers[name] })
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(key(a), key(b)) })
	return names
}

// Missed are the figures that do not meet their floors, in the order of the table.
func (r *Run) Missed() []string {
	return slices.DeleteFunc(r.ordered(), func(name string) bool { return r.Figures[name].Met == nil || *r.Figures[name].Met })
}

// Table prints a run: every figure by its subject, with its floor and what it is compared with, and then what missed its
// floor and what is not in it. path is the run's file.
func (r *Run) Table(w io.Writer, path string) error {
	b := bufio.NewWriter(w)
	about := []string{r.Time.UTC().Format("2006-01-02 15:04 UTC")}
	if r.Commit != "" {
		about = append(about, "commit "+r.Commit)
	}
	fmt.Fprintln(b, strings.Join(about, ", "))
	about = nil
	for _, k := range slices.Sorted(maps.Keys(r.Host)) {
		about = append(about, strings.ReplaceAll(k, "_", " ")+" "+r.Host[k])
	}
	columns(b, Width, strings.Join(about, ", "), "")
	last := ""
	for _, name := range r.ordered() {
		subject, what := subject(name)
		if subject != last {
			fmt.Fprintln(b)
			row(b, subject, "p50", "p95", "max", "unit", "n", "floor", "")
			last = subject
		}
		floor, verdict := r.Figures[name].floor()
		r.Figures[name].row(b, "  "+what, floor, verdict)
		for _, c := range r.Comparisons {
			if c.Name == name {
				r.Figures[c.Peer].row(b, "    | "+c.Label, digits(c.Ratio)+" ×", "ratio")
			}
		}
	}
	fmt.Fprintln(b)
	r.ending(b, path)
	return b.Flush()
}

// ending is what a reader is to know who reads nothing else.
func (r *Run) ending(b *bufio.Writer, path string) {
	floors := 0
	for _, f := range r.Figures {
		if f.Met != nil {
			floors++
		}
	}
	missed := r.Missed()
	fmt.Fprintf(b, "floors: %d of %d met\n", floors-len(missed), floors)
	for _, name := range missed {
		f := r.Figures[name]
		floor, _ := f.floor()
		item(b, "missed", fmt.Sprintf("%s: %s, floor %s", name, f.value(), floor))
	}
	for _, l := range r.Failed {
		item(b, "failed", l.What+": "+l.Why)
	}
	for _, l := range r.LeftOut {
		item(b, "left out", l.What+": "+l.Why)
	}
	for _, n := range r.Notes {
		item(b, "note", n)
	}
	if len(r.Only) > 0 {
		item(b, "only", strings.Join(r.Only, ", "))
	}
	if r.Took > 0 {
		fmt.Fprintf(b, "took %s\n", time.Duration(r.Took*float64(time.Second)).Round(time.Second))
	}
	fmt.Fprintln(b, path)
}

func (f *Figure) floor() (floor, verdict string) {
	if f.Floor == nil {
		return "", ""
	}
	v, _ := shown(*f.Floor, f.Unit)
	if floor, verdict = "≤ "+v, "missed"; f.Min {
		floor = "≥ " + v
	}
	if *f.Met {
		verdict = "met"
	}
	return floor, verdict
}

func (f *Figure) row(b *bufio.Writer, name, floor, verdict string) {
	p50, unit := shown(f.P50, f.Unit)
	if f.N <= 1 {
		row(b, name, p50, "", "", unit, "", floor, verdict)
		return
	}
	same := func(v float64) string { // in the unit of the first
		if f.Unit == "ns" {
			v *= map[string]float64{"ns": 1, "µs": 1e-3, "ms": 1e-6, "s": 1e-9}[unit]
		}
		return digits(v)
	}
	row(b, name, p50, same(f.P95), same(f.Max), unit, fmt.Sprint(f.N), floor, verdict)
}

func row(b *bufio.Writer, name, p50, p95, limit, unit, n, floor, verdict string) {
	columns(b, 47, name, fmt.Sprintf(" %8s %8s %8s  %-11s %4s %9s  %s", p50, p95, limit, unit, n, floor, verdict))
}

// columns prints a name over as many lines as it needs, and the others behind the last.
func columns(b *bufio.Writer, width int, name, others string) {
	lines := wrapped(name, width)
	for _, line := range lines[:len(lines)-1] {
		fmt.Fprintln(b, line)
	}
	fmt.Fprintln(b, strings.TrimRight(fmt.Sprintf("%-*s%s", width, lines[len(lines)-1], others), " "))
}

// item prints a labelled text over as many lines as it needs.
func item(b *bufio.Writer, label, text string) {
	const indent = 10
	for _, line := range wrapped(text, Width-indent) {
		fmt.Fprintf(b, "%-*s%s\n", indent, label, strings.TrimLeft(line, " "))
		label = ""
	}
}

// wrapped breaks a text at its spaces. Lines behind the first are indented a little more than that; a word that is too
// long by itself is cut.
func wrapped(text string, width int) (lines []string) {
	indent := len(text) - len(strings.TrimLeft(text, " "))
	line := strings.Repeat(" ", indent)
	empty := true
	for _, word := range strings.Fields(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line, empty = strings.Repeat(" ", indent+2), true
		}
		if !empty {
			line += " "
		}
		if room := width - utf8.RuneCountInString(line); utf8.RuneCountInString(word) > room {
			word = string([]rune(word)[:room-1]) + "…"
		}
		line, empty = line+word, false
	}
	return append(lines, line)
}
