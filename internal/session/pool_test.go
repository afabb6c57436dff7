package session

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func warm(n int) func(*Options) {
	return func(o *Options) { o.WarmPool.Size = n }
}

func TestWarmBrowserIsGivenWithoutMakingOne(t *testing.T) {
	inBubble(t, warm(2), func(t *testing.T, w *fixture, svc *Service) {
		if st := svc.Status(); st.WarmReady != 2 || st.WarmSize != 2 {
			t.Fatalf("the pool is %+v", st)
		}
		for name, j := range w.all() {
			if w.knownAs(j.addr).Session != "" || w.isOpen(j) {
				t.Errorf("%s may use the gateway before anybody has it", name)
			}
		}
		time.Sleep(templateAge) // nothing is remembered of the template any more
		made := w.count("create")
		release := w.holding("template") // the host daemon is asked for nothing but admission
		out := mustOpen(t, svc, OpenRequest{})
		release()
		if !out.Warm || w.count("create") != made {
			t.Errorf("warm is %t, and %d jails were made for it", out.Warm, w.count("create")-made)
		}
		j := w.all()[jail.Name(out.Jail)]
		if who := w.knownAs(j.addr); !w.isOpen(j) || who.Session != out.ID {
			t.Errorf("its jail is admitted as %+v", who)
		}
		synctest.Wait()
		if w.count("create") != made {
			t.Error("the pool takes the processor from the session that has just begun")
		}
		time.Sleep(poolQuiet)
		synctest.Wait()
		if st := svc.Status(); st.WarmReady != 2 || w.count("create") != made+1 {
			t.Errorf("the pool is not filled again: %+v", st)
		}
	})
}

func TestASlowMachineHasWarmBrowsersToo(t *testing.T) {
	for slow, want := range map[pace.Pace]bool{1: false, 3: true} {
		inBubble(t, func(o *Options) { warm(1)(o); atPace(slow)(o) }, func(t *testing.T, w *fixture, svc *Service) {
			release := w.holding("connect")
			mustOpen(t, svc, OpenRequest{}) // of the pool, which makes another
			time.Sleep(2 * connectLimit)
			release()
			synctest.Wait()
			if first := svc.Status().WarmReady == 1 && w.count("create") == 2; first != want {
				t.Errorf("at the pace %v the browser that is made first is in the pool: %t", slow, first)
			}
		})
	}
}

func TestAWarmBrowserIsATenants(t *testing.T) {
	inBubble(t, warm(2), func(t *testing.T, w *fixture, svc *Service) {
		members := func() map[string]int {
			time.Sleep(poolQuiet)
			synctest.Wait()
			out := map[string]int{}
			svc.pool.mu.Lock()
			defer svc.pool.mu.Unlock()
			for _, i := range svc.pool.ready {
				out[i.shape.tenant]++
			}
			return out
		}
		for _, turn := range []struct {
			tenant string
			warm   bool
			then   map[string]int
		}{
			{"a", false, map[string]int{"a": 1, jail.DefaultTenant: 1}},
			{jail.DefaultTenant, true, map[string]int{"a": 1, jail.DefaultTenant: 1}},
			{"a", true, map[string]int{"a": 1, jail.DefaultTenant: 1}},
			{"a", true, map[string]int{"a": 2}},
			{"b", false, map[string]int{"a": 1, "b": 1}},
		} {
			out := mustOpen(t, svc, OpenRequest{Tenant: turn.tenant})
			if spec := w.all()[jail.Name(out.Jail)].spec; out.Warm != turn.warm || spec.Tenant() != turn.tenant {
				t.Errorf("%s gets a browser of %q, warm: %t", turn.tenant, spec.Tenant(), out.Warm)
			}
			if got := members(); !maps.Equal(got, turn.then) {
				t.Errorf("after a session of %s there are %v, want %v", turn.tenant, got, turn.then)
			}
		}
		mustOpen(t, svc, OpenRequest{Tenant: "c", Browser: "full"}) // of a kind that is never warm
		if got := members(); got["c"] != 0 {
			t.Errorf("there are %v", got)
		}
	})
}

func TestWarmBrowserIsUsedOnce(t *testing.T) {
	inBubble(t, warm(1), func(t *testing.T, _ *fixture, svc *Service) {
		seen := map[string]bool{}
		for range 5 {
			out := mustOpen(t, svc, OpenRequest{})
			if seen[out.Jail] {
				t.Fatalf("%s was given twice", out.Jail)
			}
			seen[out.Jail] = true
			if _, err := svc.Close(t.Context(), admin, out.ID); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
	})
}

func TestOtherShapesAreNotWarm(t *testing.T) {
	inBubble(t, warm(1), func(t *testing.T, _ *fixture, svc *Service) {
		for name, r := range map[string]OpenRequest{
			"another build":    {Browser: "full"},
			"another limit":    {Limits: LimitsRequest{Memory: "512MiB"}},
			"another template": {Template: "other"},
		} {
			if out := mustOpen(t, svc, r); out.Warm {
				t.Errorf("%s is warm", name)
			}
		}
		// Neither what it is called nor how long it lives shapes a jail.
		if out := mustOpen(t, svc, OpenRequest{Label: "x", TTL: "1m", Record: RecordOff}); !out.Warm {
			t.Error("the same shape is not warm")
		}
	})
}

func TestOldBrowsersAreReplaced(t *testing.T) {
	inBubble(t, warm(2), func(t *testing.T, w *fixture, svc *Service) {
		first := map[jail.Name]bool{}
		for name := range w.all() {
			first[name] = true
		}
		time.Sleep(svc.WarmPool.MaxAge - time.Nanosecond)
		synctest.Wait()
		if len(w.all()) != 2 || svc.Status().WarmReady != 2 {
			t.Fatal("they were replaced too early")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		for name := range w.all() {
			if first[name] {
				t.Errorf("%s is still there", name)
			}
		}
		if svc.Status().WarmReady != 2 {
			t.Error("the pool is not full again")
		}
	})
}

func TestBrowserThatDiedInThePoolIsReplaced(t *testing.T) {
	inBubble(t, warm(1), func(t *testing.T, w *fixture, svc *Service) {
		var dead string
		for name := range w.all() {
			dead = string(name)
		}
		w.die(dead, jail.Exit{})
		synctest.Wait()
		if jails, _ := w.left(); jails != 0 {
			t.Errorf("%d jails are there", jails)
		}
		time.Sleep(poolPause)
		synctest.Wait()
		if jails, _ := w.left(); jails != 1 || svc.Status().WarmReady != 1 {
			t.Fatalf("%d jails, %+v", jails, svc.Status())
		}
		if out := mustOpen(t, svc, OpenRequest{}); out.Jail == dead || !out.Warm {
			t.Errorf("opened %s, warm %t", out.Jail, out.Warm)
		}
	})
}

func TestWarmBrowserThatCannotBeUsedIsReplacedByAColdOne(t *testing.T) {
	inBubble(t, warm(1), func(t *testing.T, w *fixture, svc *Service) {
		// The browser dies between being taken and being admitted.
		var dead jail.Name
		for name := range w.all() {
			dead = name
		}
		release := w.holding("driver admit")
		opened := make(chan Session)
		go func() { opened <- mustOpen(t, svc, OpenRequest{}) }()
		synctest.Wait()
		w.die(string(dead), jail.Exit{})
		release()
		out := <-opened
		if out.Warm || out.Jail == string(dead) || out.State != StateReady {
			t.Errorf("opened %+v", out)
		}
		if w.has(dead) {
			t.Error("the dead one is still there")
		}
	})
}

func TestAnotherTemplateEmptiesThePool(t *testing.T) {
	inBubble(t, warm(2), func(t *testing.T, w *fixture, svc *Service) {
		old := map[jail.Name]bool{}
		for name := range w.all() {
			old[name] = true
		}
		w.mu.Lock()
		w.digest = "sha256:two"
		w.mu.Unlock()
		time.Sleep(poolCheck)
		synctest.Wait()
		if out := mustOpen(t, svc, OpenRequest{}); old[jail.Name(out.Jail)] {
			t.Error("a session runs in a browser of the old template")
		}
		synctest.Wait()
		for name := range w.all() {
			if old[name] {
				t.Errorf("%s of the old template is still there", name)
			}
		}
	})
}

func TestPoolIsFilledOneAtATimeAndNotBesideAnOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		release := w.holding("create")
		svc, err := New(w.options(warm(3)))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := w.count("create"); n != 1 {
			t.Errorf("%d are made at the same time", n)
		}
		release()
		synctest.Wait()
		release = w.holding("connect")
		cold := make(chan Session)
		go func() { cold <- mustOpen(t, svc, OpenRequest{Browser: "full"}) }()
		synctest.Wait()
		out := mustOpen(t, svc, OpenRequest{}) // leaves a gap in the pool
		synctest.Wait()
		if st := svc.Status(); !out.Warm || st.WarmReady != 2 || w.count("create") != 4 {
			t.Errorf("beside an opening the pool is %+v", st)
		}
		release()
		<-cold
		time.Sleep(poolQuiet)
		synctest.Wait()
		if st := svc.Status(); st.WarmReady != 3 {
			t.Errorf("afterwards it is %+v", st)
		}
		if err := svc.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		w.nothingLeft(t)
	})
}

func TestOpenTakesTheBrowserThatIsBeingMade(t *testing.T) {
	for _, good := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t)
			release := w.holding("connect")
			svc, err := New(w.options(warm(1)))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			opened := make(chan Session)
			go func() { opened <- mustOpen(t, svc, OpenRequest{}) }()
			synctest.Wait()
			if n := w.count("create"); n != 1 {
				t.Errorf("%d jails were made", n)
			}
			if !good {
				w.failOnce("connect", errors.New("no"))
				for name := range w.all() {
					w.die(string(name), jail.Exit{})
				}
			}
			release()
			if out := <-opened; out.Warm != good {
				t.Errorf("warm is %t, want %t", out.Warm, good)
			}
			if err := svc.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			w.nothingLeft(t)
		})
	}
}

func TestCallerWhoLeavesGivesTheBrowserBackToThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		release := w.holding("connect")
		svc, err := New(w.options(warm(1)))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		answer := make(chan error)
		go func() {
			_, err := svc.Open(t.Context(), admin, OpenRequest{})
			answer <- err
		}()
		synctest.Wait()
		for _, r := range must(svc.List(t.Context(), admin, "", false)) {
			if _, err := svc.Close(t.Context(), admin, r.ID); err != nil {
				t.Fatal(err)
			}
		}
		<-answer
		release()
		synctest.Wait()
		if st := svc.Status(); st.WarmReady != 1 || w.count("create") != 1 {
			t.Errorf("the pool is %+v after %d jails", st, w.count("create"))
		}
		if err := svc.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		w.nothingLeft(t)
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// In the pool nobody would end a browser that comes after it was emptied.
func TestABrowserThatComesWhenItsCallerLeavesIsTheCallers(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	for range 50 { // of two things that have happened, one is seen by chance
		i := &instance{}
		m := &making{key: "key", result: make(chan *instance, 1)}
		p := &pool{making: m}
		if p.await(gone, "key") != nil || m.claimed {
			t.Fatal("before it comes the caller has it, or keeps it from others")
		}
		m.result <- i
		if p.await(gone, "key") != i || len(p.ready) > 0 {
			t.Fatal("it is the pool's")
		}
	}
}

func TestPoolThatCannotBeFilledTriesLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.failing("create", errors.New("no runtime"))
		svc, err := New(w.options(warm(2)))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := w.count("create"); n < 8 || n > 20 {
			t.Errorf("%d tries in ten minutes", n)
		}
		w.failing("create", nil)
		time.Sleep(maxPoolPause)
		synctest.Wait()
		if st := svc.Status(); st.WarmReady != 2 {
			t.Errorf("when it works again the pool is %+v", st)
		}
		if err := svc.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		w.nothingLeft(t)
	})
}

// Before the first template is built every look at it fails, which nobody needs to read once a minute.
func TestPoolSaysOnceThatItsTemplateIsMissing(t *testing.T) {
	said := func(cause error) int {
		var log bytes.Buffer
		synctest.Test(t, func(t *testing.T) {
			w := newFixture(t)
			w.failing("template", cause)
			svc, err := New(w.options(func(o *Options) {
				warm(1)(o)
				o.Log = slog.New(slog.NewTextHandler(&log, nil))
			}))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Minute)
			w.failing("template", nil)
			time.Sleep(2 * poolCheck)
			synctest.Wait()
			if st := svc.Status(); st.WarmReady != 1 {
				t.Errorf("when there is one the pool is %+v", st)
			}
			if err := svc.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
		return strings.Count(log.String(), "warm pool")
	}
	if n := said(problem.New(problem.TemplateMissing, "build it", "there is no template")); n != 1 {
		t.Errorf("that it is missing was said %d times in ten minutes", n)
	}
	if n := said(errors.New("no answer")); n < 8 {
		t.Errorf("another failure was said %d times in ten minutes", n)
	}
}

// A browser that answers and crashes is no reason to start browsers as fast as the machine can.
func TestBrowsersThatKeepDyingAreMadeLessAndLess(t *testing.T) {
	inBubble(t, warm(1), func(t *testing.T, w *fixture, svc *Service) {
		made := w.count("create")
		for range 600 {
			var alive []string
			for name, j := range w.all() {
				select {
				case <-j.browser.done:
				default:
					alive = append(alive, string(name))
				}
			}
			for _, name := range alive {
				w.die(name, jail.Exit{})
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if n := w.count("create") - made; n < 8 || n > 20 {
			t.Errorf("%d were made in ten minutes", n)
		}
	})
}

func TestDeadBrowserIsNotGivenToAnybody(t *testing.T) {
	inBubble(t, warm(2), func(t *testing.T, w *fixture, svc *Service) {
		svc.pool.mu.Lock()
		oldest := svc.pool.ready[0]
		svc.pool.mu.Unlock()
		w.die(string(oldest.name()), jail.Exit{})
		if out := mustOpen(t, svc, OpenRequest{}); !out.Warm || out.Jail == string(oldest.name()) {
			t.Errorf("opened %s, warm %t", out.Jail, out.Warm)
		}
	})
}
