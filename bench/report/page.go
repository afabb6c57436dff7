package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The marks that the figures stand between in docs/figures.md.
const (
	pageBegin = "<!-- figures of the newest whole run: written by bin/bench -page, checked by a test -->\n"
	pageEnd   = "<!-- end of the figures -->\n"
)

// pageRows are the figures that docs/figures.md has, in its order.
func pageRows() []struct{ label, name string } {
	return []struct{ label, name string }{
		{"start of headless-shell until it answers, cold", "start: clawjail, cold"},
		{"… warm, from the pool", "start: clawjail, warm"},
		{"… of which the clone of the root filesystem", "start: of which the clone"},
		{"close returns", "close: returns"},
		{"nothing is left after", "close: until nothing is left"},
		{"open and close, sustained", "load: open and close, sustained"},
		{"open with an account of 50 cookies, cold", "identity: open with 50 cookies, cold"},
		{"… warm", "identity: open with 50 cookies, warm"},
		{"50 cookies validated, set, read back, compared", "identity: inject 50 cookies, warm"},
		{"one grant used", "identity: one grant used"},
		{"one audit intent", "identity: one audit intent"},
		{"audit rows for 512 callers who wait", "identity: audit rows in groups"},
		{"create, connect, goto, release by Playwright, cold", "arena: cold, sum"},
		{"… warm", "arena: warm, sum"},
		{"a script of Playwright through a session", "drive: script, a session"},
		{"… through the guard alone", "drive: script, guarded, clean"},
		{"`connectOverCDP` to an open session", "drive: connectOverCDP, a session"},
		{"snapshot of 5000 elements for a model, whole", "snapshot: 5000 elements, ai, whole"},
		{"key to picture in the console", "console: key to picture"},
		{"what a viewer of an idle page adds", "console: idle page, what a viewer adds"},
		{"slowest page of the console, 95 %", "console: first byte, page that is slowest, p95"},
		{"a request through the gateway, durable audit log", "gateway: request, durable audit"},
		{"requests of 64 callers", "gateway: requests a second, durable audit"},
		{"a tunnel", "gateway: tunnel"},
		{"1000 idle tunnels, their clients and servers included", "gateway: 1000 idle tunnels, clients and servers included"},
		{"a decision among 10 000 rules", "gateway: decision among 10 000 rules"},
		{"looking through an answer for a credential", "gateway: scrubbing"},
		{"20 new agents", "agents: sync of 20 new"},
		{"50 agents that need nothing", "agents: sync of 50 unchanged"},
		{"a program in a jail of its own, to its first byte", "agents: spawn to first byte, jail of its own"},
		{"each of ten idle sessions (PSS)", "memory: each of ten idle sessions, PSS"},
		{"the only session (PSS)", "memory: the only session, idle, PSS"},
		{"both daemons (RSS)", "memory: host daemon and control plane, RSS"},
		{"growth of the daemons over 1000 sessions", "growth: memory of the daemons, over 1000 cycles"},
		{"growth in descriptors", "growth: descriptors, over 1000 cycles"},
		{"growth in mounts, interfaces, control groups", "growth: mounts, interfaces, groups, over 1000 cycles"},
		{"growth in files", "growth: files, over 1000 cycles"},
	}
}

// Page is the figures as docs/figures.md has them. file is the run's, from the top of the repository. A figure that was not measured has
// no row.
func (r *Run) Page(file string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "From one run of `make bench` on %s processors ([its file](../%s)): medians, and in brackets what 95 %% stay below.\n", r.Host["cpus"], file)
	b.WriteString("A floor, in the unit of the figure, is what it is to be at most (≤) or at least (≥).\n\n| | clawjail | beside it, in the same run | floor |\n|---|---|---|---|\n")
	for _, row := range pageRows() {
		f := r.Figures[row.name]
		if f == nil {
			continue
		}
		value := spoken(f.P50, f.Unit)
		if f.N > 1 && !f.moreIsBetter() {
			value += " (" + digits(f.P95) + ")"
		}
		var beside []string
		for _, c := range r.Comparisons {
			if c.Name == row.name {
				beside = append(beside, fmt.Sprintf("%s: %s, %s ×", c.Label, spoken(c.Theirs, r.Figures[c.Peer].Unit), digits(c.Ratio)))
			}
		}
		floor, verdict := f.floor()
		if verdict != "" {
			floor += ", " + verdict
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.label, value, strings.Join(beside, "; "), floor)
	}
	return b.String()
}

// spoken is a value with its unit.
func spoken(v float64, unit string) string {
	s, unit := shown(v, unit)
	unit = strings.TrimPrefix(strings.Replace(unit, "/s", " a second", 1), "1 ")
	return strings.TrimSpace(s + " " + unit)
}

// WritePage writes the figures of a run between the marks of a page. It has to be a whole run.
func WritePage(page, file string) error {
	r, err := Read(file)
	if err != nil {
		return err
	}
	if !r.Whole() {
		return fmt.Errorf("%s is not of a whole run", file)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	before, rest, first := strings.Cut(string(text), pageBegin)
	_, after, second := strings.Cut(rest, pageEnd)
	if !first || !second {
		return fmt.Errorf("write the figures: %s has no marks for them", page)
	}
	return os.WriteFile(page, []byte(before+pageBegin+"\n"+r.Page(filepath.ToSlash(file))+"\n"+pageEnd+after), 0o644)
}
