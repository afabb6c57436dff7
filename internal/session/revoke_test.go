package session

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestSessionOfARevokedKeyEnds(t *testing.T) {
	for name, r := range map[string]func(t *testing.T, a *accounts) OpenRequest{
		"clean": func(*testing.T, *accounts) OpenRequest { return OpenRequest{} },
		"operator": func(t *testing.T, a *accounts) OpenRequest {
			token, _ := a.issue(t)
			return wanting(token)
		},
	} {
		t.Run(name, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				who := a.people(t)
				a.s.Authority = who
				_, first, err := who.CreateOperator(t.Context(), keyAdmin, identity.NewOperator{Name: "o", Tenant: store.DefaultTenant,
					Role: identity.RoleOperator, Life: identity.NeverExpires})
				if err != nil {
					t.Fatal(err)
				}
				by := operatorOf(store.DefaultTenant, first.ID)
				out, err := a.s.Open(t.Context(), by, r(t, a))
				if err != nil {
					t.Fatal(err)
				}
				kept, err := a.s.Open(t.Context(), keyAdmin, OpenRequest{})
				if err != nil {
					t.Fatal(err)
				}
				if who.Open() != 2 {
					t.Fatalf("%d are registered", who.Open())
				}
				// An end that cannot be recorded does not keep it open.
				a.failing("record session.close", errPlanted)
				if err := who.RevokeOperator(t.Context(), keyAdmin, first.ID); err != nil {
					t.Fatal(err)
				}
				got, err := a.s.WaitGone(t.Context(), keyAdmin, out.ID)
				if err != nil || got.State != StateClosed || got.Ended.Cause != CauseRevoked || got.Ended.Message == "" {
					t.Errorf("it is %s, %+v, %v", got.State, got.Ended, err)
				}
				if got, err := a.s.Get(t.Context(), keyAdmin, kept.ID); err != nil || got.State != StateReady {
					t.Errorf("the session of another key is %s, %v", got.State, err)
				}
				a.free(t, store.DefaultTenant, "example.com")
				if who.Open() != 1 {
					t.Errorf("%d are registered", who.Open())
				}
				// Nothing opens with it any more.
				_, err = a.s.Open(t.Context(), by, OpenRequest{})
				wantCode(t, err, problem.Unauthorized)
				a.mustClose(t, kept.ID)
				if who.Open() != 0 {
					t.Errorf("%d are registered at the end", who.Open())
				}
			})
		})
	}
}

func TestSessionOfAKeyThatIsRevokedWhileItOpensIsNotOpened(t *testing.T) {
	for _, step := range []string{"lease", "use grant", "create", "connect"} {
		t.Run(step, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				token, _ := a.issue(t)
				release := a.holding(step)
				answer := make(chan error, 1)
				go func() {
					_, err := a.s.Open(t.Context(), admin, wanting(token))
					answer <- err
				}()
				waitSteps(t, a, step, 1)
				a.revoke()
				wantCode(t, <-answer, problem.SessionClosed)
				release()
				all, _ := a.s.List(t.Context(), admin, "", true)
				if len(all) != 1 || all[0].State != StateClosed || all[0].Ended.Cause != CauseRevoked {
					t.Errorf("it is listed as %+v, %+v", all[0], all[0].Ended)
				}
				a.inOrder(t, "intent session.open_operator", "outcome session.open_operator refused")
				a.nothingLeft(t)
				a.free(t, store.DefaultTenant, "example.com")
				a.mu.Lock()
				defer a.mu.Unlock()
				if len(a.held) != 0 {
					t.Errorf("%d registrations are left", len(a.held))
				}
			})
		})
	}
}

// An agent that reads its new token keeps the browser that it has opened with the old one.
func TestSessionOutlivesTheRotationOfTheTokenThatOpenedIt(t *testing.T) {
	withAccounts(t, func(o *Options) { o.Sessions.Idle = o.Sessions.TTL }, func(t *testing.T, a *accounts) {
		who := a.people(t)
		a.s.Authority = who
		key, _, err := who.CreateAgent(t.Context(), keyAdmin, store.DefaultTenant, "bot", identity.NeverExpires)
		if err != nil {
			t.Fatal(err)
		}
		open := func(life, overlap time.Duration) (_ identity.Principal, id string) {
			t.Helper()
			by, err := who.Authenticate(t.Context(), key.Reveal(), netip.MustParseAddr("192.0.2.1"))
			if err != nil {
				t.Fatal(err)
			}
			out, err := a.s.Open(t.Context(), by, OpenRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if key, _, err = who.RotateToken(t.Context(), keyAdmin, store.DefaultTenant, "bot", life, overlap); err != nil {
				t.Fatal(err)
			}
			return by, out.ID
		}
		ended := func(what, id string) {
			t.Helper()
			got, err := a.s.WaitGone(t.Context(), keyAdmin, id)
			if err != nil || got.State != StateClosed || got.Ended.Cause != CauseRevoked {
				t.Errorf("%s: it is %s, %+v, %v", what, got.State, got.Ended, err)
			}
		}
		by, id := open(identity.NeverExpires, time.Minute)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got, err := a.s.Get(t.Context(), keyAdmin, id); err != nil || got.State != StateReady {
			t.Errorf("after the overlap it is %s, %v", got.State, err)
		}
		if err := who.RevokeToken(t.Context(), keyAdmin, store.DefaultTenant, "bot", by.TokenID); err != nil {
			t.Fatal(err)
		}
		ended("its token is revoked", id)
		_, id = open(2*time.Minute, 0)
		ended("rotated without an overlap", id)
		_, id = open(identity.NeverExpires, time.Hour)
		time.Sleep(2 * time.Minute)
		ended("its token had an end of its own", id)
	})
}

// However a session ends, it does not stay registered.
func TestSessionIsRegisteredForAsLongAsItIsThere(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		held := func() int {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.held)
		}
		a.refused(t, admin, wanting(grant.Token{}), problem.GrantMissing)
		if held() != 0 {
			t.Errorf("after a refusal %d are registered", held())
		}
		out := a.mustOpenOperator(t)
		release := a.holding("destroy")
		if _, err := a.s.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if held() != 1 {
			t.Errorf("while its jail is being removed, %d are registered", held())
		}
		release()
		a.mustClose(t, out.ID)
		if held() != 0 {
			t.Errorf("at the end %d are registered", held())
		}
	})
}
