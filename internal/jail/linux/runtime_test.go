//go:build linux

package linux

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// onEachRuntime runs a test with every runtime that is installed.
func onEachRuntime(t *testing.T, f func(t *testing.T, h *testHost)) {
	for _, name := range []string{RuntimeCrun, RuntimeRunc} {
		t.Run(name, func(t *testing.T) {
			testenv.Tool(t, name)
			f(t, newTestHost(t, func(o *Options) { o.Runtime = name }))
		})
	}
}

func TestJailLives(t *testing.T) {
	onEachRuntime(t, func(t *testing.T, h *testHost) {
		ctx := context.Background()
		spec := probeSpec(jail.KindBrowser)
		spec.HomeFiles = []jail.File{{Path: "a.txt", Data: []byte("one")}, {Path: ".pki/nssdb/b.txt", Data: []byte("two")}}
		j := h.start(t, spec, nil)
		if a := j.Ask("env", "GREETING"); a.Text != spec.Program.Env["GREETING"] {
			t.Errorf("the environment has %q", a.Text)
		}
		if a := j.Ask("cwd"); a.Text != jail.HomeDir {
			t.Errorf("started in %q", a.Text)
		}
		for path, want := range map[string]string{"a.txt": "one", ".pki/nssdb/b.txt": "two"} {
			if a := j.Ask("read", filepath.Join(jail.HomeDir, path)); a.Text != want {
				t.Errorf("home file %s: %+v", path, a)
			}
			if a := j.Ask("write", filepath.Join(jail.HomeDir, path), "changed"); !a.OK {
				t.Errorf("a home file cannot be written: %+v", a)
			}
		}
		if a := j.Ask("read", "/etc/hosts"); a.Text != "127.0.0.1 localhost\n10.213.0.1 gateway hermit_shell\n" {
			t.Errorf("/etc/hosts is %q", a.Text)
		}
		if sid, err := unix.Getsid(j.proc.PID); err != nil || sid != j.proc.PID {
			t.Errorf("the first process is in session %d (%v), not in one of its own", sid, err)
		}
		seen, err := h.runtime.Observe(ctx, j.place, j.proc)
		must(t, err)
		if diff := j.place.Profile.Compare(seen); len(diff) > 0 {
			t.Errorf("not confined as declared: %q", diff)
		}
		kinds := map[jail.ResourceKind]bool{}
		for _, tr := range h.resources(t) {
			kinds[tr.Kind] = true
			if tr.Name != j.place.Name {
				t.Errorf("a resource of %s: %+v", tr.Name, tr)
			}
		}
		for _, k := range []jail.ResourceKind{jail.ResourceProcess, jail.ResourceCgroup, jail.ResourceMount, jail.ResourceClone, jail.ResourceRuntimeState, jail.ResourceStaged} {
			if !kinds[k] {
				t.Errorf("a running jail has no resource of kind %s", k)
			}
		}
		if err := h.runtime.Stop(ctx, j.place.Name); !errors.Is(err, jail.ErrBusy) {
			t.Errorf("stopped while it runs: %v", err)
		}
		if _, err := j.Try("exit", "3"); !errors.Is(err, io.EOF) {
			t.Errorf("the end of stdout: %v", err)
		}
		for range 2 {
			if code, signal, err := h.runtime.Wait(ctx, j.place.Name, j.proc); code != 3 || signal != "" || err != nil {
				t.Errorf("ended with %d %q %v, want 3", code, signal, err)
			}
		}
		h.end(t, j.place.Name, j.proc)
		h.noTraces(t)
		if code, _, err := h.runtime.Wait(ctx, j.place.Name, j.proc); code != -1 || err != nil {
			t.Errorf("waiting for what is gone: %d %v", code, err)
		}
	})
}

func TestJailEndsWithItsStdin(t *testing.T) {
	h := newTestHost(t)
	j := h.start(t, probeSpec(jail.KindAgent), nil)
	must(t, j.stdin.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if code, _, err := h.runtime.Wait(ctx, j.place.Name, j.proc); code != 0 || err != nil {
		t.Errorf("ended with %d %v", code, err)
	}
}

func TestWaitHonoursItsContext(t *testing.T) {
	h := newTestHost(t)
	j := h.start(t, probeSpec(jail.KindBrowser), nil)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := h.runtime.Wait(ctx, j.place.Name, j.proc); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	must(t, h.runtime.Kill(context.Background(), j.place.Name, j.proc))
	if code, signal, err := h.runtime.Wait(context.Background(), j.place.Name, j.proc); code != 128+9 || signal != "killed" || err != nil {
		t.Errorf("ended with %d %q %v", code, signal, err)
	}
}

// After a restart the host daemon has no child any more, only numbers from its journal.
func TestAdoptedJailIsWaitedForAndEnded(t *testing.T) {
	h := newTestHost(t)
	j := h.start(t, probeSpec(jail.KindBrowser), nil)
	later, err := NewRuntime(h.o, h.limiter)
	must(t, err)
	defer func() { must(t, later.Close()) }()
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		code, _, err := later.Wait(context.Background(), j.place.Name, j.proc)
		ended <- end{code, err}
	}()
	must(t, later.Kill(context.Background(), j.place.Name, j.proc))
	if e := <-ended; e.code != -1 || e.err != nil {
		t.Errorf("the adopted jail ended with %+v, want an unknown status", e)
	}
	must(t, later.Stop(context.Background(), j.place.Name))
}

func TestAnotherProcessWithTheSameNumberIsSpared(t *testing.T) {
	h := newTestHost(t)
	ctx := context.Background()
	j := h.start(t, probeSpec(jail.KindBrowser), nil)
	other := jail.Process{PID: j.proc.PID, Started: j.proc.Started - 1} // one that had the number before
	name := nameOf(t, h, 77)
	must(t, h.runtime.Terminate(ctx, name, other))
	must(t, h.runtime.Kill(ctx, name, other))
	if code, _, err := h.runtime.Wait(ctx, name, other); code != -1 || err != nil {
		t.Errorf("waiting for a process that is gone: %d %v", code, err)
	}
	if a := j.Ask("echo", "there"); !a.OK {
		t.Errorf("the process was not spared: %+v", a)
	}
	if _, err := h.runtime.Observe(ctx, j.place, other); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("observed another process: %v", err)
	}
}

func TestTerminateAsksEveryProcess(t *testing.T) {
	h := newTestHost(t)
	spec := probeSpec(jail.KindAgent)
	spec.Program.Argv = []string{"/bin/sh", "-c", `trap "exit 5" TERM; echo ready; while :; do read x || exit 6; done`}
	j := h.start(t, spec, nil)
	if _, err := j.Try("ignored"); err == nil { // returns when the shell has said that it is ready
		t.Fatal("the shell answered like the probe")
	}
	must(t, h.runtime.Terminate(context.Background(), j.place.Name, j.proc))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if code, _, err := h.runtime.Wait(ctx, j.place.Name, j.proc); code != 5 || err != nil {
		t.Errorf("ended with %d %v, want 5", code, err)
	}
}

// A runtime that is killed between making a container and starting it leaves a process that waits for ever, in the
// jail's control group.
func TestHalfMadeJailIsCleanedUp(t *testing.T) {
	onEachRuntime(t, func(t *testing.T, h *testHost) {
		ctx := context.Background()
		real, err := findProgram(h.o.Runtime)
		must(t, err)
		wrapper := filepath.Join(t.TempDir(), h.o.Runtime+"-killed")
		must(t, os.WriteFile(wrapper, []byte(`#!/bin/sh
for a do
	shift
	case $a in run) set -- "$@" create;; --detach) ;; *) set -- "$@" "$a";; esac
done
`+real+` "$@"
kill -KILL $$
`), 0o755))
		if _, err := h.runtime.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		h.runtime.chosen = newProgram(wrapper)
		p := h.place(t, probeSpec(jail.KindBrowser))
		if j, err := h.launch(t, p, nil); err == nil {
			t.Fatalf("started: %+v", j.proc)
		}
		if !slices.ContainsFunc(h.resources(t), func(tr jail.HostResource) bool { return tr.Kind == jail.ResourceProcess }) {
			t.Fatal("no process is left, so that there is nothing to clean up")
		}
		h.end(t, p.Name, jail.Process{})
		h.noTraces(t)
		noZombies(t)
	})
}

// The runtime is killed after a while that differs: whatever it has made by then is cleaned up.
func TestStartThatIsCancelledLeavesNothing(t *testing.T) {
	onEachRuntime(t, func(t *testing.T, h *testHost) {
		if _, err := h.runtime.Ready(context.Background()); err != nil {
			t.Fatal(err)
		}
		for i := range 12 {
			p := h.place(t, probeSpec(jail.KindBrowser))
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*1500*time.Microsecond)
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			must(t, err)
			proc, err := h.runtime.Start(ctx, p, [3]*os.File{null, null, null})
			cancel()
			must(t, null.Close())
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("cancelled: %v", err)
			}
			h.end(t, p.Name, proc)
			h.noTraces(t)
		}
		noZombies(t)
	})
}

// noZombies checks that no child of this process has ended without being collected.
func noZombies(t *testing.T) {
	t.Helper()
	var left []string // of the last look
	defer func() {
		if len(left) > 0 {
			t.Logf("not collected: %q", left)
		}
	}()
	testenv.Eventually(t, 5*time.Second, func() bool {
		left = left[:0]
		lists, err := filepath.Glob("/proc/self/task/*/children")
		must(t, err)
		for _, list := range lists {
			text, err := os.ReadFile(list)
			if gone(err) {
				continue // the thread has ended
			}
			must(t, err)
			for _, pid := range strings.Fields(string(text)) {
				status, err := os.ReadFile("/proc/" + pid + "/status")
				if err == nil && strings.HasPrefix(statusField(status, "State"), "Z") {
					left = append(left, pid+" "+statusField(status, "Name"))
				}
			}
		}
		return len(left) == 0
	}, "children have ended and were not collected")
}

func TestMissingRuntimeHasACode(t *testing.T) {
	h := newTestHost(t, func(o *Options) { o.Runtime = "/no/such/runtime" })
	p := h.place(t, probeSpec(jail.KindBrowser))
	if _, err := h.launch(t, p, nil); problem.CodeOf(err) != problem.RuntimeMissing {
		t.Errorf("got %v", err)
	}
	broken := filepath.Join(t.TempDir(), "crun")
	must(t, os.WriteFile(broken, []byte("#!/bin/sh\nexit 0\n"), 0o755))
	h.runtime.o.Runtime = broken
	if _, err := h.runtime.Ready(context.Background()); problem.CodeOf(err) != problem.RuntimeMissing {
		t.Errorf("a runtime that runs nothing: %v", err)
	}
}

// Of a runtime that keeps processes of its own, its own delete is asked, also after a restart.
func TestRuntimeWithItsOwnStateIsAskedToDelete(t *testing.T) {
	dir := t.TempDir()
	wrapper, calls := filepath.Join(dir, "runsc-like"), filepath.Join(dir, "calls")
	must(t, os.WriteFile(wrapper, []byte("#!/bin/sh\necho \"$@\" >> "+calls+"\nexec "+testenv.Tool(t, RuntimeRunc)+" \"$@\"\n"), 0o755))
	h := newTestHost(t, func(o *Options) { o.Runtime = wrapper })
	j := h.start(t, probeSpec(jail.KindBrowser), nil)
	later, err := NewRuntime(h.o, h.limiter)
	must(t, err)
	defer func() { must(t, later.Close()) }()
	must(t, later.Kill(context.Background(), j.place.Name, j.proc))
	must(t, later.Stop(context.Background(), j.place.Name))
	text, err := os.ReadFile(calls)
	if err != nil || strings.Count(string(text), "delete --force "+string(j.place.Name)) != 1 {
		t.Errorf("called with (%v)\n%s", err, text)
	}
}

func TestErrorOfTheRuntimeIsTold(t *testing.T) {
	onEachRuntime(t, func(t *testing.T, h *testHost) {
		p := h.place(t, probeSpec(jail.KindBrowser))
		_, err := h.launch(t, p, func(s *specs.Spec) { s.Process.Args = []string{"/no/such/program"} })
		if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
			t.Errorf("got %v, want the program's name", err)
		}
		h.end(t, p.Name, jail.Process{})
		h.noTraces(t)
	})
}

func TestStagedFilesAreTheJailsAloneAndReadOnly(t *testing.T) {
	h := newTestHost(t)
	spec := probeSpec(jail.KindBrowser)
	spec.HomeFiles = []jail.File{{Path: "f", Data: []byte("x")}}
	j := h.start(t, spec, nil)
	bundle := filepath.Join(h.runtime.bundles.Path(), string(j.place.Name))
	for path, want := range map[string]struct {
		mode fs.FileMode
		uid  uint32
	}{
		"": {0o700, 0}, bundleConfig: {0o400, 0}, bundleHosts: {0o444, 0},
		"stage":           {0o500, j.place.Profile.UID},
		"stage/launch.sh": {0o500, j.place.Profile.UID},
		"stage/env.sh":    {0o400, j.place.Profile.UID},
		"stage/home":      {0o700, j.place.Profile.UID},
		"stage/home/f":    {0o600, j.place.Profile.UID},
	} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(bundle, path), &st))
		if fs.FileMode(st.Mode&0o7777) != want.mode || st.Uid != want.uid {
			t.Errorf("%s has mode %o of uid %d, want %o of %d", path, st.Mode&0o7777, st.Uid, want.mode, want.uid)
		}
	}
	for _, path := range []string{jail.StageDir + "/launch.sh", jail.StageDir + "/new", "/etc/hosts"} {
		if a := j.Ask("write", path, "x"); a.OK || a.Errno != "EROFS" && a.Errno != "EACCES" {
			t.Errorf("wrote to %s: %+v", path, a)
		}
	}
	// A bundle that is there already, with whatever in it, is never written into.
	if _, err := h.runtime.stage(j.place, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("staged twice: %v", err)
	}
}

func TestRuntimeStartsWithinTheSmallestLimits(t *testing.T) {
	onEachRuntime(t, func(t *testing.T, h *testHost) {
		spec := probeSpec(jail.KindBrowser)
		spec.Program.Argv = []string{"/bin/sh", "-c", "read x; exit 4"}
		spec.Limits.Memory, spec.Limits.Tasks, spec.Limits.Files = jail.MinMemory, jail.MinTasks, 64
		if h.o.Runtime == RuntimeRunc {
			spec.Limits.Tasks = 16 // its first process has threads before it becomes the program
		}
		j := h.start(t, spec, nil)
		must(t, j.stdin.Close())
		if code, _, err := h.runtime.Wait(context.Background(), j.place.Name, j.proc); code != 4 || err != nil {
			t.Errorf("ended with %d %v", code, err)
		}
	})
}

func TestNoDescriptorsOrProcessesAreLeftBehind(t *testing.T) {
	h := newTestHost(t)
	cycle := func() {
		p := h.place(t, probeSpec(jail.KindBrowser))
		j, err := h.launch(t, p, nil)
		must(t, err)
		if _, err := h.limiter.Usage(context.Background(), p.Name, j.proc); err != nil {
			t.Error(err)
		}
		if _, err := h.runtime.Observe(context.Background(), p, j.proc); err != nil {
			t.Error(err)
		}
		h.end(t, p.Name, j.proc)
	}
	cycle()
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(entries)
	}
	before := count()
	for range 10 {
		cycle()
	}
	// Three of each cycle are the test's own ends of the pipes.
	if after := count(); after > before+30 {
		t.Errorf("%d descriptors after 10 cycles, %d before", after-30, before)
	}
	noZombies(t)
	h.noTraces(t)
}

func TestJailsAreStartedAndEndedAtTheSameTime(t *testing.T) {
	h := newTestHost(t)
	if _, err := h.runtime.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	spec := probeSpec(jail.KindBrowser)
	spec.Program.Argv = []string{"/bin/sh", "-c", "exit 9"} // some end before their start has returned
	var work sync.WaitGroup
	for range 8 {
		p := h.place(t, spec)
		work.Go(func() {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				t.Error(err)
				return
			}
			proc, err := h.runtime.Start(context.Background(), p, [3]*os.File{null, null, null})
			if err := errors.Join(err, null.Close()); err != nil {
				t.Error(err)
				return
			}
			if err := h.runtime.Begin(context.Background(), p, proc); err != nil {
				t.Error(err)
			}
			if code, signal, err := h.runtime.Wait(context.Background(), p.Name, proc); code != 9 || signal != "" || err != nil {
				t.Errorf("%s ended with %d %q %v, want 9", p.Name, code, signal, err)
			}
			h.end(t, p.Name, proc)
		})
	}
	work.Wait()
	h.noTraces(t)
	noZombies(t)
}

func TestStartTimeIsRead(t *testing.T) {
	p, err := openProcess(jail.Process{PID: os.Getpid()})
	must(t, err)
	defer p.Close()
	a, err := p.started()
	if err != nil || a == 0 {
		t.Errorf("started at %d (%v)", a, err)
	}
	if _, err := openProcess(jail.Process{PID: os.Getpid(), Started: a + 1}); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a process that began at another time: %v", err)
	}
	if _, err := openProcess(jail.Process{PID: 1 << 22}); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("process %s: %v", strconv.Itoa(1<<22), err)
	}
}
