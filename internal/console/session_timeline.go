package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session"
)

// timelineRows is how many records of a session are read for its timeline: each happening has two.
const timelineRows = 200

// happening is one line of a timeline: something that was done, and what came of it.
type happening struct {
	ID, Actor, Text, Target string
	At                      time.Time
	Result, Code            string // Result is empty while it is going on
}

// Bad says whether it did not work.
func (h happening) Bad() bool {
	return h.Result == string(audit.Failed) || h.Result == string(audit.Refused)
}

// timeline is what was done with a session, newest first; nothing for people who may not read the audit log. The connections
// of its jail are in the audit log alone: a page has hundreds of them.
func (c *Console) timeline(q *request, s session.Session, names actorNames) ([]happening, error) {
	if identity.Can(q.by, identity.AuditRead, s.Tenant) != nil {
		return nil, nil
	}
	if err := c.Identity.Authorize(q.ctx(), q.by, identity.AuditRead, s.Tenant); err != nil {
		return nil, err
	}
	rows, err := c.Audit.List(q.ctx(), audit.Filter{Session: s.ID, Tenant: s.Tenant, ActionPrefix: "session.", Limit: timelineRows, Newest: true})
	if err != nil {
		return nil, fmt.Errorf("read what was done with a session: %w", err)
	}
	var out []happening
	at := map[string]int{} // of what was begun, by the id of its record
	for _, row := range rows {
		detail := detailOf(row)
		if n, ok := at[row.Ref]; ok && row.Phase == audit.PhaseOutcome {
			out[n].Result, out[n].Code = row.Result, detail.Code
			if detail.CookieCount > 0 { // known only afterwards
				out[n].Text = inWords(row.Action, detail)
			}
			continue
		}
		if row.Phase == audit.PhaseOutcome {
			continue // of something older than what is shown
		}
		at[row.ID] = len(out)
		out = append(out, happening{ID: row.ID, Actor: names.of(row.Actor), At: row.Time, Text: inWords(row.Action, detail), Target: row.Target,
			Result: row.Result, Code: detail.Code})
	}
	slices.Reverse(out)
	return out, nil
}

// deed is what a record's detail says about what was done.
type deed struct {
	Tool, Code, Scope, Mode, Cause, Reason string
	Force, Anyway                          bool
	CookieCount                            int `json:"cookie_count"`
	OriginCount                            int `json:"origin_count"`
}

func detailOf(row audit.Row) deed {
	var out deed
	_ = json.Unmarshal(row.Detail, &out) // what is not understood is not said
	return out
}

// inWords is an action for people.
func inWords(action string, d deed) string {
	switch identity.Operation(action) {
	case identity.SessionOpen, identity.SessionOpenOperator:
		return "opened the session"
	case identity.SessionClose:
		return cmp.Or(map[string]string{"closed": "closed the session", "expired": "closed it: its time was up", "idle": "closed it: nobody used it",
			"shutdown": "closed it, because clawjail is stopped", "revoked": "closed it: the key that opened it ended",
			"account_lost": "ended it: its browser had lost the account", "cookies_lost": "ended it: its browser had lost its cookies"}[d.Cause], "ended the session")
	case identity.SessionAttach:
		return "attached a DevTools client"
	case identity.SessionWatch:
		return "watched live"
	case identity.SessionToken:
		if d.Tool == "revoke" {
			return "revoked a token"
		}
		return "made a token to " + cmp.Or(d.Scope, "share it")
	case identity.SessionControl:
		switch {
		case d.Tool == "hand_back":
			return "handed it back"
		case d.Force:
			return "took it over, from another person"
		}
		return "took it over"
	case identity.SessionRefresh:
		return "began to log in"
	case identity.SessionRecording:
		return "looked at the recording"
	case identity.RecordingRemove:
		return "removed the recording"
	case identity.SessionUse, identity.SessionLook:
		return toolInWords(d.Tool)
	}
	switch action {
	case "session.inject":
		switch {
		case d.OriginCount > 0:
			return fmt.Sprintf("put %s and storage of %s in", plural(d.CookieCount, "cookie"), plural(d.OriginCount, "origin"))
		case d.CookieCount == 0:
			return "put cookies in"
		}
		return fmt.Sprintf("put %s in", plural(d.CookieCount, "cookie"))
	case "session.needs_refresh":
		return "found an account that needs a new login"
	}
	return strings.ReplaceAll(strings.ReplaceAll(action, "_", " "), ".", ": ")
}

// toolInWords is what an operation on a browser did.
func toolInWords(tool string) string {
	words := map[string]string{
		"navigate": "went to a page", "act": "acted on the page", "snapshot": "read the page", "dom": "read the page", "query": "looked for elements",
		"screenshot": "took a picture", "pdf": "printed the page", "eval": "ran a script", "tabs": "looked at the tabs", "tab": "changed the tabs",
		"open": "opened a tab", "focus": "changed to a tab", "close": "closed a tab", "dialog": "answered a dialog", "console": "read the page's console",
		"errors": "read the page's errors", "requests": "read the page's requests", "media": "looked at pictures", "status": "asked how it is",
		"files": "looked into the folder", "get_file": "read a file", "put_file": "put a file in", "delete_file": "deleted a file",
		"choose_files": "chose files", "wait_download": "waited for a download", "probe": "opened a page to check the login",
	}
	return cmp.Or(words[tool], strings.ReplaceAll(cmp.Or(tool, "used it"), "_", " "))
}

// sessionTimeline is the part of the page that is renewed.
func (c *Console) sessionTimeline(q *request) error {
	s, err := c.Sessions.Get(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return err
	}
	names := c.names(q.ctx(), q.by)
	page := &sessionPage{sessionRow: rowOf(s, names)}
	if page.Timeline, err = c.timeline(q, s, names); err != nil {
		return err
	}
	return q.part("session", "timeline", page)
}
