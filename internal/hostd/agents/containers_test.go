package agents

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
)

// engine makes containers out of the jails of another driver: under other names, and from an image.
type engine struct {
	*jail.Lifecycle
	away  atomic.Bool
	asked atomic.Int64
}

var errAway = errors.New("the engine does not answer")

func inner(n jail.Name) jail.Name { return "a" + n[1:] }
func outer(n jail.Name) jail.Name { return "c" + n[1:] }

func (e *engine) ask() error {
	e.asked.Add(1)
	if e.away.Load() {
		return errAway
	}
	return nil
}

func (e *engine) CreateFor(ctx context.Context, owner string, s jail.Spec, deliver func(context.Context, *jail.Jail) error) (*jail.Jail, error) {
	if err := e.ask(); err != nil {
		return nil, err
	}
	s.Template, s.Image = s.Image, ""
	made, err := e.Lifecycle.CreateFor(ctx, owner, s, func(ctx context.Context, j *jail.Jail) error {
		j.Name = outer(j.Name)
		return deliver(ctx, j)
	})
	if err == nil {
		made.Name = outer(made.Name)
	}
	return made, err
}

func (e *engine) Admit(ctx context.Context, n jail.Name) error {
	return e.Lifecycle.Admit(ctx, inner(n))
}
func (e *engine) Wait(ctx context.Context, n jail.Name) (jail.Exit, error) {
	return e.Lifecycle.Wait(ctx, inner(n))
}
func (e *engine) Token(ctx context.Context, n jail.Name, token []byte) error {
	return e.Lifecycle.Token(ctx, inner(n), token)
}
func (e *engine) Inspect(ctx context.Context, n jail.Name) (jail.Status, error) {
	return e.Lifecycle.Inspect(ctx, inner(n))
}
func (e *engine) Destroy(ctx context.Context, n jail.Name) error {
	if err := e.ask(); err != nil {
		return err
	}
	return e.Lifecycle.Destroy(ctx, inner(n))
}
func (e *engine) List(ctx context.Context) ([]jail.Status, error) {
	if err := e.ask(); err != nil {
		return nil, err
	}
	all, err := e.Lifecycle.List(ctx)
	for i := range all {
		all[i].Name = outer(all[i].Name)
	}
	return all, err
}
func (e *engine) RemoveState(ctx context.Context, a jail.Agent) error {
	if err := e.ask(); err != nil {
		return err
	}
	return e.Lifecycle.RemoveState(ctx, a)
}

// plainJails is a driver that knows nothing of containers: it shares the host with the engine here.
type plainJails struct{ *jail.Lifecycle }

func (plainJails) List(context.Context) ([]jail.Status, error)   { return nil, nil }
func (plainJails) RemoveState(context.Context, jail.Agent) error { return nil }
func withEngine(e *engine) func(*fixture) {
	return func(f *fixture) {
		f.change = func(o *Options) {
			e.Lifecycle = f.life
			o.Maker = func(_ context.Context, containers bool) (jail.Maker, error) {
				if containers {
					return e, nil
				}
				return plainJails{f.life}, nil
			}
		}
	}
}

func container(name, script string) jail.Kept {
	k := kept(name, script)
	k.Spec.Image, k.Spec.Template = "tiny", ""
	return k
}

// An engine that is away when the host daemon comes back is waited for: it may still have the container, and a second one
// must not be made beside it.
func TestContainersAreNotMadeTwiceWhileTheEngineIsAway(t *testing.T) {
	e := &engine{}
	f := newFixture(t, withEngine(e))
	f.keep(t, container("bot", "exec sleep 1000"), token)
	before := f.status("bot")
	if !before.Jail.InContainer() {
		t.Fatalf("it is jail %s", before.Jail)
	}
	f.stop(true)
	e.away.Store(true)
	f.start()
	f.eventually(t, "bot", "failed", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseFailed && s.Problem == errAway.Error() })
	if err := f.k.Drop(t.Context(), "default", "bot", jail.DropOptions{}); !errors.Is(err, errAway) {
		t.Errorf("it was dropped while it may run: %v", err)
	}
	f.stop(true)
	e.away.Store(false)
	if err := os.Remove(f.dir + "/agents/bot.json"); err != nil { // the drop is forgotten,
		t.Fatal(err)
	}
	f.start()
	f.keep(t, container("bot", "exec sleep 1000"), token) // and it is declared again
	s := f.status("bot")
	if got := f.jails("bot"); s.PID == before.PID || !slices.Equal(got, []jail.Name{inner(s.Jail)}) {
		t.Errorf("it is %s of %v, and was %s", s.Jail, got, before.Jail)
	}
}

func TestContainersRunOnWhenTheEngineComesBack(t *testing.T) {
	e := &engine{}
	f := newFixture(t, withEngine(e))
	f.keep(t, container("bot", "exec sleep 1000"), token)
	before := f.status("bot").Jail
	f.stop(true)
	e.away.Store(true)
	f.start()
	f.eventually(t, "bot", "failed", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseFailed })
	e.away.Store(false)
	s := f.eventually(t, "bot", "running", func(s jail.KeptStatus) bool { return s.Phase == jail.PhaseRunning })
	if s.Jail != before || s.Problem != "" {
		t.Errorf("jail %s became %s (%s)", before, s.Jail, s.Problem)
	}
}

// A keeper without containers asks no engine; an agent that had one and has a template now is looked for at both.
func TestTheEngineIsAskedWhenSomebodyNeedsIt(t *testing.T) {
	e := &engine{}
	f := newFixture(t, withEngine(e))
	f.keep(t, kept("plain", "exec sleep 1000"), token)
	if err := f.k.Drop(t.Context(), "default", "plain", jail.DropOptions{KeepState: true}); err != nil {
		t.Fatal(err)
	}
	if err := f.k.Drop(t.Context(), "default", "plain", jail.DropOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := e.asked.Load(); n != 0 {
		t.Errorf("the engine was asked %d times", n)
	}
	f.keep(t, container("bot", "exec sleep 1000"), token)
	if err := f.k.Drop(t.Context(), "default", "bot", jail.DropOptions{KeepState: true}); err != nil || len(f.host.States()) == 0 {
		t.Fatal(err, f.host.States())
	}
	if left, err := f.k.Remains(); err != nil || len(left) != 1 || left["bot"] != jail.MinState {
		t.Errorf("left at the engine are %v (%v)", left, err)
	}
	if err := f.k.Drop(t.Context(), "default", "bot", jail.DropOptions{}); err != nil || slices.Contains(f.host.States(), "bot") {
		t.Errorf("its volume is left: %v, %v", err, f.host.States())
	}
	if left, err := f.k.Remains(); err != nil || len(left) != 0 {
		t.Errorf("left at the engine are %v (%v)", left, err)
	}
}
