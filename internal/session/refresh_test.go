package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func openRefresh(t *testing.T, svc *Service, by identity.Principal, domain string) Session {
	t.Helper()
	out, err := svc.OpenRefresh(t.Context(), by, RefreshRequest{Tenant: by.Tenant, Domain: domain})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// emptyVault has no account but one.
type emptyVault struct {
	noAccounts
	domain string
}

func (v emptyVault) Cookies(_ context.Context, _, domain string) (vault.CookieSet, error) {
	if domain != v.domain {
		return vault.CookieSet{}, problem.New(problem.NotFound, "", "there is none")
	}
	return vault.CookieSet{Domain: domain}, nil
}

func TestARefreshSessionIsItsOpenersAndNobodyElses(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openRefresh(t, svc, ann, "example.com")
		synctest.Wait()
		j := w.all()[jail.Name(out.Jail)]
		if out.CredentialMode != ModeRefresh || out.Record != RecordOff || out.Browser != "full" || !slices.Equal(out.Domains, []string{"example.com"}) ||
			out.Control == nil || out.Control.By != "operator:ann" || out.ExpiresAt.Sub(*out.Ready) != RefreshLife {
			t.Errorf("it is %+v", out)
		}
		if !slices.Equal(j.browser.visits, []string{"https://example.com/"}) || w.count("hold dialogs") != 1 {
			t.Errorf("it visited %q, and was held %d times", j.browser.visits, w.count("hold dialogs"))
		}
		if who := w.knownAs(j.addr); who.Confined || who.Actor != "operator:ann" {
			t.Errorf("the gateway knows it as %+v", who)
		}
		hers := watch(t, svc, ann, out.ID)
		if sight := next(t, hers); !sight.Mine {
			t.Errorf("she sees %+v", sight)
		}
		if _, err := hers.Input(t.Context(), browser.LiveInput{Type: "text", Text: "x"}); err != nil {
			t.Error(err)
		}
		files := []browser.Operation{browser.Files{}, browser.GetFile{}, browser.PutFile{}, browser.DeleteFile{}, browser.WaitDownload{}}
		for _, by := range []identity.Principal{ann, ben, admin} {
			usable(t, svc, by, out.ID, problem.Forbidden)
			for name, try := range map[string]func() error{
				"attach":   func() error { _, err := svc.Attach(t.Context(), by, out.ID); return err },
				"devtools": func() error { _, err := svc.Devtools(t.Context(), by, out.ID); return err },
				"token":    func() error { _, err := svc.IssueToken(t.Context(), by, out.ID, identity.ScopeControl, 0); return err },
				"take":     func() error { _, err := svc.TakeOver(t.Context(), by, out.ID, true); return err },
				"back":     func() error { _, err := svc.HandBack(t.Context(), by, out.ID, true); return err },
			} {
				if err := try(); problem.CodeOf(err) != problem.Forbidden {
					t.Errorf("%s may %s: %v", by.Actor(), name, err)
				}
			}
			_, _, err := svc.Thumbnail(t.Context(), by, out.ID)
			wantCode(t, err, problem.NotFound)
			wantCode(t, svc.WriteRecording(t.Context(), by, out.ID, nil), problem.NotFound)
			want := problem.Forbidden
			if by.ID == ann.ID {
				want = ""
			}
			for _, op := range files {
				// The fake has no files, and says so in its own words.
				if _, err := svc.Drive(t.Context(), by, out.ID, op); (problem.CodeOf(err) == problem.Forbidden) != (want != "") {
					t.Errorf("%s of %s: %v", op.Tool(), by.Actor(), err)
				}
			}
			_, err = svc.Watch(t.Context(), by, out.ID)
			wantCode(t, err, want)
			_, err = svc.Seen(t.Context(), by, out.ID)
			wantCode(t, err, want)
			wantCode(t, svc.Capture(t.Context(), by, out.ID, []string{"example.com"}, func(weblogin.Login) error { return nil }), want)
		}
		if trail := strings.Join(w.trail, "\n"); !strings.Contains(trail, "intent session.refresh default operator:ann example.com") {
			t.Errorf("the trail is\n%s", trail)
		}
	})
}

func TestARefreshSessionEndsAfterHalfAnHour(t *testing.T) {
	inBubble(t, func(o *Options) { o.Sessions.Idle = time.Minute }, func(t *testing.T, w *fixture, svc *Service) {
		out := openRefresh(t, svc, ann, "example.com")
		time.Sleep(RefreshLife - time.Second)
		if got := mustGet(t, svc, out.ID); got.State != StateReady {
			t.Fatalf("it is %s: %+v", got.State, got.Ended)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := mustGet(t, svc, out.ID); got.Ended == nil || got.Ended.Cause != CauseExpired {
			t.Errorf("it is %s: %+v", got.State, got.Ended)
		}
	})
}

// The life of a refresh is no setting: where jails may exist for less, its own may for as long.
func TestTheJailOfARefreshLastsAsLongAsItsLife(t *testing.T) {
	short := func(o *Options) {
		o.Sessions.TTL, o.Sessions.MaxTTL, o.Sessions.WallClock = 10*time.Minute, 10*time.Minute, 20*time.Minute
	}
	inBubble(t, short, func(t *testing.T, w *fixture, svc *Service) {
		jails := func(id string) time.Duration {
			return w.all()[jail.Name(mustGet(t, svc, id).Jail)].spec.Limits.WallClock
		}
		if got := jails(openRefresh(t, svc, ann, "example.com").ID); got < RefreshLife+svc.WarmPool.MaxAge {
			t.Errorf("the jail of a refresh ends after %s", got)
		}
		if got := jails(mustOpen(t, svc, OpenRequest{}).ID); got != svc.Sessions.WallClock {
			t.Errorf("another ends after %s", got)
		}
	})
}

func TestADomainIsRefreshedOnceAtATime(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openRefresh(t, svc, ann, "example.com")
		_, err := svc.OpenRefresh(t.Context(), ben, RefreshRequest{Tenant: ben.Tenant, Domain: "Example.com"})
		wantCode(t, err, problem.Conflict)
		if p, _ := problem.As(err); p == nil || p.Details["session"] != out.ID {
			t.Errorf("it does not name the other: %+v", err)
		}
		openRefresh(t, svc, ben, "example.org")
		openRefresh(t, svc, operatorOf("other", "eve"), "example.com")
		if _, err := svc.Close(t.Context(), ann, out.ID); err != nil {
			t.Fatal(err)
		}
		openRefresh(t, svc, ben, "example.com")
	})
}

func TestWhatARefreshNeedsIsChecked(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		for _, test := range []struct{ domain, url, code, hint string }{
			{"www.example.com", "", problem.BadDomain, "write example.com"}, {"com", "", problem.BadDomain, ""}, {"", "", problem.BadDomain, ""}, {"10.0.0.1", "", problem.BadDomain, ""},
			{"example.com", "file:///etc/passwd", problem.BadRequest, "https://example.com"}, {"example.com", "https://me:x@example.com/", problem.BadRequest, ""},
			{"example.com", "javascript:alert(1)", problem.BadRequest, ""},
		} {
			_, err := svc.OpenRefresh(t.Context(), ann, RefreshRequest{Tenant: ann.Tenant, Domain: test.domain, URL: test.url})
			wantCode(t, err, test.code)
			if p, _ := problem.As(err); p == nil || !strings.Contains(p.Hint, test.hint) {
				t.Errorf("the hint for %q is %+v", test.domain, err)
			}
		}
		_, err := svc.OpenRefresh(t.Context(), worker, RefreshRequest{Domain: "example.com"})
		wantCode(t, err, problem.Forbidden)
		_, err = svc.Open(t.Context(), ann, OpenRequest{Tenant: ann.Tenant, CredentialMode: ModeRefresh})
		wantCode(t, err, problem.BadRequest)
		// Without hands for the dialogs there is no session; that its page does not load is no reason.
		w.failOnce("hold dialogs", errors.New("it does not answer"))
		if _, err := svc.OpenRefresh(t.Context(), ann, RefreshRequest{Tenant: ann.Tenant, Domain: "example.com"}); err == nil {
			t.Error("it was opened")
		}
		w.nothingLeft(t)
		w.failing("navigate", errors.New("no such host"))
		out := openRefresh(t, svc, ann, "example.com")
		synctest.Wait()
		if got := mustGet(t, svc, out.ID); got.State != StateReady {
			t.Errorf("it is %s", got.State)
		}
	})
}

func TestWhatARefreshSessionHasSeen(t *testing.T) {
	cookie := func(name, domain string) cookies.Cookie {
		return cookies.Cookie{Name: name, Value: secret.New([]byte(planted)), Domain: domain, Path: "/", Expires: cookies.Session, Session: true}
	}
	inBubble(t, func(o *Options) { o.Accounts.Vault = emptyVault{domain: "sso.test"} }, func(t *testing.T, w *fixture, svc *Service) {
		w.prepare = func(b *fakeBrowser) {
			b.jar = map[string][]cookies.Cookie{"": {cookie("z", "ads.test"), cookie("s", ".login.sso.test"), cookie("b", "www.example.com"), cookie("a", ".example.com"), cookie("x", "10.0.0.9")}}
			b.stored = map[string][]weblogin.Origin{"": {storing("https://www.example.com", "token", planted), storing("https://spa.test", "a", planted, "b", planted)}}
		}
		w.hosts = []string{"www.example.com", "cdn.example.net", "login.sso.test", "10.0.0.9", "[2001:db8::1]", "fonts.cdn.test", "static.ads.test", "com"}
		out := openRefresh(t, svc, ann, "example.com")
		seen, err := svc.Seen(t.Context(), ann, out.ID)
		if err != nil {
			t.Fatal(err)
		}
		var sites, names, stored []string
		for _, site := range seen.Sites {
			for _, o := range site.Storage {
				stored = append(stored, fmt.Sprint(site.Domain, " ", o.Origin, " ", o.Items, " ", o.Bytes))
			}
			sites = append(sites, site.Domain)
			for _, c := range site.Cookies {
				names = append(names, c.Name)
			}
			if site.Stored != (site.Domain == "sso.test") {
				t.Errorf("%s is stored: %v", site.Domain, site.Stored)
			}
		}
		if !slices.Equal(sites, []string{"example.com", "sso.test", "ads.test", "spa.test"}) || !slices.Equal(names, []string{"a", "b", "s", "z"}) {
			t.Errorf("the sites are %q with %q", sites, names)
		}
		if want := []string{"example.com https://www.example.com 1 14", "spa.test https://spa.test 2 20"}; !slices.Equal(stored, want) {
			t.Errorf("stored is %q, want %q", stored, want)
		}
		if text, err := json.Marshal(seen); err != nil || strings.Contains(string(text), planted) {
			t.Errorf("it says %s, %v", text, err)
		}
		if !slices.Equal(seen.Hosts, []string{"cdn.example.net", "fonts.cdn.test"}) {
			t.Errorf("the hosts are %q", seen.Hosts)
		}
		// Before anybody has logged in, the site itself has no cookies, and is no other host all the same.
		w.prepare = nil
		early := openRefresh(t, svc, ann, "example.net")
		if seen, err := svc.Seen(t.Context(), ann, early.ID); err != nil || slices.Contains(seen.Hosts, "cdn.example.net") || !slices.Contains(seen.Hosts, "www.example.com") {
			t.Errorf("the hosts are %q, %v", seen.Hosts, err)
		}
		clean := mustOpen(t, svc, OpenRequest{Tenant: store.DefaultTenant})
		_, err = svc.Seen(t.Context(), ann, clean.ID)
		wantCode(t, err, problem.BadRequest)
	})
}
