package agents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

// expected is what an agent must come to be.
type expected struct {
	declared, stopped bool
	script, token     string
}

// machine is a Keeper and what is expected of it, through any order of calls, of programs that end and of host daemons that
// are killed at any operation.
type machine struct {
	*fixture
	t     *rapid.T
	names []string
	want  map[string]expected
	calls int
	// fuse counts down with every operation on the host; the process is killed at zero.
	fuse atomic.Int64
}

func newMachine(t *rapid.T) *machine {
	dir, err := os.MkdirTemp("", "keeper")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, names: []string{"a", "b"}, want: map[string]expected{},
		fixture: &fixture{t: t, dir: dir, host: jailtest.NewHost(), boot: "first", log: &testenv.Buffer{}}}
	m.before = func(string) error {
		if m.fuse.Add(-1) == 0 {
			m.memory.Crash()
		}
		return nil
	}
	m.fixture.start()
	return m
}

func (m *machine) end() {
	m.finish()
	_ = os.RemoveAll(m.dir)
}

// do makes a call. next is what is expected when it succeeds; when it is cut off, it is that or what was before.
func (m *machine) do(name string, next expected, call func(context.Context) error) {
	lit := rapid.IntRange(0, 3).Draw(m.t, "cut off") == 0
	if lit {
		m.fuse.Store(int64(rapid.IntRange(1, 25).Draw(m.t, "at operation")))
	} else {
		m.fuse.Store(-1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := call(ctx)
	m.fuse.Store(-1)
	if !lit {
		if err != nil {
			m.t.Fatalf("%s: %v", name, err)
		}
		m.want[name] = next
		return
	}
	m.stop(true)
	m.fixture.start()
	m.agree(name, next)
}

// agree takes over what became of a call that was cut off: all of it, or nothing.
func (m *machine) agree(name string, next expected) {
	before := m.want[name]
	s := m.status(name)
	got := expected{declared: s.Phase != "", stopped: s.Stopped}
	if got.declared {
		got.script = s.Spec.Program.Argv[2]
		data, err := os.ReadFile(filepath.Join(m.dir, "agents", name+".token"))
		if err != nil {
			m.t.Fatal(err)
		}
		got.token = string(data)
	}
	dropping := before.declared && !next.declared
	switch {
	case dropping: // it is begun, and goes on by itself
		m.await(func() bool { return m.status(name).Phase == "" || m.status(name).Phase == jail.PhaseRunning })
		if m.status(name).Phase == "" {
			got = next
		}
	case !got.declared && !before.declared:
		got = before
	}
	// The token is replaced before what else is declared.
	renewed := before
	renewed.token = next.token
	if got != before && got != next && got != renewed {
		m.t.Fatalf("%s was %+v, was to be %+v, and is %+v", name, before, next, got)
	}
	m.want[name] = got
}

func (m *machine) await(is func() bool) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if is() {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// check waits until everything is as it must be.
func (m *machine) check() {
	for _, name := range m.names {
		w := m.want[name]
		var why error
		if !m.await(func() bool { why = m.wrong(name, w); return why == nil }) {
			m.t.Fatalf("agent %s: %v\nwanted %+v\nlog:\n%s", name, why, w, m.log)
		}
	}
}

func (m *machine) wrong(name string, w expected) error {
	s, there := m.status(name), m.jails(name)
	switch {
	case !w.declared && s.Phase != "":
		return fmt.Errorf("it is %s, and was dropped", s.Phase)
	case !w.declared || w.stopped:
		if len(there) > 0 || s.Jail != "" {
			return fmt.Errorf("it has the jails %v", there)
		}
		return nil
	case s.Phase != jail.PhaseRunning || !slices.Equal(there, []jail.Name{s.Jail}) || !m.host.Runs(s.Jail):
		return fmt.Errorf("it is %s in jail %s, and has the jails %v (%s)", s.Phase, s.Jail, there, s.Problem)
	case s.Spec.Program.Argv[2] != w.script:
		return errors.New("it runs something else")
	}
	if got, ok := m.host.Token(s.Jail); !ok || got != w.token {
		return fmt.Errorf("its jail has the token %q", got)
	}
	if has, err := m.k.HasToken(context.Background(), "default", name); !has || err != nil {
		return fmt.Errorf("has token: %v, %v", has, err)
	}
	return nil
}

// Whatever is called, ends and is killed, in whatever order: there comes to be one jail of each agent that is declared and
// not stopped, with its token, and none of the others.
func TestWhatIsDeclaredComesToBe(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		defer m.end()
		for range rapid.IntRange(1, 7).Draw(t, "steps") {
			name := rapid.SampledFrom(m.names).Draw(t, "agent")
			w := m.want[name]
			m.calls++
			switch rapid.SampledFrom([]string{"keep", "keep", "keep", "drop", "restart", "token", "program", "kill", "stop"}).Draw(t, "action") {
			case "keep":
				next := expected{declared: true, token: w.token, stopped: rapid.IntRange(0, 3).Draw(t, "stopped") == 0,
					script: fmt.Sprintf("exec sleep 10%d", rapid.IntRange(0, 2).Draw(t, "version"))}
				sent := ""
				if !w.declared || rapid.Bool().Draw(t, "new token") {
					sent = fmt.Sprintf("token%d", m.calls)
					next.token = sent
				}
				k := kept(name, next.script)
				k.Stopped = next.stopped
				m.do(name, next, func(ctx context.Context) error { return m.k.Keep(ctx, k, sent) })
			case "drop":
				m.do(name, expected{}, func(ctx context.Context) error { return m.k.Drop(ctx, "default", name, jail.DropOptions{}) })
			case "restart":
				if w.declared && !w.stopped {
					m.do(name, w, func(ctx context.Context) error { return m.k.RestartKept(ctx, "default", name) })
				}
			case "token":
				if w.declared {
					next := w
					next.token = fmt.Sprintf("token%d", m.calls)
					m.do(name, next, func(ctx context.Context) error { return m.k.SetToken(ctx, "default", name, next.token) })
				}
			case "program":
				if s := m.status(name); s.Jail != "" {
					_ = m.memory.Options().Parts.Runtime.Kill(context.Background(), s.Jail, jail.Process{}) // it may have ended
				}
			case "kill":
				m.stop(true)
				m.fixture.start()
			case "stop":
				m.stop(false)
				m.fixture.start()
			}
			if rapid.Bool().Draw(t, "look") {
				m.check()
			}
		}
		m.check()
	})
}
