package session

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
)

func warm(n int) func(*Options) {
	return func(o *Options) { o.WarmPool.Size = n }
}

func TestWarmBrowserIsGivenWithoutMakingOne(t *testing.T) {
	inBubble(t, warm(2), func(t *testing.T, w *world, s *Service) {
		if st := s.Status(); st.WarmReady != 2 || st.WarmSize != 2 {
			t.Fatalf("the pool is %+v", st)
		}
		for name, j := range w.jails {
			if _, known := w.admitted[j.addr]; known || j.open {
				t.Errorf("%s may use the gateway before anybody has it", name)
			}
		}
		made := w.count("create")
		out := mustOpen(t, s, Request{})
		if !out.Warm || w.count("create") != made {
			t.Errorf("warm is %t, and %d jails were made for it", out.Warm, w.count("create")-made)
		}
		j := w.jails[jail.Name(out.Jail)]
		if who := w.admitted[j.addr]; !j.open || who.Session != out.ID {
			t.Errorf("its jail is admitted as %+v", who)
		}
		synctest.Wait()
		if st := s.Status(); st.WarmReady != 2 || w.count("create") != made+1 {
			t.Errorf("the pool is not filled again: %+v", st)
		}
	})
}

func TestWarmBrowserIsUsedOnce(t *testing.T) {
	inBubble(t, warm(1), func(t *testing.T, _ *world, s *Service) {
		seen := map[string]bool{}
		for range 5 {
			out := mustOpen(t, s, Request{})
			if seen[out.Jail] {
				t.Fatalf("%s was given twice", out.Jail)
			}
			seen[out.Jail] = true
			if _, err := s.Close(t.Context(), out.ID); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
	})
}

func TestOtherShapesAreNotWarm(t *testing.T) {
	inBubble(t, warm(1), func(t *testing.T, _ *world, s *Service) {
		memory := 512 * config.MiB
		for name, r := range map[string]Request{
			"another build":    {Browser: "full"},
			"another limit":    {Limits: LimitOverrides{Memory: &memory}},
			"another template": {Template: "other"},
		} {
			if out := mustOpen(t, s, r); out.Warm {
				t.Errorf("%s is warm", name)
			}
		}
		// Neither what it is called nor how long it lives shapes a jail.
		ttl := time.Minute
		if out := mustOpen(t, s, Request{Label: "x", TTL: &ttl, Record: RecordOff}); !out.Warm {
			t.Error("the same shape is not warm")
		}
	})
}

func TestOldBrowsersAreReplaced(t *testing.T) {
	inBubble(t, warm(2), func(t *testing.T, w *world, s *Service) {
		first := map[jail.Name]bool{}
		for name := range w.jails {
			first[name] = true
		}
		time.Sleep(s.WarmPool.MaxAge - time.Nanosecond)
		synctest.Wait()
		if len(w.jails) != 2 || s.Status().WarmReady != 2 {
			t.Fatal("they were replaced too early")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		for name := range w.jails {
			if first[name] {
				t.Errorf("%s is still there", name)
			}
		}
		if s.Status().WarmReady != 2 {
			t.Error("the pool is not full again")
		}
	})
}

func TestBrowserThatDiedInThePoolIsReplaced(t *testing.T) {
	inBubble(t, warm(1), func(t *testing.T, w *world, s *Service) {
		var dead string
		for name := range w.jails {
			dead = string(name)
		}
		w.die(dead, jail.Exit{})
		synctest.Wait()
		if jails, _ := w.left(); jails != 1 || s.Status().WarmReady != 1 {
			t.Fatalf("%d jails, %+v", jails, s.Status())
		}
		if out := mustOpen(t, s, Request{}); out.Jail == dead || !out.Warm {
			t.Errorf("opened %s, warm %t", out.Jail, out.Warm)
		}
	})
}

func TestWarmBrowserThatCannotBeUsedIsReplacedByAColdOne(t *testing.T) {
	inBubble(t, warm(1), func(t *testing.T, w *world, s *Service) {
		// The browser dies between being taken and being admitted.
		var dead jail.Name
		for name := range w.jails {
			dead = name
		}
		release := w.holding("driver admit")
		opened := make(chan Session)
		go func() { opened <- mustOpen(t, s, Request{}) }()
		synctest.Wait()
		w.die(string(dead), jail.Exit{})
		release()
		out := <-opened
		if out.Warm || out.Jail == string(dead) || out.State != StateReady {
			t.Errorf("opened %+v", out)
		}
		if _, there := w.jails[dead]; there {
			t.Error("the dead one is still there")
		}
	})
}

func TestAnotherTemplateEmptiesThePool(t *testing.T) {
	inBubble(t, warm(2), func(t *testing.T, w *world, s *Service) {
		old := map[jail.Name]bool{}
		for name := range w.jails {
			old[name] = true
		}
		w.mu.Lock()
		w.digest = "sha256:two"
		w.mu.Unlock()
		time.Sleep(templateAge)
		if out := mustOpen(t, s, Request{}); old[jail.Name(out.Jail)] {
			t.Error("a session runs in a browser of the old template")
		}
		synctest.Wait()
		for name := range w.jails {
			if old[name] {
				t.Errorf("%s of the old template is still there", name)
			}
		}
	})
}

func TestPoolIsFilledOneAtATimeAndNotBesideAnOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		release := w.holding("create")
		s, err := New(w.options(warm(3)))
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
		go func() { cold <- mustOpen(t, s, Request{Browser: "full"}) }()
		synctest.Wait()
		out := mustOpen(t, s, Request{}) // leaves a gap in the pool
		synctest.Wait()
		if st := s.Status(); !out.Warm || st.WarmReady != 2 || w.count("create") != 4 {
			t.Errorf("beside an opening the pool is %+v", st)
		}
		release()
		<-cold
		synctest.Wait()
		if st := s.Status(); st.WarmReady != 3 {
			t.Errorf("afterwards it is %+v", st)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		w.nothingLeft(t)
	})
}

func TestOpenTakesTheBrowserThatIsBeingMade(t *testing.T) {
	for _, good := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			release := w.holding("connect")
			s, err := New(w.options(warm(1)))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			opened := make(chan Session)
			go func() { opened <- mustOpen(t, s, Request{}) }()
			synctest.Wait()
			if n := w.count("create"); n != 1 {
				t.Errorf("%d jails were made", n)
			}
			if !good {
				w.failing("connect", errors.New("no"))
				for name := range w.jails {
					w.die(string(name), jail.Exit{})
				}
				go func() { // only that one fails
					for w.count("destroy") == 0 {
						time.Sleep(time.Millisecond)
					}
					w.failing("connect", nil)
				}()
			}
			release()
			if out := <-opened; out.Warm != good {
				t.Errorf("warm is %t, want %t", out.Warm, good)
			}
			if err := s.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			w.nothingLeft(t)
		})
	}
}

func TestCallerWhoLeavesGivesTheBrowserBackToThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		release := w.holding("connect")
		s, err := New(w.options(warm(1)))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		answer := make(chan error)
		go func() {
			_, err := s.Open(t.Context(), Request{})
			answer <- err
		}()
		synctest.Wait()
		for _, r := range must(s.List(t.Context(), false)) {
			if _, err := s.Close(t.Context(), r.ID); err != nil {
				t.Fatal(err)
			}
		}
		<-answer
		release()
		synctest.Wait()
		if st := s.Status(); st.WarmReady != 1 || w.count("create") != 1 {
			t.Errorf("the pool is %+v after %d jails", st, w.count("create"))
		}
		if err := s.Shutdown(t.Context()); err != nil {
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

func TestPoolThatCannotBeFilledTriesLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.failing("create", errors.New("no runtime"))
		s, err := New(w.options(warm(2)))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := w.count("create"); n < 8 || n > 20 {
			t.Errorf("%d tries in ten minutes", n)
		}
		w.failing("create", nil)
		time.Sleep(poolPauseMost)
		synctest.Wait()
		if st := s.Status(); st.WarmReady != 2 {
			t.Errorf("when it works again the pool is %+v", st)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		w.nothingLeft(t)
	})
}
