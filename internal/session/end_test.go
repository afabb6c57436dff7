package session

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestSessionEndsWhenItsTimeIsUpHoweverBusyItIs(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{TTL: "20m"})
		for range 19 {
			time.Sleep(time.Minute)
			if _, err := visit(svc, t.Context(), admin, out.ID, "about:blank", 0); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		if got := mustGet(t, svc, out.ID); got.State != StateReady {
			t.Fatalf("it is %s too early", got.State)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		got := mustGet(t, svc, out.ID)
		if got.State != StateClosed || got.Ended.Cause != CauseExpired || !got.Ended.At.Equal(*out.ExpiresAt) {
			t.Errorf("it ended as %+v", got.Ended)
		}
		w.nothingLeft(t)
		_, err := visit(svc, t.Context(), admin, out.ID, "about:blank", 0)
		wantCode(t, err, problem.SessionClosed)
	})
}

// A machine that sleeps stops its timers, and its accounts are given to others meanwhile.
func TestTimeThatAMachineSleepsCounts(t *testing.T) {
	var slept atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(slept.Load())) }
	inBubble(t, func(o *Options) { o.Now = now }, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		link, err := svc.IssueToken(t.Context(), admin, out.ID, identity.ScopeView, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		by, err := svc.Redeem(t.Context(), link.Token)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		defer by.Ended(now, func() { close(ended) })()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the link ends too early")
		default:
		}
		slept.Store(int64(72 * time.Hour))
		if _, err := svc.Redeem(t.Context(), link.Token); problem.CodeOf(err) != problem.Unauthorized {
			t.Errorf("after three days the link of an hour: %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := mustGet(t, svc, out.ID); got.State != StateClosed || got.Ended.Cause != CauseIdle && got.Ended.Cause != CauseExpired {
			t.Errorf("after three days it is %s: %+v", got.State, got.Ended)
		}
		select {
		case <-ended:
		default:
			t.Error("who had the link still has it")
		}
	})
}

func TestSessionThatNobodyUsesIsClosed(t *testing.T) {
	for name, test := range map[string]struct {
		use  func(t *testing.T, w *fixture, svc *Service, id string)
		kept bool
	}{
		"nothing":                  {func(*testing.T, *fixture, *Service, string) {}, false},
		"looking at it is not use": {func(t *testing.T, _ *fixture, svc *Service, id string) { mustGet(t, svc, id) }, false},
		"a request": {func(t *testing.T, _ *fixture, svc *Service, id string) {
			if _, err := visit(svc, t.Context(), admin, id, "about:blank", 0); err != nil {
				t.Error(err)
			}
		}, true},
		"traffic": {func(_ *testing.T, w *fixture, _ *Service, _ string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for addr := range w.admitted {
				w.activity[addr] = time.Now()
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				out := mustOpen(t, svc, OpenRequest{})
				time.Sleep(svc.Sessions.Idle - time.Second)
				test.use(t, w, svc, out.ID)
				time.Sleep(time.Second)
				synctest.Wait()
				got := mustGet(t, svc, out.ID)
				if test.kept {
					if got.State != StateReady {
						t.Fatalf("it is %s although it was used", got.State)
					}
					time.Sleep(svc.Sessions.Idle - time.Second)
					synctest.Wait()
					got = mustGet(t, svc, out.ID)
				}
				if got.State != StateClosed || got.Ended.Cause != CauseIdle {
					t.Errorf("it is %s, %+v", got.State, got.Ended)
				}
			})
		})
	}
}

func TestRequestInFlightIsUse(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Idle: "10s"})
		go func() {
			time.Sleep(time.Minute)
			w.all()[jail.Name(out.Jail)].browser.navigate <- nil
		}()
		if _, err := visit(svc, t.Context(), admin, out.ID, "slow", 2*time.Minute); err != nil {
			t.Fatalf("it was cut off: %v", err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := mustGet(t, svc, out.ID); got.Ended == nil || got.Ended.Cause != CauseIdle {
			t.Errorf("it is %s afterwards", got.State)
		}
	})
}

func TestBrowserThatEndsEndsItsSession(t *testing.T) {
	for name, test := range map[string]struct {
		how   jail.Exit
		cause Cause
		code  string
	}{
		"by itself":    {jail.Exit{Code: 1, Cause: jail.CauseExited}, CauseBrowserExited, problem.BrowserExited},
		"by a signal":  {jail.Exit{Code: -1, Signal: "segmentation fault", Cause: jail.CauseExited}, CauseBrowserExited, problem.BrowserExited},
		"of memory":    {jail.Exit{Signal: "killed", Cause: jail.CauseMemory, Hit: []jail.LimitName{jail.LimitMemory, jail.LimitDisk}}, CauseMemory, problem.LimitMemory},
		"of its clock": {jail.Exit{Signal: "killed", Cause: jail.CauseWallClock, Hit: []jail.LimitName{jail.LimitWallClock}}, CauseWallClock, problem.LimitWallClock},
		"unowned":      {jail.Exit{Signal: "killed", Cause: jail.CauseOwnerLost}, CauseOwnerLost, problem.SessionClosed},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				w.stderr = "first\nlast\n"
				out := mustOpen(t, svc, OpenRequest{})
				answer := make(chan error)
				go func() {
					_, err := visit(svc, t.Context(), admin, out.ID, "slow", 0)
					answer <- err
				}()
				synctest.Wait()
				w.die(out.Jail, test.how)
				wantCode(t, <-answer, test.code) // who waited is told the reason, not that a pipe broke
				synctest.Wait()
				got := mustGet(t, svc, out.ID)
				if got.State != StateClosed || got.Ended.Cause != test.cause || *got.Ended.ExitCode != test.how.Code ||
					got.Ended.Signal != test.how.Signal || !slices.Equal(got.Ended.LimitsHit, test.how.Hit) ||
					!slices.Equal(got.Ended.Stderr, []string{"first", "last"}) {
					t.Errorf("it ended as %+v", got.Ended)
				}
				w.nothingLeft(t)
				_, err := photograph(svc, t.Context(), admin, out.ID)
				wantCode(t, err, test.code)
			})
		})
	}
}

func TestASessionThatWasClosedSaysWhichLimitsItHit(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		w.stderr, w.hit = "first\nlast\n", []jail.LimitName{jail.LimitTasks}
		out := mustOpen(t, svc, OpenRequest{})
		synctest.Wait()
		if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := mustGet(t, svc, out.ID)
		if got.Ended.Cause != CauseClosed || got.Ended.ExitCode != nil || !slices.Equal(got.Ended.LimitsHit, []jail.LimitName{jail.LimitDisk, jail.LimitTasks}) ||
			!slices.Equal(got.Ended.Stderr, []string{"first", "last"}) {
			t.Errorf("it ended as %+v", got.Ended)
		}
	})
}

func TestCloseReturnsBeforeTheJailIsRemoved(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		release := w.holding("destroy")
		b := w.all()[jail.Name(out.Jail)].browser
		got, err := svc.Close(t.Context(), admin, out.ID)
		if err != nil || got.State != StateClosing || got.Ended.Cause != CauseClosed {
			t.Fatalf("closing says %+v, %v", got, err)
		}
		// It can no longer be used, and its jail reaches nobody.
		select {
		case <-b.Done():
		default:
			t.Error("the browser's pipe is open")
		}
		if _, admitted := w.left(); admitted != 0 {
			t.Error("the gateway still knows it")
		}
		_, err = visit(svc, t.Context(), admin, out.ID, "about:blank", 0)
		wantCode(t, err, problem.SessionClosed)
		// It is accounted for until it is gone.
		if open, _ := svc.List(t.Context(), admin, "", false); len(open) != 0 {
			t.Errorf("it is listed among the open ones: %+v", open)
		}
		if all, _ := svc.List(t.Context(), admin, "", true); len(all) != 1 || all[0].State != StateClosing {
			t.Errorf("all are %+v", all)
		}
		if st := svc.Status(); st.Sessions != 0 || st.Closing != 1 {
			t.Errorf("the status is %+v", st)
		}
		again, err := svc.Close(t.Context(), admin, out.ID)
		if err != nil || again.State != StateClosing {
			t.Errorf("closing again says %s, %v", again.State, err)
		}
		go func() {
			time.Sleep(3 * time.Second)
			release()
		}()
		gone, err := svc.WaitGone(t.Context(), admin, out.ID)
		if err != nil || gone.State != StateClosed || gone.Ended.Teardown == nil || *gone.Ended.Teardown != 3000 {
			t.Errorf("at the end it is %+v, %v", gone.Ended, err)
		}
		if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
			t.Errorf("closing what is gone: %v", err)
		}
	})
}

func TestWaitingForTheEndEndsWithItsContext(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := svc.WaitGone(ctx, admin, out.ID)
		wantCode(t, err, problem.Timeout)
	})
}

func TestSessionCanBeClosedWhileItOpens(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		defer w.holding("connect")()
		answer := make(chan error)
		go func() {
			_, err := svc.Open(t.Context(), admin, OpenRequest{})
			answer <- err
		}()
		synctest.Wait()
		open, _ := svc.List(t.Context(), admin, "", false)
		if len(open) != 1 || open[0].State != StateOpening {
			t.Fatalf("the list is %+v", open)
		}
		_, err := visit(svc, t.Context(), admin, open[0].ID, "about:blank", 0)
		wantCode(t, err, problem.Conflict)
		if _, err := svc.Close(t.Context(), admin, open[0].ID); err != nil {
			t.Fatal(err)
		}
		wantCode(t, <-answer, problem.SessionClosed)
		w.nothingLeft(t)
		if got := mustGet(t, svc, open[0].ID); got.State != StateClosed || got.Ended.Cause != CauseClosed {
			t.Errorf("it is %s, %+v", got.State, got.Ended)
		}
	})
}

func TestEndedSessionsAreForgottenLater(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(endedFor - time.Nanosecond)
		mustGet(t, svc, out.ID)
		time.Sleep(time.Nanosecond)
		_, err := svc.Get(t.Context(), admin, out.ID)
		wantCode(t, err, problem.NotFound)

		other := mustOpen(t, svc, OpenRequest{Tenant: "beta"})
		if _, err := svc.Close(t.Context(), admin, other.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range maxEnded + 5 {
			last := mustOpen(t, svc, OpenRequest{})
			if _, err := svc.Close(t.Context(), admin, last.ID); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if all, _ := svc.List(t.Context(), admin, "default", true); len(all) != maxEnded {
			t.Errorf("%d ended sessions of a tenant are kept, want %d", len(all), maxEnded)
		}
		mustGet(t, svc, other.ID) // what one tenant ends takes no place of another's
	})
}

func TestDrainingOpensNoNewSessions(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, _ *fixture, svc *Service) {
		open := mustOpen(t, svc, OpenRequest{})
		svc.Drain(true)
		_, err := svc.Open(t.Context(), admin, OpenRequest{})
		wantCode(t, err, problem.NodeDraining)
		_, err = svc.OpenRefresh(t.Context(), admin, RefreshRequest{Domain: "example.com"})
		wantCode(t, err, problem.NodeDraining)
		wantCode(t, svc.Ready(), problem.NodeDraining)
		if still := mustGet(t, svc, open.ID); still.State != StateReady {
			t.Errorf("the session that was open is %s", still.State)
		}
		svc.Drain(false)
		if err := svc.Ready(); err != nil {
			t.Error(err)
		}
		mustOpen(t, svc, OpenRequest{})
	})
}

func TestShutdownEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		svc, err := New(w.options(func(o *Options) { o.WarmPool.Size = 2 }))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ready := mustOpen(t, svc, OpenRequest{})
		synctest.Wait()
		release := w.holding("connect")
		answer := make(chan error)
		go func() {
			_, err := svc.Open(t.Context(), admin, OpenRequest{Browser: "full"})
			answer <- err
		}()
		synctest.Wait()
		if err := svc.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantCode(t, <-answer, problem.SessionClosed)
		w.nothingLeft(t)
		if got := mustGet(t, svc, ready.ID); got.Ended.Cause != CauseShutdown {
			t.Errorf("it ended as %+v", got.Ended)
		}
		_, err = svc.Open(t.Context(), admin, OpenRequest{})
		wantCode(t, err, problem.ShuttingDown)
		release()
	})
}

func TestShutdownDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		svc, err := New(w.options())
		if err != nil {
			t.Fatal(err)
		}
		mustOpen(t, svc, OpenRequest{})
		release := w.holding("destroy")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := svc.Shutdown(ctx); err == nil {
			t.Error("it says that all is gone")
		}
		release()
		if err := svc.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		w.nothingLeft(t)
	})
}

func TestJailIsDestroyedWhenTheHostDaemonComesBack(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		w.failing("destroy", problem.New(problem.HostdUnreachable, "", "it is away"))
		if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if got := mustGet(t, svc, out.ID); got.State != StateClosing {
			t.Errorf("it is %s while its jail is there", got.State)
		}
		w.failing("destroy", nil)
		got, err := svc.WaitGone(t.Context(), admin, out.ID)
		if err != nil || got.Ended.TeardownError != "" {
			t.Errorf("it ended as %+v, %v", got.Ended, err)
		}
		w.nothingLeft(t)
	})
}

func TestTeardownThatFailsIsTold(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		w.failing("destroy", problem.New(problem.JailBusy, "", "busy"))
		if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
			t.Fatal(err)
		}
		got, err := svc.WaitGone(t.Context(), admin, out.ID)
		if err != nil || got.State != StateClosed || got.Ended.TeardownError == "" {
			t.Errorf("it ended as %+v, %v", got.Ended, err)
		}
		// The host daemon's reaper is what is left to remove it.
		w.failing("destroy", nil)
		if err := w.Destroy(t.Context(), jail.Name(out.Jail)); err != nil {
			t.Error(err)
		}
	})
}
