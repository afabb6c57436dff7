package console

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/audit"
)

const (
	// spare is how many more records are read than are shown: those of the very moment at which a page begins may be of the
	// page before.
	spare = 8
	// inputTime is how a browser writes a time that somebody chose, here in UTC.
	inputTime = "2006-01-02T15:04"
	// maxAsked bounds what is looked for.
	maxAsked = 128
)

// auditFind is what somebody looks for, as it stands in the address of a page.
type auditFind struct {
	Range, From, To         string
	Action, Actor, Session  string
	Tenant, Result, Phase   string
	Before, After           string // places; one of them, or neither
	Live                    bool
	since, until            time.Time
	beforePlace, afterPlace place
	afterKnown, beforeKnown bool
}

func auditRanges() []option {
	return []option{{Value: "", Label: "any time"}, {Value: "1h", Label: "the last hour"}, {Value: "24h", Label: "the last day"},
		{Value: "168h", Label: "the last 7 days"}, {Value: "720h", Label: "the last 30 days"}}
}

func auditResults() []option {
	return append([]option{{Value: "", Label: "any result"}}, options(audit.OK, audit.Refused, audit.Failed, audit.Unknown)...)
}

func auditPhases() []option {
	return append([]option{{Value: "", Label: "every record"}}, options(audit.PhaseIntent, audit.PhaseOutcome, audit.PhaseEvent, audit.PhaseTombstone)...)
}

// readAuditFind reads the address. A mistake stands with its field in the form.
func readAuditFind(asked url.Values, now time.Time) (auditFind, *form) {
	f := &form{Values: asked}
	for name, values := range asked {
		for _, text := range values {
			if len(text) > maxAsked || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				f.Values.Del(name)
				f.wrong(name, "this cannot be in the log", "write less, and text alone")
			}
		}
	}
	out := auditFind{Range: f.Get("range"), From: f.Get("from"), To: f.Get("to"), Action: f.Get("action"), Actor: f.Get("actor"), Session: f.Get("session"),
		Tenant: f.Get("tenant"), Result: f.Get("result"), Phase: f.Get("phase"), Before: f.Get("before"), After: f.Get("after"), Live: f.Has("live")}
	known := func(field, value string, all []option) {
		if !slices.ContainsFunc(all, func(o option) bool { return o.Value == value }) {
			f.wrong(field, "choose one of the list", "")
		}
	}
	known("range", out.Range, auditRanges())
	known("result", out.Result, auditResults())
	known("phase", out.Phase, auditPhases())
	if d, err := time.ParseDuration(out.Range); err == nil {
		out.since = now.Add(-d)
	}
	moment := func(field, text string) time.Time {
		if text == "" {
			return time.Time{}
		}
		at, err := time.Parse(inputTime, text)
		if err != nil {
			f.wrong(field, "this is no time", "write it as "+inputTime)
		}
		return at
	}
	if from := moment("from", out.From); from.After(out.since) {
		out.since = from
	}
	out.until = moment("to", out.To)
	if !out.since.IsZero() && !out.until.IsZero() && !out.since.Before(out.until) {
		f.wrong("to", "this is before the beginning", "")
	}
	out.beforePlace, out.beforeKnown = readPlace(out.Before)
	out.afterPlace, out.afterKnown = readPlace(out.After)
	return out, f
}

// filter is what the log is asked for. An action without a dot, or with one at its end, is the beginning of one.
func (a auditFind) filter() audit.Filter {
	out := audit.Filter{Actor: a.Actor, Session: a.Session, Result: a.Result, Phase: a.Phase, Since: a.since, Until: a.until}
	switch action := strings.TrimRight(a.Action, "*"); {
	case action == "":
	case strings.HasSuffix(action, ".") || action != a.Action:
		out.ActionPrefix = action
	case !strings.Contains(action, "."):
		out.ActionPrefix = action
	default:
		out.Action = action
	}
	return out
}

// values are what of it stands in an address.
func (a auditFind) values() url.Values {
	out := url.Values{}
	for name, value := range map[string]string{"range": a.Range, "from": a.From, "to": a.To, "action": a.Action, "actor": a.Actor, "session": a.Session,
		"tenant": a.Tenant, "result": a.Result, "phase": a.Phase, "before": a.Before, "after": a.After} {
		if value != "" {
			out.Set(name, value)
		}
	}
	if a.Live {
		out.Set("live", "yes")
	}
	return out
}

func (a auditFind) address(below string) string {
	text := a.values().Encode()
	if text == "" {
		return auditPath + below
	}
	return auditPath + below + "?" + text
}

// place is where a record stands in the order of the log: by time, node and number.
type place struct {
	at   time.Time
	node string
	seq  int64
}

func placeOf(r audit.Row) place { return place{r.Time, r.Node, r.Seq} }

// before says that a place comes before another in the log.
func (p place) before(other place) bool {
	return cmp.Or(p.at.Compare(other.at), cmp.Compare(p.node, other.node), cmp.Compare(p.seq, other.seq)) < 0
}

// String is a place in an address.
func (p place) String() string { return fmt.Sprintf("%d-%d-%s", p.at.UnixMicro(), p.seq, p.node) }

// readPlace reads what String wrote. Any other text is the beginning.
func readPlace(text string) (place, bool) {
	micro, rest, _ := strings.Cut(text, "-")
	number, node, ok := strings.Cut(rest, "-")
	at, errAt := strconv.ParseInt(micro, 10, 64)
	seq, errSeq := strconv.ParseInt(number, 10, 64)
	const latest = 1 << 53 // beyond which a time of a database is none
	if !ok || errAt != nil || errSeq != nil || at <= 0 || at > latest {
		return place{}, false
	}
	return place{time.UnixMicro(at), node, seq}, true
}

// findAudit lists one page of records, the newest first, and says whether there are older and newer ones.
func findAudit(ctx context.Context, list lister, f audit.Filter, find auditFind) (rows []audit.Row, older, newer bool, err error) {
	if find.afterKnown {
		rows, newer, err = walkAudit(ctx, list, f, find.afterPlace, false)
		slices.Reverse(rows)
		if err != nil || len(rows) == auditPage {
			return rows, true, newer, err
		}
		// So few are the newest: they are filled up with what comes after them.
	}
	if find.beforeKnown {
		rows, older, err = walkAudit(ctx, list, f, find.beforePlace, true)
		return rows, older, true, err
	}
	rows, older, err = walkAudit(ctx, list, f, place{}, true)
	return rows, older, false, err
}

// walkAudit lists records from a place on, without the one that is there: back to the oldest, or on to the newest. The zero
// place is the newest record's. more says that there are others behind them.
func walkAudit(ctx context.Context, list lister, f audit.Filter, from place, back bool) (rows []audit.Row, more bool, err error) {
	f.Newest = back
	if !from.at.IsZero() {
		if end := from.at.Add(time.Microsecond); back && (f.Until.IsZero() || end.Before(f.Until)) {
			f.Until = end
		}
		if !back && from.at.After(f.Since) {
			f.Since = from.at
		}
	}
	for f.Limit = auditPage + 1 + spare; ; f.Limit *= 4 {
		f.Limit = min(f.Limit, audit.MaxList)
		all, err := list(ctx, f)
		if err != nil {
			return nil, false, fmt.Errorf("read the audit log: %w", err)
		}
		if back {
			slices.Reverse(all)
		}
		rows = slices.DeleteFunc(slices.Clone(all), func(r audit.Row) bool {
			return !from.at.IsZero() && (back && !placeOf(r).before(from) || !back && !from.before(placeOf(r)))
		})
		// Many records of one moment: more are read.
		if len(rows) > auditPage || len(all) < f.Limit || f.Limit == audit.MaxList {
			return rows[:min(len(rows), auditPage)], len(rows) > auditPage, nil
		}
	}
}
