package hostd

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestNoJailIsMadeOfATemplateThatWasChangedUntilItIsBuiltAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var state error
		set := func(err error) { mu.Lock(); defer mu.Unlock(); state = err }
		w := &watchdog{
			list:   func(context.Context) ([]Template, error) { return []Template{{Name: "browser"}}, nil },
			verify: func(context.Context, string) error { mu.Lock(); defer mu.Unlock(); return state },
			log:    slog.New(slog.DiscardHandler), bad: map[string]error{},
		}
		err := w.watching(t.Context(), func() error {
			synctest.Wait()
			if err := w.check(t.Context(), "browser"); err != nil {
				t.Errorf("a good template: %v", err)
			}
			changed := errors.New("/bin/sh was changed")
			set(changed)
			time.Sleep(61 * time.Second)
			synctest.Wait()
			if err := w.check(t.Context(), "browser"); !errors.Is(err, changed) {
				t.Errorf("a changed template: %v", err)
			}
			set(nil)
			if err := w.check(t.Context(), "browser"); err != nil { // without waiting for the next look
				t.Errorf("a template that was built anew: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestLooksAtTemplatesTakeAThousandthOfTheTime(t *testing.T) {
	for _, c := range []struct{ took, pause time.Duration }{
		{0, time.Minute},
		{60 * time.Millisecond, time.Minute},
		{200 * time.Millisecond, 200 * time.Second},
		{time.Hour, 10 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			var looks []time.Time
			w := &watchdog{
				list: func(context.Context) ([]Template, error) { return []Template{{Name: "browser"}}, nil },
				verify: func(context.Context, string) error {
					looks = append(looks, time.Now())
					time.Sleep(c.took)
					return nil
				},
				log: slog.New(slog.DiscardHandler), bad: map[string]error{},
			}
			err := w.watching(t.Context(), func() error {
				time.Sleep(2*c.took + c.pause)
				synctest.Wait()
				return nil
			})
			if err != nil || len(looks) != 2 || looks[1].Sub(looks[0]) != c.took+c.pause {
				t.Errorf("looks of %v are at %v, %v; want pauses of %v", c.took, looks, err, c.pause)
			}
		})
	}
}

func TestAnInterruptedLookSaysNothingAboutATemplate(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	w := &watchdog{verify: func(ctx context.Context, _ string) error { stop(); return ctx.Err() },
		log: slog.New(slog.DiscardHandler), bad: map[string]error{}}
	if err := w.look(ctx, "browser"); !errors.Is(err, context.Canceled) || len(w.bad) > 0 {
		t.Fatalf("%v, bad: %v", err, w.bad)
	}
}

func TestATemplateThatWasChangedIsListedWithWhatIsWrong(t *testing.T) {
	var state error
	w := &watchdog{
		list: func(context.Context) ([]Template, error) { return []Template{{Name: "browser"}, {Name: "agent"}}, nil },
		verify: func(_ context.Context, name string) error {
			if name == "browser" {
				return state
			}
			return nil
		},
		log: slog.New(slog.DiscardHandler), bad: map[string]error{},
	}
	for _, wrong := range []string{"", "/bin/sh was changed", ""} {
		state = nil
		if wrong != "" {
			state = errors.New(wrong)
		}
		w.lookAtAll(t.Context())
		all, err := w.templates(t.Context())
		if err != nil || len(all) != 2 || all[0].Problem != wrong || all[1].Problem != "" {
			t.Errorf("%+v, %v; want %q", all, err, wrong)
		}
	}
}
