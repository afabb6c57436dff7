package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// A session whose browser has lost its cookies ends with a reason of its own. Until then nothing that comes from its browser
// is done, and nobody gets cookies out of it.
func TestASessionEndsWhenItsCookiesAreLost(t *testing.T) {
	open := map[string]struct {
		cause Cause
		open  func(t *testing.T, a *accounts) Session
	}{
		"clean": {CauseCookiesLost, func(t *testing.T, a *accounts) Session { return mustOpen(t, a.s, OpenRequest{}) }},
		"operator, tools": {CauseAccountLost, func(t *testing.T, a *accounts) Session {
			return a.open(t, grant.AccessTools)
		}},
		"operator, cdp": {CauseAccountLost, func(t *testing.T, a *accounts) Session { return a.open(t, grant.AccessCDP) }},
		"refresh": {CauseCookiesLost, func(t *testing.T, a *accounts) Session {
			out, err := a.s.OpenRefresh(t.Context(), admin, RefreshRequest{Tenant: store.DefaultTenant, Domain: "example.com"})
			if err != nil {
				t.Fatal(err)
			}
			return out
		}},
	}
	noticed := map[string]func(a *accounts, out Session, vet func() error){
		"by a connection": func(_ *accounts, _ Session, vet func() error) { _ = vet() },
		"by what it printed": func(a *accounts, out Session, _ func() error) {
			a.instanceOf(out).heard([]byte("… Network service crashed …"))
		},
		"by a person's capture": nil,
	}
	for kind, test := range open {
		for how, notice := range noticed {
			for _, size := range []int{0, 1} {
				t.Run(fmt.Sprintf("%s, %s, %d warm", kind, how, size), func(t *testing.T) {
					withAccounts(t, warm(size), func(t *testing.T, a *accounts) {
						a.set(t, store.DefaultTenant, "example.com", 1)
						out := test.open(t, a)
						b, vet := a.browserOf(out), a.vetOf(out)
						synctest.Wait()
						if err := vet(); err != nil {
							t.Fatalf("nothing is lost, and a connection is refused: %v", err)
						}
						a.instanceOf(out).heard([]byte("Network service crashed")) // anybody can print that
						synctest.Wait()
						if got := mustGet(t, a.s, out.ID); got.State != StateReady {
							t.Fatalf("nothing is lost, and it is %s", got.State)
						}
						b.lost.Store(true)
						code := lostCodes[test.cause]
						if notice != nil {
							notice(a, out, vet)
						} else {
							err := a.s.Capture(t.Context(), admin, out.ID, []string{"example.com"}, neverCalled(t))
							wantCode(t, err, code)
						}
						if err := vet(); err == nil {
							t.Error("a stranger's connection is not refused")
						}
						synctest.Wait()
						got := mustGet(t, a.s, out.ID)
						if got.State == StateReady || got.Ended == nil || got.Ended.Cause != test.cause {
							t.Fatalf("it is %s, %+v", got.State, got.Ended)
						}
						_, err := visit(a.s, t.Context(), admin, out.ID, "about:blank", 0)
						wantCode(t, err, code)
						if strings.Contains(err.Error(), "account") != (test.cause == CauseAccountLost) {
							t.Errorf("it says %v", err)
						}
					})
				})
			}
		}
	}
}

// The reason why the process ended is told where the kernel knows it.
func TestMemoryIsTheReasonWhyCookiesAreLost(t *testing.T) {
	for _, hit := range [][]jail.LimitName{nil, {jail.LimitMemory}} {
		inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
			out := mustOpen(t, svc, OpenRequest{})
			j := w.all()[jail.Name(out.Jail)]
			j.how = jail.Exit{Hit: hit}
			close(j.exit)
			j.browser.lost.Store(true)
			_ = w.knownAs(j.addr).Vet(t.Context()) // it is refused
			synctest.Wait()
			e := mustGet(t, svc, out.ID).Ended
			if e == nil || e.Cause != CauseCookiesLost || !slices.Equal(e.LimitsHit, hit) || strings.Contains(e.Message, "memory") != (hit != nil) {
				t.Errorf("got %+v", e)
			}
		})
	}
}

// A browser that loses its cookies while it gets the account is no session, and one that was not asked yet lets nothing out.
func TestASessionIsNotOpenedWithoutTheAccountThatItWasGiven(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		var early error
		a.prepare = func(b *fakeBrowser) {
			b.takes = func(list []cookies.Cookie) ([]cookies.Cookie, error) {
				b.lost.Store(true)
				return list, nil
			}
		}
		release := a.holding("connect")
		token, _ := a.issue(t)
		opened := make(chan error)
		go func() {
			_, err := a.s.Open(t.Context(), admin, wanting(token))
			opened <- err
		}()
		synctest.Wait()
		for _, j := range a.all() {
			early = a.knownAs(j.addr).Vet(t.Context())
		}
		if early == nil {
			t.Error("a browser that has not answered yet may make connections")
		}
		release()
		wantCode(t, <-opened, problem.AccountLost)
		a.nothingLeft(t)
	})
}

// A browser that does not answer has not said yes.
func TestAConnectionIsRefusedWhenTheBrowserDoesNotSay(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		synctest.Wait()
		vet := w.knownAs(w.all()[jail.Name(out.Jail)].addr).Vet
		w.failOnce("network", errors.New("no answer"))
		if vet(t.Context()) == nil {
			t.Error("it is let through")
		}
		if err := vet(t.Context()); err != nil {
			t.Errorf("the next one is refused as well: %v", err)
		}
		if got := mustGet(t, svc, out.ID); got.State != StateReady {
			t.Errorf("it is %s", got.State)
		}
	})
}

// open opens an operator session of example.com.
func (a *accounts) open(t *testing.T, access grant.Access) Session {
	t.Helper()
	token, _ := a.issue(t, func(r *grant.Request) { r.Access = access })
	r := wanting(token)
	r.Access = string(access)
	return mustOpen(t, a.s, r)
}

func (a *accounts) instanceOf(out Session) *instance {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return a.s.sessions[out.ID].instance
}

// vetOf is what the gateway asks about each connection of a session.
func (a *accounts) vetOf(out Session) func() error {
	vet := a.knownAs(a.all()[jail.Name(out.Jail)].addr).Vet
	return func() error { return vet(a.t.Context()) }
}
