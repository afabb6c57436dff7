package console

import (
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/quota"
)

// words are what templates can say.
func (c *Console) words() template.FuncMap {
	return template.FuncMap{
		"ago": c.ago, "when": c.when, "exact": exact, "stamp": stamp, "bytes": sayBytes, "holds": holds, "plural": plural, "short": short, "lower": strings.ToLower,
		"join": strings.Join, "percent": percent, "took": took, "add": func(a, b int) int { return a + b }, "file": c.files.path,
		"field": newField, "as": as, "must": must, "placeholder": placeholder, "autocomplete": autocomplete, "rows": rows, "of": of, "withid": withID,
		"list": func(items ...any) []any { return items }, "pair": pair, "state": stateTone, "worded": worded, "taken": taken, "phase": sayPhase,
		"cdpReads": func() string { return grant.CDPReads }, "login": sayLogin, "stored": sayStored,
	}
}

// pair makes a map of names and values, for templates that take several things.
func pair(items ...any) (map[string]any, error) {
	out := make(map[string]any, len(items)/2)
	for n := 0; n+1 < len(items); n += 2 {
		name, ok := items[n].(string)
		if !ok {
			return nil, fmt.Errorf("pair: %v is no name", items[n])
		}
		out[name] = items[n+1]
	}
	return out, nil
}

// when is a time as people say it, with the exact one behind it: <time title="…">5 min ago</time>. It takes a time.Time or a
// pointer to one; nothing is a dash.
func (c *Console) when(at any) template.HTML {
	var t time.Time
	switch v := at.(type) {
	case time.Time:
		t = v
	case *time.Time:
		if v != nil {
			t = *v
		}
	}
	if t.IsZero() {
		return `<span class="nothing">–</span>`
	}
	// Both are made here of a time, which has no markup.
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`, stamp(t), exact(t), template.HTMLEscapeString(c.ago(t))))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
func exact(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" }

// ago is how long ago a time was, or how long it is until it.
func (c *Console) ago(t time.Time) string {
	d := c.Now().Sub(t)
	if d > -time.Second && d < 5*time.Second {
		return "just now"
	}
	if d < 0 {
		return "in " + span(-d)
	}
	return span(d) + " ago"
}

// span is a duration in its largest unit.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	case d < 100*24*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
	return fmt.Sprintf("%d months", int(d.Hours()/24/30))
}

// took is a duration in milliseconds, as JSON has them.
func took(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}

// sayBytes is an amount of any integer type: 175 MiB.
func sayBytes(n any) string {
	var b float64
	if _, err := fmt.Sscan(fmt.Sprintf("%d", n), &b); err != nil {
		return "?"
	}
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if b < 1024 || unit == "GiB" {
			if b >= 10 || unit == "B" {
				return fmt.Sprintf("%.0f %s", b, unit)
			}
			return fmt.Sprintf("%.1f %s", b, unit)
		}
		b /= 1024
	}
	return ""
}

// percent is a part of a whole, from 0 to 100.
func percent(part, whole any) int {
	var p, w float64
	_, errPart := fmt.Sscan(fmt.Sprint(part), &p)
	_, errWhole := fmt.Sscan(fmt.Sprint(whole), &w)
	if errPart != nil || errWhole != nil || w <= 0 {
		return 0
	}
	return int(min(100, max(0, 100*p/w)))
}

// plural counts things: 1 session, 2 sessions.
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if strings.HasSuffix(one, "y") && !strings.HasSuffix(one, "ey") {
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(one, "y"))
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// short cuts a text that may be long.
func short(limit int, text string) string { return texts.Fit(text, limit) }

// stateTone is the colour of a state: good, busy, warn, bad, or quiet.
func stateTone(state any) string {
	switch fmt.Sprint(state) {
	case "ready", "running", "ok", "good", "active", "approved", "allow", "allowed", "complete":
		return "good"
	case "opening", "starting", "closing", "stopping", "pending", "queued":
		return "busy"
	case "expiring", "warn", "waiting", "report", "needs_refresh", "needs refresh", agent.StateUnwatched, agent.StateUnfinished:
		return "warn"
	case "failed", "unknown", "bad", "refused", "deny", "denied", "revoked", "expired", "error", "oom", crashLoop:
		return "bad"
	}
	return "quiet"
}

// worded is a state with its words apart: needs refresh.
func worded(state any) string { return strings.ReplaceAll(fmt.Sprint(state), "_", " ") }

// taken is what is not free of a whole, from 0 to 100.
func taken(free, whole int64) int { return percent(whole-free, whole) }

// sayPhase says what a record of the audit log is.
func sayPhase(phase string) string {
	switch phase {
	case audit.PhaseIntent:
		return "It was about to be done."
	case audit.PhaseOutcome:
		return "It was done, and this is what came of it."
	case audit.PhaseTombstone:
		return "It stands for records that were removed because of their age."
	}
	return "It happened."
}

// holds is how much a tenant has of what all share.
func holds(u quota.Use) string {
	if u.Unit == "bytes" {
		return fmt.Sprintf("%s of %s", sayBytes(u.Held), sayBytes(u.Max))
	}
	return fmt.Sprintf("%d of %d", u.Held, u.Max)
}
