//go:build linux

package freebsd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// lived makes, admits and destroys one jail, and ignores errors: it is there to pass every step.
func lived(l *jail.Lifecycle, s jail.Spec) {
	ctx := context.Background()
	j, err := l.CreateFor(ctx, "owner", s, func(context.Context, *jail.Jail) error { return nil })
	if err != nil {
		return
	}
	defer j.Stdio.Close()
	_ = l.Admit(ctx, j.Name)
	_ = l.Destroy(ctx, j.Name)
}

// agentSpec is the jail of an agent with everything that can be mounted.
func (w *fixture) agentSpec() jail.Spec {
	s := jailtest.Agents{Template: "tiny"}.Spec("one", jail.Mount{Source: filepath.Join(w.host.Root(), "ws", "one"), Target: jail.WorkspaceDir})
	s.Program.Argv = []string{"/bin/sh", "-c", "exec cat"}
	return s
}

// recovered is a fresh process on a host where one died: after its first reaping there is nothing.
func (w *fixture) recovered(before []string) {
	w.t.Helper()
	later := func(hours time.Duration) func(*jail.Options) {
		return func(o *jail.Options) {
			o.Now = func() time.Time { return time.Now().Add(hours * time.Hour) } // the owner's grace is over
		}
	}
	h := w.open()
	l := w.life(h, later(2))
	if _, err := l.Reap(context.Background(), jail.ReapOptions{}); err != nil {
		w.t.Errorf("reap: %v", err)
	}
	must(w.t, l.RemoveState(context.Background(), jail.Agent{Tenant: "default", Name: "one"}))
	w.same(before)
	if r, err := l.Reap(context.Background(), jail.ReapOptions{}); err != nil || len(r.Findings) > 0 {
		w.t.Errorf("second reap: %+v, %v", r, err)
	}
	if n := h.Network.o.Pool.InUse(); n > 0 {
		w.t.Errorf("%d addresses are still leased", n)
	}
}

// newSteadyFixture has everything that the first start of a driver makes, so that nothing else is new afterwards.
func newSteadyFixture(t *testing.T) (*fixture, []string) {
	w := newFixture(t)
	w.open()
	return w, w.host.Resources()
}

func TestNothingIsLeftWhenTheHostDaemonDiesAtAnyStep(t *testing.T) {
	t.Parallel()
	for _, step := range jail.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			w, before := newSteadyFixture(t)
			reached := false
			var dead sync.WaitGroup
			l := w.life(w.open(), func(o *jail.Options) {
				o.Barrier = func(s jail.Step) {
					if s == step {
						reached = true
						runtime.Goexit() // what is deferred on the way out gives memory back, and does nothing to the host
					}
				}
			})
			dead.Go(func() { lived(l, w.agentSpec()) })
			dead.Wait()
			l.Close() // nor does it watch any more
			if !reached {
				t.Fatal("the step was never reached")
			}
			w.recovered(before)
		})
	}
}

// mortal is a folder of commands that refuse to do anything once so many of them were run.
func (w *fixture) mortal(after int) (run hostcmd.Runner, count func() int) {
	w.t.Helper()
	dir := w.t.TempDir()
	counter := filepath.Join(dir, "counter")
	must(w.t, os.WriteFile(counter, nil, 0o600))
	entries, err := os.ReadDir(w.host.Commands())
	must(w.t, err)
	for _, e := range entries {
		script := fmt.Sprintf("#!/bin/sh\necho %s >>%s\nn=0; while read -r _; do n=$((n + 1)); done <%s\n[ $n -gt %d ] && exit 99\nexec %s/%s \"$@\"\n",
			e.Name(), counter, counter, after, w.host.Commands(), e.Name())
		// A process that another test starts meanwhile would have the file open for writing, and it could not be run.
		syscall.ForkLock.RLock()
		err := os.WriteFile(filepath.Join(dir, e.Name()), []byte(script), 0o755)
		syscall.ForkLock.RUnlock()
		must(w.t, err)
	}
	return hostcmd.Runner{Dir: dir}, func() int {
		text, err := os.ReadFile(counter)
		must(w.t, err)
		return strings.Count(string(text), "\n")
	}
}

func TestNothingIsLeftWhenTheHostDaemonDiesAfterAnyCommand(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves out a death after each of a hundred commands; run `make test`")
	}
	w, before := newSteadyFixture(t)
	run, count := w.mortal(1 << 20)
	h := w.open(func(o *Options) { o.Commands = run })
	opened := count()
	lived(w.life(h), w.agentSpec())
	all := count()
	w.recovered(before)
	if all-opened < 50 {
		t.Fatalf("the life of a jail has only %d commands", all-opened)
	}
	for n := opened; n < all; n += stride() {
		t.Run(fmt.Sprintf("%03d", n), func(t *testing.T) {
			t.Parallel()
			w, before := newSteadyFixture(t)
			run, _ := w.mortal(n)
			l := w.life(w.open(func(o *Options) { o.Commands = run }))
			lived(l, w.agentSpec())
			l.Close()
			w.recovered(before)
		})
	}
}

// stride leaves some of the deaths out: each takes a second.
func stride() int {
	if testenv.IsLong() {
		return 1
	}
	return 9
}
