package console

import (
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// tokenRow is a token as a page shows it.
type tokenRow struct {
	identity.Token
	State string
}

// agentTokens is the page with an agent's tokens.
type agentTokens struct {
	oneAgent
	Rows      []tokenRow
	Good      int
	Form      *form
	Delivered bool // new ones go into the jail, and are shown to nobody
}

func (c *Console) tokensPage(q *request) error {
	return c.showTokens(q, blank("overlap", identity.DefaultOverlap.String()))
}

func (c *Console) showTokens(q *request, f *form) error {
	one, err := c.theAgent(q, "/tokens")
	if err != nil {
		return err
	}
	data := agentTokens{oneAgent: one, Form: f, Delivered: hasJail(one.Status)}
	var all []identity.Token
	if one.ID != "" {
		if all, err = c.Identity.Tokens(q.ctx(), q.by, one.Tenant, one.Name); err != nil {
			return err
		}
	}
	now := c.Now()
	for n := len(all) - 1; n >= 0; n-- { // the newest first
		row := tokenRow{Token: all[n], State: "active"}
		switch {
		case !all[n].RevokedAt.IsZero():
			row.State = "revoked"
		case !tokenIsGood(all[n], now):
			row.State = "expired"
		default:
			data.Good++
			if !all[n].ExpiresAt.IsZero() && all[n].ExpiresAt.Before(now.Add(7*24*time.Hour)) {
				row.State = "expiring"
			}
		}
		data.Rows = append(data.Rows, row)
	}
	if !f.ok() {
		return q.again("agent_tokens", one.Name+" · tokens", data)
	}
	return q.show("agent_tokens", one.Name+" · tokens", data)
}

func (c *Console) rotateToken(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	one, err := c.theAgent(q, "/tokens")
	if err != nil {
		return err
	}
	overlap, err := texts.Duration(f.Get("overlap"))
	if err != nil {
		f.wrong("overlap", "is not a time", "such as 10m, or 0s for none")
	}
	life, err := lifeOf(f.Get("life"))
	if err != nil && !f.refuse(err, nil) {
		return err
	}
	if !f.ok() {
		return c.showTokens(q, f)
	}
	if hasJail(one.Status) && c.Agents != nil {
		err = c.Agents.RotateToken(q.ctx(), q.by, one.Tenant, one.Name, overlap)
		if err == nil {
			return q.done(one.Path+"/tokens", "%s has a new token in its jail. The old one is good for %s more.", one.Name, overlap)
		}
	} else {
		key, token, made := c.Identity.RotateToken(q.ctx(), q.by, one.Tenant, one.Name, life, overlap)
		if made == nil {
			return q.show("token", "The new token of "+one.Name, issued{Title: "The new token of " + one.Name, Name: one.Name, Tenant: one.Tenant, Key: key.Reveal(),
				Expires: token.ExpiresAt, Back: one.Path + "/tokens", Snippets: snippets(c.address(q.r), one.Name, key.Reveal())})
		}
		err = made
	}
	if problem.CodeOf(err) == problem.Forbidden || !f.refuse(err, nil) {
		return err
	}
	return c.showTokens(q, f)
}

func (c *Console) revokeToken(q *request) error {
	tenant, name := q.value("tenant"), q.value("name")
	return q.act(agentPath(tenant, name)+"/tokens", c.Identity.RevokeToken(q.ctx(), q.by, tenant, name, q.value("id")),
		"The token is revoked. What was open with it has ended.")
}
