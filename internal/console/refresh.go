package console

import (
	"cmp"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

const refreshPath = Prefix + "/refresh"

func (c *Console) refreshRoutes() {
	c.get("/refresh", c.refreshes)
	c.post("/refresh", c.openRefresh)
	c.get("/refresh/{id}", c.showRefresh)
	c.get("/refresh/{id}/seen", c.refreshSeen)
	c.post("/refresh/{id}/finish", c.finishRefresh)
	c.get("/refresh/{id}/finish", func(q *request) error { return q.goTo(refreshPath + "/" + q.value("id")) }) // its answer is loaded again
	c.post("/refresh/{id}/cancel", c.cancelRefresh)
}

// refreshesPage is where somebody begins to log in.
type refreshesPage struct {
	Form    *form
	Tenants []option
	Open    []sessionRow
	Needed  []neededRow
}

// neededRow is an account that somebody has to log in to again.
type neededRow struct {
	Tenant, Domain, Why string
}

func (c *Console) refreshes(q *request) error {
	page, err := c.refreshesPage(q, blank("domain", q.query("domain"), "tenant", q.by.TenantOr(q.query("tenant"))))
	if err != nil {
		return err
	}
	return q.show("refresh", "Log in to a site", page)
}

func (c *Console) refreshesPage(q *request, f *form) (*refreshesPage, error) {
	all, err := c.Sessions.List(q.ctx(), q.by, "", false)
	if err != nil {
		return nil, err
	}
	page := &refreshesPage{Form: f}
	names := c.names(q.ctx(), q.by)
	for _, s := range all {
		if s.CredentialMode == session.ModeRefresh {
			page.Open = append(page.Open, rowOf(s, names))
		}
	}
	if page.Needed, err = c.needed(q); err != nil {
		return nil, err
	}
	page.Tenants, err = c.tenantOptions(q)
	return page, err
}

func (c *Console) openRefresh(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	wanted := session.RefreshRequest{Tenant: f.Get("tenant"), Domain: strings.ToLower(f.Get("domain")), URL: f.Get("url")}
	if wanted.Domain == "" {
		f.wrong("domain", "a site is needed", "such as example.com")
	}
	var opened session.Session
	if f.ok() {
		if opened, err = c.Sessions.OpenRefresh(q.ctx(), q.by, wanted); err != nil {
			switch code := problem.CodeOf(err); {
			case code == problem.BadDomain:
				s := sayProblem(err)
				f.wrong("domain", s.Message, s.Hint)
			case !f.refuse(err, nil):
				return err
			}
		}
	}
	if !f.ok() {
		page, err := c.refreshesPage(q, f)
		if err != nil {
			return err
		}
		return q.again("refresh", "Log in to a site", page)
	}
	return q.goTo(refreshPath + "/" + opened.ID)
}

// refreshPage is where somebody logs in, and says what to keep.
type refreshPage struct {
	sessionRow
	Live  liveView
	Mine  bool
	Form  *form
	Sites []seenSite
	Hosts []seenHost
	// SignedIn is how the page shows that somebody is signed in; Proposed is what clawjail thinks of it.
	SignedIn, Proposed vault.SignedIn
	// Problem is why the browser could not be asked.
	Problem *said
}

// Domain is where somebody logs in.
func (p refreshPage) Domain() string { return strings.Join(p.Domains, ", ") }

// seenSite is a domain with what it has left, and seenHost one that has left nothing.
type seenSite struct {
	session.SeenSite
	Chosen  bool
	Origins []seenOrigin
}

// seenOrigin is an origin whose pages have stored something.
type seenOrigin struct {
	weblogin.OriginInfo
	Chosen bool
}

type seenHost struct {
	Host   string
	Chosen bool
}

// Bound counts the cookies that are good on one machine alone.
func (s seenSite) Bound() int {
	return len(slices.DeleteFunc(slices.Clone(s.Cookies), func(c vault.CookieInfo) bool { return !c.DeviceBound }))
}

// login says whether a cookie may be of somebody who is logged in: sites keep those away from scripts.
func login(c vault.CookieInfo) bool { return c.HTTPOnly }

// LooksLoggedIn says whether the site has a cookie that may be of a login, or pages that have stored something. It is a
// guess, for a warning.
func (p refreshPage) LooksLoggedIn() bool {
	return slices.ContainsFunc(p.Sites, func(s seenSite) bool {
		return slices.Contains(p.Domains, s.Domain) && (slices.ContainsFunc(s.Cookies, login) || len(s.Storage) > 0)
	})
}

func (c *Console) showRefresh(q *request) error {
	page, err := c.refreshPage(q, &form{Values: q.r.URL.Query()})
	if err != nil {
		return err
	}
	return q.show("refresh-session", "Log in to "+page.Domain(), page)
}

// refreshSeen is the part of the page that is renewed.
func (c *Console) refreshSeen(q *request) error {
	page, err := c.refreshPage(q, &form{Values: q.r.URL.Query()})
	if err != nil {
		return err
	}
	return q.part("refresh-session", "seen", page)
}

// refreshPage reads what the browser has seen. f is what the person has chosen so far: a domain that the page has not
// shown before (it is not among "known") is chosen when it is the one that they log in to.
func (c *Console) refreshPage(q *request, f *form) (*refreshPage, error) {
	s, err := c.Sessions.Get(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return nil, err
	}
	if s.CredentialMode != session.ModeRefresh {
		return nil, problem.New(problem.NotFound, "begin at "+refreshPath, "the session %s is not one to log in with", s.ID)
	}
	page := &refreshPage{sessionRow: rowOf(s, c.names(q.ctx(), q.by)), Form: f}
	page.Mine = s.OpenedBy == q.by.Actor()
	page.Live = c.liveView(q, page.sessionRow)
	page.Live.Always, page.Live.Thumbnail = true, ""
	if !page.Mine || s.State != session.StateReady {
		return page, nil
	}
	seen, err := c.Sessions.Seen(q.ctx(), q.by, s.ID)
	if err != nil {
		told := sayProblem(err)
		if told.Status >= 500 && told.Code != problem.Timeout && !passing(err) {
			return nil, err
		}
		page.Problem = &told
	}
	for _, site := range seen.Sites {
		one := seenSite{SeenSite: site, Chosen: chosen(f, "domain", site.Domain, slices.Contains(s.Domains, site.Domain))}
		for _, info := range site.Storage {
			one.Origins = append(one.Origins, seenOrigin{info, chosen(f, "origin", info.Origin, true)})
		}
		page.Sites = append(page.Sites, one)
	}
	for _, host := range seen.Hosts {
		page.Hosts = append(page.Hosts, seenHost{host, chosen(f, "host", host, false)})
	}
	page.Proposed = seen.SignedIn
	page.SignedIn = vault.SignedIn{Page: proposed(f, "signed_in_page", seen.SignedIn.Page), Marker: proposed(f, "signed_in_marker", seen.SignedIn.Marker)}
	return page, nil
}

func (c *Console) cancelRefresh(q *request) error {
	s, err := c.Sessions.Close(q.ctx(), q.by, q.value("id"))
	if err != nil {
		return q.failed(refreshPath, err)
	}
	return q.done(refreshPath, "Cancelled. Nothing of %s was stored.", cmp.Or(strings.Join(s.Domains, ", "), "the site"))
}
