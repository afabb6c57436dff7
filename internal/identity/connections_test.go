package identity

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

func TestRevocationCutsWhatIsOpen(t *testing.T) {
	type people struct {
		bot, bot2, ann, stranger held
	}
	for name, tt := range map[string]struct {
		revoke func(w *fixture, ann Operator, bot Principal) error
		want   [4]bool // which of the people are cut
	}{
		"token": {func(w *fixture, _ Operator, bot Principal) error {
			return w.RevokeToken(t.Context(), admin, "acme", "bot", bot.TokenID)
		}, [4]bool{true, false, false, false}},
		"agent": {func(w *fixture, _ Operator, _ Principal) error {
			return w.RevokeAgent(t.Context(), admin, "acme", "bot")
		}, [4]bool{true, true, false, false}},
		"deleted agent": {func(w *fixture, _ Operator, _ Principal) error {
			return w.DeleteAgent(t.Context(), admin, "acme", "bot")
		}, [4]bool{true, true, false, false}},
		"operator": {func(w *fixture, ann Operator, _ Principal) error {
			return w.RevokeOperator(t.Context(), admin, ann.ID)
		}, [4]bool{false, false, true, false}},
		"tenant": {func(w *fixture, _ Operator, _ Principal) error {
			n, err := w.DisconnectTenant(t.Context(), admin, "acme")
			if n != 3 {
				t.Errorf("says that %d were cut", n)
			}
			return err
		}, [4]bool{true, true, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			_, _, bot := w.agent("acme", "bot")
			second, _, err := w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			_, ann, annP := w.operator("acme", RoleOperator)
			_, _, stranger := w.agent("rival", "bot")
			p := people{w.hold(bot), w.hold(w.mustBe(second)), w.hold(annP), w.hold(stranger)}
			adminOpen := w.hold(admin)
			now := func() [4]bool { return [4]bool{p.bot.cut(), p.bot2.cut(), p.ann.cut(), p.stranger.cut()} }
			var before [4]bool
			w.log.OnEnding = func() { before = now() }
			if err := tt.revoke(w, ann, bot); err != nil {
				t.Fatal(err)
			}
			got := now()
			if before != got {
				t.Errorf("when its record was begun these were cut: %v, and afterwards %v", before, got)
			}
			if got != tt.want {
				t.Errorf("cut: %v, want %v", got, tt.want)
			}
			left := 5
			for _, cut := range got {
				if cut {
					left--
				}
			}
			if w.Open() != left || adminOpen.cut() {
				t.Errorf("%d open, want %d", w.Open(), left)
			}
		})
	}
}

func TestReleasedConnectionIsLeftAlone(t *testing.T) {
	w := newFixture(t)
	_, _, bot := w.agent("acme", "bot")
	a, b := w.hold(bot), w.hold(bot)
	a.release()
	a.release()
	if w.Open() != 1 {
		t.Errorf("%d open", w.Open())
	}
	if err := w.RevokeAgent(t.Context(), admin, "acme", "bot"); err != nil {
		t.Fatal(err)
	}
	if a.cut() || !b.cut() || w.Open() != 0 {
		t.Errorf("cut: %v, %v; %d open", a.cut(), b.cut(), w.Open())
	}
	b.release()
}

// Between looking at a key and registering what is opened with it, the key may go.
func TestKeyThatGoesBeforeHoldIsNotHeld(t *testing.T) {
	for name, end := range map[string]func(w *fixture, bot Principal) error{
		"token": func(w *fixture, bot Principal) error {
			return w.RevokeToken(t.Context(), admin, "acme", "bot", bot.TokenID)
		},
		"agent":   func(w *fixture, _ Principal) error { return w.RevokeAgent(t.Context(), admin, "acme", "bot") },
		"deleted": func(w *fixture, _ Principal) error { return w.DeleteAgent(t.Context(), admin, "acme", "bot") },
		"expired": func(w *fixture, _ Principal) error {
			_, _, err := w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			_, _, bot := w.agent("acme", "bot")
			if err := end(w, bot); err != nil {
				t.Fatal(err)
			}
			called := false
			release, err := w.WatchValidity(t.Context(), bot, func(error) { called = true })
			if problem.CodeOf(err) != problem.Unauthorized || release != nil || called || w.Open() != 0 {
				t.Errorf("got %v, called %v, %d open", err, called, w.Open())
			}
		})
	}
	w := newFixture(t)
	_, o, ann := w.operator("acme", RoleAdmin)
	if err := w.RevokeOperator(t.Context(), admin, o.ID); err != nil {
		t.Fatal(err)
	}
	for who, p := range map[string]Principal{"operator": ann, "nobody": {}, "unknown operator": {Kind: KindOperator, ID: "op_x", TokenID: "op_x"}} {
		if _, err := w.WatchValidity(t.Context(), p, func(error) {}); problem.CodeOf(err) != problem.Unauthorized || w.Open() != 0 {
			t.Errorf("%s: %v", who, err)
		}
	}
}

// Whichever call wins, a revoked key has nothing open afterwards.
func TestHoldAndRevokeAtTheSameTime(t *testing.T) {
	w := newFixture(t)
	for n := range 30 {
		key, o, err := w.CreateOperator(t.Context(), admin, NewOperator{Name: "x", Tenant: "acme", Role: RoleViewer, Life: NeverExpires})
		if err != nil {
			t.Fatal(err)
		}
		p := w.mustBe(key)
		var wg sync.WaitGroup
		var held, cut atomic.Int32
		for range 4 {
			wg.Go(func() {
				var once atomic.Int32
				_, err := w.WatchValidity(context.Background(), p, func(error) {
					if once.Add(1) > 1 {
						t.Error("cancelled twice")
					}
					cut.Add(1)
				})
				if err == nil || errors.Is(err, errCut) {
					held.Add(1)
				}
			})
		}
		wg.Go(func() {
			if err := w.RevokeOperator(context.Background(), admin, o.ID); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if held.Load() != cut.Load() || w.Open() != 0 {
			t.Fatalf("round %d: %d held, %d cut, %d open", n, held.Load(), cut.Load(), w.Open())
		}
	}
}

func TestStoreThatDoesNotAnswerHoldsNothing(t *testing.T) {
	fake := &deaf{}
	w := newFixture(t, func(o *Options) { fake.Store = o.Store; o.Store = fake })
	_, _, p := w.operator("acme", RoleAdmin)
	fake.err = store.Unavailable(errPlanted)
	if _, err := w.WatchValidity(t.Context(), p, func(error) {}); problem.CodeOf(err) != problem.DatabaseUnavailable || w.Open() != 0 {
		t.Errorf("got %v, %d open", err, w.Open())
	}
}

// deaf is a store that does not answer who an operator is.
type deaf struct {
	Store
	err error
}

func (d *deaf) Operator(ctx context.Context, id string) (store.Operator, error) {
	if d.err != nil {
		return store.Operator{}, d.err
	}
	return d.Store.Operator(ctx, id)
}

// standings is what a store would say, for tests in a bubble of fake time.
type standings struct {
	mu   sync.Mutex
	said map[string]standing
	asks int
	hang bool // nothing is answered until it is not waited for any more
}

type standing struct {
	expires time.Time
	reason  string
	err     error
}

func (s *standings) check(ctx context.Context, p Principal) (time.Time, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks++
	if s.hang {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return time.Time{}, reasonUnknown, ctx.Err()
	}
	got := s.said[p.TokenID]
	return got.expires, got.reason, got.err
}

func (s *standings) set(hang bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hang = hang
}

func (s *standings) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asks
}

func (s *standings) say(token string, what standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said[token] = what
}

// bubble runs connections in fake time.
func bubble(t *testing.T, test func(t *testing.T, c *connections, s *standings)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &standings{said: map[string]standing{}}
		c := newConnections(time.Now, time.Hour, s.check)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.run(ctx) })
		test(t, c, s)
		stop()
		running.Wait()
	})
}

// opened is a connection in a bubble, and when it was cut.
type opened struct {
	mu  sync.Mutex
	cut time.Time
}

func open(c *connections, token string, expires time.Time) *opened {
	o := &opened{}
	c.hold(Principal{Kind: KindAgent, ID: "a", TokenID: token, ExpiresAt: expires}, func(error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.cut = time.Now()
	})
	return o
}

func (o *opened) at() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cut
}

func TestWhatIsOpenEndsWhenItsKeyExpires(t *testing.T) {
	bubble(t, func(t *testing.T, c *connections, _ *standings) {
		start := time.Now()
		late := open(c, "late", start.Add(10*time.Minute))
		synctest.Wait() // the goroutine has looked at the first one before the earlier ones come
		early := open(c, "early", start.Add(time.Minute))
		same := open(c, "same", start.Add(time.Minute))
		never := open(c, "never", time.Time{})
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		if !early.at().IsZero() {
			t.Error("cut too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !early.at().Equal(start.Add(time.Minute)) || !same.at().Equal(start.Add(time.Minute)) || !late.at().IsZero() {
			t.Errorf("cut at %v, %v, %v", early.at().Sub(start), same.at().Sub(start), late.at())
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if !late.at().Equal(start.Add(10*time.Minute)) || !never.at().IsZero() || c.count() != 1 {
			t.Errorf("cut at %v, never: %v, %d open", late.at().Sub(start), never.at(), c.count())
		}
	})
}

// A store that does not answer is asked again, with one question at a time, and what ends meanwhile does not wait for it.
func TestWhatExpiresDoesNotWaitForTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, c *connections, s *standings) {
		start := time.Now()
		short := open(c, "short", start.Add(time.Hour+time.Second))
		others := []*opened{open(c, "a", time.Time{}), open(c, "b", time.Time{}), open(c, "c", time.Time{})}
		s.set(true)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if got := short.at().Sub(start); got != time.Hour+time.Second {
			t.Errorf("cut after %v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := s.asked(); n != 1 {
			t.Errorf("a store that does not answer was asked %d times in a row", n)
		}
		s.set(false)
		s.say("a", standing{reason: reasonRevoked})
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := s.asked(); n != 4 || others[0].at().IsZero() || !others[1].at().IsZero() || !others[2].at().IsZero() {
			t.Errorf("the store answers again: asked %d times, cut at %v, %v, %v", n, others[0].at(), others[1].at(), others[2].at())
		}
	})
}

func TestKeyThatHasExpiredEndsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, c *connections, _ *standings) {
		o := open(c, "old", time.Now().Add(-time.Hour))
		synctest.Wait()
		if !o.at().Equal(time.Now()) {
			t.Errorf("cut at %v", o.at())
		}
	})
}

func TestLifeIsOnlyShortened(t *testing.T) {
	bubble(t, func(t *testing.T, c *connections, _ *standings) {
		start := time.Now()
		forever, short := open(c, "a", time.Time{}), open(c, "b", start.Add(time.Minute))
		synctest.Wait()
		c.expire("a", start.Add(2*time.Minute))
		c.expire("a", start.Add(time.Hour))
		c.expire("a", time.Time{})
		c.expire("b", start.Add(time.Hour))
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if got := forever.at().Sub(start); got != 2*time.Minute {
			t.Errorf("a was cut after %v", got)
		}
		if got := short.at().Sub(start); got != time.Minute {
			t.Errorf("b was cut after %v", got)
		}
	})
}

func TestLifeThatIsShortenedEndsInTime(t *testing.T) {
	bubble(t, func(t *testing.T, c *connections, _ *standings) {
		start := time.Now()
		only := open(c, "a", time.Time{})
		synctest.Wait() // the goroutine has seen that there is nothing to wait for
		c.expire("a", start.Add(2*time.Minute))
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if got := only.at().Sub(start); got != 2*time.Minute {
			t.Errorf("cut after %v", got)
		}
	})
}

// Another process has revoked a key or shortened its life: seen at the next comparison, with one question for a key.
func TestRevocationElsewhereIsSeen(t *testing.T) {
	bubble(t, func(t *testing.T, c *connections, s *standings) {
		start := time.Now()
		revoked, twin := open(c, "revoked", time.Time{}), open(c, "revoked", time.Time{})
		shortened, unknown := open(c, "shortened", time.Time{}), open(c, "unknown", time.Time{})
		s.say("revoked", standing{reason: reasonRevoked})
		s.say("shortened", standing{expires: start.Add(90 * time.Minute)})
		s.say("unknown", standing{err: errPlanted, reason: reasonUnknown})
		time.Sleep(time.Hour - time.Nanosecond)
		synctest.Wait()
		if n := s.asked(); n != 0 {
			t.Errorf("asked %d times before the time", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !revoked.at().Equal(start.Add(time.Hour)) || !twin.at().Equal(start.Add(time.Hour)) || s.asked() != 3 {
			t.Errorf("cut at %v, %v, with %d questions", revoked.at(), twin.at(), s.asked())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := shortened.at().Sub(start); got != 90*time.Minute {
			t.Errorf("shortened: cut after %v", got)
		}
		if !unknown.at().IsZero() || c.count() != 1 {
			t.Error("a store that does not answer has cut a connection")
		}
	})
}

// The same through a Service: two processes over one database.
func TestRevocationByAnotherProcessCuts(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.Recheck = time.Second; o.Now = time.Now })
	other, err := Open(t.Context(), w.o)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, _, bot := w.agent("acme", "bot")
	h := w.hold(bot)
	if err := other.RevokeAgent(t.Context(), admin, "acme", "bot"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.ctx.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("not cut")
	}
	if !h.cut() {
		t.Errorf("cut with the cause %v", context.Cause(h.ctx))
	}
}

// One that does not look for an hour looks when it is told to, and only then.
func TestRevocationByAnotherProcessCutsWhenThisOneIsToldToLook(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.Recheck = time.Hour; o.Now = time.Now })
	other, err := Open(t.Context(), w.o)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, _, bot := w.agent("acme", "bot")
	_, _, stays := w.agent("acme", "stays")
	h, still := w.hold(bot), w.hold(stays)
	if err := other.RevokeAgent(t.Context(), admin, "acme", "bot"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if h.ctx.Err() != nil {
		t.Fatal("it is cut before anybody was told to look, so this shows nothing")
	}
	w.Look()
	select {
	case <-h.ctx.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("not cut")
	}
	if !h.cut() || still.ctx.Err() != nil {
		t.Errorf("cut with the cause %v; the other one: %v", context.Cause(h.ctx), still.ctx.Err())
	}
}

func TestRotationEndsWhatIsOpenAfterTheOverlap(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.Now, o.Recheck = time.Now, time.Hour }) // so no comparison helps
	_, _, bot := w.agent("acme", "bot")
	h := w.hold(bot)
	second, _, err := w.RotateToken(t.Context(), admin, "acme", "bot", time.Hour, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	fresh := w.hold(w.mustBe(second))
	select {
	case <-h.ctx.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("not cut")
	}
	if fresh.cut() || !h.cut() {
		t.Error("the wrong one was cut")
	}
}

// A key that is to expire by the store, and not by what its principal was told when it came.
func TestHoldLearnsWhenTheKeyExpires(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.Now, o.Recheck = time.Now, time.Hour })
	_, _, bot := w.agent("acme", "bot")
	if err := w.o.Store.ExpireToken(t.Context(), bot.TokenID, w.now().Add(50*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	h := w.hold(bot)
	select {
	case <-h.ctx.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("not cut")
	}
}

// Connections of one agent, and of one tenant, leave room for others, and an admin of all tenants always gets in.
func TestNobodyKeepsEverythingOpen(t *testing.T) {
	w := newFixture(t)
	_, _, bot := w.agent("acme", "bot")
	_, _, twin := w.agent("acme", "twin")
	_, _, ann := w.operator("acme", RoleAdmin)
	_, _, spy := w.agent("rival", "spy")
	var releases []func()
	open := func(p Principal, limit int) (n int) {
		for ; n < limit; n++ {
			release, err := w.Enter(t.Context(), p, func(error) {})
			if err != nil {
				if problem.CodeOf(err) != problem.RateLimited {
					t.Fatal(err)
				}
				break
			}
			releases = append(releases, release)
		}
		return n
	}
	const tenant = maxOpen * 8 / 10
	if n := open(bot, maxOpen); n != tenant*8/10 {
		t.Errorf("an agent keeps %d open", n)
	}
	if n := open(twin, 10); n != 10 {
		t.Errorf("another agent of its tenant keeps %d open", n)
	}
	if n := open(ann, maxOpen); n != tenant-tenant*8/10-10 {
		t.Errorf("people of the tenant keep %d open", n)
	}
	if n := open(spy, maxOpen); n != maxOpen-tenant {
		t.Errorf("another tenant keeps %d open", n)
	}
	if n := open(admin, 3); n != 3 {
		t.Error("an admin of all tenants is kept out")
	}
	if held := w.Held(quota.Holder{Tenant: "acme"}); len(held) != 1 || held[0].Held.Tenant != tenant || held[0].Held.All != maxOpen+3 {
		t.Errorf("%+v", held)
	}
	for _, release := range releases {
		release()
		release()
	}
	if _, err := w.Enter(t.Context(), Principal{Kind: KindAgent, ID: "nobody", Tenant: "acme", TokenID: "tok_x"}, func(error) {}); problem.CodeOf(err) != problem.Unauthorized {
		t.Error(err)
	}
	if held := w.Held(quota.Holder{Tenant: "acme"}); held[0].Held.All != 0 || w.Open() != 0 {
		t.Errorf("after the end %+v", held)
	}
}

func TestCloseEndsNothing(t *testing.T) {
	w := newFixture(t)
	_, _, bot := w.agent("acme", "bot")
	h := w.hold(bot)
	w.Close()
	if h.ctx.Err() != nil {
		t.Error("closing has cut a connection of somebody's")
	}
}

// slow is a store that takes until it is let go to say who an operator is.
type slow struct {
	Store
	entered, letGo chan struct{}
	asked          atomic.Int32
}

func (s *slow) CreateTenant(context.Context, store.Tenant) error { return store.ErrExists }

func (s *slow) ListTenants(context.Context) ([]store.Tenant, error) {
	return []store.Tenant{{ID: store.DefaultTenant}}, nil
}

func (s *slow) Operator(_ context.Context, id string) (store.Operator, error) {
	if s.asked.Add(1) > 1 { // the first question is WatchValidity's
		close(s.entered)
		<-s.letGo
	}
	return store.Operator{ID: id}, nil
}

func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &slow{entered: make(chan struct{}), letGo: make(chan struct{})}
		s, err := Open(t.Context(), Options{
			Store: db, Now: time.Now, Audit: new(audittest.Log), Recheck: time.Minute, RateLimit: DefaultRateLimit(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.WatchValidity(t.Context(), Principal{Kind: KindOperator, ID: "op_1", TokenID: "op_1"}, func(error) {}); err != nil {
			t.Fatal(err)
		}
		<-db.entered // a minute later
		var closed atomic.Bool
		go func() {
			s.Close()
			closed.Store(true)
		}()
		synctest.Wait()
		if closed.Load() {
			t.Error("Close returns while the store is still asked")
		}
		close(db.letGo)
		synctest.Wait()
		if !closed.Load() {
			t.Error("Close does not return")
		}
	})
}

func TestWhatAJailHoldsEndsWithItsAgentAndNotWithAToken(t *testing.T) {
	w := newFixture(t, func(o *Options) { o.Recheck = time.Second; o.Now = time.Now })
	_, _, one := w.agent("acme", "one")
	_, _, two := w.agent("acme", "two")
	a, b := w.hold(OfJail(one.ID, "acme")), w.hold(OfJail(two.ID, "acme"))
	if err := w.RevokeToken(t.Context(), admin, "acme", "one", one.TokenID); err != nil {
		t.Fatal(err)
	}
	w.connections.compare(t.Context())
	if a.cut() || b.cut() {
		t.Error("a jail that shows no token ended with one")
	}
	if err := w.RevokeAgent(t.Context(), admin, "acme", "one"); err != nil {
		t.Fatal(err)
	}
	w.connections.compare(t.Context())
	if !a.cut() || b.cut() {
		t.Errorf("cut: %v, the other agent's: %v", a.cut(), b.cut())
	}
	if _, err := w.WatchValidity(t.Context(), OfJail(one.ID, "acme"), func(error) {}); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("held for a revoked agent: %v", err)
	}
	if _, err := w.WatchValidity(t.Context(), OfJail("nobody", "acme"), func(error) {}); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("held for nobody: %v", err)
	}
	a.release()
	b.release()
}
