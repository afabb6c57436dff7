package session

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session/signedout"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// ModeRefresh is the mode of a session in which a person logs in, for cookies to be kept.
const ModeRefresh = "refresh"

const (
	// RefreshLife is how long a refresh session lives.
	RefreshLife = 30 * time.Minute
	// firstPageLimit bounds opening the page that a refresh session begins with.
	firstPageLimit = 30 * time.Second
	// seenLimit bounds asking a browser what it has.
	seenLimit = 10 * time.Second
	// maxAddress bounds the address to begin with, in bytes.
	maxAddress = 2000
)

// RefreshRequest asks for a session to log in with.
type RefreshRequest struct {
	Tenant string
	// Domain is the registrable domain to log in to; URL is where to begin, https://DOMAIN/ when it is left out.
	Domain, URL string
}

// OpenRefresh opens a session in which a person logs in to a site: the full browser, the public web, never recorded,
// steered by its opener only, and gone after RefreshLife. There is one of a domain at a time. It is no error when its first
// page does not load: the person sees that.
func (svc *Service) OpenRefresh(ctx context.Context, by identity.Principal, r RefreshRequest) (Session, error) {
	r.Tenant = by.TenantOr(r.Tenant)
	if err := svc.Authority.AuthorizeWith(ctx, by, identity.SessionRefresh, identity.Object{Tenant: r.Tenant, Agent: by.AgentID()}); err != nil {
		return Session{}, err
	}
	domain, first, err := r.place()
	if err != nil {
		return Session{}, err
	}
	p, err := svc.plan(OpenRequest{Tenant: r.Tenant, Access: string(grant.AccessTools), Record: RecordOff, Browser: string(config.BrowserFull)})
	if err != nil {
		return Session{}, err
	}
	p.mode, p.refresh, p.first, p.ttl, p.idle = ModeRefresh, domain, first, RefreshLife, RefreshLife
	// Its life is no setting, so its jail may exist for as long where others may not.
	p.shape.limits.WallClock = max(p.shape.limits.WallClock, RefreshLife+svc.WarmPool.MaxAge)
	out, err := svc.openPlan(ctx, by, p)
	if err != nil {
		return Session{}, err
	}
	svc.openFirst(out.ID)
	return out, nil
}

// place is where somebody logs in: the domain, and the page to begin with.
func (r RefreshRequest) place() (domain, first string, err error) {
	domain, err = cookies.RegistrableDomain(r.Domain)
	switch {
	case err != nil:
		return "", "", problem.Wrap(err, problem.BadDomain, "write one such as example.com", "%s is not a registrable domain", quote(r.Domain))
	case !strings.EqualFold(domain, r.Domain):
		return "", "", problem.New(problem.BadDomain, "accounts belong to whole domains: write "+domain, "%s is a subdomain", quote(r.Domain))
	case r.URL == "":
		return domain, "https://" + domain + "/", nil
	}
	page, err := url.Parse(r.URL)
	if err != nil || page.Scheme != "https" && page.Scheme != "http" || page.Host == "" || page.User != nil || len(r.URL) > maxAddress {
		return "", "", problem.New(problem.BadRequest, "write one such as https://"+domain+"/login", "%s is not the address of a page", quote(r.URL))
	}
	return domain, page.String(), nil
}

// openFirst opens the page that a refresh session begins with, behind the caller.
func (svc *Service) openFirst(id string) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	s := svc.sessions[id]
	if s == nil || s.state != StateReady {
		return
	}
	b := s.instance.browser
	svc.tasks.Go(func() { // ends with the session
		ctx, cancel := context.WithTimeout(s.life, firstPageLimit)
		defer cancel()
		if _, err := b.Navigate(ctx, s.plan.first); err != nil && !s.over() {
			svc.Log.Info("the first page of a refresh session did not load", "session", s.id, "domain", s.plan.refresh, "error", err)
		}
	})
}

// refreshing refuses a second refresh session of a domain. The caller holds svc.mu.
func (svc *Service) refreshing(p plan) error {
	if p.mode != ModeRefresh {
		return nil
	}
	for _, s := range svc.sessions {
		if s.plan.mode == ModeRefresh && s.plan.tenant == p.tenant && s.plan.refresh == p.refresh && (s.state == StateOpening || s.state == StateReady) {
			return problem.New(problem.Conflict, "use that one, or close it: clawjail session close "+s.id,
				"%s is logging in to %s already, in session %s", whoHas(s.takeover), p.refresh, s.id).With("session", s.id)
		}
	}
	return nil
}

// startTakeover gives the browser of a refresh session to its opener.
func (svc *Service) startTakeover(ctx context.Context, s *session) error {
	if s.plan.mode != ModeRefresh {
		return nil
	}
	if err := s.instance.browser.Live().Hold(ctx); err != nil {
		return fmt.Errorf("hold the browser's dialogs: %w", err)
	}
	return nil
}

// notRefresh refuses in a refresh session everything but what its opener does in the console: looking, files, and keeping
// the cookies.
func (svc *Service) notRefresh(s *session, by identity.Principal, op identity.Operation, tool string) error {
	if s.plan.mode != ModeRefresh {
		return nil
	}
	switch op {
	case identity.SessionUse, identity.SessionLook, identity.CookiesCapture, identity.SessionRefresh:
		if samePerson(s.by, by) {
			return nil
		}
	}
	return svc.refuse(s, by, op, tool, onlyInConsole(s))
}

func onlyInConsole(s *session) error {
	return problem.New(problem.Forbidden, "steer it in the console, as the person who opened it", "session %s is for logging in to %s, and nothing else", s.id, s.plan.refresh)
}

// ofFiles says whether an operation is about files that were downloaded, or are to be uploaded.
func ofFiles(op browser.Operation) bool {
	switch op.(type) {
	case browser.Files, browser.GetFile, browser.PutFile, browser.DeleteFile, browser.WaitDownload:
		return true
	}
	return false
}

// Seen is what a refresh session has seen of the web so far.
type Seen struct {
	// Sites are the registrable domains that have set cookies, or whose pages have stored something: the one that is logged in to, then the others in the order in
	// which the pages first used them.
	Sites []SeenSite `json:"sites" nullable:"false"`
	// Hosts are hosts of other domains that the pages used, which have left nothing: they are proposed as egress_domains.
	Hosts []string `json:"hosts" nullable:"false"`
	// SignedIn is how the page that is there shows that somebody is signed in, to be kept with the account.
	SignedIn vault.SignedIn `json:"signed_in"`
}

// SeenSite is one domain with its cookies, which have no values here, and with how much its pages have stored.
type SeenSite struct {
	Domain  string                `json:"domain"`
	Cookies []vault.CookieInfo    `json:"cookies" nullable:"false"`
	Storage []weblogin.OriginInfo `json:"storage,omitempty"`
	// Stored says that there is an account of that domain already.
	Stored bool `json:"stored"`
}

// Seen tells the opener of a refresh session what it has seen. The call is no use of the session.
func (svc *Service) Seen(ctx context.Context, by identity.Principal, id string) (Seen, error) {
	s, b, err := svc.ready(ctx, by, identity.SessionRefresh, id)
	if err != nil {
		return Seen{}, err
	}
	if s.plan.mode != ModeRefresh {
		return Seen{}, problem.New(problem.BadRequest, "open one: clawjail cookies refresh DOMAIN", "session %s is not one to log in with", id)
	}
	if err := svc.notRefresh(s, by, identity.SessionRefresh, "seen"); err != nil {
		return Seen{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, seenLimit, problem.New(problem.Timeout, "try again", "the browser did not answer within %s", seenLimit))
	defer cancel()
	jar, err := b.Cookies(ctx, "")
	if err != nil {
		return Seen{}, svc.why(ctx, s, fmt.Errorf("look at the cookies: %w", err))
	}
	defer cookies.Wipe(jar)
	visited, err := b.Origins(ctx)
	if err != nil {
		return Seen{}, svc.why(ctx, s, fmt.Errorf("look what was visited: %w", err))
	}
	storage, err := b.Weigh(ctx, "", visited)
	if err != nil {
		return Seen{}, svc.why(ctx, s, fmt.Errorf("look at what pages have stored: %w", err))
	}
	svc.mu.Lock()
	addr := s.addr
	svc.mu.Unlock()
	out, err := svc.seen(ctx, s, jar, storage, svc.Gateway.Hosts(addr))
	out.SignedIn = svc.shows(ctx, s, b)
	return out, err
}

// shows proposes how to see later whether an account is signed in: by the page that is there now, and by its control to sign
// out. It is empty while that page asks to sign in, or is of another site.
func (svc *Service) shows(ctx context.Context, s *session, b Browser) (out vault.SignedIn) {
	page, err := b.SignIn(ctx, "")
	if err != nil {
		svc.Log.Debug("look at the page of a refresh session", "session", s.id, "error", err)
		return out
	}
	at, err := url.Parse(page.URL)
	known := signedout.Known{Domain: s.plan.refresh}
	if err != nil || !cookies.Within(at.Hostname(), s.plan.refresh) || page.Failed || page.Status >= 400 || signedout.Judge(page, known).SignedOut != signedout.None {
		return out
	}
	at.RawQuery, at.Fragment, at.User = "", "", nil
	out = vault.SignedIn{Page: at.String(), Marker: page.Offer}
	if out.Check(s.plan.refresh) != nil {
		return vault.SignedIn{}
	}
	return out
}

func (svc *Service) seen(ctx context.Context, s *session, jar []cookies.Cookie, storage []weblogin.OriginInfo, hosts []string) (Seen, error) {
	out := Seen{Sites: []SeenSite{}, Hosts: []string{}}
	order := []string{s.plan.refresh}
	for _, host := range hosts {
		if domain, err := cookies.RegistrableDomain(host); err == nil {
			order = append(order, domain)
		}
	}
	now := svc.Now()
	sites := map[string]*SeenSite{}
	of := func(domain string) *SeenSite {
		if sites[domain] == nil {
			sites[domain] = &SeenSite{Domain: domain}
			order = append(order, domain)
		}
		return sites[domain]
	}
	cookies.Sort(jar)
	for _, c := range jar {
		domain, err := cookies.RegistrableDomain(c.Host())
		if err != nil || c.Expired(now) {
			continue // such as those of an address: there can be no account of it
		}
		site := of(domain)
		site.Cookies = append(site.Cookies, vault.Describe(c, now))
	}
	for _, info := range storage {
		if domain, err := weblogin.DomainOf(info.Origin); err == nil {
			site := of(domain)
			site.Storage = append(site.Storage, info)
		}
	}
	for _, domain := range order {
		site := sites[domain]
		if site == nil || slices.ContainsFunc(out.Sites, func(o SeenSite) bool { return o.Domain == domain }) {
			continue
		}
		switch _, err := svc.Accounts.Vault.Cookies(ctx, s.plan.tenant, domain); {
		case err == nil:
			site.Stored = true
		case problem.CodeOf(err) != problem.NotFound:
			return Seen{}, fmt.Errorf("look for the account of %s: %w", domain, err)
		}
		out.Sites = append(out.Sites, *site)
	}
	for _, name := range hosts {
		host, err := hostport.ParseHost(name)
		if err != nil || host.IsAddr() {
			continue
		}
		// A name without a registrable domain cannot be in a grant either.
		domain, err := cookies.RegistrableDomain(name)
		if err == nil && domain != s.plan.refresh && sites[domain] == nil && !slices.Contains(out.Hosts, name) {
			out.Hosts = append(out.Hosts, name)
		}
	}
	return out, nil
}

// permitRefresh records that somebody is about to log in.
func (svc *Service) permitRefresh(ctx context.Context, s *session) (audit.Pending, error) {
	s.policy = svc.Policy
	return svc.Records.Begin(ctx, svc.intent(s, s.by.Actor(), string(identity.SessionRefresh), s.plan.refresh, audit.Fields{"browser": string(s.plan.shape.build)}))
}
