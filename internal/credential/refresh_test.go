package credential

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func TestARefreshKeepsWhatWasChosenAndEndsTheSession(t *testing.T) {
	w := newFixture(t)
	w.sessions.mode = session.ModeRefresh
	w.sessions.jar = []cookies.Cookie{cookie("a", ".example.com"), cookie("b", "login.example.net"), cookie("c", "ads.example.org")}
	w.sessions.gone = errors.New("it is still being removed") // which is no failure of the refresh
	sets, err := w.FinishRefresh(w.ctx, w.operator, FinishRefresh{Session: "s_1", Domains: []string{"example.com", "example.net"},
		EgressDomains: []string{"cdn.example.edu", "Fonts.example.edu", "cdn.example.edu"}})
	if err != nil || len(sets) != 2 {
		t.Fatalf("%+v, %v", sets, err)
	}
	want := []string{"cdn.example.edu", "fonts.example.edu"}
	for _, set := range sets {
		if set.Tenant != "acme" || set.Count != 1 || !slices.Equal(set.EgressDomains, want) || set.MaxLeases != 1 {
			t.Errorf("stored %+v", set)
		}
	}
	if w.sessions.closed != 1 {
		t.Errorf("the session was closed %d times", w.sessions.closed)
	}
	w.rows(t, "cookies.capture", 2)
	// A later import does not undo what was chosen; a later refresh does.
	if _, err := w.Import(w.ctx, w.operator, w.jar()); err != nil {
		t.Fatal(err)
	}
	if set, err := w.CookieSet(w.ctx, w.operator, "", "example.com"); err != nil || !slices.Equal(set.EgressDomains, want) {
		t.Errorf("after an import: %+v, %v", set, err)
	}
	if _, err := w.FinishRefresh(w.ctx, w.operator, FinishRefresh{Session: "s_1", Domains: []string{"example.com"}}); err != nil {
		t.Fatal(err)
	}
	if set, err := w.CookieSet(w.ctx, w.operator, "", "example.com"); err != nil || len(set.EgressDomains) != 0 {
		t.Errorf("after another refresh: %+v, %v", set, err)
	}
}

func TestHowASiteShowsALoginIsKeptWithItsAccount(t *testing.T) {
	w := newFixture(t)
	w.sessions.mode, w.sessions.domains = session.ModeRefresh, []string{"example.com"}
	w.sessions.jar = []cookies.Cookie{cookie("a", ".example.com"), cookie("b", "example.net")}
	how := vault.SignedIn{Page: "https://www.example.com/inbox", Marker: `a[href="/logout"]`}
	stranger := vault.SignedIn{Page: "https://example.net/"}
	finish := FinishRefresh{Session: "s_1", Domains: []string{"example.com", "example.net"}, SignedIn: &stranger}
	if _, err := w.FinishRefresh(w.ctx, w.operator, finish); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("the page of another site: %v", err)
	}
	finish.SignedIn = &how
	if _, err := w.FinishRefresh(w.ctx, w.operator, finish); err != nil {
		t.Fatal(err)
	}
	is := func(what, domain string, want vault.SignedIn) {
		t.Helper()
		if set, err := w.CookieSet(w.ctx, w.operator, "", domain); err != nil || set.SignedIn != want {
			t.Errorf("%s: %s has %+v, %v", what, domain, set.SignedIn, err)
		}
	}
	is("at first", "example.com", how)
	is("at first", "example.net", vault.SignedIn{})
	if _, err := w.Import(w.ctx, w.operator, w.jar()); err != nil {
		t.Fatal(err)
	}
	is("after an import", "example.com", how)

	for name, test := range map[string]struct {
		by   identity.Principal
		to   vault.SignedIn
		code string
	}{
		"a viewer":            {w.viewer, vault.SignedIn{}, problem.Forbidden},
		"somebody of another": {w.stranger, vault.SignedIn{}, problem.NotFound},
		"another site":        {w.operator, stranger, problem.BadRequest},
		"no page":             {w.operator, vault.SignedIn{Page: "javascript:alert(1)//example.com"}, problem.BadRequest},
		"a long marker":       {w.operator, vault.SignedIn{Marker: strings.Repeat("a", 501)}, problem.BadRequest},
		"two lines":           {w.operator, vault.SignedIn{Marker: "a\nb"}, problem.BadRequest},
	} {
		if _, err := w.SetSignedIn(w.ctx, test.by, "acme", "example.com", test.to); problem.CodeOf(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	is("after what was refused", "example.com", how)
	if _, err := w.SetSignedIn(w.ctx, w.operator, "", "example.com", vault.SignedIn{Unwatched: true}); err != nil {
		t.Fatal(err)
	}
	is("changed", "example.com", vault.SignedIn{Unwatched: true})
	w.rows(t, "cookies.update", 2)
}

func TestARefreshThatCannotBeKeptLeavesTheSessionOpen(t *testing.T) {
	w := newFixture(t)
	w.sessions.mode = session.ModeRefresh
	unsound := cookie("bent", "example.edu")
	unsound.Path = "/a b"
	w.sessions.jar = []cookies.Cookie{cookie("a", "example.com"), unsound}
	for name, test := range map[string]struct {
		by   identity.Principal
		f    FinishRefresh
		code string
	}{
		"no domain":               {w.operator, FinishRefresh{}, problem.BadDomain},
		"one without cookies":     {w.operator, FinishRefresh{Domains: []string{"example.com", "example.net"}}, problem.NotFound},
		"one nobody takes":        {w.operator, FinishRefresh{Domains: []string{"example.com", "example.edu"}}, problem.BadCookie},
		"egress to an address":    {w.operator, FinishRefresh{Domains: []string{"example.com"}, EgressDomains: []string{"10.0.0.1"}}, problem.BadDomain},
		"a viewer":                {w.viewer, FinishRefresh{Domains: []string{"example.com"}}, problem.Forbidden},
		"somebody of another one": {w.stranger, FinishRefresh{Domains: []string{"example.com"}}, problem.NotFound},
	} {
		test.f.Session = "s_1"
		if _, err := w.FinishRefresh(w.ctx, test.by, test.f); problem.CodeOf(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.log.fail = problem.New(problem.AuditUnavailable, "", "it is down")
	_, err := w.FinishRefresh(w.ctx, w.operator, FinishRefresh{Session: "s_1", Domains: []string{"example.com"}})
	if problem.CodeOf(err) != problem.AuditUnavailable {
		t.Error(err)
	}
	w.log.fail = nil
	if sets, err := w.Cookies(w.ctx, w.admin, ""); err != nil || len(sets) != 0 || w.sessions.closed != 0 {
		t.Errorf("stored %+v, closed %d times, %v", sets, w.sessions.closed, err)
	}
	// Any other session stays open after a capture, and is not finished like this.
	w.sessions.mode = session.ModeClean
	_, err = w.FinishRefresh(w.ctx, w.operator, FinishRefresh{Session: "s_1", Domains: []string{"example.com"}})
	if problem.CodeOf(err) != problem.BadRequest || w.sessions.closed != 0 {
		t.Errorf("closed %d times, %v", w.sessions.closed, err)
	}
}

// Storage of pages is kept with the account of its domain, as far as a person has chosen it.
func TestARefreshKeepsTheStorageThatIsChosen(t *testing.T) {
	stored := func(origin string) weblogin.Origin {
		return weblogin.Origin{Origin: origin, Local: []weblogin.Item{{Name: "token", Value: secret.New([]byte("canary"))}}}
	}
	for name, test := range map[string]struct {
		origins []string
		want    map[string]string
		code    string
	}{
		"nothing said":       {nil, map[string]string{"example.com": "https://a.example.com https://example.com", "spa.test": "https://spa.test"}, ""},
		"one of two":         {[]string{"https://a.example.com", "https://spa.test"}, map[string]string{"example.com": "https://a.example.com", "spa.test": "https://spa.test"}, ""},
		"none, and no login": {[]string{}, nil, problem.NotFound}, // spa.test has no cookies
		"one of no domain":   {[]string{"https://other.test"}, nil, problem.BadStorage},
		"what is no origin":  {[]string{"https://example.com/"}, nil, problem.BadStorage},
		"one without any":    {[]string{"https://spa.test", "https://empty.example.com"}, map[string]string{"example.com": "", "spa.test": "https://spa.test"}, ""},
	} {
		w := newFixture(t)
		w.sessions.mode, w.sessions.jar = session.ModeRefresh, []cookies.Cookie{cookie("a", "example.com"), cookie("o", "other.test")}
		w.sessions.stored = []weblogin.Origin{stored("https://example.com"), stored("https://a.example.com"), stored("https://spa.test"), stored("https://other.test")}
		sets, err := w.FinishRefresh(w.ctx, w.operator, FinishRefresh{Session: "s_1", Domains: []string{"example.com", "spa.test"}, Origins: test.origins})
		if problem.CodeOf(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
		if test.code != "" {
			if all, err := w.Cookies(w.ctx, w.admin, ""); err != nil || len(all) > 0 || w.sessions.closed > 0 {
				t.Errorf("%s: it is kept as %+v, and closed %d times, %v", name, all, w.sessions.closed, err)
			}
			continue
		}
		for _, set := range sets {
			var got []string
			for _, o := range set.Storage {
				got = append(got, o.Origin)
			}
			if want := test.want[set.Domain]; strings.Join(got, " ") != want {
				t.Errorf("%s: of %s is kept %q, not %q", name, set.Domain, got, want)
			}
		}
	}
}

// An operator imports storage for the domain that they name and for no other.
func TestStorageOfAnotherDomainIsNotImported(t *testing.T) {
	w := newFixture(t)
	origins := []weblogin.Origin{{Origin: "https://example.org", Local: []weblogin.Item{{Name: "token", Value: secret.New([]byte("canary"))}}}}
	_, err := w.Import(w.ctx, w.operator, Import{Domain: "example.com", Cookies: []cookies.Cookie{cookie("a", "example.com")}, Origins: origins})
	if problem.CodeOf(err) != problem.BadStorage || !strings.Contains(err.Error(), "store it with the account of example.org") || strings.Contains(err.Error(), "canary") {
		t.Errorf("it is %v", err)
	}
	if all, err := w.Cookies(w.ctx, w.admin, ""); err != nil || len(all) > 0 {
		t.Errorf("it is kept as %+v, %v", all, err)
	}
	if set, err := w.Import(w.ctx, w.operator, Import{Domain: "example.org", Origins: origins}); err != nil || len(set.Storage) != 1 || set.Count != 0 {
		t.Errorf("with its own account it is %+v, %v", set, err)
	}
	if rows := string(w.rows(t, "cookies.import", 4)[2].Detail); !strings.Contains(rows, `"origin_count":1`) {
		t.Errorf("the record says %s", rows)
	}
}

func TestAccountsThatNeedARefreshAreListed(t *testing.T) {
	w := newFixture(t)
	now := time.Now()
	w.Now = func() time.Time { return now }
	expiring := func(domain string, in time.Duration) {
		t.Helper()
		c := cookie("a", domain)
		c.Expires = float64(now.Add(in).Unix())
		if _, err := w.Import(w.ctx, w.operator, Import{Domain: domain, Cookies: []cookies.Cookie{c}}); err != nil {
			t.Fatal(err)
		}
	}
	expiring("later.com", 100*24*time.Hour)
	expiring("soon.com", 24*time.Hour)
	expiring("asked.com", 90*24*time.Hour)
	saw := func(domain string, opened time.Time) {
		t.Helper()
		if err := w.db.MarkSignedOut(w.ctx, "acme", domain, store.SignedOut{Opened: opened, At: now, By: session.ReasonLogin}); err != nil {
			t.Fatal(err)
		}
	}
	saw("asked.com", now.Add(time.Minute))
	saw("later.com", now.Add(-time.Hour)) // refreshed since
	domains := func(list []Alert, err error) (out []string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			out = append(out, a.Domain+" "+a.Reason)
		}
		return out
	}
	if got := domains(w.NeedsRefresh(w.ctx, w.viewer, "")); !slices.Equal(got, []string{"asked.com login_page"}) {
		t.Errorf("need a refresh: %q", got)
	}
	began := now
	for _, c := range []struct {
		after time.Duration
		want  []string
	}{
		{0, nil}, // a login that is good for a day is not one that ends
		{17 * time.Hour, nil},
		{19 * time.Hour, []string{"soon.com expiring"}},
		{88 * 24 * time.Hour, []string{"asked.com expiring"}},
		{98 * 24 * time.Hour, []string{"later.com expiring"}},
	} {
		now = began.Add(c.after)
		if got := domains(w.ExpiringSoon(w.ctx, w.viewer, "")); !slices.Equal(got, c.want) {
			t.Errorf("expire soon after %s: %q", c.after, got)
		}
	}
	now = began.Add(48 * time.Hour)
	if got := domains(w.NeedsRefresh(w.ctx, w.viewer, "")); !slices.Equal(got, []string{"asked.com login_page", "soon.com expired_cookies"}) {
		t.Errorf("need a refresh two days later: %q", got)
	}
	if got := domains(w.ExpiringSoon(w.ctx, w.viewer, "")); len(got) != 0 {
		t.Errorf("expire soon two days later: %q", got)
	}
	if _, err := w.NeedsRefresh(w.ctx, w.stranger, "acme"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("a stranger: %v", err)
	}
}
