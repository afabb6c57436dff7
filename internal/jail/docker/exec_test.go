//go:build linux

package docker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// pipes are the stdio of an execution: what the program has, and what the caller has.
func pipes(t *testing.T) (theirs [3]*os.File, ours *jail.Stdio) {
	t.Helper()
	var errs [3]error
	ours = &jail.Stdio{}
	theirs[0], ours.In, errs[0] = os.Pipe()
	ours.Out, theirs[1], errs[1] = os.Pipe()
	ours.Err, theirs[2], errs[2] = os.Pipe()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(ours.Close)
	return theirs, ours
}

func (h *host) exec(t *testing.T, name jail.Name, script string) (jail.Execution, *jail.Stdio) {
	t.Helper()
	theirs, ours := pipes(t)
	x, err := h.Exec(t.Context(), name, jail.Program{Argv: []string{"/bin/sh", "-c", script}, Wire: jail.WireStdio,
		Env: map[string]string{"GREETING": "it's $HOME"}}, theirs)
	closeAll(theirs)
	if err != nil {
		t.Fatal(err)
	}
	return x, ours
}

func TestAnExecutionHasItsStdioAndEndsWithEverythingItStarted(t *testing.T) {
	h := newHost(t)
	j, p := h.probe(t)
	x, io1 := h.exec(t, j.Name, `echo "$GREETING" >&2; while read -r l; do echo "$l"; done; exit 9`)
	payload := strings.Repeat("{\"b\":2}\n", 20_000)
	go func() {
		_, _ = io.WriteString(io1.In, payload) // a failure shows as a short read
		_ = io1.In.Close()
	}()
	text, err := io.ReadAll(io1.Out)
	if err != nil || string(text) != payload {
		t.Errorf("stdout has %d bytes, want %d, %v", len(text), len(payload), err)
	}
	if text, err := io.ReadAll(io1.Err); err != nil || string(text) != "it's $HOME\n" {
		t.Errorf("stderr is %q, %v", text, err)
	}
	if exit, err := x.Wait(t.Context()); err != nil || exit.Code != 9 {
		t.Errorf("exit is %+v, %v", exit, err)
	}

	before := tasks(t, h, j.Name)
	// A child in a session of its own, whose parent is gone, and which has closed its stdio.
	x, io2 := h.exec(t, j.Name, `(/bin/probe setsid /bin/sh -c 'exec >/dev/null 2>&1 </dev/null; while :; do /bin/probe sleep; done' &) ; echo ready; while :; do /bin/probe sleep; done`)
	line := make([]byte, 6)
	if _, err := io.ReadFull(io2.Out, line); err != nil || string(line) != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return tasks(t, h, j.Name) > before+1 }, "the children do not start")
	if err := x.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return tasks(t, h, j.Name) <= before }, "something that it started is left: %d tasks, %d before", tasks(t, h, j.Name), before)
	if exit, err := x.Wait(t.Context()); err != nil || exit.Signal == "" {
		t.Errorf("exit is %+v, %v", exit, err)
	}
	if a := p.Ask("echo", "alive"); !a.OK {
		t.Error("the container itself was touched")
	}
	if left := h.fences(t, j.Name); len(left) > 0 {
		t.Errorf("control groups are left: %v", left)
	}
}

// fences are those of a container that runs.
func (h *host) fences(t *testing.T, name jail.Name) []*fence {
	t.Helper()
	r, err := h.Running(name)
	if err != nil {
		t.Fatal(err)
	}
	list, err := fences(r.Process)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// tasks counts the processes that run in a container.
func tasks(t *testing.T, h *host, name jail.Name) int {
	t.Helper()
	st, err := h.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", st.PID))
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range all {
		// One that has ended and that nobody has collected counts.
		if ns, err := os.Readlink("/proc/" + p.Name() + "/ns/pid"); err == nil && ns == own {
			n++
		}
	}
	return n
}

func TestWhatAnExecutionLeavesIsEndedWithIt(t *testing.T) {
	h := newHost(t)
	j, _ := h.probe(t)
	before := tasks(t, h, j.Name)
	x, _ := h.exec(t, j.Name, `(while :; do /bin/probe sleep; done) & exit 0`)
	if exit, err := x.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("exit is %+v, %v", exit, err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return tasks(t, h, j.Name) <= before }, "something that it left runs, or was not collected")
}

// Programs that a host daemon had started before it ended are ended by the next one.
func TestExecutionsOfAnEarlierProcessAreEnded(t *testing.T) {
	h := newHost(t)
	j, err := h.Create(t.Context(), shell(jail.LifetimeKeep, `while :; do /bin/probe sleep; done`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { h.destroy(t, j.Name) }()
	const before = 3 // the first process, the shell, and what it waits for
	testenv.Eventually(t, 5*time.Second, func() bool { return tasks(t, h, j.Name) == before }, "the container does not come to rest")
	_, _ = h.exec(t, j.Name, `while :; do /bin/probe sleep; done`)
	testenv.Eventually(t, 5*time.Second, func() bool { return tasks(t, h, j.Name) > before }, "it does not start")
	first := h.Driver
	h.open(t) // the first one has not ended it, as if it had been killed
	testenv.Eventually(t, 5*time.Second, func() bool { return tasks(t, h, j.Name) <= before }, "it runs on")
	if err := first.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAnExecutionIsAsConfinedAsItsContainer(t *testing.T) {
	h := newHost(t)
	j, _ := h.probe(t)
	x, s := h.exec(t, j.Name, `/bin/probe within 2>/dev/null; while read -r k v; do case $k in CapEff:|CapBnd:|NoNewPrivs:|Seccomp:|Uid:) echo $k $v;; esac; done </proc/self/status; echo x 2>/dev/null >/etc/x || echo refused`)
	text, err := io.ReadAll(s.Out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapEff: 0000000000000000", "CapBnd: 0000000000000000", "NoNewPrivs: 1", "Seccomp: 2", "Uid: 1000 1000 1000 1000", "refused"} {
		if !strings.Contains(strings.ReplaceAll(string(text), "\t", " "), want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	if _, err := x.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	// In a container that has ended there is none.
	h.destroy(t, j.Name)
	theirs, _ := pipes(t)
	defer closeAll(theirs)
	if _, err := h.Exec(t.Context(), j.Name, jail.Program{Argv: []string{"/bin/sh"}, Wire: jail.WireStdio}, theirs); err == nil {
		t.Error("a program was started in a container that is gone")
	}
}

// A fence of version 1 that may not grow is what ends a fork bomb: whatever is killed, nothing new comes.
func TestAForkBombInAnExecutionIsEnded(t *testing.T) {
	h := newHost(t)
	// A shell that waits collects what ends: without that the dead would fill the container, and the bomb would end itself.
	s := shell(jail.LifetimeKeep, `while :; do /bin/probe sleep; done`)
	// On a busy machine the kernel frees what has ended a second later: with less memory the bomb would end itself.
	s.Limits.Tasks, s.Limits.Memory = 2000, 8<<30
	j := h.start(t, s)
	const before = 3 // the first process, the shell, and what it waits for
	testenv.Eventually(t, 5*time.Second, func() bool { return tasks(t, h, j.Name) == before }, "the container does not come to rest")
	x, _ := h.exec(t, j.Name, `exec /bin/probe bomb`)
	testenv.Eventually(t, 10*time.Second, func() bool { return tasks(t, h, j.Name) > before+4 }, "the bomb does not go off")
	// A bomb does not outrun a slow kill: before the first process is killed, the group may not grow any more. A
	// group inside keeps it from being removed, so that this can be seen.
	inside := h.fences(t, j.Name)
	if len(inside) != 1 {
		t.Fatalf("the fences are %v", inside)
	}
	if f := inside[0]; f.version == 1 {
		held := filepath.Join(f.dir, "held")
		if err := os.Mkdir(held, 0o755); err != nil {
			t.Fatal(err)
		}
		busy, err := f.kill()
		text, errRead := os.ReadFile(filepath.Join(f.dir, "pids.max"))
		if !busy || string(text) != "0\n" || errors.Join(err, errRead, os.Remove(held)) != nil {
			t.Errorf("while something is left (%v) the group may have %q tasks: %v", busy, text, errors.Join(err, errRead))
		}
	}
	if err := x.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return tasks(t, h, j.Name) <= before }, "the bomb goes on")
	if st, err := h.Inspect(t.Context(), j.Name); err != nil || st.Exit != nil {
		t.Errorf("the container was ended with it: %+v, %v", st.Exit, err)
	}
	if _, err := h.Exec(t.Context(), "cxxxx00000", jail.Program{Argv: []string{"/x"}, Wire: jail.WireStdio}, [3]*os.File{}); problem.CodeOf(err) == "" {
		t.Error("a container that is not there runs programs")
	}
}

func TestAProgramThatTheEngineCannotStartSaysWhy(t *testing.T) {
	h := newHost(t)
	j, _ := h.probe(t)
	theirs, _ := pipes(t)
	defer closeAll(theirs)
	_, err := h.Exec(t.Context(), j.Name, jail.Program{Argv: []string{"/bin/sh", "-c", "exit 0"}, Wire: jail.WireStdio, Dir: "/nowhere"}, theirs)
	if problem.CodeOf(err) != problem.JailFailed || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("%v", err)
	}
}
