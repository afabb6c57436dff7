package console

import (
	"fmt"
	"net/url"
	"time"

	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/identity"
)

// attention is something that somebody should look at, with where to do something about it.
type attention struct {
	State, Text, Do string
	At              time.Time
	// Link is where to do it, or Command how; Refresh begins a login.
	Link, Label, Command string
	Refresh              *refreshOffer
}

// refreshOffer is what to log in to.
type refreshOffer struct{ Domain, Tenant string }

// attention is what needs somebody, as package health found it: what is worst comes first.
func (c *Console) attention(q *request) ([]attention, error) {
	found, err := c.Health.Attention(q.ctx(), q.by)
	if err != nil {
		return nil, err
	}
	var out []attention
	for _, f := range found {
		a := attention{State: "warn", Text: f.Sentence, Do: f.Hint, At: f.At, Command: f.Command}
		if f.Level == health.Failed {
			a.State = "failed"
		}
		kind, all := "problem", ""
		at := agentPath(f.About.Tenant, f.About.Name)
		switch f.Code {
		case health.MachineUnknown, health.AgentsUnknown, health.PartUnknown:
			a.State = "unknown"
		case health.TemplateMissing, health.TemplateBroken, health.TemplateOld:
			kind, all = "template", Prefix+"/settings/machine"
		case health.AgentBroken, health.AgentCrashes:
			kind, all = "agent", agentsPath
			a.Link, a.Label = at, "Look at it"
		case health.AgentWithoutToken, health.AgentTokenExpiring:
			kind, all = "agent", agentsPath
			a.Link, a.Label, a.State = at+"/tokens", "Rotate", "expiring"
			if f.Code == health.AgentWithoutToken {
				a.State = "expired"
			}
		case health.AccountNeedsLogin, health.AccountExpiring:
			kind, all, a.State = "account", Prefix+"/credentials", "expiring"
			if f.Code == health.AccountNeedsLogin {
				a.State = "needs_refresh"
			}
			if identity.Can(q.by, identity.SessionRefresh, f.About.Tenant) == nil {
				a.Refresh = &refreshOffer{Domain: f.About.Name, Tenant: f.About.Tenant}
			}
		case health.AccessAsked:
			kind, all = "request", Prefix+"/network/requests"
			a.State, a.Link, a.Label = "pending", Prefix+"/network/requests", "Answer"
		case health.OperatorKeyExpired, health.OperatorKeyExpiring:
			kind, all, a.State = "operator", Prefix+"/settings/people", "expiring"
			if f.Code == health.OperatorKeyExpired {
				a.State = "expired"
			}
			a.Link, a.Label = Prefix+"/settings/people?"+url.Values{"operator": {f.About.ID}}.Encode(), "See people"
		}
		out = append(out, a)
		if f.More > 0 {
			out = append(out, attention{State: "more", Text: fmt.Sprintf("and %s of this kind", plural(f.More, kind)), Link: all, Label: "See all"})
		}
	}
	return out, nil
}
