package console

import (
	"net/url"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/task"
)

// sessionPage is everything that the page of one session shows.
type sessionPage struct {
	sessionRow
	Live      liveView
	Task      *task.Progress // nil where none is being done
	Limits    config.Limits
	Timeline  []happening
	Form      *form // for a token
	Issued    *session.Token
	ShareLink string
	Tokens    []session.IssuedToken
	Files     []browser.File
	Looked    bool // Files were asked for
	Scopes    []option
}

// CDP says whether DevTools clients may attach.
func (p sessionPage) CDP() bool { return p.Access == "cdp" }

// Ready says whether there is something to see live.
func (p sessionPage) Ready() bool { return p.State == session.StateReady }

// liveView is what the template "live" shows.
type liveView struct {
	// Path is the page's own, below which the live view's addresses are. Empty for a page that is told by its address.
	Path      string
	By        string // the caller that drives while no person does; empty when that is the person who looks
	Holder    string
	Mine      bool
	MaySteer  bool
	Always    bool // it is steered from its beginning to its end
	Force     bool // the question whether to take it from somebody is asked
	Anyway    bool // the question whether to hand back all the same is asked
	Thumbnail string
}

func (c *Console) showSession(q *request) error {
	page, err := c.sessionPage(q)
	if err != nil {
		return err
	}
	if page.CredentialMode == session.ModeRefresh && page.Ended == nil {
		return q.goTo(page.sessionRow.Path())
	}
	if q.query("files") != "" {
		if err := c.look(q, page); err != nil {
			return err
		}
	}
	return q.show("session", page.Name(), page)
}

// sessionPage reads what the page shows. Of the live view it has what there is without scripts.
func (c *Console) sessionPage(q *request) (*sessionPage, error) {
	s, err := c.Sessions.Get(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return nil, err
	}
	names := c.names(q.ctx(), q.by)
	page := &sessionPage{sessionRow: rowOf(s, names), Limits: c.Config.Limits, Form: blank("scope", string(identity.ScopeView), "life", "1h")}
	page.Live, page.Task = c.liveView(q, page.sessionRow), c.taskOf(q, s)
	if page.Timeline, err = c.timeline(q, s, names); err != nil {
		return nil, err
	}
	page.Scopes = []option{{Value: string(identity.ScopeView), Label: "View: see the browser"}, {Value: string(identity.ScopeControl), Label: "Control: see and steer it"}}
	if page.CDP() {
		page.Scopes = append(page.Scopes, option{Value: string(identity.ScopeCDP), Label: "CDP: attach a DevTools client as well"})
	}
	if identity.Can(q.by, identity.SessionToken, s.Tenant) == nil && page.Ready() {
		page.Tokens, err = c.Sessions.Tokens(q.ctx(), q.by, s.ID)
		if err != nil && !passing(err) {
			return nil, err
		}
		for n := range page.Tokens {
			page.Tokens[n].By = names.of(page.Tokens[n].By)
		}
	}
	return page, nil
}

func (c *Console) liveView(q *request, row sessionRow) liveView {
	out := liveView{Path: sessionPath(row.ID), By: row.Opener, Holder: row.Holder, MaySteer: identity.Can(q.by, identity.SessionControl, row.Tenant) == nil,
		Force: q.query("force") != "", Anyway: q.query("anyway") != ""}
	if row.OpenedBy == q.by.Actor() {
		out.By = "" // the person who looks
	}
	if row.Control != nil {
		out.Mine = row.Control.By == q.by.Actor()
	} else if row.State == session.StateReady {
		out.Thumbnail = sessionPath(row.ID) + "/thumbnail"
	}
	return out
}

// passing says whether an error is of a session that has ended, or changed hands, since it was looked at: the page shows the
// rest all the same.
func passing(err error) bool {
	return slices.Contains([]string{problem.SessionClosed, problem.BrowserExited, problem.NotFound, problem.Conflict, problem.TakenOver}, problem.CodeOf(err))
}

// sessionFacts is the part of the page that is renewed.
func (c *Console) sessionFacts(q *request) error {
	s, err := c.Sessions.Get(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return err
	}
	if was := q.query("state"); was != "" && was != string(s.State) {
		q.w.Header().Set("HX-Refresh", "true") // more than this part has changed
	}
	page := &sessionPage{sessionRow: rowOf(s, c.names(q.ctx(), q.by)), Limits: c.Config.Limits}
	return q.part("session", "facts", page)
}

// taskOf is the task that is being done in a session, for those who may see its browser.
func (c *Console) taskOf(q *request, s session.Session) *task.Progress {
	if c.Tasks == nil || identity.Can(q.by, identity.SessionWatch, s.Tenant) != nil {
		return nil
	}
	p, ok := c.Tasks.Running(s.ID)
	if !ok {
		return nil
	}
	return &p
}

// sessionTask is the part of the page that shows a task.
func (c *Console) sessionTask(q *request) error {
	s, err := c.Sessions.Get(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return err
	}
	return q.part("session", "task", &sessionPage{sessionRow: rowOf(s, nil), Task: c.taskOf(q, s)})
}

// FilePath is where a file of the browser's folder is saved from.
func (p sessionPage) FilePath(name string) string {
	return sessionPath(p.ID) + "/files/" + url.PathEscape(name)
}

// Stages are how long opening took, by what was done.
func (p sessionPage) Stages() []stage {
	t := p.Timing
	all := []stage{{"Clone the template", t.Clone}, {"Connect its network", t.Attach}, {"Start the jail", t.Start}, {"Check the jail", t.Verify},
		{"Wait for the browser", t.Ready}, {"Put cookies in", t.Inject}}
	return slices.DeleteFunc(all, func(s stage) bool { return s.Took == 0 })
}

type stage struct {
	Name string
	Took float64 // in milliseconds
}

// Lasted is how long a session that has ended was there.
func (p sessionPage) Lasted() string {
	if p.Ended == nil {
		return ""
	}
	return span(max(0, p.Ended.At.Sub(p.Created)).Truncate(time.Second))
}
