package console

import (
	"slices"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session"
)

const requestsPath = networkPath + "/requests"

// askedRow is a request for access with names for people.
type askedRow struct {
	egress.AccessRequest
	Answerer   string
	Answerable bool
	// Accounts is a session of the agent's with accounts, which no approval of a host changes; empty when none is open.
	Accounts string
}

// Once says that it can be approved for one use.
func (r askedRow) Once() bool { return r.Kind != egress.AccessService }

// What is what approving makes, in words.
func (r askedRow) What() string {
	switch r.Kind {
	case egress.AccessTool:
		return "a tool for execute"
	case egress.AccessService:
		return "a service, with its credential"
	case egress.AccessAccount:
		return "the use of an account, without a grant each time"
	}
	return "a host"
}

type requestsPage struct {
	Tabs     []tab
	Pending  []askedRow
	Answered []askedRow
	Pager    pager
}

func (c *Console) listRequests(q *request) error {
	page, err := c.requestsPage(q)
	if err != nil {
		return err
	}
	return q.show("network_requests", "Requests for access", page)
}

// requestsPart is what waits for an answer.
func (c *Console) requestsPart(q *request) error {
	page, err := c.requestsPage(q)
	if err != nil {
		return err
	}
	return q.part("network_requests", "pending", page)
}

func (c *Console) requestsPage(q *request) (*requestsPage, error) {
	tabs, err := c.networkTabs(q, requestsPath)
	if err != nil {
		return nil, err
	}
	all, err := c.Egress.AccessRequests(q.ctx(), q.by, "", true)
	if err != nil {
		return nil, err
	}
	open, err := c.Sessions.List(q.ctx(), q.by, "", false)
	if err != nil {
		return nil, err
	}
	accounts := map[string]string{} // sessions with accounts, by who opened them
	for _, s := range open {
		if s.CredentialMode == session.ModeOperator {
			accounts[s.OpenedBy] = s.ID
		}
	}
	page := &requestsPage{Tabs: tabs}
	names := c.names(q.ctx(), q.by)
	var answered []egress.AccessRequest
	for _, a := range all {
		if a.State != egress.AccessPending {
			answered = append(answered, a)
			continue
		}
		row := askedRow{AccessRequest: a, Answerable: identity.Can(q.by, identity.AccessAnswer, a.Tenant) == nil}
		if a.Kind == egress.AccessHost {
			row.Accounts = accounts[string(identity.KindAgent)+":"+a.Agent]
		}
		page.Pending = append(page.Pending, row)
	}
	slices.Reverse(answered) // newest first
	answered, page.Pager = paged(q, answered)
	for _, a := range answered {
		page.Answered = append(page.Answered, askedRow{AccessRequest: a, Answerer: names.of(a.AnsweredBy)})
	}
	return page, nil
}

func (c *Console) answerRequest(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	answer := egress.AccessAnswer{Approve: true, Comment: f.Get("comment")}
	switch f.Get("answer") {
	case "once":
		answer.Once = true
	case "hour":
		answer.For = "1h"
	case "always":
	default:
		answer.Approve = false
	}
	out, err := c.Egress.Answer(q.ctx(), q.by, f.Get("id"), answer)
	if err != nil {
		return q.failed(requestsPath, err)
	}
	if out.State == egress.AccessRefused {
		return q.done(requestsPath, "%s is told that %s was refused.", out.AgentName, out.Target)
	}
	return q.done(requestsPath, "%s may use %s now.", out.AgentName, out.Target)
}
