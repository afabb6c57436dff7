package session

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// Jar is what a browser has of logins, in each of its contexts; the empty id is the default one.
type Jar interface {
	Contexts(ctx context.Context) ([]string, error)
	Cookies(ctx context.Context, browserContext string) ([]cookies.Cookie, error)
	// SetCookies sets all or none; the code is bad_cookie when the browser does not take one of them.
	SetCookies(ctx context.Context, browserContext string, list []cookies.Cookie) error
	// Origins are those whose documents tabs have shown, Weigh is how much pages of origins have stored, and Stored is that.
	Origins(ctx context.Context) ([]string, error)
	Weigh(ctx context.Context, browserContext string, origins []string) ([]weblogin.OriginInfo, error)
	Stored(ctx context.Context, browserContext string, origins []string) ([]weblogin.Origin, error)
	// Prepare begins to open what Store needs in a context for an origin, and does not wait.
	Prepare(browserContext, origin string)
	// Store puts in what pages had stored, before any document of theirs runs, and returns what is there then. The code is
	// bad_storage when the browser does not take it.
	Store(ctx context.Context, browserContext string, list []weblogin.Origin) ([]weblogin.Origin, error)
}

// maxNamed is how many cookies are named when a browser does not take them.
const maxNamed = 10

// inject gives the accounts of an operator session to its browser, and looks whether it has taken them.
func (svc *Service) inject(ctx context.Context, s *session) error {
	if s.plan.mode != ModeOperator {
		return nil
	}
	began := svc.Now()
	record, err := svc.Records.Begin(ctx, svc.intent(s, s.by.Actor(), actionInject, "",
		audit.Fields{"grant_id": s.grant.ID, "domains": audit.Names(s.plan.domains), "domain_count": len(s.plan.domains)}))
	if err != nil {
		return err
	}
	count, err := svc.injectAll(ctx, s)
	record.End(outcome(err, audit.Fields{"grant_id": s.grant.ID, "domains": audit.Names(s.plan.domains), "cookie_count": count.cookies, "origin_count": count.origins}))
	if err != nil {
		return fmt.Errorf("inject the accounts: %w", err)
	}
	svc.mu.Lock()
	s.injected, s.timing.Inject = count, milliseconds(svc.Now().Sub(began))
	svc.mu.Unlock()
	return svc.probe(ctx, s)
}

// injected counts what was put into a browser.
type injected struct{ cookies, origins int }

func (svc *Service) injectAll(ctx context.Context, s *session) (count injected, err error) {
	// From before the first cookie on it is known whether the browser still has what it was given.
	if err := s.instance.browser.Network(ctx); err != nil {
		return count, err
	}
	jar := Jar(s.instance.browser)
	others, err := jar.Contexts(ctx)
	if err != nil {
		return count, err
	}
	var values [][]byte
	defer func() {
		for _, v := range values {
			clear(v)
		}
	}()
	for _, domain := range s.plan.domains {
		err := svc.Accounts.Vault.UseLogin(ctx, s.plan.tenant, domain, func(l weblogin.Login) error {
			good, expired, err := sift(l.Cookies, domain, svc.Now())
			if err != nil {
				return err
			}
			if err := weblogin.Validate(l.Origins, domain); err != nil {
				return problem.Wrap(err, problem.BadStorage, "log in to "+domain+" again", "what is stored for %s is not valid", domain)
			}
			l.Cookies = good
			values = append(values, l.Secrets()...)
			for _, browserContext := range append([]string{""}, others...) {
				if err := putLogin(ctx, jar, browserContext, s.plan.domains, l, svc.Now()); err != nil {
					return err
				}
			}
			count.cookies, count.origins = count.cookies+len(good), count.origins+len(l.Origins)
			s.watch.given(domain, good)
			if len(expired) > 0 {
				svc.needsRefresh(s, Refresh{Domain: domain, Reason: ReasonExpired, Cookies: expired})
			}
			return nil
		})
		if err != nil {
			return count, err
		}
		// For people: an injection that is not marked is an injection all the same, and it is on record.
		if err := svc.Accounts.Leases.MarkInjected(ctx, s.plan.tenant, domain, svc.Now()); err != nil {
			svc.Log.Warn("mark an account as used", "session", s.id, "domain", domain, "error", err)
		}
	}
	if err := svc.vet(ctx, s); err != nil {
		return count, err
	}
	scrub := redact.New(values...)
	svc.mu.Lock()
	s.values = scrub
	svc.mu.Unlock()
	s.instance.browser.Conceal(scrub)
	return count, nil
}

// putLogin puts a login into one context. Nothing of the site runs before all of it is there.
func putLogin(ctx context.Context, jar Jar, browserContext string, domains []string, l weblogin.Login, now time.Time) error {
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error { return put(within, jar, browserContext, domains, l.Cookies, now) })
	group.Go(func() error { return putStorage(within, jar, browserContext, l.Origins) })
	return group.Wait()
}

// putStorage puts in what pages had stored, and compares what is there then.
func putStorage(ctx context.Context, jar Jar, browserContext string, list []weblogin.Origin) error {
	if len(list) == 0 {
		return nil
	}
	back, err := jar.Store(ctx, browserContext, list)
	if problem.CodeOf(err) == problem.BadStorage {
		said, _ := problem.As(err)
		return storageFailed("%s", said.Message)
	}
	if err != nil {
		return err
	}
	defer weblogin.WipeOrigins(back)
	if bad := weblogin.Compare(list, back); len(bad) > 0 {
		return storageFailed("the browser has not kept what is stored for %s", strings.Join(bad, ", "))
	}
	return nil
}

func storageFailed(format string, args ...any) error {
	return problem.New(problem.InjectionFailed, "log in again: `clawjail cookies refresh DOMAIN`; the session was not opened, and needs a new grant", format, args...)
}

// sift looks at every cookie before the browser does. It names those that have expired, which Chromium would drop
// without a word, and refuses one that is not valid or of another domain: the vault has neither, unless somebody
// changed it.
func sift(list []cookies.Cookie, domain string, now time.Time) (good []cookies.Cookie, expired []string, err error) {
	for _, c := range list {
		if err := cookies.Validate(c); err != nil {
			return nil, nil, problem.Wrap(err, problem.BadCookie, "import the cookies of "+domain+" again", "a cookie of %s is not valid", domain)
		}
		if !cookies.Matches(c, []string{domain}) {
			return nil, nil, problem.New(problem.BadCookie, "import the cookies of "+domain+" again", "the cookie %s is not of %s", c.ID(), domain)
		}
		if c.Expired(now) {
			expired = append(expired, c.Name)
			continue
		}
		good = append(good, c)
	}
	return good, expired, nil
}

// put sets cookies in one jar, reads it back and compares: Chromium drops some without saying so. A jar that has a cookie
// of another domain is not the one of a fresh browser.
func put(ctx context.Context, jar Jar, browserContext string, domains []string, list []cookies.Cookie, now time.Time) error {
	if len(list) == 0 {
		return nil
	}
	err := jar.SetCookies(ctx, browserContext, list)
	if problem.CodeOf(err) == problem.BadCookie {
		bad, err := worst(ctx, jar, browserContext, list)
		if err != nil {
			return err
		}
		return injectionFailed("the browser does not take %s", bad)
	}
	if err != nil {
		return err
	}
	back, err := jar.Cookies(ctx, browserContext)
	if err != nil {
		return err
	}
	defer cookies.Wipe(back)
	var bad []string
	for _, d := range cookies.Compare(list, back, now) {
		what := "dropped"
		if !d.Dropped {
			what = "changed " + strings.Join(d.Changed, ", ")
		}
		bad = append(bad, d.Cookie.String()+" ("+what+")")
	}
	if len(bad) > 0 {
		return injectionFailed("the browser has not kept %s as stored", bad)
	}
	if i := slices.IndexFunc(back, func(c cookies.Cookie) bool { return !cookies.Matches(c, domains) }); i >= 0 {
		return injectionFailed("the browser had cookies before: %s", []string{back[i].ID().String()})
	}
	return nil
}

// worst finds the cookies for which the browser refuses a list, by halving it.
func worst(ctx context.Context, jar Jar, browserContext string, list []cookies.Cookie) (bad []string, err error) {
	rest := [][]cookies.Cookie{list}
	for len(rest) > 0 && len(bad) <= maxNamed {
		some := rest[0]
		rest = rest[1:]
		err := jar.SetCookies(ctx, browserContext, some)
		switch {
		case err == nil:
		case problem.CodeOf(err) != problem.BadCookie:
			return nil, err
		case len(some) == 1:
			bad = append(bad, some[0].ID().String())
		default:
			// The halves are next, so that of thousands of bad ones the first few are found in a few calls each.
			half := len(some) / 2
			rest = append([][]cookies.Cookie{some[:half], some[half:]}, rest...)
		}
	}
	if len(bad) == 0 {
		bad = []string{"some of the cookies together"}
	}
	return bad, nil
}

func injectionFailed(format string, bad []string) error {
	more := ""
	if len(bad) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(bad)-maxNamed)
		bad = bad[:maxNamed]
	}
	return problem.New(problem.InjectionFailed, "log in again and import the cookies anew; the session was not opened, and needs a new grant",
		format, strings.Join(bad, ", ")+more).With("cookies", bad)
}
