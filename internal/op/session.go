package op

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// SessionList is the answer to a listing.
type SessionList struct {
	Sessions []session.Session `json:"sessions" nullable:"false"`
	Unknown  *Problem          `json:"sessions_unknown,omitempty" doc:"why sessions of another control plane are missing; missing when none are"`
}

// TakeOverRequest is the body that takes a session's browser over. It may be left out.
type TakeOverRequest struct {
	Force bool `json:"force,omitzero" doc:"take over even when another person has" flag:"force" usage:"take over even when another person has" example:"true"`
}

// HandBackRequest is the body that hands a session's browser back. It may be left out.
type HandBackRequest struct {
	Anyway bool `json:"anyway,omitzero" doc:"hand back even while a page holds a password, which the client that used the session before can read" flag:"anyway" usage:"hand back even while a page holds a password" example:"true"`
}

type (
	// SessionOpened is a session to be opened.
	SessionOpened struct{ Body[session.OpenRequest] }

	// SessionsListed says which sessions are listed.
	SessionsListed struct {
		OfTenant
		All bool `query:"all" doc:"also those that are closing, and that ended in the last ten minutes" flag:"all,a" usage:"also those that are closing, or ended in the last ten minutes"`
	}

	// SessionClosed is a session to be closed.
	SessionClosed struct {
		SessionNamed
		Wait bool `query:"wait" doc:"answer only when the session is removed completely"`
	}

	// SessionTakenOver is a session whose browser a person takes.
	SessionTakenOver struct {
		SessionNamed
		Body[TakeOverRequest]
	}

	// SessionHandedBack is a session whose browser a person hands back.
	SessionHandedBack struct {
		SessionNamed
		Body[HandBackRequest]
	}
)

// OpenSession opens a session. Its command loads a page in it, too.
func OpenSession() Op[SessionOpened, session.Session] {
	return Op[SessionOpened, session.Session]{Method: http.MethodPost, Path: "/v1/sessions", ID: "open-session", Summary: "Open a session", Right: identity.SessionOpen,
		Status: http.StatusCreated,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SessionOpened) (out session.Session, err error) {
			if err := CheckTenant(in.Of.Tenant); err != nil {
				return out, err
			}
			return s.Sessions.Open(ctx, by, in.Of)
		}}
}

// ListSessions lists sessions, oldest first.
func ListSessions() Op[SessionsListed, SessionList] {
	return Op[SessionsListed, SessionList]{Method: http.MethodGet, Path: "/v1/sessions", ID: "list-sessions", Summary: "List sessions", Right: identity.SessionList,
		Command: Command{Use: "ls", Aliases: []string{"list"}},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SessionsListed) (SessionList, error) {
			all, err := s.Sessions.List(ctx, by, in.Tenant, in.All)
			out := SessionList{Sessions: all}
			if problem.CodeOf(err) == problem.NodeUnreachable {
				out.Unknown, _ = s.Failed(ctx, "List the sessions of other control planes", err).(*Problem) // it is always one
				err = nil
			}
			return out, err
		},
		Warns: func(all SessionList) string {
			if all.Unknown == nil {
				return ""
			}
			return "sessions of another control plane are missing: " + all.Unknown.Detail
		},
		View: func(all SessionList) []Block {
			out := table(all.Sessions, []any{"ID", "TENANT", "STATE", "AGE", "MODE", "BROWSER", "JAIL", "ADDRESS", "WARM", "LABEL"}, func(s session.Session) []any {
				state := string(s.State)
				if s.Ended != nil && s.Ended.Cause != session.CauseClosed && s.State != session.StateFailed {
					state += " (" + string(s.Ended.Cause) + ")"
				}
				if s.Ended == nil && len(s.NeedsRefresh) > 0 {
					state += " (needs refresh)"
				}
				if s.Ended == nil && s.Control != nil {
					state += " (in hand)"
				}
				return []any{s.ID, s.Tenant, state, Age(s.Created), s.CredentialMode, s.Browser, s.Jail, s.Address, s.Warm, s.Label}
			})
			out.Folds = 2
			return []Block{out}
		}}
}

// ShowSession shows a session, with what its jail uses now.
func ShowSession() Op[SessionNamed, session.Session] {
	return Op[SessionNamed, session.Session]{Method: http.MethodGet, Path: "/v1/sessions/{id}", ID: "get-session", Summary: "Show a session", Right: identity.SessionRead,
		Command: Command{Use: "show ID", Short: "Show a session: what it uses, or why it ended"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SessionNamed) (session.Session, error) {
			return s.Sessions.Get(ctx, by, in.ID)
		},
		View: viewOfSession}
}

func viewOfSession(s session.Session) []Block {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	access := ""
	if s.CredentialMode == session.ModeOperator { // a clean one has nothing that it would protect
		access = s.Access
	}
	pairs := [][2]any{
		{"id", s.ID}, {"label", s.Label}, {"state", s.State}, {"tenant", s.Tenant}, {"opened by", s.OpenedBy}, {"mode", s.CredentialMode},
		{"domains", commas(s.Domains)}, {"access", access}, {"grant", s.Grant}, {"browser", strings.TrimSpace(s.Browser + " " + s.BrowserVersion)},
		{"template", s.Template}, {"record", s.Record}, {"jail", s.Jail}, {"address", s.Address}, {"warm", s.Warm}, {"age", Age(s.Created)},
		{"idle until", at(s.IdleUntil)}, {"expires", at(s.ExpiresAt)},
	}
	add := func(more ...[2]any) { pairs = append(pairs, more...) }
	if c := s.Control; c != nil {
		who := c.By
		if c.Name != "" && c.Name != c.By {
			who = c.Name + " (" + c.By + ")"
		}
		add([2]any{"in hand of", who + " since " + at(&c.Since)})
	}
	for _, r := range s.NeedsRefresh {
		text := r.Domain + ": somebody has to log in there again"
		if len(r.Cookies) > 0 {
			text += "; expired: " + strings.Join(listOf(r.Cookies, cookies.Printable), ", ")
		}
		add([2]any{"needs refresh", text})
	}
	if t := s.Timing; t.Total > 0 {
		text := fmt.Sprintf("%.1f ms", t.Total)
		if !s.Warm {
			text += fmt.Sprintf(" (clone %.1f, attach %.1f, start %.1f, verify %.1f, ready %.1f)", t.Clone, t.Attach, t.Start, t.Verify, t.Ready)
		}
		add([2]any{"opened in", text})
	}
	if u := s.Usage; u != nil {
		add([2]any{"memory", Joined{Bytes(u.MemoryBytes), ", at most ", Bytes(u.MemoryPeak), " so far"}}, [2]any{"processor", fmt.Sprintf("%.1f s", u.CPU/1000)},
			[2]any{"tasks", u.Tasks}, [2]any{"disk", Bytes(u.DiskBytes)}, [2]any{"open files", u.OpenFiles}, [2]any{"limits hit", commas(u.LimitsHit)})
	}
	if n := len(s.Screenshots); n > 0 {
		add([2]any{"screenshots", Joined{n, " kept"}})
	}
	e := s.Ended
	if e == nil {
		return []Block{{Pairs: pairs}}
	}
	add([2]any{"ended", at(&e.At)}, [2]any{"cause", Joined{e.Cause, ": ", e.Message}}, [2]any{"limits hit", commas(e.LimitsHit)}, [2]any{"teardown", e.TeardownError})
	if e.Teardown != nil && e.TeardownError == "" {
		add([2]any{"removed in", fmt.Sprintf("%.1f ms", *e.Teardown)})
	}
	out := []Block{{Pairs: pairs}}
	if len(e.Stderr) > 0 {
		out = append(out, line(""), line("The browser's last lines:"))
	}
	return append(out, listOf(e.Stderr, func(text string) Block { return line("  %s", text) })...)
}

// CloseSession closes a session. Its command closes several, or all.
func CloseSession() Op[SessionClosed, session.Session] {
	return Op[SessionClosed, session.Session]{Method: http.MethodDelete, Path: "/v1/sessions/{id}", ID: "close-session", Summary: "Close a session", Right: identity.SessionClose,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SessionClosed) (session.Session, error) {
			out, err := s.Sessions.Close(ctx, by, in.ID)
			if err == nil && in.Wait {
				return s.Sessions.WaitGone(ctx, by, in.ID)
			}
			return out, err
		}}
}

// TakeOver gives the browser of a session to a person.
func TakeOver() Op[SessionTakenOver, session.Session] {
	return Op[SessionTakenOver, session.Session]{Method: http.MethodPost, Path: "/v1/sessions/{id}/take-over", ID: "take-over",
		Summary: "Take over a session's browser, as a person", Right: identity.SessionControl,
		Command: Command{Use: "take-over ID",
			Long: "Takes over the browser of a session. Its clients are disconnected and notified, the recording pauses, and pages in which a script " +
				"of theirs may be are loaded anew: what was typed there is lost. Only you use it then, on the page that `clawjail session watch` " +
				"leads to, until `clawjail session hand-back`.",
			Example: "  clawjail session take-over s_abcdefgh23456789"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SessionTakenOver) (session.Session, error) {
			return s.Sessions.TakeOver(ctx, by, in.ID, in.Of.Force)
		},
		View: func(s session.Session) []Block {
			return []Block{line("session %s is yours; steer it where clawjail session watch %s leads to", s.ID, s.ID)}
		}}
}

// HandBack ends a take-over.
func HandBack() Op[SessionHandedBack, session.Session] {
	return Op[SessionHandedBack, session.Session]{Method: http.MethodPost, Path: "/v1/sessions/{id}/hand-back", ID: "hand-back", Summary: "Hand a session's browser back",
		Right: identity.SessionControl,
		Command: Command{Use: "hand-back ID",
			Long: "Hands back the browser of a session that was taken over. It is refused while a page holds a password, which the client that uses the session " +
				"could read. Send the form, or clear it; or give --anyway.",
			Example: "  clawjail session hand-back s_abcdefgh23456789"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SessionHandedBack) (session.Session, error) {
			return s.Sessions.HandBack(ctx, by, in.ID, in.Of.Anyway)
		},
		View: func(s session.Session) []Block { return []Block{line("session %s is handed back", s.ID)} }}
}
