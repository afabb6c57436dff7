package console

import (
	"net/http"
	"net/url"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

func (c *Console) closeSession(q *request) error {
	s, err := c.Sessions.Close(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return q.failed(sessionsPath, err)
	}
	return q.done(sessionsPath, "The session %s is closed, and its jail is being removed.", rowOf(s, nil).Name())
}

// stopTask closes the session of a task. A session whose task is over may be in a person's hand.
func (c *Console) stopTask(q *request) error {
	s, err := c.Sessions.Get(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return err
	}
	if c.taskOf(q, s) == nil {
		return q.failed(sessionPath(s.ID), problem.New(problem.Conflict, "close the session if nobody needs it", "the task is over already"))
	}
	return c.closeSession(q)
}

// takeOver and handBack are forms that work without scripts. With them nothing of the page is lost: they are sent behind it,
// and who is in control is told by the live view.
func (c *Console) takeOver(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	_, err = c.Sessions.TakeOver(q.ctx(), q.by, q.value("id"), f.Has("force"))
	return q.changedHands(err, "force", "You have the browser in hand. Agents get the code taken_over until you hand it back.")
}

func (c *Console) handBack(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	_, err = c.Sessions.HandBack(q.ctx(), q.by, q.value("id"), f.Has("anyway"))
	return q.changedHands(err, "anyway", "The browser is handed back.")
}

// changedHands answers a take-over or a hand-back. The page asks about what may be done all the same.
func (q *request) changedHands(err error, insist, done string) error {
	path := sessionPath(q.value("id"))
	switch {
	case q.fragment() && err != nil:
		if problem.CodeOf(err) == problem.Conflict {
			q.w.Header().Set("X-Insist", insist)
		}
		return err
	case q.fragment():
		q.started = true
		q.w.WriteHeader(http.StatusNoContent)
		return nil
	case err != nil && problem.CodeOf(err) == problem.Conflict:
		return q.failed(path+"?"+insist+"=yes", err)
	}
	return q.act(path, err, "%s", done)
}

func (c *Console) issueSessionToken(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	life := lifeIn(f, "life")
	var issued session.Token
	if f.ok() {
		issued, err = c.Sessions.IssueToken(q.ctx(), q.by, q.value("id"), session.Scope(f.Get("scope")), life)
		if err != nil && !f.refuse(err, map[string]string{"ttl": "life"}) {
			return err
		}
	}
	page, err := c.sessionPage(q)
	if err != nil {
		return err
	}
	page.Form = f
	if !f.ok() {
		return q.again("session", page.Name(), page)
	}
	page.Issued = &issued
	if issued.Scope != identity.ScopeCDP {
		page.ShareLink = c.address(q.r) + Prefix + "/watch#" + url.PathEscape(issued.Session) + ":" + url.PathEscape(issued.Token)
	}
	return q.show("session", page.Name(), page)
}

func (c *Console) revokeSessionToken(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	err = c.Sessions.RevokeToken(q.ctx(), q.by, q.value("id"), f.Get("token"))
	return q.act(sessionPath(q.value("id")), err, "The token is revoked. Whoever used it is cut off.")
}

// goTo leads to another page of the console.
func (q *request) goTo(path string) error {
	q.started = true
	http.Redirect(q.w, q.r, local(path), http.StatusSeeOther)
	return nil
}
