package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of texts, in characters.
const (
	defaultChars = 8000
	maxChars     = 200_000
	maxStepChars = 2000 // of what one step of a task shows, unless it says more
	maxError     = 1000
	maxTitle     = 120
	maxAddress   = 500
	maxTabsShown = 50
	maxChanges   = 10 // of each kind that an action caused
)

// chars is how many characters a caller wants.
func chars(wanted int) (int, error) {
	switch {
	case wanted == 0:
		return defaultChars, nil
	case wanted < 1 || wanted > maxChars:
		return 0, problem.New(problem.BadRequest, "", "maxChars is not between 1 and %d", maxChars)
	}
	return wanted, nil
}

// clip shortens a text and says so.
func clip(s string, limit int) string {
	cut, n := cutAt(s, limit)
	if !cut {
		return s
	}
	return s[:n] + "\n[truncated: maxChars gives more]"
}

// cutAt is where a text has to be cut to have at most so many characters.
func cutAt(s string, limit int) (bool, int) {
	if len(s) <= limit {
		return false, len(s)
	}
	for n := range s {
		if limit == 0 {
			return true, n
		}
		limit--
	}
	return false, len(s)
}

// line is a text of a page within a line of ours: it cannot begin another one.
func line(s string, limit int) string {
	cut, n := cutAt(s, limit) // first: a page may say very much
	out := strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) || c == utf8.RuneError {
			return ' '
		}
		return c
	}, s[:n])
	if cut {
		out += "…"
	}
	return out
}

func title(s string) string { return `"` + line(s, maxTitle) + `"` }

func address(s string) string { return line(s, maxAddress) }

// page is where a tab is, as the answers of several operations have it.
type page struct {
	URL, Title, TargetID string
	Status               int
	Refused              string // the code of the gateway's refusal, which is all that the page shows
	Dialogs              []browser.Dialog
}

func (p page) text() string {
	var b strings.Builder
	if p.Status != 0 {
		fmt.Fprintf(&b, "%d ", p.Status)
	}
	b.WriteString(address(p.URL))
	if p.Title != "" {
		b.WriteString(" " + title(p.Title))
	}
	if p.TargetID != "" {
		b.WriteString(" in " + line(p.TargetID, 40))
	}
	if p.Refused != "" {
		b.WriteString(" refused by the gateway: " + line(p.Refused, 40))
	}
	return b.String() + dialogs(p.Dialogs)
}

// dialogs are lines about what a page asked.
func dialogs(all []browser.Dialog) string {
	var b strings.Builder
	for n, d := range all {
		if n == maxChanges {
			fmt.Fprintf(&b, "\n%d more dialogs", len(all)-n)
			break
		}
		fmt.Fprintf(&b, "\ndialog %s %s was answered", line(d.Type, 20), title(d.Message))
	}
	return b.String()
}

// tabsText lists tabs.
func tabsText(all []browser.Tab) string {
	if len(all) == 0 {
		return "no tabs are open"
	}
	var b strings.Builder
	for n, t := range all {
		if n == maxTabsShown {
			fmt.Fprintf(&b, "%d more tabs\n", len(all)-n)
			break
		}
		b.WriteString(tabText(t) + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func snapshotText(r browser.SnapshotResult, limit int) string {
	var b strings.Builder
	b.WriteString(page{URL: r.URL, Title: r.Title, TargetID: r.TargetID, Dialogs: r.Dialogs}.text() + "\n")
	b.WriteString(r.Snapshot)
	for _, n := range r.Nodes {
		if b.Len() > limit*utf8.UTFMax {
			break
		}
		b.WriteString(nodeText(n))
	}
	text := strings.TrimRight(b.String(), "\n")
	if cut, _ := cutAt(text, limit); !cut && r.Truncated {
		text += "\n[truncated: selector narrows it, maxChars or limit gives more]"
	}
	return clip(text, limit)
}

func nodeText(n browser.SnapshotNode) string {
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", min(max(n.Depth, 0), 40)))
	b.WriteString(line(n.Role+n.Tag, 60))
	for _, text := range []string{n.Name, n.Text} {
		if text != "" {
			b.WriteString(" " + title(text))
		}
	}
	if n.Value != "" {
		b.WriteString(" =" + title(n.Value))
	}
	if n.Ref != "" {
		b.WriteString(" [" + line(n.Ref, 40) + "]")
	}
	return b.String() + "\n"
}

func queryText(r browser.QueryResult, limit int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d", len(r.Elements), max(r.Total, len(r.Elements)))
	for _, e := range r.Elements {
		if b.Len() > limit*utf8.UTFMax {
			break
		}
		fmt.Fprintf(&b, "\n%d %s", e.Index, line(e.Tag, 40))
		if e.ID != "" {
			b.WriteString("#" + line(e.ID, 60))
		}
		if e.Class != "" {
			b.WriteString("." + strings.Join(strings.Fields(line(e.Class, 80)), "."))
		}
		if e.Text != "" {
			b.WriteString(" " + title(e.Text))
		}
		if e.Value != "" {
			b.WriteString(" value=" + title(e.Value))
		}
		if e.Href != "" {
			b.WriteString(" → " + address(e.Href))
		}
	}
	return clip(b.String(), limit)
}

// valueText is what a script returned.
func valueText(value any, description string, limit int) string {
	if value == nil && description != "" {
		return clip(description, limit)
	}
	if text, ok := value.(string); ok {
		return clip(text, limit)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "a value that is no JSON"
	}
	return clip(string(text), limit)
}

// actText says in a line what was done, and what changed.
func actText(op browser.Act, r browser.ActResult, limit int) string {
	var b strings.Builder
	b.WriteString("done: " + line(op.Kind, 30))
	for _, on := range []string{op.Ref, op.Selector, op.Key} {
		if on != "" {
			b.WriteString(" " + line(on, 100))
		}
	}
	if r.URL != "" {
		b.WriteString("; at " + address(r.URL))
	}
	if r.Value != nil {
		b.WriteString("\n" + valueText(r.Value, "", limit))
	}
	for n, step := range r.Results {
		if step.OK {
			fmt.Fprintf(&b, "\n%d %s: ok", n+1, line(step.Kind, 30))
		} else {
			fmt.Fprintf(&b, "\n%d %s: error %s: %s", n+1, line(step.Kind, 30), line(step.Code, 40), line(step.Error, 300))
		}
		if step.Value != nil {
			b.WriteString(" " + line(valueText(step.Value, "", 200), 200))
		}
	}
	b.WriteString(changes(r))
	return clip(b.String(), limit)
}

// changes are lines about what an action caused beyond the page itself.
func changes(r browser.ActResult) string {
	var b strings.Builder
	for _, t := range r.Opened[:min(len(r.Opened), maxChanges)] {
		b.WriteString("\nopened " + tabText(t))
	}
	for _, f := range r.Downloads[:min(len(r.Downloads), maxChanges)] {
		fmt.Fprintf(&b, "\ndownload %s (%s, %d bytes)", title(f.Name), line(f.State, 20), f.Bytes)
	}
	if r.FileChooser {
		b.WriteString("\nthe page waits for files, which are given over the HTTP API: hooks/file-chooser")
	}
	if r.BlockedByDialog {
		b.WriteString("\na dialog interrupted it")
	}
	return b.String() + dialogs(r.Dialogs)
}

// tabText is one tab in a line.
func tabText(t browser.Tab) string {
	text := line(t.SuggestedTargetID, 60) + " " + address(t.URL)
	if t.Title != "" {
		text += " " + title(t.Title)
	}
	if t.IsActive {
		text += " (current)"
	}
	if t.Crashed {
		text += " (crashed: navigate it again)"
	}
	return text
}
