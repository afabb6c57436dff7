package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// watch adds a viewer, which is closed at the end of the test.
func watch(t *testing.T, svc *Service, by identity.Principal, id string) *Live {
	t.Helper()
	l, err := svc.Watch(t.Context(), by, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func next(t *testing.T, l *Live) Sight {
	t.Helper()
	sight, err := l.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sight
}

func TestAViewerSeesFramesAndWhoIsInControl(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{})
		b := w.all()[jail.Name(out.Jail)].browser
		l := watch(t, svc, ben, out.ID)
		if sight := next(t, l); !sight.Changed || sight.Control != nil || sight.Mine {
			t.Errorf("the first sight is %+v", sight)
		}
		b.viewers[0].frames <- &browser.Frame{Width: 5}
		if sight := next(t, l); sight.Frame == nil || sight.Frame.Width != 5 {
			t.Errorf("the second is %+v", sight)
		}
		_, err := l.Input(t.Context(), browser.LiveInput{Type: "text"})
		wantCode(t, err, problem.Conflict)
		// It interrupts who waits.
		seen := make(chan Sight, 1)
		go func() { seen <- next(t, l) }()
		synctest.Wait()
		takeOver(t, svc, ann, out.ID)
		if sight := <-seen; !sight.Changed || sight.Control == nil || sight.Control.By != "operator:ann" || sight.Mine {
			t.Errorf("the third is %+v", sight)
		}
		_, err = l.Input(t.Context(), browser.LiveInput{Type: "text"})
		wantCode(t, err, problem.TakenOver)
		hers := watch(t, svc, ann, out.ID)
		if copied, err := hers.Input(t.Context(), browser.LiveInput{Type: "copy", Text: "a"}); err != nil || copied != "copied" {
			t.Errorf("%q, %v", copied, err)
		}
		if len(b.typed) != 1 {
			t.Errorf("%q were typed", b.typed)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Next(t.Context()); err == nil {
			t.Error("it goes on after its end")
		}
	})
}

func TestAgentsAndStrangersDoNotWatch(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := openOf(t, svc, worker, OpenRequest{})
		_, err := svc.Watch(t.Context(), worker, out.ID)
		wantCode(t, err, problem.Forbidden)
		_, err = svc.TakeOver(t.Context(), worker, out.ID, true)
		wantCode(t, err, problem.Forbidden)
		_, err = svc.Watch(t.Context(), operatorOf("other", "eve"), out.ID)
		wantCode(t, err, problem.NotFound)
		_, err = svc.TakeOver(t.Context(), operatorOf("other", "eve"), out.ID, true)
		wantCode(t, err, problem.NotFound)
		// A session is not shown when that cannot be recorded.
		w.failOnce("record session.watch", problem.New(problem.AuditUnavailable, "", "the log is full"))
		_, err = svc.Watch(t.Context(), ann, out.ID)
		wantCode(t, err, problem.AuditUnavailable)
	})
}

func TestTwentyWatchOneSession(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{})
		var last *Live
		for range maxLives {
			last = watch(t, svc, admin, out.ID)
		}
		_, err := svc.Watch(t.Context(), admin, out.ID)
		wantCode(t, err, problem.RateLimited)
		if err := last.Close(); err != nil {
			t.Fatal(err)
		}
		watch(t, svc, admin, out.ID)
	})
}

// A viewer, and an attached DevTools client, use the session, however silent they are. Its time ends it all the
// same, and once they have left it ends idle.
func TestWatchersAndAttachedClientsUseTheSession(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T, svc *Service, id string) (leave func() error){
		"a watcher": func(t *testing.T, svc *Service, id string) func() error { return watch(t, svc, admin, id).Close },
		"a DevTools client": func(t *testing.T, svc *Service, id string) func() error {
			c, err := svc.Attach(t.Context(), admin, id)
			if err != nil {
				t.Fatal(err)
			}
			return c.Close
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
				request := OpenRequest{Idle: "1m", TTL: "10m"}
				left, stays, alone := mustOpen(t, svc, request), mustOpen(t, svc, request), mustOpen(t, svc, request)
				leave := begin(t, svc, left.ID)
				begin(t, svc, stays.ID)
				time.Sleep(5 * time.Minute) // of the bubble's time
				synctest.Wait()
				if got := mustGet(t, svc, alone.ID); got.Ended == nil || got.Ended.Cause != CauseIdle {
					t.Errorf("the session of nobody is %s: %+v", got.State, got.Ended)
				}
				if got := mustGet(t, svc, left.ID); got.State != StateReady {
					t.Fatalf("it is %s under a client: %+v", got.State, got.Ended)
				}
				if err := leave(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute - time.Second)
				synctest.Wait()
				if got := mustGet(t, svc, left.ID); got.State != StateReady {
					t.Errorf("it is %s before it was idle: %+v", got.State, got.Ended)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if got := mustGet(t, svc, left.ID); got.Ended == nil || got.Ended.Cause != CauseIdle {
					t.Errorf("once they have left it is %s: %+v", got.State, got.Ended)
				}
				time.Sleep(4 * time.Minute)
				synctest.Wait()
				if got := mustGet(t, svc, stays.ID); got.Ended == nil || got.Ended.Cause != CauseExpired {
					t.Errorf("when its time is up it is %s: %+v", got.State, got.Ended)
				}
			})
		})
	}
}

func TestAViewEndsWithItsTokenAndItsRevocation(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Tenant: store.DefaultTenant})
		holder := func(scope Scope, life time.Duration) (identity.Principal, string) {
			t.Helper()
			made, err := svc.IssueToken(t.Context(), ann, out.ID, scope, life)
			if err != nil {
				t.Fatal(err)
			}
			p, err := svc.Redeem(t.Context(), made.Token)
			if err != nil {
				t.Fatal(err)
			}
			return p, made.ID
		}
		short, _ := holder(identity.ScopeView, time.Minute)
		l := watch(t, svc, short, out.ID)
		next(t, l)
		_, err := l.Next(t.Context())
		wantCode(t, err, problem.Unauthorized)

		seeing, id := holder(identity.ScopeCDP, 0)
		l = watch(t, svc, seeing, out.ID)
		next(t, l)
		client, err := svc.Attach(t.Context(), seeing, out.ID)
		if err != nil {
			t.Fatal(err)
		}
		stays := attach(t, svc, out.ID)
		list, err := svc.Tokens(t.Context(), ann, out.ID)
		if err != nil || len(list) != 1 || list[0].ID != id || list[0].By != "operator:ann" || list[0].Scope != identity.ScopeCDP {
			t.Errorf("the tokens are %+v, %v", list, err)
		}
		wantCode(t, svc.RevokeToken(t.Context(), ann, out.ID, "st_none"), problem.NotFound)
		if err := svc.RevokeToken(t.Context(), ann, out.ID, id); err != nil {
			t.Fatal(err)
		}
		_, err = l.Next(t.Context())
		wantCode(t, err, problem.Unauthorized)
		wantCode(t, client.Err(), problem.Unauthorized)
		if err := stays.Err(); err != nil {
			t.Errorf("another's client has ended: %v", err)
		}
		// A client that was let in with it a moment ago gets nowhere either.
		_, err = svc.Attach(t.Context(), seeing, out.ID)
		wantCode(t, err, problem.Unauthorized)
		_, err = svc.Watch(t.Context(), seeing, out.ID)
		wantCode(t, err, problem.Unauthorized)
		if list, err := svc.Tokens(t.Context(), ann, out.ID); err != nil || len(list) != 0 {
			t.Errorf("the tokens are %+v, %v", list, err)
		}
	})
}

func TestAThumbnailIsMadeOnceForMany(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, svc *Service) {
		out := mustOpen(t, svc, OpenRequest{Tenant: store.DefaultTenant})
		release := w.holding("thumbnail")
		done := make(chan error, 30)
		for range cap(done) {
			go func() {
				picture, _, err := svc.Thumbnail(t.Context(), ann, out.ID)
				if err == nil && len(picture) == 0 {
					t.Error("it is empty")
				}
				done <- err
			}()
		}
		synctest.Wait()
		release()
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := w.count("thumbnail"); got != 1 {
			t.Errorf("%d were made", got)
		}
		time.Sleep(thumbnailAge)
		if _, _, err := svc.Thumbnail(t.Context(), ann, out.ID); err != nil || w.count("thumbnail") != 2 {
			t.Errorf("%d were made, %v", w.count("thumbnail"), err)
		}
		// There is none of what a person does, also when it was begun before.
		time.Sleep(thumbnailAge)
		release = w.holding("thumbnail")
		go func() {
			_, _, err := svc.Thumbnail(t.Context(), ann, out.ID)
			done <- err
		}()
		synctest.Wait()
		takeOver(t, svc, ann, out.ID)
		release()
		wantCode(t, <-done, problem.NotFound)
		_, _, err := svc.Thumbnail(t.Context(), ann, out.ID)
		wantCode(t, err, problem.NotFound)
		if _, err := svc.HandBack(t.Context(), ann, out.ID, false); err != nil {
			t.Fatal(err)
		}
		if _, _, err := svc.Thumbnail(t.Context(), ann, out.ID); err != nil {
			t.Error(err)
		}
	})
}
