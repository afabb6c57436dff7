package session

import (
	"context"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session/signedout"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
)

const (
	// settleTime is how long a page has to show what it is going to show, jarEvery how often it is looked which cookies there are.
	settleTime = 5 * time.Second
	jarEvery   = time.Second
	// maxVisits bounds what is remembered of pages of all sessions, maxSeen what one session remembers of documents, pages and tabs, and
	// maxTabsLooked the tabs that are looked at behind its back.
	maxVisits     = 10000
	maxTabsLooked = 5
	maxSeen       = 1000
)

// loginWatch is what a session knows of whether its accounts are signed in.
type loginWatch struct {
	// poked says that something was done in the browser, asking that the last page that was looked at asks to log in.
	poked  wake.Signal
	asking atomic.Bool

	looking  sync.Mutex // one look at a time; a page can make it wait
	mu       sync.Mutex
	accounts map[string]*watchedLogin // by domain
	visits   map[accountPage]visited  // of this session
	seen     map[string]bool          // documents that were looked at
	at       map[string]string        // by tab: the domain of the account whose pages it was at, or was sent to, last
	newest   string                   // that of all tabs, for one that a page opens
	going    map[string]string        // where tabs were sent, until a document has come; "" is a tab that is to be opened
	sent     int                      // how often a tab was sent somewhere
}

// watchedLogin is one account of a session.
type watchedLogin struct {
	how vault.SignedIn
	out bool // it is on record that it is signed out
	bad bool // it was said that one of its selectors is none
	// cookies are those that sign in, as they were injected: when each expires. deleted is what the jar said at asked.
	cookies map[cookies.ID]cookies.Cookie
	deleted bool
	asked   time.Time
}

// accountPage is a page of an account: host and path of its address.
type accountPage struct{ tenant, domain, page string }

// visited is a visit of a page: when it began, and whether the one before it, of any session, saw no field for a password.
type visited struct {
	document string
	at       time.Time
	before   bool
}

func newLoginWatch() *loginWatch {
	return &loginWatch{poked: wake.New(), accounts: map[string]*watchedLogin{}, visits: map[accountPage]visited{},
		seen: map[string]bool{}, at: map[string]string{}, going: map[string]string{}}
}

func (w *loginWatch) account(domain string) *watchedLogin {
	a := w.accounts[domain]
	if a == nil {
		a = &watchedLogin{}
		w.accounts[domain] = a
	}
	return a
}

// from returns the domain of the account whose pages a tab comes from, now that it shows a document. One that was looked at before, or
// that was asked for before a tab was sent elsewhere, is the page that the tab leaves: where it goes does not count for it.
func (w *loginWatch) from(tab, document string, sent int) string {
	bounded(w.at)
	to, going := w.going[tab]
	_, known := w.at[tab]
	opened, opening := w.going[""]
	switch {
	case going && !w.seen[document] && sent == w.sent:
		w.at[tab] = to
		delete(w.going, tab)
	case known, going:
	case opening:
		w.at[tab] = opened
		delete(w.going, "")
	default:
		w.at[tab] = w.newest
	}
	w.see(document)
	return w.at[tab]
}

func (w *loginWatch) see(document string) {
	bounded(w.seen)
	w.seen[document] = true
}

// bounded forgets what a map has when it has too much for another entry.
func bounded[K comparable, V any](m map[K]V) {
	if len(m) >= maxSeen {
		clear(m)
	}
}

// know takes what is stored of an account.
func (w *loginWatch) know(set vault.CookieSet) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.account(set.Domain)
	a.how, a.out = set.SignedIn, !set.SignedOutAt.IsZero()
}

// given takes the cookies of an account that the browser got. Those that scripts cannot read are what signs in; where there
// are none, any of them may be.
func (w *loginWatch) given(domain string, list []cookies.Cookie) {
	hidden := slices.ContainsFunc(list, func(c cookies.Cookie) bool { return c.HTTPOnly })
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.account(domain)
	a.cookies = map[cookies.ID]cookies.Cookie{}
	for _, c := range list {
		if c.HTTPOnly == hidden {
			a.cookies[c.ID()] = cookies.Cookie{Expires: c.Expires, Session: c.Session}
		}
	}
}

// poke says that something was done in the browser. It never waits.
func (w *loginWatch) poke() { w.poked.Send() }

// lookAgain looks at the pages of an operator session for a while after each thing that is done in it, until it ends.
func (svc *Service) lookAgain(s *session, b Browser) {
	next := len(svc.lookAfter)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if next < len(svc.lookAfter) {
			due = timer.C
		}
		select {
		case <-s.life.Done():
			return
		case <-s.watch.poked:
			if next > 0 { // the first look after the first of many
				next = 0
				timer.Reset(svc.lookAfter[0])
			}
		case <-due:
			if next++; next < len(svc.lookAfter) {
				timer.Reset(svc.lookAfter[next])
			}
			for _, tab := range svc.openTabs(s, b) {
				svc.look(s.life, s, b, tab)
			}
		}
	}
}

// openTabs are the newest tabs of a browser, by their handles.
func (svc *Service) openTabs(s *session, b Browser) (out []string) {
	ctx, cancel := context.WithTimeout(s.life, lookLimit)
	defer cancel()
	answer, err := b.Do(ctx, browser.Tabs{})
	if err != nil {
		svc.Log.Debug("list the tabs of a session", "session", s.id, "error", err)
		return nil
	}
	list := answer.(browser.TabsResult).Tabs
	for _, tab := range list[max(0, len(list)-maxTabsLooked):] {
		out = append(out, tab.TabID)
	}
	return out
}

// look sees whether a page asks to log in to one of the session's accounts, and returns which; nil for none.
func (svc *Service) look(ctx context.Context, s *session, b Browser, tab string) *Refresh {
	if len(s.plan.domains) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookLimit)
	defer cancel()
	s.watch.looking.Lock()
	defer s.watch.looking.Unlock()
	selectors, sent := svc.lookFor(s)
	page, err := b.SignIn(ctx, tab, selectors...)
	if err != nil {
		svc.Log.Debug("look whether a page asks to log in", "session", s.id, "error", err)
		return nil
	}
	at, err := url.Parse(page.URL)
	if err != nil || page.URL == "" {
		return nil
	}
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	own := slices.ContainsFunc(s.plan.domains, func(domain string) bool { return cookies.Within(at.Hostname(), domain) })
	came := s.watch.from(page.Tab, page.Document, sent)
	var asks *Refresh
	for n, domain := range s.plan.domains {
		if own && !cookies.Within(at.Hostname(), domain) && !svc.logins[domain].asks(page.URL) {
			continue // it is the page of another account
		}
		v := svc.judge(ctx, s, b, domain, page, at, came == domain, page.Matches[2*n], page.Matches[2*n+1])
		for i := range 2 {
			if a := s.watch.account(domain); page.Bad[2*n+i] && !a.bad {
				a.bad = true
				svc.Log.Warn("look for what a page has: no CSS selector", "session", s.id, "domain", domain, "selector", selectors[2*n+i])
			}
		}
		switch {
		case v.SignedOut != signedout.None:
			asks = &Refresh{Domain: domain, Reason: string(v.SignedOut)}
			svc.needsRefresh(s, *asks)
		case v.SignedIn:
			svc.signedIn(s, domain)
		}
	}
	for _, domain := range s.plan.domains {
		if cookies.Within(at.Hostname(), domain) {
			s.watch.at[page.Tab], s.watch.newest = domain, domain
		}
	}
	s.watch.asking.Store(asks != nil)
	return asks
}

// lookFor returns the selectors of each domain, of the configuration and of its account, and how often the session was sent elsewhere.
func (svc *Service) lookFor(s *session) (selectors []string, sent int) {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	for _, domain := range s.plan.domains {
		selectors = append(selectors, svc.logins[domain].Selector, s.watch.account(domain).how.Marker)
	}
	return selectors, s.watch.sent
}

// judge says what a page says of one account. The caller holds the watch's lock.
func (svc *Service) judge(ctx context.Context, s *session, b Browser, domain string, page browser.SignInPage, at *url.URL, came, selected, marked bool) signedout.Verdict {
	a, own := s.watch.account(domain), cookies.Within(at.Hostname(), domain)
	// A selector of the configuration is for pages of the domain: others may have a form of their own.
	if svc.logins[domain].asks(page.URL) || own && selected {
		return signedout.Verdict{SignedOut: signedout.LoginPage}
	}
	if a.how.Unwatched {
		return signedout.Verdict{}
	}
	k := signedout.Known{Domain: domain, Start: a.how.Page, HasMarker: a.how.Marker != "", MarkerSeen: marked, FromDomain: came}
	if k.Start == "" {
		k.Start = svc.logins[domain].ProbeURL
	}
	if own {
		k.CookiesDeleted = svc.deleted(ctx, s, b, domain, a)
		seen := svc.noteVisit(s, accountPage{s.plan.tenant, domain, at.Host + at.Path}, page)
		k.PasswordIsNew = seen.before && svc.Now().Sub(seen.at) < settleTime
		k.Settled = svc.Now().Sub(seen.at) >= settleTime
	}
	return signedout.Judge(page, k)
}

// asks says whether an address is one of those that ask to log in.
func (l login) asks(address string) bool {
	return slices.ContainsFunc(l.urls, func(u *regexp.Regexp) bool { return u.MatchString(address) })
}

// noteVisit notes what a page shows, and returns what is known of this visit. The caller holds the watch's lock.
func (svc *Service) noteVisit(s *session, v accountPage, page browser.SignInPage) visited {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	asked, known := svc.visits[v]
	if !known && len(svc.visits) >= maxVisits {
		for other := range svc.visits { // any: it is a guess about guesses
			delete(svc.visits, other)
			break
		}
	}
	visit, same := s.watch.visits[v]
	if !same || visit.document != page.Document {
		bounded(s.watch.visits)
		visit = visited{document: page.Document, at: svc.Now(), before: known && !asked}
		s.watch.visits[v] = visit
		asked = false
	}
	svc.visits[v] = asked || page.Passwords > 0
	return visit
}

// deleted says whether the site has deleted the cookies of an account that sign in, and set no others of their kind.
func (svc *Service) deleted(ctx context.Context, s *session, b Browser, domain string, a *watchedLogin) bool {
	if len(a.cookies) == 0 || svc.Now().Sub(a.asked) < jarEvery {
		return a.deleted
	}
	jar, err := b.Cookies(ctx, "")
	if err != nil {
		svc.Log.Debug("look which cookies a session has", "session", s.id, "error", err)
		return a.deleted
	}
	defer cookies.Wipe(jar)
	a.asked = svc.Now()
	there, others := map[cookies.ID]bool{}, false
	for _, c := range jar {
		if !cookies.Matches(c, []string{domain}) {
			continue
		}
		_, given := a.cookies[c.ID()]
		there[c.ID()] = true
		others = others || !given && c.HTTPOnly
	}
	left, gone := 0, false
	for id, c := range a.cookies {
		switch {
		case there[id]:
			left++
		case !c.Expired(a.asked):
			gone = gone || signsIn(id.Name)
		}
	}
	a.deleted = !others && (gone || left == 0)
	return a.deleted
}

// signsIn says whether a cookie's name is one of those that sites sign in with.
func signsIn(name string) bool {
	name = strings.ToLower(name)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(name, word) })
	}
	return has("sess", "sid", "auth", "token", "jwt", "login", "logged", "user", "remember", "ident", "account", "member") &&
		!has("csrf", "xsrf", "flash", "state", "nonce", "pkce", "device", "visitor", "tmp", "temp")
}

// markSignedOut puts on record that an account is signed out, or that it is not when by is empty.
func (svc *Service) markSignedOut(s *session, domain, by string) {
	ctx, cancel := context.WithTimeout(context.Background(), markLimit)
	defer cancel()
	err := svc.Accounts.Leases.MarkSignedOut(ctx, s.plan.tenant, domain, store.SignedOut{Opened: s.created, At: svc.Now(), By: by})
	if err != nil && problem.CodeOf(err) != problem.NotFound { // the account may be gone meanwhile
		svc.Log.Error("remember whether an account is signed in", "session", s.id, "domain", domain, "error", err)
	}
}

// signedIn takes back that an account is signed out. The caller holds the watch's lock.
func (svc *Service) signedIn(s *session, domain string) {
	of := func(f Refresh) bool { return f.Domain == domain && f.Reason != ReasonExpired }
	svc.mu.Lock()
	out := s.watch.account(domain).out || slices.ContainsFunc(s.refresh, of)
	s.refresh = slices.DeleteFunc(s.refresh, of)
	svc.mu.Unlock()
	if out {
		svc.markSignedOut(s, domain, "")
		s.watch.account(domain).out = false
	}
}

// loginNeeded is what somebody gets in the place of a page that asks to log in.
func loginNeeded(f Refresh, err error) error {
	return problem.Wrap(err, problem.LoginNeeded, "ask a person to log in again: `clawjail cookies refresh "+f.Domain+"`; then open a new session",
		"%s has forgotten the login of this account", f.Domain).With("domain", f.Domain).With("reason", f.Reason)
}

// heads notes where an operation goes, which the site may send elsewhere to sign in, and returns what to call when it has arrived. Of the
// tab that is named, or of the current one, it leaves the document.
func (w *loginWatch) heads(b Browser, op browser.Operation, domains []string) (arrived func()) {
	address, tab, document := "", "", ""
	switch o := op.(type) {
	case browser.Navigate:
		address = o.URL
		tab, document = b.Where(o.TargetID)
	case browser.OpenTab:
		address = o.URL
	}
	to, err := url.Parse(address)
	if err != nil || to.Host == "" {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent++
	bounded(w.going)
	w.going[tab] = ""
	for _, domain := range domains {
		if cookies.Within(to.Hostname(), domain) {
			w.going[tab] = domain
		}
	}
	if document != "" {
		w.see(document)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if tab != "" {
			delete(w.going, tab) // without a new document it is where it was
		}
	}
}

// showsPage says whether an operation acts on a page or tells of it.
func showsPage(op browser.Operation) bool {
	switch op.(type) {
	case browser.Status, browser.Tabs, browser.FocusTab, browser.CloseTab, browser.TabAction, browser.SetDialog, browser.GetMedia, browser.WaitDownload:
		return false
	}
	return !ofFiles(op)
}

// leaves says whether an operation goes to another page, so that the one that is there does not matter.
func leaves(op browser.Operation) bool {
	switch op.(type) {
	case browser.Navigate, browser.OpenTab:
		return true
	}
	return false
}
