package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestAccountIsUsedByOneSessionAtATime(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		a.set(t, other, "example.com", 1)
		first := a.mustOpenOperator(t)
		token, id := a.issue(t)
		err := a.refused(t, admin, wanting(token), problem.AccountBusy)
		if !strings.Contains(err.Error(), "example.com") || a.stateOf(t, id) != "active" {
			t.Errorf("the grant is %s, the error %v", a.stateOf(t, id), err)
		}
		if n := a.count("create"); n != 1 {
			t.Errorf("%d jails were made", n)
		}
		a.free(t, other, "example.com") // another tenant's account of the same site is another account
		a.mustClose(t, first.ID)
		if _, err := a.s.Open(t.Context(), admin, wanting(token)); err != nil {
			t.Errorf("with the same grant, when the first is gone: %v", err)
		}
	})
}

// As long as the jail of a session is there, its browser may be logged in.
func TestAccountIsFreeWhenTheJailIsGoneAndNotBefore(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		out := a.mustOpenOperator(t)
		release := a.holding("destroy")
		if _, err := a.s.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !a.busy(t, store.DefaultTenant, "example.com") {
			t.Error("it is free while the jail is there")
		}
		release()
		if _, err := a.s.WaitGone(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		a.free(t, store.DefaultTenant, "example.com")
	})
}

// A caller that closes a session and opens another one with its account does not have to know how long the first takes to end,
// and whether its account is already being given back.
func TestAccountOfASessionThatIsBeingClosedIsWaitedFor(t *testing.T) {
	for _, step := range []string{"destroy", "release"} {
		t.Run(step, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				out := a.mustOpenOperator(t)
				token, id := a.issue(t)
				err := a.refused(t, admin, wanting(token), problem.AccountBusy) // it is open: nobody waits
				if p, _ := problem.As(err); !strings.Contains(p.Hint, "clawjail session close ID --wait") {
					t.Errorf("the hint is %q", p.Hint)
				}
				release := a.holding(step)
				if _, err := a.s.Close(t.Context(), admin, out.ID); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				opened := make(chan error, 1)
				go func() {
					_, err := a.s.Open(t.Context(), admin, wanting(token))
					opened <- err
				}()
				synctest.Wait()
				if a.stateOf(t, id) != "active" {
					t.Error("the grant is used while the other session has the account")
				}
				release()
				if err := <-opened; err != nil {
					t.Errorf("at once after the other one was closed: %v", err)
				}
			})
		})
	}
}

// One that does not end keeps nobody waiting for ever.
func TestASessionThatDoesNotEndIsNotWaitedForLong(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		out := a.mustOpenOperator(t)
		token, _ := a.issue(t)
		release := a.holding("destroy")
		defer release()
		if _, err := a.s.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		a.refused(t, admin, wanting(token), problem.AccountBusy)
	})
}

func TestAccountForTwoSessionsTakesTwo(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 2)
		first := a.mustOpenOperator(t)
		a.mustOpenOperator(t)
		token, _ := a.issue(t)
		a.refused(t, admin, wanting(token), problem.AccountBusy)
		a.mustClose(t, first.ID)
		if _, err := a.s.Open(t.Context(), admin, wanting(token)); err != nil {
			t.Error(err)
		}
	})
}

// Of several accounts all are had or none.
func TestSessionThatIsRefusedOneAccountHoldsNoOther(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		a.set(t, store.DefaultTenant, two, 1)
		a.mustOpenOperator(t)
		token, _ := a.issue(t, inBothDomains)
		a.refused(t, admin, wanting(token, two, "example.com"), problem.AccountBusy)
		a.free(t, store.DefaultTenant, two)
	})
}

// Whatever step of an opening fails, the account is free afterwards, and another session has it.
func TestFailedOpeningGivesItsAccountBack(t *testing.T) {
	tests := []struct {
		step  string
		grant string // what must have become of it
	}{
		{"hold", "active"}, {"operator mode", "active"}, {"verify grant", "active"}, {"describe cookies", "active"},
		{"record session.open_operator", "active"}, {"lease", "active"}, {"use grant", "active"},
		{"template", "active"}, {"create", "used"}, {"gateway admit", "used"}, {"driver admit", "used"}, {"connect", "used"},
		{"record session.inject", "used"}, {"contexts", "used"}, {"decrypt cookies", "used"}, {"set cookies", "used"}, {"get cookies", "used"},
	}
	for _, test := range tests {
		t.Run(test.step, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				token, id := a.issue(t)
				a.failing(test.step, problem.New(problem.DiskFull, "", "no room"))
				code := problem.DiskFull
				if test.step == "connect" {
					code = problem.JailFailed // of a browser that does not say how it ended
				}
				a.refused(t, admin, wanting(token), code)
				if a.count(test.step) == 0 {
					t.Error("the step was not reached: the test shows nothing")
				}
				if state := a.stateOf(t, id); state != test.grant {
					t.Errorf("the grant is %s, want %s", state, test.grant)
				}
				if test.grant == "active" && a.count("create") > 0 {
					t.Error("a jail was made with a grant that was not used")
				}
				a.failing(test.step, nil)
				a.free(t, store.DefaultTenant, "example.com")
				a.mustOpenOperator(t)
			})
		})
	}
}

func TestCallerWhoLeavesGivesTheAccountBack(t *testing.T) {
	for _, step := range []string{"lease", "use grant", "create", "connect"} {
		t.Run(step, func(t *testing.T) {
			withAccounts(t, nil, func(t *testing.T, a *accounts) {
				a.set(t, store.DefaultTenant, "example.com", 1)
				token, _ := a.issue(t)
				release := a.holding(step)
				ctx, cancel := context.WithCancel(t.Context())
				answer := make(chan error, 1)
				go func() {
					_, err := a.s.Open(ctx, admin, wanting(token))
					answer <- err
				}()
				waitSteps(t, a, step, 1)
				cancel()
				wantCode(t, <-answer, problem.Canceled)
				release()
				a.free(t, store.DefaultTenant, "example.com")
				a.nothingLeft(t)
			})
		})
	}
}

func TestAccountThatCouldNotBeGivenBackIsTriedAgain(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		first := a.mustOpenOperator(t)
		a.failing("release", errPlanted)
		a.mustClose(t, first.ID)
		token, id := a.issue(t)
		a.refused(t, admin, wanting(token), problem.AccountBusy)
		if a.stateOf(t, id) != "active" {
			t.Error("the grant was used for nothing")
		}
		a.failing("release", nil)
		if _, err := a.s.Open(t.Context(), admin, wanting(token)); err != nil {
			t.Errorf("when the database is back: %v", err)
		}
	})
}

// Sessions of other nodes need the account, too, and this node may open none for a long time.
func TestAccountThatCouldNotBeGivenBackIsTriedAgainByItself(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		first := a.mustOpenOperator(t)
		a.failing("release", errPlanted)
		a.mustClose(t, first.ID)
		time.Sleep(2 * permissionRecheck) // of the bubble
		if !a.busy(t, store.DefaultTenant, "example.com") {
			t.Error("it is free without having been given back: the test shows nothing")
		}
		a.failing("release", nil)
		time.Sleep(2 * permissionRecheck)
		a.free(t, store.DefaultTenant, "example.com")
	})
}

// A node that is gone for good gives nothing back.
func TestAccountIsFreeWhenTheTimeOfItsSessionIsLongOver(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		out := a.mustOpenOperator(t)
		for late, want := range map[time.Duration]bool{10 * time.Minute: true, leaseLate + time.Second: false} {
			at := out.ExpiresAt.Add(late)
			busy, err := a.db.LeaseCookieSets(t.Context(), store.Lease{Tenant: store.DefaultTenant, Session: "s_late", Node: "n2", At: at, ExpiresAt: at.Add(1)},
				[]string{"example.com"})
			if err := errors.Join(err, a.db.ReleaseLeases(t.Context(), "s_late")); err != nil || (len(busy) > 0) != want {
				t.Errorf("%s after its session's time: busy %q, %v", late, busy, err)
			}
		}
	})
}

func TestCleanSessionAsksForNoAccount(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		out, err := a.s.Open(t.Context(), admin, OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		a.mustClose(t, out.ID)
		if done := a.steps("verify", "describe", "lease", "use", "decrypt", "release", "set cookies", "contexts", "intent session.inject"); len(done) > 0 {
			t.Errorf("it did %q", done)
		}
	})
}

func TestWhatCannotBeRecordedIsNotDone(t *testing.T) {
	withAccounts(t, nil, func(t *testing.T, a *accounts) {
		a.set(t, store.DefaultTenant, "example.com", 1)
		for _, record := range []string{"record session.open", "record session.open_operator", "record session.inject", "record session.use", "record session.look", "record session.attach", "record session.token"} {
			a.failing(record, problem.New(problem.AuditUnavailable, "", "the audit log cannot be written"))
		}
		a.refused(t, admin, OpenRequest{}, problem.AuditUnavailable)
		token, id := a.issue(t)
		a.refused(t, admin, wanting(token), problem.AuditUnavailable)
		if a.count("create") != 0 || a.count("lease") != 0 || a.stateOf(t, id) != "active" {
			t.Errorf("%d jails were made, %d leases taken, the grant is %s", a.count("create"), a.count("lease"), a.stateOf(t, id))
		}
		a.failing("record session.open_operator", nil)
		a.refused(t, admin, wanting(token), problem.AuditUnavailable)
		if a.count("set cookies") != 0 || a.count("decrypt cookies") != 0 {
			t.Error("cookies were set that nobody wrote down")
		}
		a.failing("record session.inject", nil)
		out := a.mustOpenOperator(t)
		_, err := visit(a.s, t.Context(), admin, out.ID, "https://example.com/", 0)
		wantCode(t, err, problem.AuditUnavailable)
		_, err = photograph(a.s, t.Context(), admin, out.ID)
		wantCode(t, err, problem.AuditUnavailable)
		if visits := a.browserOf(out).visits; len(visits) != 0 {
			t.Errorf("the browser was at %q", visits)
		}
		_, err = a.s.IssueToken(t.Context(), admin, out.ID, identity.ScopeView, 0)
		wantCode(t, err, problem.AuditUnavailable)
		a.failing("record session.open", nil)
		clean, err := a.s.Open(t.Context(), admin, OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.s.Attach(t.Context(), admin, clean.ID)
		wantCode(t, err, problem.AuditUnavailable)
		if guards := a.browserOf(clean).guards; len(guards) != 0 {
			t.Error("a client was attached that nobody wrote down")
		}
		// Ending is exempt.
		for _, step := range a.steps("record session.close") {
			t.Errorf("an ending asked: %s", step)
		}
		if got := a.mustClose(t, out.ID); got.State != StateClosed || got.Ended.Cause != CauseClosed {
			t.Errorf("it ended as %+v", got.Ended)
		}
		a.free(t, store.DefaultTenant, "example.com")
	})
}
