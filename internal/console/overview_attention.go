package console

import (
	"fmt"
	"net/url"
	"time"

	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
)

const (
	// keyWarning is how long before the end of a key or a token people are told.
	keyWarning = 7 * 24 * time.Hour
	// oldNews is how long after it they are told no more.
	oldNews = 7 * 24 * time.Hour
	// aKind is how many lines there are of one kind; the rest is counted.
	aKind = 5
)

// attention is something that somebody should look at, with what to do about it.
type attention struct {
	State, Text, Do string
	At              time.Time
	// Link is where to do it, or Command how; Refresh begins a login.
	Link, Label, Command string
	Refresh              *refreshOffer
}

// refreshOffer is what to log in to.
type refreshOffer struct{ Domain, Tenant string }

// watcher collects what needs attention, and asks only what the principal may know: a refusal would be in the audit log.
type watcher struct {
	*request
	all    []attention
	listed int // of the kind that is being listed
}

func (w *watcher) may(op identity.Operation) bool { return identity.Can(w.by, op, w.by.Tenant) == nil }

// kind ends a kind of which there were more than are listed.
func (w *watcher) kind(what, link string) {
	if more := w.listed - aKind; more > 0 {
		w.all = append(w.all, attention{State: "more", Text: fmt.Sprintf("and %s of this kind", plural(more, what)), Link: link, Label: "See all"})
	}
	w.listed = 0
}

func (w *watcher) add(a attention) {
	if w.listed++; w.listed <= aKind {
		w.all = append(w.all, a)
	}
}

// attention is what needs somebody: what is worst comes first. machine is nil for who has only one tenant.
func (c *Console) attention(q *request, machine *Machine, agents []agentRow) ([]attention, error) {
	w := &watcher{request: q}
	if machine != nil {
		w.machine(*machine)
	}
	w.agents(agents)
	for _, look := range []func() error{w.accounts, w.requests, w.operators} {
		if err := look(); err != nil {
			return nil, err
		}
	}
	w.tokens(agents)
	return w.all, nil
}

func (w *watcher) machine(m Machine) {
	if !m.Reachable {
		w.add(attention{State: "failed", Text: "The host daemon does not answer, so nothing new can be opened.",
			Do: "Start it, or look at its log.", Command: "clawjail doctor"})
		w.kind("problem", "")
		return
	}
	if len(m.Templates) == 0 {
		w.add(attention{State: "failed", Text: "There is no template, so no session can be opened.",
			Do: "Build the one for browsers.", Command: "sudo clawjail template build browser"})
	}
	for _, t := range m.Templates {
		if t.Problem != "" {
			w.add(attention{State: "failed", Text: "The template " + t.Name + " cannot be used: " + t.Problem, Do: "Build it again.",
				Command: "sudo clawjail template build " + t.Name})
		}
	}
	w.kind("template", Prefix+"/settings/machine")
	if len(m.Orphans) > 0 {
		w.add(attention{State: "warn", Text: fmt.Sprintf("%s that should not be on this machine: %s", plural(len(m.Orphans), "thing"), short(160, m.Orphans[0])),
			Do: "The host daemon removes such things by itself within some minutes; look again then.", Command: "sudo clawjail reap"})
	}
	w.kind("thing", "")
}

func (w *watcher) agents(rows []agentRow) {
	for _, r := range rows {
		if r.Problem != "" {
			w.add(attention{State: "failed", Text: "The jail of " + w.called(r.Tenant, r.Name) + " does not run: " + r.Problem, Link: r.Path, Label: "Look at it"})
		}
	}
	w.kind("agent", agentsPath)
}

// called names a thing of a tenant, for who sees more than one.
func (w *watcher) called(tenant, name string) string {
	if w.by.Tenant == "" && tenant != "" {
		return name + " (" + tenant + ")"
	}
	return name
}

func (w *watcher) accounts() error {
	if !w.may(identity.CookiesList) {
		return nil
	}
	needed, err := w.c.Credentials.NeedsRefresh(w.ctx(), w.by, w.by.Tenant)
	if err != nil {
		return err
	}
	offer := func(a credential.Alert) *refreshOffer {
		if identity.Can(w.by, identity.SessionRefresh, a.Tenant) != nil {
			return nil
		}
		return &refreshOffer{Domain: a.Domain, Tenant: a.Tenant}
	}
	for _, a := range needed {
		text := "The cookies of " + w.called(a.Tenant, a.Domain) + " have expired."
		if a.Reason == credential.AlertLogin {
			text = w.called(a.Tenant, a.Domain) + " asked an agent to log in."
		}
		w.add(attention{State: "needs_refresh", Text: text, Do: "Log in again for your agents.", At: a.At, Refresh: offer(a)})
	}
	w.kind("account", Prefix+"/credentials")
	soon, err := w.c.Credentials.ExpiringSoon(w.ctx(), w.by, w.by.Tenant)
	if err != nil {
		return err
	}
	for _, a := range soon {
		w.add(attention{State: "expiring", Text: "A cookie of " + w.called(a.Tenant, a.Domain) + " expires soon.", Do: "Log in before it does.", At: a.At, Refresh: offer(a)})
	}
	w.kind("account", Prefix+"/credentials")
	return nil
}

func (w *watcher) requests() error {
	if !w.may(identity.AccessList) {
		return nil
	}
	asked, err := w.c.Egress.AccessRequests(w.ctx(), w.by, w.by.Tenant, false)
	if err != nil {
		return err
	}
	for _, a := range asked {
		if a.State == egress.AccessPending {
			w.add(attention{State: "pending", Text: w.called(a.Tenant, a.AgentName) + " asks for " + string(a.Kind) + " " + short(120, a.Target) + ".", Do: short(160, a.Reason),
				At: a.CreatedAt, Link: Prefix + "/network/requests", Label: "Answer"})
		}
	}
	w.kind("request", Prefix+"/network/requests")
	return nil
}

// tokens tells of agents whose last good token ends: one that was replaced may end in peace.
func (w *watcher) tokens(rows []agentRow) {
	now := w.c.Now()
	for _, r := range rows {
		if r.State == "revoked" || r.State == "leftover" {
			continue
		}
		if r.NoToken {
			w.add(attention{State: "expired", Text: w.called(r.Tenant, r.Name) + " has no token that is good, so it can do nothing.", Do: "Make a new one, and give it to the agent.",
				Link: r.Path + "/tokens", Label: "Rotate"})
			continue
		}
		if r.Expires.IsZero() || r.Expires.After(now.Add(keyWarning)) {
			continue
		}
		w.add(attention{State: "expiring", Text: "The token of " + w.called(r.Tenant, r.Name) + " ends soon.", Do: "Make a new one, and give it to the agent.", At: r.Expires,
			Link: r.Path + "/tokens", Label: "Rotate"})
	}
	w.kind("agent", agentsPath)
}

func (w *watcher) operators() error {
	if !w.may(identity.OperatorList) {
		return nil
	}
	list, err := w.c.Identity.Operators(w.ctx(), w.by, w.by.Tenant)
	if err != nil {
		return err
	}
	now := w.c.Now()
	for _, o := range list {
		if !o.RevokedAt.IsZero() || o.ExpiresAt.IsZero() || o.ExpiresAt.After(now.Add(keyWarning)) || now.Sub(o.ExpiresAt) > oldNews {
			continue
		}
		a := attention{State: "expiring", Text: "The key of the operator " + w.called(o.Tenant, o.Name) + " ends soon.", Do: "Make a new one.", At: o.ExpiresAt,
			Link: Prefix + "/settings/people?" + url.Values{"operator": {o.ID}}.Encode(), Label: "See people"}
		if !o.ExpiresAt.After(now) {
			a.State, a.Text = "expired", "The key of the operator "+w.called(o.Tenant, o.Name)+" has ended."
		}
		w.add(a)
	}
	w.kind("operator", Prefix+"/settings/people")
	return nil
}
