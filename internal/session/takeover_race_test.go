package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// A person who hands back closes the page next: half a hand-back would leave dialogs open that nobody answers.
func TestAHandBackThatHasBegunIsDoneWithoutItsCaller(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{})
		takeOver(t, svc, ann, out.ID)
		release := w.holding("let go")
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		done := make(chan error, 1)
		go func() {
			_, err := svc.HandBack(ctx, ann, out.ID, false)
			done <- err
		}()
		synctest.Wait() // it lets go
		leave()
		synctest.Wait()
		release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		usable(t, svc, worker, out.ID, "")
	})
}

func TestWhoComesDuringAHandBackThatFailsIsToldWhoHasIt(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{})
		takeOver(t, svc, ann, out.ID)
		release := w.holding("let go")
		done := make(chan error, 1)
		go func() {
			_, err := svc.HandBack(t.Context(), ann, out.ID, false)
			done <- err
		}()
		synctest.Wait() // it lets go
		l := watch(t, svc, ben, out.ID)
		told := make(chan Sight, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			sight, err := l.Next(ctx)
			if err != nil {
				t.Error(err)
			}
			told <- sight
		}()
		synctest.Wait()
		w.failOnce("let go", errors.New("it does not answer"))
		release()
		if err := <-done; err == nil {
			t.Fatal("it was handed back")
		}
		if sight := <-told; !sight.Changed || sight.Control == nil || sight.Control.By != "operator:ann" {
			t.Errorf("told %+v", sight)
		}
	})
}

// The client is gone, and the picture of what it did last is still being taken: it would show what the person does.
func TestAPictureThatIsLateDoesNotShowThePerson(t *testing.T) {
	for name, taken := range map[string]bool{"it is taken over meanwhile": true, "nobody takes it over": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				out := openOf(t, svc, worker, OpenRequest{Record: RecordAudit, Access: "cdp"})
				client, err := svc.Attach(t.Context(), worker, out.ID)
				if err != nil {
					t.Fatal(err)
				}
				b := w.all()[jail.Name(out.Jail)].browser
				b.mu.Lock()
				b.guards[0].Seen("Runtime.evaluate")
				b.mu.Unlock()
				release := w.holding("picture")
				time.Sleep(filmEvery) // of the bubble's time
				synctest.Wait()       // it is being taken
				if err := client.Close(); err != nil {
					t.Fatal(err)
				}
				if taken {
					takeOver(t, svc, ann, out.ID)
				}
				release()
				synctest.Wait()
				if kept := len(mustGet(t, svc, out.ID).Screenshots); (kept == 0) != taken {
					t.Errorf("%d pictures are kept", kept)
				}
			})
		})
	}
}

func TestWhatIsDoneWithATokenEndsWithIt(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Tenant: store.DefaultTenant})
		holder := func() (identity.Principal, string) {
			t.Helper()
			made, err := svc.IssueToken(t.Context(), ann, out.ID, identity.ScopeControl, 0)
			if err != nil {
				t.Fatal(err)
			}
			p, err := svc.Redeem(t.Context(), made.Token)
			if err != nil {
				t.Fatal(err)
			}
			return p, made.ID
		}
		gone, id := holder()
		stays, _ := holder()
		failed, goesOn := make(chan error, 1), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		for by, end := range map[*identity.Principal]chan error{&gone: failed, &stays: goesOn} {
			go func() {
				_, err := visit(svc, ctx, *by, out.ID, "slow", 0)
				end <- err
			}()
		}
		synctest.Wait() // both are in the browser
		if err := svc.RevokeToken(t.Context(), ann, out.ID, id); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-failed:
			wantCode(t, err, problem.Unauthorized)
		default:
			t.Error("it goes on after the token was revoked")
		}
		usable(t, svc, gone, out.ID, problem.Unauthorized)
		select {
		case err := <-goesOn:
			t.Errorf("another's has ended: %v", err)
		default:
		}
		cancel()
		<-goesOn
	})
}

func TestAnAgentDoesNotEndTheTokensOfPeople(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{})
		issue := func(by identity.Principal) Token {
			t.Helper()
			made, err := svc.IssueToken(t.Context(), by, out.ID, identity.ScopeControl, 0)
			if err != nil {
				t.Fatal(err)
			}
			return made
		}
		hers, own := issue(ann), issue(worker)
		listed := func(by identity.Principal, want int) {
			t.Helper()
			if list, err := svc.Tokens(t.Context(), by, out.ID); err != nil || len(list) != want {
				t.Errorf("%s is shown %+v, %v", by.Actor(), list, err)
			}
		}
		listed(worker, 1)
		listed(ann, 2)
		wantCode(t, svc.RevokeToken(t.Context(), worker, out.ID, hers.ID), problem.NotFound)
		if _, err := svc.Redeem(t.Context(), hers.Token); err != nil {
			t.Error(err)
		}
		if err := svc.RevokeToken(t.Context(), worker, out.ID, own.ID); err != nil {
			t.Error(err)
		}
		listed(ann, 1)
	})
}
