package console

import (
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/session/signedout"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// needed are the accounts that somebody has to log in to again, and may.
func (c *Console) needed(q *request) ([]neededRow, error) {
	if identity.Can(q.by, identity.CookiesList, q.by.TenantOr("")) != nil {
		return nil, nil
	}
	alerts, err := c.Credentials.NeedsRefresh(q.ctx(), q.by, "")
	if err != nil {
		return nil, err
	}
	var out []neededRow
	for _, a := range alerts {
		if identity.Can(q.by, identity.SessionRefresh, a.Tenant) == nil {
			why := "its cookies have expired"
			if a.Reason != session.ReasonExpired {
				why = "it " + signedout.Reason(a.Reason).Words()
			}
			out = append(out, neededRow{Tenant: a.Tenant, Domain: a.Domain, Why: why})
		}
	}
	return out, nil
}

// finishRefresh keeps what the person has chosen, and ends the session.
func (c *Console) finishRefresh(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	if len(f.Values["domain"]) == 0 {
		f.Problem = &said{Message: "nothing is chosen to be kept", Hint: "tick the site that you have logged in to"}
	} else {
		sets, err := c.Credentials.FinishRefresh(q.ctx(), q.by, credential.FinishRefresh{Session: q.value("id"), Domains: f.Values["domain"],
			Origins: f.origins(), EgressDomains: f.Values["host"], SignedIn: c.signedInOf(f)})
		if len(sets) > 0 {
			if err != nil { // it ends by itself, within half an hour
				c.Log.Warn("end a refresh session whose accounts are kept", "session", q.value("id"), "error", err)
			}
			var kept []string
			for _, set := range sets {
				kept = append(kept, set.Domain+" ("+sayLogin(set)+")")
			}
			to := credentialsPath
			if len(sets) == 1 {
				to = accountRow{CookieSet: sets[0]}.Path()
			}
			return q.done(to, "Stored: %s. The next step is to let an agent use it: in one session with a grant, or in many with a permission.", strings.Join(kept, ", "))
		}
		if err == nil {
			return problem.New(problem.Internal, "", "the refresh stored nothing")
		}
		if !f.refuse(err, nil) {
			return err
		}
	}
	page, err := c.refreshPage(q, f)
	if err != nil {
		return err
	}
	return q.again("refresh-session", "Log in to "+page.Domain(), page)
}

// signedInOf is what a person leaves standing of how to see that somebody is signed in; nil when the page did not ask.
func (c *Console) signedInOf(f *form) *vault.SignedIn {
	if _, asked := f.Values["signed_in_page"]; !asked {
		return nil
	}
	out := f.signedIn()
	return &out
}

// proposed is the text of a field: as the person left it, or what is proposed now where they took what was proposed before.
func proposed(f *form, field, now string) string {
	if _, there := f.Values[field]; !there || slices.Contains(f.Values["known"], field+" "+f.Get(field)) {
		return now
	}
	return f.Get(field)
}

// origins are those that are ticked, of sites that are. None is a choice too.
func (f *form) origins() []string {
	out := []string{}
	for _, origin := range f.Values["origin"] {
		if domain, err := weblogin.DomainOf(origin); err == nil && slices.Contains(f.Values["domain"], domain) {
			out = append(out, origin)
		}
	}
	return out
}

// chosen says whether a box is ticked: as the person left it, or as it is at first.
func chosen(f *form, field, value string, first bool) bool {
	if !slices.Contains(f.Values["known"], field+" "+value) {
		return first
	}
	return slices.Contains(f.Values[field], value)
}
