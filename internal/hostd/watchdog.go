package hostd

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// watchEvery is the pause between two looks at all templates.
	watchEvery = time.Minute
	// watchShare makes the pause longer on a machine with many or slow files: a look takes at most one part in so many of
	// the time.
	watchShare = 1000
	// watchRarely is the longest pause.
	watchRarely = 10 * time.Minute
)

// watchdog keeps jails from being made of a template that was changed: it looks at every template when the host daemon
// starts and then again and again. Jails that exist are left alone: what they are made of was right when they were made.
type watchdog struct {
	list   func(ctx context.Context) ([]Template, error)
	verify func(ctx context.Context, name string) error
	log    *slog.Logger

	mu  sync.Mutex
	bad map[string]error
}

// run looks at the templates until the context ends.
func (w *watchdog) run(ctx context.Context) {
	for {
		began := time.Now()
		w.lookAtAll(ctx)
		select {
		case <-time.After(pauseAfter(time.Since(began))):
		case <-ctx.Done():
			return
		}
	}
}

// pauseAfter is the pause after a look that took so long.
func pauseAfter(took time.Duration) time.Duration {
	return min(max(watchEvery, watchShare*took), watchRarely)
}

func (w *watchdog) lookAtAll(ctx context.Context) {
	all, err := w.list(ctx)
	if err != nil && ctx.Err() == nil {
		w.log.Error("list the templates", "error", err)
	}
	for _, t := range all {
		if ctx.Err() != nil {
			return
		}
		_ = w.look(ctx, t.Name) // it has been logged, and is remembered
	}
}

// look verifies one template and remembers the outcome.
func (w *watchdog) look(ctx context.Context, name string) error {
	err := w.verify(ctx, name)
	if ctx.Err() != nil {
		return ctx.Err() // which says nothing about the template
	}
	w.mu.Lock()
	was := w.bad[name]
	if err != nil {
		w.bad[name] = err
	} else {
		delete(w.bad, name)
	}
	w.mu.Unlock()
	switch {
	case err != nil && was == nil:
		w.log.Error("a template is not as it was built; no jails are made of it", "template", name, "error", err)
	case err == nil && was != nil:
		w.log.Info("a template is good again", "template", name)
	}
	return err
}

// templates are all of them, with what is wrong with each.
func (w *watchdog) templates(ctx context.Context) ([]Template, error) {
	all, err := w.list(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range all {
		if bad := w.bad[all[n].Name]; bad != nil {
			all[n].Problem = bad.Error()
		}
	}
	return all, err
}

// check returns nil when jails may be made of a template. One that was bad is looked at again, so that building it anew
// is enough.
func (w *watchdog) check(ctx context.Context, name string) error {
	w.mu.Lock()
	bad := w.bad[name] != nil
	w.mu.Unlock()
	if !bad {
		return nil
	}
	return w.look(ctx, name)
}

// watching runs a watchdog beside something else.
func (w *watchdog) watching(ctx context.Context, serve func() error) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx) })
	err := serve()
	stop()
	running.Wait()
	return err
}
