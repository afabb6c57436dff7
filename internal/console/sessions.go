package console

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session"
)

const sessionsPath = Prefix + "/sessions"

func (c *Console) sessionRoutes() {
	c.get("/sessions", c.listSessions)
	c.post("/sessions", c.openSession)
	c.get("/sessions/{id}", c.showSession)
	c.get("/sessions/{id}/facts", c.sessionFacts)
	c.get("/sessions/{id}/timeline", c.sessionTimeline)
	c.get("/sessions/{id}/task", c.sessionTask)
	c.post("/sessions/{id}/task/stop", c.stopTask)
	c.post("/sessions/{id}/close", c.closeSession)
	c.post("/sessions/{id}/take-over", c.takeOver)
	c.post("/sessions/{id}/hand-back", c.handBack)
	c.post("/sessions/{id}/tokens", c.issueSessionToken)
	c.get("/sessions/{id}/tokens", func(q *request) error { return q.goTo(sessionPath(q.value("id"))) }) // its answer is loaded again
	c.post("/sessions/{id}/tokens/revoke", c.revokeSessionToken)
	c.get("/sessions/{id}/files", c.sessionFiles)
	c.post("/sessions/{id}/files", c.putSessionFile)
	c.get("/sessions/{id}/files/{name}", c.getSessionFile)
	c.get("/sessions/{id}/recording", c.sessionRecording)
	c.post("/sessions/{id}/recording/remove", c.removeRecording)
	c.get("/sessions/{id}/shots/{number}", c.sessionShot)
	c.get("/sessions/{id}/live", c.sessionLive)
	c.mux.HandleFunc("GET "+Prefix+"/watch", c.watchPage)
}

func sessionPath(id string) string { return sessionsPath + "/" + id }

// sessionRow is one session in the list, with names for people.
type sessionRow struct {
	session.Session
	Opener, Holder string
}

// Name is what a session is called: its label, or its id.
func (r sessionRow) Name() string { return cmp.Or(r.Label, r.ID) }

// Path is the session's page.
func (r sessionRow) Path() string {
	if r.CredentialMode == session.ModeRefresh {
		return refreshPath + "/" + r.ID
	}
	return sessionPath(r.ID)
}

type sessionsPage struct {
	Form        *form
	Open, Ended []sessionRow
	Opening     bool // the form is shown
	Tenants     []option
	Count       int    // of all that are open
	Before      string // and After are the pages beside this one
	After       string
	Max         int
	DefaultLife string
}

// Choices are what a field of the form offers.
func (sessionsPage) Choices(field string) []option {
	switch field {
	case "mode":
		return []option{{Value: session.ModeClean, Label: "Clean"}, {Value: session.ModeOperator, Label: "Operator"}}
	case "browser":
		return []option{{Value: "shell", Label: "Shell"}, {Value: "full", Label: "Full"}}
	case "record":
		return []option{{Value: session.RecordTransient, Label: "Transient"}, {Value: session.RecordOff, Label: "Off"}, {Value: session.RecordAudit, Label: "Audit"}}
	case "access":
		return []option{{Label: "As usual for the mode"}, {Value: string(grant.AccessTools), Label: "Tools"}, {Value: string(grant.AccessCDP), Label: "Tools and CDP"}}
	}
	return nil
}

// endedShown is how many ended sessions a page has at most, openShown how many others.
const (
	endedShown = 30
	openShown  = 100
)

func (c *Console) listSessions(q *request) error {
	page, err := c.sessionsPage(q, blank("mode", session.ModeClean, "browser", "shell", "record", session.RecordTransient, "grant", "yes", "tenant", q.by.TenantOr("")))
	if err != nil {
		return err
	}
	page.Opening = q.query("open") != ""
	return q.show("sessions", "Sessions", page)
}

func (c *Console) sessionsPage(q *request, f *form) (*sessionsPage, error) {
	all, err := c.Sessions.List(q.ctx(), q.by, "", true)
	if err != nil {
		return nil, err
	}
	names := c.names(q.ctx(), q.by)
	page := &sessionsPage{Form: f, Max: c.Sessions.Status().MaxSessions, DefaultLife: span(c.Config.Sessions.TTL)}
	slices.Reverse(all) // newest first
	number, err := strconv.Atoi(q.query("page"))
	if err != nil || number < 1 {
		number = 1
	}
	for _, s := range all {
		switch {
		case s.Ended == nil:
			if page.Count/openShown == number-1 {
				page.Open = append(page.Open, rowOf(s, names))
			}
			page.Count++
		case len(page.Ended) < endedShown:
			page.Ended = append(page.Ended, rowOf(s, names))
		}
	}
	if number > 1 {
		page.Before = fmt.Sprintf("%s?page=%d", sessionsPath, number-1)
	}
	if page.Count > number*openShown {
		page.After = fmt.Sprintf("%s?page=%d", sessionsPath, number+1)
	}
	page.Tenants, err = c.tenantOptions(q)
	return page, err
}

func rowOf(s session.Session, names actorNames) sessionRow {
	row := sessionRow{Session: s, Opener: names.of(s.OpenedBy)}
	if s.Control != nil {
		row.Holder = cmp.Or(s.Control.Name, names.of(s.Control.By))
	}
	return row
}

// tenantOptions are the tenants that somebody may choose from; none for who has one.
func (c *Console) tenantOptions(q *request) ([]option, error) {
	if q.by.Tenant != "" {
		return nil, nil
	}
	all, err := c.Identity.Tenants(q.ctx(), q.by)
	if err != nil {
		return nil, err
	}
	out := make([]option, len(all))
	for n, t := range all {
		out[n] = option{Value: t.ID, Label: t.ID}
	}
	return out, nil
}

// actorNames are what actors of the audit log are called.
type actorNames map[string]string

// of is an actor for people: agent builder instead of agent:a_…
func (n actorNames) of(actor string) string {
	if name, ok := n[actor]; ok {
		kind, _, _ := strings.Cut(actor, ":")
		return kind + " " + name
	}
	return actor
}

// names are those of the agents and operators that somebody may list; of the others there are the ids.
func (c *Console) names(ctx context.Context, by identity.Principal) actorNames {
	out := actorNames{}
	if agents, err := c.Identity.Agents(ctx, by, by.Tenant); err == nil {
		for _, a := range agents {
			out["agent:"+a.ID] = a.Name
		}
	}
	// Asked for only where they may: a refusal would be in the audit log.
	if identity.Can(by, identity.OperatorList, by.Tenant) == nil {
		if operators, err := c.Identity.Operators(ctx, by, by.Tenant); err == nil {
			for _, o := range operators {
				out["operator:"+o.ID] = o.Name
			}
		}
	}
	if by.Name != "" && by.Kind == identity.KindOperator {
		out[by.Actor()] = by.Name
	}
	return out
}

func (c *Console) openSession(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	wanted := f.session()
	var opened session.Session
	if f.ok() {
		opened, err = c.openWith(q, wanted, f.Has("grant"))
		if err != nil && !f.refuse(err, map[string]string{"credential_mode": "mode"}) {
			return err
		}
	}
	if !f.ok() {
		page, err := c.sessionsPage(q, f)
		if err != nil {
			return err
		}
		page.Opening = true
		return q.again("sessions", "Sessions", page)
	}
	if address := f.Get("url"); address != "" {
		if wrong := c.load(q, opened.ID, address); wrong != "" {
			return q.tell(sessionPath(opened.ID), told{Text: "The session is open, but " + wrong, Bad: true})
		}
	}
	return q.done(sessionPath(opened.ID), "The session is open. It took %s.", took(opened.Timing.Total))
}

// load opens the first page of a session, and says what was wrong with that: the session is there all the same.
func (c *Console) load(q *request, id, address string) string {
	if scheme, _, _ := strings.Cut(address, ":"); !strings.Contains(address, "://") && scheme != "about" && scheme != "data" {
		address = "https://" + address
	}
	out, err := c.Sessions.Drive(q.ctx(), q.by, id, browser.Navigate{URL: address})
	if err != nil {
		return sayProblem(err).Sentence()
	}
	if page, is := out.(browser.Result); is && page.Refused != "" {
		return "the gateway refused the page: " + page.Refused
	}
	return ""
}

// openWith opens a session, and issues the grant for its accounts when that is wanted. A grant whose session did not open is
// revoked: no caller has it.
func (c *Console) openWith(q *request, wanted session.OpenRequest, issue bool) (session.Session, error) {
	if !issue || wanted.CredentialMode != session.ModeOperator {
		return c.Sessions.Open(q.ctx(), q.by, wanted)
	}
	token, issued, err := c.Credentials.IssueGrant(q.ctx(), q.by, grant.Request{Tenant: wanted.Tenant, Domains: wanted.Domains,
		Access: grant.Access(cmp.Or(wanted.Access, string(grant.AccessTools)))})
	if err != nil {
		return session.Session{}, err
	}
	wanted.Grant = token
	out, err := c.Sessions.Open(q.ctx(), q.by, wanted)
	if err != nil {
		if _, undo := c.Credentials.RevokeGrant(context.WithoutCancel(q.ctx()), q.by, issued.Tenant, issued.ID); undo != nil {
			c.Log.Warn("revoke a grant whose session did not open", "grant", issued.ID, "error", undo)
		}
	}
	return out, err
}

// session is what the form says about a new session.
func (f *form) session() session.OpenRequest {
	out := session.OpenRequest{Tenant: f.Get("tenant"), CredentialMode: f.Get("mode"), Record: f.Get("record"), Browser: f.Get("browser"),
		Label: f.Get("label"), Access: f.Get("access"), TTL: f.Get("ttl")}
	lifeIn(f, "ttl") // says beside the field what is wrong with it
	if out.CredentialMode != session.ModeOperator {
		return out
	}
	out.Domains = f.Words("domains")
	if len(out.Domains) == 0 {
		f.wrong("domains", "an operator session has at least one domain", "such as example.com")
	}
	if text := f.Get("token"); !f.Has("grant") {
		if out.Grant = grant.ParseToken(text); text == "" {
			f.wrong("token", "a grant is needed", "paste one, or have one issued with the session")
		}
	}
	return out
}

// lifeIn is a field with a time such as 30m; zero for an empty one.
func lifeIn(f *form, name string) time.Duration {
	text := f.Get(name)
	if text == "" {
		return 0
	}
	d, err := texts.Duration(text)
	if err != nil || d <= 0 {
		f.wrong(name, "this is no time", "write a number with s, m, h or d, such as 30m")
		return 0
	}
	return d
}
