package agents

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/hostd/stdio"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// tb is what a fixture needs of a test, or of one run of a property.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// fixture is a Keeper above a host in memory, whose programs are real. It can be killed and started again.
type fixture struct {
	t    tb
	dir  string
	host *jailtest.Host
	boot string
	log  *testenv.Buffer

	change func(*Options)
	seen   func(*jail.Observed)
	before func(operation string) error

	memory   *jailtest.Memory
	life     *jail.Lifecycle
	consoles *stdio.Console
	k        *Keeper
}

func newFixture(t *testing.T, change func(*fixture)) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir(), host: jailtest.NewHost(), boot: "first", log: &testenv.Buffer{}}
	if change != nil {
		change(f)
	}
	f.start()
	t.Cleanup(f.finish)
	return f
}

// start is the start of a host daemon.
func (f *fixture) start() {
	f.t.Helper()
	log := slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	f.memory = jailtest.NewMemory(f.host)
	f.memory.Seen, f.memory.Before = f.seen, f.before
	o := f.memory.Options()
	if f.consoles, err = stdio.New(stdio.Options{Installation: o.Installation, Dir: filepath.Join(f.dir, "console"),
		Logs: filepath.Join(f.dir, "logs"), Keep: 1 << 20, Log: log}); err != nil {
		f.t.Fatal(err)
	}
	o.Console, o.Log = f.consoles, log
	if f.life, err = jail.NewLifecycle(context.Background(), o); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.life.Reap(context.Background(), jail.ReapOptions{}); err != nil {
		f.t.Fatal(err)
	}
	ko := Options{Dir: filepath.Join(f.dir, "agents"), Console: f.consoles, Boot: f.boot, Log: log,
		FirstPause: 2 * time.Millisecond, LongestPause: 20 * time.Millisecond, SweepEvery: 20 * time.Millisecond,
		Maker: func(_ context.Context, containers bool) (jail.Maker, error) {
			if containers {
				return nil, errors.New("no containers here")
			}
			return f.life, nil
		}}
	if f.change != nil {
		f.change(&ko)
	}
	if f.k, err = Open(ko); err != nil {
		f.t.Fatal(err)
	}
	f.k.Start()
}

// stop is the end of a host daemon; crash lets nothing that it does take effect any more.
func (f *fixture) stop(crash bool) {
	f.t.Helper()
	if crash {
		f.memory.Crash()
	}
	if err := f.k.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.life.Close()
	if err := f.consoles.Close(); err != nil {
		f.t.Fatal(err)
	}
}

// finish ends everything.
func (f *fixture) finish() {
	f.memory.Before = nil
	f.stop(false)
	f.before, f.change = nil, nil
	f.start()
	all, err := f.life.List(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	_ = f.k.Close() // first, so that it starts nothing again
	for _, st := range all {
		if err := f.life.Destroy(context.Background(), st.Name); err != nil {
			f.t.Errorf("end jail %s: %v", st.Name, err)
		}
	}
	again, err := f.life.List(context.Background())
	if err != nil || len(again) > 0 {
		f.t.Errorf("left: %v, %v", again, err)
	}
	for _, st := range again {
		_ = f.life.Destroy(context.Background(), st.Name)
	}
	f.life.Close()
	_ = f.consoles.Close()
}

// agentSpec is the jail of an agent that runs a shell command.
func agentSpec(name, script string) jail.Spec {
	s := jailtest.Subject{Template: "tiny"}.Spec(script)
	s.Kind, s.Lifetime = jail.KindAgent, jail.LifetimeKeep
	s.Agent = &jail.Agent{Tenant: "default", Name: name, Token: true, State: jail.MinState}
	s.Limits.WallClock = jail.MaxWallClock
	return s
}

func kept(name, script string) jail.Kept {
	return jail.Kept{Spec: agentSpec(name, script), Restart: jail.RestartAlways, Revision: "1"}
}

// status is how one agent stands.
func (f *fixture) status(name string) jail.KeptStatus {
	f.t.Helper()
	_, all, err := f.k.Kept(context.Background(), 0, false)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, s := range all {
		if s.Spec.Agent.Name == name {
			return s
		}
	}
	return jail.KeptStatus{}
}

// eventually waits for a status.
func (f *fixture) eventually(t *testing.T, name string, what string, is func(jail.KeptStatus) bool) jail.KeptStatus {
	t.Helper()
	var s jail.KeptStatus
	testenv.Eventually(t, patience, func() bool { s = f.status(name); return is(s) }, "the agent %s does not come to be %s", name, what)
	return s
}

// jails lists the jails of an agent on the host.
func (f *fixture) jails(name string) (out []jail.Name) {
	f.t.Helper()
	all, err := f.life.List(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, st := range all {
		if st.Spec.Agent != nil && st.Spec.Agent.Name == name {
			out = append(out, st.Name)
		}
	}
	return out
}

func (f *fixture) keep(t *testing.T, k jail.Kept, token string) {
	t.Helper()
	if err := f.k.Keep(t.Context(), k, token); err != nil {
		t.Fatalf("keep: %v", err)
	}
}

func (f *fixture) readLog(t *testing.T, name string) string {
	t.Helper()
	c, err := f.k.ReadLog(t.Context(), jail.LogRequest{Tenant: "default", Name: name, Stream: jail.Stdout})
	if err != nil {
		t.Fatal(err)
	}
	return string(c.Data)
}

// grep looks for a text in every file below a folder, and says in which.
func grep(t *testing.T, dir, text string) (in []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), text) {
			in = append(in, filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return in
}
