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
func (s *Service) OpenRefresh(ctx context.Context, by identity.Principal, r RefreshRequest) (Session, error) {
	r.Tenant = by.TenantOr(r.Tenant)
	if err := s.Authority.AuthorizeWith(ctx, by, identity.SessionRefresh, identity.Object{Tenant: r.Tenant, Agent: by.AgentID()}); err != nil {
		return Session{}, err
	}
	domain, first, err := r.place()
	if err != nil {
		return Session{}, err
	}
	p, err := s.plan(OpenRequest{Tenant: r.Tenant, Access: string(grant.AccessTools), Record: RecordOff, Browser: string(config.BrowserFull)})
	if err != nil {
		return Session{}, err
	}
	p.mode, p.refresh, p.first, p.ttl, p.idle = ModeRefresh, domain, first, RefreshLife, RefreshLife
	// Its life is no setting, so its jail may exist for as long where others may not.
	p.shape.limits.WallClock = max(p.shape.limits.WallClock, RefreshLife+s.WarmPool.MaxAge)
	out, err := s.openPlan(ctx, by, p)
	if err != nil {
		return Session{}, err
	}
	s.openFirst(out.ID)
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
func (s *Service) openFirst(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.sessions[id]
	if r == nil || r.state != StateReady {
		return
	}
	b := r.instance.browser
	s.tasks.Go(func() { // ends with the session
		ctx, cancel := context.WithTimeout(r.life, firstPageLimit)
		defer cancel()
		if _, err := b.Navigate(ctx, r.plan.first); err != nil && !r.over() {
			s.Log.Info("the first page of a refresh session did not load", "session", r.id, "domain", r.plan.refresh, "error", err)
		}
	})
}

// refreshing refuses a second refresh session of a domain. The caller holds s.mu.
func (s *Service) refreshing(p plan) error {
	if p.mode != ModeRefresh {
		return nil
	}
	for _, r := range s.sessions {
		if r.plan.mode == ModeRefresh && r.plan.tenant == p.tenant && r.plan.refresh == p.refresh && (r.state == StateOpening || r.state == StateReady) {
			return problem.New(problem.Conflict, "use that one, or close it: clawjail session close "+r.id,
				"%s is logging in to %s already, in session %s", whoHas(r.grip), p.refresh, r.id).With("session", r.id)
		}
	}
	return nil
}

// startTakeover gives the browser of a refresh session to its opener.
func (s *Service) startTakeover(ctx context.Context, r *session) error {
	if r.plan.mode != ModeRefresh {
		return nil
	}
	if err := r.instance.browser.Live().Hold(ctx); err != nil {
		return fmt.Errorf("hold the browser's dialogs: %w", err)
	}
	return nil
}

// notRefresh refuses in a refresh session everything but what its opener does in the console: looking, files, and keeping
// the cookies.
func (s *Service) notRefresh(r *session, by identity.Principal, op identity.Operation, tool string) error {
	if r.plan.mode != ModeRefresh {
		return nil
	}
	switch op {
	case identity.SessionUse, identity.SessionLook, identity.CookiesCapture, identity.SessionRefresh:
		if samePerson(r.by, by) {
			return nil
		}
	}
	return s.refuse(r, by, op, tool, onlyInConsole(r))
}

func onlyInConsole(r *session) error {
	return problem.New(problem.Forbidden, "steer it in the console, as the person who opened it", "session %s is for logging in to %s, and nothing else", r.id, r.plan.refresh)
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
func (s *Service) Seen(ctx context.Context, by identity.Principal, id string) (Seen, error) {
	r, b, err := s.ready(ctx, by, identity.SessionRefresh, id)
	if err != nil {
		return Seen{}, err
	}
	if r.plan.mode != ModeRefresh {
		return Seen{}, problem.New(problem.BadRequest, "open one: clawjail cookies refresh DOMAIN", "session %s is not one to log in with", id)
	}
	if err := s.notRefresh(r, by, identity.SessionRefresh, "seen"); err != nil {
		return Seen{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, seenLimit, problem.New(problem.Timeout, "try again", "the browser did not answer within %s", seenLimit))
	defer cancel()
	jar, err := b.Cookies(ctx, "")
	if err != nil {
		return Seen{}, s.why(ctx, r, fmt.Errorf("look at the cookies: %w", err))
	}
	defer cookies.Wipe(jar)
	visited, err := b.Origins(ctx)
	if err != nil {
		return Seen{}, s.why(ctx, r, fmt.Errorf("look what was visited: %w", err))
	}
	storage, err := b.Weigh(ctx, "", visited)
	if err != nil {
		return Seen{}, s.why(ctx, r, fmt.Errorf("look at what pages have stored: %w", err))
	}
	s.mu.Lock()
	addr := r.addr
	s.mu.Unlock()
	out, err := s.seen(ctx, r, jar, storage, s.Gateway.Hosts(addr))
	out.SignedIn = s.shows(ctx, r, b)
	return out, err
}

// shows proposes how to see later whether an account is signed in: by the page that is there now, and by its control to sign
// out. It is empty while that page asks to sign in, or is of another site.
func (s *Service) shows(ctx context.Context, r *session, b Browser) (out vault.SignedIn) {
	page, err := b.SignIn(ctx, "")
	if err != nil {
		s.Log.Debug("look at the page of a refresh session", "session", r.id, "error", err)
		return out
	}
	at, err := url.Parse(page.URL)
	known := signedout.Known{Domain: r.plan.refresh}
	if err != nil || !cookies.Within(at.Hostname(), r.plan.refresh) || page.Failed || page.Status >= 400 || signedout.Judge(page, known).SignedOut != signedout.None {
		return out
	}
	at.RawQuery, at.Fragment, at.User = "", "", nil
	out = vault.SignedIn{Page: at.String(), Marker: page.Offer}
	if out.Check(r.plan.refresh) != nil {
		return vault.SignedIn{}
	}
	return out
}

func (s *Service) seen(ctx context.Context, r *session, jar []cookies.Cookie, storage []weblogin.OriginInfo, hosts []string) (Seen, error) {
	out := Seen{Sites: []SeenSite{}, Hosts: []string{}}
	order := []string{r.plan.refresh}
	for _, host := range hosts {
		if domain, err := cookies.RegistrableDomain(host); err == nil {
			order = append(order, domain)
		}
	}
	now := s.Now()
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
		switch _, err := s.Accounts.Vault.Cookies(ctx, r.plan.tenant, domain); {
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
		if err == nil && domain != r.plan.refresh && sites[domain] == nil && !slices.Contains(out.Hosts, name) {
			out.Hosts = append(out.Hosts, name)
		}
	}
	return out, nil
}

// permitRefresh records that somebody is about to log in.
func (s *Service) permitRefresh(ctx context.Context, r *session) (audit.Pending, error) {
	r.policy = s.Policy
	return s.Records.Begin(ctx, s.intent(r, r.by.Actor(), string(identity.SessionRefresh), r.plan.refresh, audit.Fields{"browser": string(r.plan.shape.build)}))
}
