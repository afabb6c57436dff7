package session

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session/signedout"
)

// Reasons why an account needs a refresh: some of its cookies have expired, or one of those of package signedout.
const (
	ReasonExpired = "expired_cookies"
	ReasonLogin   = string(signedout.LoginPage)
)

// Refresh is an account that somebody has to log in to again.
type Refresh struct {
	Domain string `json:"domain"`
	Reason string `json:"reason" enum:"expired_cookies,login_page,refused,cookies_deleted,password_field,marker_gone,second_factor"`
	// Cookies are the names of those that have expired.
	Cookies []string  `json:"cookies,omitempty"`
	At      time.Time `json:"at"`
}

// Words say what its site did, as the end of a sentence that begins with it.
func (f Refresh) Words() string { return signedout.Reason(f.Reason).Words() }

const (
	// lookLimit bounds looking whether a page asks to log in, markLimit writing down that it does, probeLimit opening one page to see.
	lookLimit  = 3 * time.Second
	markLimit  = 5 * time.Second
	probeLimit = 20 * time.Second
	blankPage  = "about:blank"
)

// logins knows the pages that ask to log in, by domain.
type logins map[string]login

type login struct {
	config.Login
	urls []*regexp.Regexp
}

func newLogins(list []config.Login) logins {
	out := logins{}
	for _, l := range list {
		one := login{Login: l}
		for _, pattern := range l.URLs {
			one.urls = append(one.urls, addresses(pattern))
		}
		out[l.Domain] = one
	}
	return out
}

// addresses is the expression of a pattern. A star in front of the path stays in front of it: what any page may have in
// its query makes it no page of the site.
func addresses(pattern string) *regexp.Regexp {
	place, path := "", pattern
	if n := strings.Index(pattern, "://"); n >= 0 {
		place, path = pattern, ""
		if end := strings.IndexAny(pattern[n+len("://"):], "/?#"); end >= 0 {
			end += n + len("://")
			place, path = pattern[:end], pattern[end:]
		} else if rest, open := strings.CutSuffix(pattern, "*"); open {
			place, path = rest, "*"
		}
	}
	stars := func(text, any string) string { return strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, any) }
	// Everything but the stars is quoted, so it always compiles.
	return regexp.MustCompile(`^` + stars(place, `[^/?#]*`) + stars(path, `.*`) + `$`)
}

// probe opens the page of each account that is to be looked at, and goes back to an empty one.
func (svc *Service) probe(ctx context.Context, s *session) error {
	b := s.instance.browser
	probed := false
	for _, domain := range s.plan.domains {
		l := svc.logins[domain]
		if l.ProbeURL == "" {
			continue
		}
		probed = true
		err := svc.record(ctx, s, s.by, identity.SessionUse, l.ProbeURL, audit.Fields{"tool": "probe"}, func() error {
			within, cancel := context.WithTimeout(ctx, probeLimit)
			defer cancel()
			s.watch.heads(b, browser.Navigate{URL: l.ProbeURL}, s.plan.domains)
			_, err := b.Navigate(within, l.ProbeURL)
			return err
		})
		// Also when the page had just arrived: the session must not become ready on the page of its probe.
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s.instance.gone() {
			return errors.Join(err, errors.New("the browser has ended"))
		}
		if err != nil {
			// A site that is away is no reason to refuse the session, and none to say that its login is gone.
			svc.Log.Warn("probe an account", "session", s.id, "domain", domain, "error", err)
			continue
		}
		svc.look(ctx, s, b, "")
	}
	if !probed {
		return nil
	}
	if _, err := b.Navigate(ctx, blankPage); err != nil {
		return fmt.Errorf("leave the page of the probe: %w", err)
	}
	return nil
}

// needsRefresh notes, once, that somebody has to log in again.
func (svc *Service) needsRefresh(s *session, f Refresh) {
	svc.mu.Lock()
	known := slices.ContainsFunc(s.refresh, func(o Refresh) bool {
		return o.Domain == f.Domain && (o.Reason == ReasonExpired) == (f.Reason == ReasonExpired)
	})
	name := s.jail
	if !known {
		f.At = svc.Now()
		s.refresh = append(s.refresh, f)
	}
	svc.mu.Unlock()
	if known {
		return
	}
	if f.Reason != ReasonExpired {
		svc.markSignedOut(s, f.Domain, f.Reason)
	}
	svc.Log.Warn("an account needs a refresh", "session", s.id, "tenant", s.plan.tenant, "domain", f.Domain, "reason", f.Reason)
	svc.Records.Note(audit.Event{Action: actionRefresh, Result: audit.Failed, Tenant: s.plan.tenant, Actor: actorSystem, Session: s.id,
		Jail: string(name), Target: f.Domain,
		Detail: audit.NewDetail(audit.Fields{"reason": f.Reason, "cookie_count": len(f.Cookies), "cookie_names": named(f.Cookies)})})
}

// named are the first of some names as a record has room for them.
func named(names []string) []string {
	out := make([]string, 0, maxNamed)
	for _, name := range names[:min(len(names), maxNamed)] {
		out = append(out, cookies.Printable(name))
	}
	return out
}
