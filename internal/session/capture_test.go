package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// loggedIn is what a browser has after somebody logged in to two sites.
func loggedIn(b *fakeBrowser) {
	b.jar = map[string][]cookies.Cookie{"": {cookie("sid", ".example.com"), cookie("host", "www.example.com"), cookie("o", two),
		cookie("evil", ".evil-example.com"), cookie("ads", ".ads.test")}}
	b.stored = map[string][]weblogin.Origin{"": {storing("https://www.example.com", "token", planted+"stored"), storing("https://evil-example.com", "token", planted)}}
}

func TestCaptureGivesWhatWasAskedForAndWipesIt(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.prepare = loggedIn
		by := operatorOf(store.DefaultTenant, "o1")
		out, err := a.s.Open(t.Context(), by, OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		var kept weblogin.Login
		err = a.s.Capture(t.Context(), by, out.ID, []string{"example.com"}, func(l weblogin.Login) error {
			kept = l
			for _, o := range l.Origins {
				names = append(names, o.Origin+string(o.Local[0].Value.Append(nil)))
			}
			for _, c := range l.Cookies {
				names = append(names, c.Name+c.Domain+string(c.Value.Append(nil)))
			}
			return nil
		})
		slices.Sort(names)
		if want := []string{"hostwww.example.comvalue-of-host", "https://www.example.comvalue-of-stored", "sid.example.comvalue-of-sid"}; err != nil || !slices.Equal(names, want) {
			t.Errorf("captured %q, %v", names, err)
		}
		if value := kept.Origins[0].Local[0].Value.Append(nil); len(bytes.Trim(value, "\x00")) > 0 {
			t.Error("what pages have stored was not wiped")
		}
		for _, c := range kept.Cookies {
			if value := c.Value.Append(nil); len(bytes.Trim(value, "\x00")) > 0 {
				t.Errorf("%s was not wiped", c.Name)
			}
		}
		if err := a.s.Capture(t.Context(), by, out.ID, []string{"example.com"}, func(weblogin.Login) error { return errPlanted }); !errors.Is(err, errPlanted) {
			t.Errorf("the error of the function became %v", err)
		}
		err = a.s.Capture(t.Context(), by, out.ID, nil, func(l weblogin.Login) error {
			if !l.Empty() {
				t.Errorf("who asks for nothing gets %d", len(l.Cookies))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		a.mustClose(t, out.ID)
		err = a.s.Capture(t.Context(), by, out.ID, []string{"example.com"}, neverCalled(t))
		wantCode(t, err, problem.SessionClosed)
	})
}

func neverCalled(t *testing.T) func(weblogin.Login) error {
	return func(weblogin.Login) error {
		t.Error("cookies were handed out")
		return nil
	}
}

// lenient is an authority that lets everybody of a tenant do everything there: what agents may not see of each other is
// not what keeps an agent's cookies out of the vault.
type lenient struct{ rights }

func (lenient) AuthorizeWith(_ context.Context, p identity.Principal, _ identity.Operation, object identity.Object) error {
	if p.Tenant != object.Tenant {
		return problem.New(problem.NotFound, "", "not there")
	}
	return nil
}

func TestSessionThatAnAgentTouchedIsNotCapturedFrom(t *testing.T) {
	by, agent := operatorOf(store.DefaultTenant, "o1"), agentIn(store.DefaultTenant, "a1")
	tests := map[string]struct {
		opener  identity.Principal
		touch   func(t *testing.T, a *accounts, id string) error
		refused bool
	}{
		"an agent has opened it": {agent, nil, true},
		"an agent has navigated": {by, func(t *testing.T, a *accounts, id string) error {
			_, err := visit(a.s, t.Context(), agent, id, "https://example.com/", 0)
			return err
		}, true},
		"an agent has tried to navigate": {by, func(t *testing.T, a *accounts, id string) error {
			a.failing("record session.use", problem.New(problem.AuditUnavailable, "", ""))
			_, err := visit(a.s, t.Context(), agent, id, "https://example.com/", 0)
			wantCode(t, err, problem.AuditUnavailable)
			a.failing("record session.use", nil)
			return nil
		}, true},
		"an agent has taken a picture": {by, func(t *testing.T, a *accounts, id string) error {
			_, err := photograph(a.s, t.Context(), agent, id)
			return err
		}, true},
		"an agent has looked that it is there": {by, func(t *testing.T, a *accounts, id string) error {
			_, err := a.s.Get(t.Context(), agent, id)
			return err
		}, false},
		"another operator has navigated": {by, func(t *testing.T, a *accounts, id string) error {
			_, err := visit(a.s, t.Context(), operatorOf(store.DefaultTenant, "o2"), id, "https://example.com/", 0)
			return err
		}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, func(o *Options) { o.Authority = lenient{o.Authority.(rights)} }, func(t *testing.T, a *accounts) {
				a.prepare = loggedIn
				out, err := a.s.Open(t.Context(), test.opener, OpenRequest{})
				if err != nil {
					t.Fatal(err)
				}
				if test.touch != nil {
					if err := test.touch(t, a, out.ID); err != nil {
						t.Fatal(err)
					}
				}
				use, want := neverCalled(t), problem.Forbidden
				if !test.refused {
					use, want = func(weblogin.Login) error { return nil }, ""
				}
				err = a.s.Capture(t.Context(), by, out.ID, []string{"example.com"}, use)
				if got := problem.CodeOf(err); got != want {
					t.Errorf("the code is %q, want %q: %v", got, want, err)
				}
			})
		})
	}
}

func TestAgentCapturesNothing(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		agent := agentIn(store.DefaultTenant, "a1")
		out, err := a.s.Open(t.Context(), agent, OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		err = a.s.Capture(t.Context(), agent, out.ID, []string{"example.com"}, neverCalled(t))
		wantCode(t, err, problem.Forbidden)
	})
}

// A session of another tenant gets the very answer of one that is not there.
func TestSessionOfSomebodyElseIsToldFromNoneByNothing(t *testing.T) {
	owner := agentIn(store.DefaultTenant, "a1")
	strangers := map[string]identity.Principal{
		"an operator of another tenant":       operatorOf(other, "o2"),
		"an agent of another tenant":          agentIn(other, "a2"),
		"another agent of the tenant":         agentIn(store.DefaultTenant, "a3"),
		"an agent of another tenant, same id": agentIn(other, "a1"),
	}
	calls := map[string]func(ctx context.Context, svc *Service, by identity.Principal, id string) error{
		"Get": func(ctx context.Context, svc *Service, by identity.Principal, id string) error {
			_, err := svc.Get(ctx, by, id)
			return err
		},
		"Close": func(ctx context.Context, svc *Service, by identity.Principal, id string) error {
			_, err := svc.Close(ctx, by, id)
			return err
		},
		"Navigate": func(ctx context.Context, svc *Service, by identity.Principal, id string) error {
			_, err := visit(svc, ctx, by, id, "https://example.com/", 0)
			return err
		},
		"Screenshot": func(ctx context.Context, svc *Service, by identity.Principal, id string) error {
			_, err := photograph(svc, ctx, by, id)
			return err
		},
		"Recorded": func(ctx context.Context, svc *Service, by identity.Principal, id string) error {
			_, _, err := svc.Recorded(ctx, by, id, 1)
			return err
		},
		"WaitGone": func(ctx context.Context, svc *Service, by identity.Principal, id string) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := svc.WaitGone(ctx, by, id)
			return err
		},
		"Capture": func(ctx context.Context, svc *Service, by identity.Principal, id string) error {
			return svc.Capture(ctx, by, id, []string{"example.com"}, func(weblogin.Login) error { return errPlanted })
		},
	}
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		out, err := a.s.Open(t.Context(), owner, OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := photograph(a.s, t.Context(), owner, out.ID); err != nil {
			t.Fatal(err)
		}
		const nobodys = "s_aaaaaaaaaaaaaaaa"
		words := func(err error, id string) string {
			p, _ := problem.As(err)
			if p == nil {
				return fmt.Sprint(err)
			}
			return strings.ReplaceAll(fmt.Sprintf("%s|%s|%s|%v|%v", p.Code, p.Message, p.Hint, p.Details, err), id, "ID")
		}
		for who, by := range strangers {
			for name, call := range calls {
				there, missing := call(t.Context(), a.s, by, out.ID), call(t.Context(), a.s, by, nobodys)
				if words(there, out.ID) != words(missing, nobodys) {
					t.Errorf("%s, %s: of what is there it is said\n%s\nand of what is not\n%s", who, name, words(there, out.ID), words(missing, nobodys))
				}
				if name == "Capture" && by.Kind == identity.KindAgent {
					wantCode(t, there, problem.Forbidden) // it may not at all
				} else {
					wantCode(t, there, problem.NotFound)
				}
			}
			for _, tenant := range []string{"", by.Tenant} {
				if list, err := a.s.List(t.Context(), by, tenant, true); err != nil || len(list) != 0 {
					t.Errorf("%s sees %+v, %v", who, list, err)
				}
			}
			if by.Tenant != store.DefaultTenant {
				_, err := a.s.List(t.Context(), by, store.DefaultTenant, true)
				wantCode(t, err, problem.NotFound)
				_, err = a.s.Open(t.Context(), by, OpenRequest{Tenant: store.DefaultTenant})
				wantCode(t, err, problem.NotFound)
			}
		}
		if got, err := a.s.Get(t.Context(), owner, out.ID); err != nil || got.State != StateReady || len(a.browserOf(got).visits) != 0 {
			t.Errorf("it is %s, %v", got.State, err)
		}
		// And its own tenant's operator sees it, and so does the admin.
		for _, by := range []identity.Principal{owner, operatorOf(store.DefaultTenant, "o1"), admin} {
			if list, err := a.s.List(t.Context(), by, "", false); err != nil || len(list) != 1 {
				t.Errorf("%s sees %+v, %v", by.Actor(), list, err)
			}
		}
	})
}

func TestGrantForOneSessionIsForWhoeverHasOpenedIt(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		a.set(t, other, "example.com", 1)
		owner, stranger := agentIn(store.DefaultTenant, "a1"), agentIn(store.DefaultTenant, "a2")
		open := func(by identity.Principal, tenant string) Session {
			out, err := a.s.Open(t.Context(), by, OpenRequest{Tenant: tenant})
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		origin, second, theirs := open(owner, ""), open(owner, ""), open(stranger, "")
		token, id := a.issue(t, func(r *grant.Request) { r.Origin = origin.ID })
		asking := func(from string) OpenRequest {
			r := wanting(token)
			r.Origin = from
			return r
		}
		for name, try := range map[string]struct {
			by   identity.Principal
			from string
		}{
			"it does not say so":               {owner, ""},
			"it says another session":          {owner, second.ID},
			"it says somebody else's":          {owner, theirs.ID},
			"it says one that is not there":    {owner, "s_aaaaaaaaaaaaaaaa"},
			"another agent says it":            {stranger, origin.ID},
			"another agent says its own":       {stranger, theirs.ID},
			"an operator says it":              {operatorOf(store.DefaultTenant, "o1"), origin.ID},
			"the admin of all tenants says it": {admin, origin.ID},
		} {
			t.Log(name) // a bubble has no tests in it
			a.refused(t, try.by, asking(try.from), problem.GrantWrongOrigin)
			if a.stateOf(t, id) != "active" {
				t.Errorf("%s: the grant was used", name)
			}
		}
		if done := a.steps("use grant", "lease", "intent session.open_operator"); len(done) > 0 {
			t.Errorf("before the refusals there was %q", done)
		}
		if _, err := a.s.Open(t.Context(), owner, asking(origin.ID)); err != nil {
			t.Fatalf("its owner says it: %v", err)
		}

		// One that has ended asks for nothing.
		token, id = a.issue(t, func(r *grant.Request) { r.Origin = second.ID })
		a.mustClose(t, second.ID)
		a.refused(t, owner, asking(second.ID), problem.GrantWrongOrigin)
		if a.stateOf(t, id) != "active" {
			t.Error("the grant was used")
		}
	})
}

// The admin has opened a session of another tenant; a grant of this tenant is not for that one.
func TestOriginIsOfTheTenantOfTheSession(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		there, err := a.s.Open(t.Context(), admin, OpenRequest{Tenant: other})
		if err != nil {
			t.Fatal(err)
		}
		token, _ := a.issue(t, func(r *grant.Request) { r.Origin = there.ID })
		r := wanting(token)
		r.Origin = there.ID
		a.refused(t, admin, r, problem.GrantWrongOrigin)
	})
}
