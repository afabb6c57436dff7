package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// These take part: an agent that has opened the session, and two people.
var (
	worker = agentIn(store.DefaultTenant, "worker")
	ann    = operatorOf(store.DefaultTenant, "ann")
	ben    = operatorOf(store.DefaultTenant, "ben")
)

// openOf opens a session of the agent's.
func openOf(t *testing.T, svc *Service, by identity.Principal, r OpenRequest) Session {
	t.Helper()
	r.Tenant = by.Tenant
	out, err := svc.Open(t.Context(), by, r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func takeOver(t *testing.T, svc *Service, by identity.Principal, id string) Session {
	t.Helper()
	out, err := svc.TakeOver(t.Context(), by, id, false)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// usable says what somebody gets who uses a session.
func usable(t *testing.T, svc *Service, by identity.Principal, id, want string) {
	t.Helper()
	_, err := visit(svc, t.Context(), by, id, "https://example.com/", 0)
	wantCode(t, err, want)
	_, err = photograph(svc, t.Context(), by, id)
	wantCode(t, err, want)
}

func TestATakeOverCutsWhoeverUsesTheSessionAndTellsThem(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{})
		client, err := svc.Attach(t.Context(), worker, out.ID)
		if err != nil {
			t.Fatal(err)
		}
		under := make(chan error, 1)
		go func() {
			_, err := visit(svc, t.Context(), worker, out.ID, "slow", 0)
			under <- err
		}()
		synctest.Wait() // it is in the browser
		began := time.Now()
		taken := takeOver(t, svc, ann, out.ID)
		if taken.Control == nil || taken.Control.By != "operator:ann" || !taken.Control.Since.Equal(began) {
			t.Errorf("the control is %+v", taken.Control)
		}
		wantCode(t, <-under, problem.TakenOver)
		if d := time.Since(began); d != 0 {
			t.Errorf("it took %s", d)
		}
		select {
		case <-client.Done():
		default:
			t.Fatal("the client is still there")
		}
		wantCode(t, client.Err(), problem.TakenOver)
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		w.before(t, "hold dialogs", "renew")
		// Everything of the agent's says what to do.
		usable(t, svc, worker, out.ID, problem.TakenOver)
		_, err = svc.Attach(t.Context(), worker, out.ID)
		wantCode(t, err, problem.TakenOver)
		if p, _ := problem.As(err); p == nil || !strings.Contains(p.Hint, "take a new snapshot") || strings.Contains(p.Message+p.Hint, "ann") {
			t.Errorf("the agent is told %+v", err)
		}
		_, err = svc.Devtools(t.Context(), worker, out.ID)
		wantCode(t, err, problem.TakenOver)
		_, err = svc.IssueToken(t.Context(), worker, out.ID, identity.ScopeCDP, 0)
		wantCode(t, err, problem.TakenOver)
		// So does everything of other people's; what the person themselves attached would see their keys too.
		usable(t, svc, ben, out.ID, problem.TakenOver)
		_, err = svc.Attach(t.Context(), ann, out.ID)
		wantCode(t, err, problem.TakenOver)
		usable(t, svc, ann, out.ID, "")
		if got := mustGet(t, svc, out.ID); got.Control == nil {
			t.Error("the session does not say who has it")
		}
		if _, err := svc.HandBack(t.Context(), ann, out.ID, false); err != nil {
			t.Fatal(err)
		}
		usable(t, svc, worker, out.ID, "")
		again, err := svc.Attach(t.Context(), worker, out.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
		if got := mustGet(t, svc, out.ID); got.Control != nil {
			t.Errorf("the session still says %+v", got.Control)
		}
	})
}

func TestAHolderOfATokenIsNotWhoMadeIt(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Tenant: store.DefaultTenant})
		made, err := svc.IssueToken(t.Context(), ann, out.ID, identity.ScopeCDP, 0)
		if err != nil {
			t.Fatal(err)
		}
		holder, err := svc.Redeem(t.Context(), made.Token)
		if err != nil {
			t.Fatal(err)
		}
		takeOver(t, svc, ann, out.ID)
		usable(t, svc, holder, out.ID, problem.TakenOver)
		_, err = svc.Attach(t.Context(), holder, out.ID)
		wantCode(t, err, problem.TakenOver)
	})
}

func TestPagesAreRenewedOnlyWhereAScriptMayBe(t *testing.T) {
	for name, test := range map[string]struct {
		by   identity.Principal
		do   func(t *testing.T, svc *Service, id string)
		want int
	}{
		"nobody ran one": {by: admin},
		"somebody did": {by: admin, want: 1, do: func(t *testing.T, svc *Service, id string) {
			if _, err := svc.Drive(t.Context(), admin, id, visiting{"https://example.com/", time.Second, browser.Evaluates}); err != nil {
				t.Error(err)
			}
		}},
		"a client was there": {by: admin, want: 1, do: func(t *testing.T, svc *Service, id string) {
			if err := attach(t, svc, id).Close(); err != nil {
				t.Error(err)
			}
		}},
		"an agent may attach": {by: worker, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				out, err := svc.Open(t.Context(), test.by, OpenRequest{Tenant: store.DefaultTenant})
				if err != nil {
					t.Fatal(err)
				}
				if test.do != nil {
					test.do(t, svc, out.ID)
				}
				takeOver(t, svc, ann, out.ID)
				if got := w.count("renew"); got != test.want {
					t.Errorf("%d times, want %d", got, test.want)
				}
				// Nothing was added since: the next person's is not renewed again.
				if _, err := svc.TakeOver(t.Context(), ben, out.ID, true); err != nil {
					t.Fatal(err)
				}
				if got := w.count("renew"); got != test.want {
					t.Errorf("%d times after another one, want %d", got, test.want)
				}
			})
		})
	}
}

func TestASessionInHandIsTakenOnlyWithForce(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Tenant: store.DefaultTenant})
		takeOver(t, svc, ann, out.ID)
		takeOver(t, svc, ann, out.ID) // hers already
		_, err := svc.TakeOver(t.Context(), ben, out.ID, false)
		wantCode(t, err, problem.Conflict)
		if p, _ := problem.As(err); p == nil || p.Details["by"] != "operator:ann" {
			t.Errorf("it does not name who has it: %+v", err)
		}
		hers := watch(t, svc, ann, out.ID)
		if sight := next(t, hers); !sight.Changed || !sight.Mine {
			t.Errorf("she sees %+v", sight)
		}
		hanging := make(chan error, 1)
		go func() {
			_, err := hers.Input(t.Context(), browser.LiveInput{Type: "hang"})
			hanging <- err
		}()
		synctest.Wait()
		taken, err := svc.TakeOver(t.Context(), ben, out.ID, true)
		if err != nil || taken.Control.By != "operator:ben" {
			t.Fatalf("%+v, %v", taken.Control, err)
		}
		wantCode(t, <-hanging, problem.TakenOver)
		if sight := next(t, hers); !sight.Changed || sight.Mine || sight.Control == nil || sight.Control.By != "operator:ben" {
			t.Errorf("she sees %+v", sight)
		}
		_, err = hers.Input(t.Context(), browser.LiveInput{Type: "text", Text: "late"})
		wantCode(t, err, problem.TakenOver)
		usable(t, svc, ann, out.ID, problem.TakenOver)
		usable(t, svc, ben, out.ID, "")
		if got := w.count("hold dialogs"); got != 1 {
			t.Errorf("the dialogs were held %d times", got)
		}
	})
}

func TestOfManyWhoTakeASessionOverOneHasIt(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{})
		var all sync.WaitGroup
		var mu sync.Mutex
		var won []string
		for n := range 64 {
			all.Go(func() {
				by := operatorOf(store.DefaultTenant, fmt.Sprint("o", n))
				taken, err := svc.TakeOver(t.Context(), by, out.ID, false)
				if err != nil {
					wantCode(t, err, problem.Conflict)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				won = append(won, by.Actor())
				if taken.Control == nil || taken.Control.By != by.Actor() {
					t.Errorf("%s was told that %+v has it", by.Actor(), taken.Control)
				}
			})
		}
		all.Wait()
		if got := mustGet(t, svc, out.ID); len(won) != 1 || got.Control == nil || got.Control.By != won[0] {
			t.Errorf("%q have it, and the session says %+v", won, got.Control)
		}
		if w.count("hold dialogs") != 1 || w.count("renew") != 1 {
			t.Errorf("it was held %d times, and renewed %d", w.count("hold dialogs"), w.count("renew"))
		}
	})
}

func TestATakeOverThatFailsGivesTheSessionBack(t *testing.T) {
	for _, step := range []string{"hold dialogs", "renew", "record session.control"} {
		t.Run(step, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				out := openOf(t, svc, worker, OpenRequest{})
				hers := watch(t, svc, ann, out.ID)
				next(t, hers)
				w.failOnce(step, errors.New("it does not answer"))
				if _, err := svc.TakeOver(t.Context(), ann, out.ID, false); err == nil {
					t.Fatal("it worked")
				}
				if got := mustGet(t, svc, out.ID); got.Control != nil {
					t.Errorf("%+v has it", got.Control)
				}
				usable(t, svc, worker, out.ID, "")
				_, err := hers.Input(t.Context(), browser.LiveInput{Type: "text", Text: "x"})
				wantCode(t, err, problem.Conflict)
				if step != "record session.control" && w.count("let go") != 1 {
					t.Error("the dialogs are still held")
				}
				// And it can be tried again.
				takeOver(t, svc, ann, out.ID)
			})
		})
	}
}

func TestATakeOverEndsWithItsCallerAndInTime(t *testing.T) {
	for name, leave := range map[string]bool{"the caller leaves": true, "the browser does not answer": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				out := openOf(t, svc, worker, OpenRequest{})
				release := w.holding("renew")
				defer release()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				failed := make(chan error, 1)
				began := time.Now()
				go func() {
					_, err := svc.TakeOver(ctx, ann, out.ID, false)
					failed <- err
				}()
				synctest.Wait()
				usable(t, svc, worker, out.ID, problem.TakenOver)
				// In between nobody else gets it, not even with force, and it cannot be handed back.
				_, err := svc.TakeOver(t.Context(), ben, out.ID, true)
				wantCode(t, err, problem.Conflict)
				_, err = svc.HandBack(t.Context(), ben, out.ID, true)
				wantCode(t, err, problem.Conflict)
				want := problem.Timeout
				if leave {
					want = problem.Canceled
					cancel(context.Canceled)
				}
				wantCode(t, <-failed, want)
				if d := time.Since(began); d > handOverLimit {
					t.Errorf("it took %s", d)
				}
				usable(t, svc, worker, out.ID, "")
			})
		})
	}
}

func TestHandingBackWaitsForPasswords(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{})
		b := w.all()[jail.Name(out.Jail)].browser
		_, err := svc.HandBack(t.Context(), ann, out.ID, true)
		wantCode(t, err, problem.Conflict) // nobody has it
		takeOver(t, svc, ann, out.ID)
		b.mu.Lock()
		b.secrets = []string{"t1"}
		b.mu.Unlock()
		_, err = svc.HandBack(t.Context(), ann, out.ID, false)
		wantCode(t, err, problem.Conflict)
		if p, _ := problem.As(err); p == nil || !slices.Equal(p.Details["tabs"].([]string), []string{"t1"}) {
			t.Errorf("it does not name the tab: %+v", err)
		}
		if w.count("let go") != 0 {
			t.Error("the dialogs were let go")
		}
		usable(t, svc, worker, out.ID, problem.TakenOver)
		// She still has it, and may go on.
		hers := watch(t, svc, ann, out.ID)
		if _, err := hers.Input(t.Context(), browser.LiveInput{Type: "text", Text: "x"}); err != nil {
			t.Error(err)
		}
		// A browser that cannot be let go of stays in her hand.
		w.failOnce("let go", errors.New("it does not answer"))
		if _, err := svc.HandBack(t.Context(), ann, out.ID, true); err == nil {
			t.Error("it was handed back with its dialogs")
		}
		usable(t, svc, worker, out.ID, problem.TakenOver)
		_, err = svc.HandBack(t.Context(), ben, out.ID, false)
		wantCode(t, err, problem.Conflict)
		if _, err := svc.HandBack(t.Context(), ben, out.ID, true); err != nil {
			t.Fatal(err)
		}
		usable(t, svc, worker, out.ID, "")
		_, err = hers.Input(t.Context(), browser.LiveInput{Type: "text", Text: "x"})
		wantCode(t, err, problem.Conflict)
	})
}

func TestWhatAPersonDoesIsRecordedNowhere(t *testing.T) {
	const typed = "correct-horse-battery"
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{Record: RecordAudit})
		usable(t, svc, worker, out.ID, "")
		steps := func() int {
			var page bytes.Buffer
			if err := svc.WriteRecording(t.Context(), admin, out.ID, &page); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(page.String(), typed) {
				t.Error("the recording has what was typed")
			}
			if got := strings.Contains(page.String(), toolTakeOver); got != (w.count("hold dialogs") > 0) {
				t.Errorf("the recording names the take-over: %v", got)
			}
			return len(mustGet(t, svc, out.ID).Screenshots)
		}
		before := steps()
		takeOver(t, svc, ann, out.ID)
		hers := watch(t, svc, ann, out.ID)
		if _, err := hers.Input(t.Context(), browser.LiveInput{Type: "text", Text: typed}); err != nil {
			t.Fatal(err)
		}
		usable(t, svc, ann, out.ID, "")
		if got := steps(); got != before {
			t.Errorf("%d pictures became %d while she had it", before, got)
		}
		if err := hers.Close(); err != nil {
			t.Error(err)
		}
		if _, err := svc.HandBack(t.Context(), ann, out.ID, false); err != nil {
			t.Fatal(err)
		}
		usable(t, svc, worker, out.ID, "")
		if got := steps(); got <= before {
			t.Error("it is not recorded again afterwards")
		}
		trail := strings.Join(w.trail, "\n")
		if strings.Contains(trail, typed) {
			t.Error("the audit log has what was typed")
		}
		for _, want := range []string{"intent session.control default operator:ann", `"inputs":1`, `"tool":"hand_back"`} {
			if !strings.Contains(trail, want) {
				t.Errorf("not on record: %s in\n%s", want, trail)
			}
		}
	})
}

func TestASessionEndsWhileItIsInHand(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{Record: RecordAudit})
		takeOver(t, svc, ann, out.ID)
		hers := watch(t, svc, ann, out.ID)
		next(t, hers)
		if _, err := svc.Close(t.Context(), worker, out.ID); err != nil {
			t.Fatal(err)
		}
		_, err := hers.Next(t.Context())
		wantCode(t, err, problem.SessionClosed)
		_, err = hers.Input(t.Context(), browser.LiveInput{Type: "text"})
		wantCode(t, err, problem.SessionClosed)
		_, err = svc.HandBack(t.Context(), ann, out.ID, false)
		wantCode(t, err, problem.SessionClosed)
	})
}

// A session may end at any step of a take-over.
func TestASessionEndsInTheMiddleOfATakeOver(t *testing.T) {
	for _, step := range []string{"hold dialogs", "renew"} {
		t.Run(step, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				out := openOf(t, svc, worker, OpenRequest{})
				release := w.holding(step)
				failed := make(chan error, 1)
				go func() {
					_, err := svc.TakeOver(t.Context(), ann, out.ID, false)
					failed <- err
				}()
				synctest.Wait()
				if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
					t.Fatal(err)
				}
				w.failOnce(step, errors.New("the pipe is closed"))
				release()
				wantCode(t, <-failed, problem.SessionClosed)
			})
		})
	}
}
