//go:build linux

package linux

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// joiner is a program that has joined a jail.
type joiner struct {
	jail.Execution
	in       *os.File
	out, err *os.File
}

// exec starts a program in a jail, which is ended with the test.
func (j *testJail) exec(t testing.TB, prog jail.Program) (*joiner, error) {
	t.Helper()
	inRead, inWrite, err1 := os.Pipe()
	outRead, outWrite, err2 := os.Pipe()
	errRead, errWrite, err3 := os.Pipe()
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	x, err := j.host.runtime.Exec(context.Background(), j.place, j.proc, prog, [3]*os.File{inRead, outWrite, errWrite})
	for _, f := range []*os.File{inRead, outWrite, errWrite} {
		must(t, f.Close())
	}
	for _, f := range []*os.File{inWrite, outRead, errRead} {
		t.Cleanup(func() { _ = f.Close() }) // some tests have closed it
	}
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { must(t, x.End(context.Background())) })
	return &joiner{Execution: x, in: inWrite, out: outRead, err: errRead}, nil
}

func (j *testJail) mustExec(t testing.TB, prog jail.Program) *joiner {
	t.Helper()
	x, err := j.exec(t, prog)
	must(t, err)
	return x
}

func shell(script string) jail.Program {
	return jail.Program{Argv: []string{"/bin/sh", "-c", script}, Wire: jail.WireStdio}
}

func (x *joiner) exit(t testing.TB) jail.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience*10*time.Second)
	defer cancel()
	e, err := x.Wait(ctx)
	must(t, err)
	return e
}

func (x *joiner) line(t testing.TB) string {
	t.Helper()
	must(t, x.out.SetReadDeadline(time.Now().Add(testenv.Patience*10*time.Second)))
	line, err := bufio.NewReader(x.out).ReadString('\n')
	must(t, err)
	return strings.TrimSpace(line)
}

// staged lists what is staged for programs, as the jail sees it.
func (j *testJail) staged(t testing.TB) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("/proc", num(uint64(j.proc.PID)), "root", jail.StageDir, "*"))
	must(t, err)
	return slices.DeleteFunc(found, func(path string) bool { return !validStageID(filepath.Base(path)) })
}

func TestProgramThatJoinsHasItsStdioEnvironmentAndExit(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		j := h.startAgent(t, agentSpec("one"), nil)
		prog := shell(`printf '%s|%s|%s|' "$TRICKY" "$PWD" "$HOME"; echo oops >&2; while IFS= read -r l; do printf '%s' "$l"; done; exit 7`)
		prog.Env = map[string]string{"TRICKY": "it's $HOME `here`\n\"x\""}
		prog.Dir = "/tmp"
		x := j.mustExec(t, prog)
		staged := j.staged(t)
		if len(staged) != 1 {
			t.Fatalf("staged: %q", staged)
		}
		for name, mode := range map[string]uint32{".": 0o700, jail.StageEnv: 0o600, jail.StageLaunch: 0o700} {
			var st unix.Stat_t
			must(t, unix.Lstat(filepath.Join(staged[0], name), &st))
			if st.Mode&0o7777 != mode || st.Uid != j.place.Profile.Host || st.Gid != j.place.Profile.Host {
				t.Errorf("%s is of %d:%d with mode %o", name, st.Uid, st.Gid, st.Mode)
			}
		}
		_, err := io.WriteString(x.in, "{\"a\":1}\n")
		must(t, err)
		must(t, x.in.Close())
		out, err := io.ReadAll(x.out)
		must(t, err)
		if want := prog.Env["TRICKY"] + "|/tmp|/state|{\"a\":1}"; string(out) != want {
			t.Errorf("stdout is %q, want %q", out, want)
		}
		if text, err := io.ReadAll(x.err); err != nil || string(text) != "oops\n" {
			t.Errorf("stderr is %q, %v", text, err)
		}
		if e := x.exit(t); e.Code != 7 || e.Signal != "" || e.Cause != jail.CauseExited {
			t.Errorf("exit is %+v", e)
		}
		if left := j.staged(t); len(left) > 0 {
			t.Errorf("left in the jail: %q", left)
		}
		if e := j.mustExec(t, shell(`kill -9 $$`)).exit(t); e.Code != 137 || e.Signal != "killed" {
			t.Errorf("exit of one that was killed is %+v", e)
		}
		// One that cannot be found ends by itself, and early.
		if e := j.mustExec(t, jail.Program{Argv: []string{"/bin/none"}, Wire: jail.WireStdio}).exit(t); e.Code != 127 {
			t.Errorf("exit of one that is not there is %+v", e)
		}
		if left := j.staged(t); len(left) > 0 {
			t.Errorf("left in the jail: %q", left)
		}
		if a := j.Ask("cwd"); a.Text != jail.StateDir {
			t.Errorf("the jail does not go on: %+v", a)
		}
	})
}

func TestProgramThatJoinsIsConfinedLikeTheJail(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		j := h.startAgent(t, agentSpec("one"), nil)
		x := j.mustExec(t, jail.Program{Argv: inside.Argv(), Wire: jail.WireStdio})
		probe := inside.Connect(t, x.in, x.out)
		for field, want := range map[string]string{"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapInh": "0000000000000000", "CapBnd": "0000000000000000",
			"CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2", "Groups": "", "Uid": "1000\t1000\t1000\t1000", "Gid": "1000\t1000\t1000\t1000"} {
			if a := probe.Ask("status", field); a.Text != want {
				t.Errorf("%s is %q, want %q", field, a.Text, want)
			}
		}
		for _, fd := range probe.Ask("fds").List {
			if _, target, _ := strings.Cut(fd, " "); !strings.HasPrefix(target, "pipe:") {
				t.Errorf("descriptor %s is not one of the program's pipes", fd)
			}
		}
		if a := probe.Ask("clone", num(unix.CLONE_NEWUSER)); a.Errno != "EPERM" {
			t.Errorf("the filter of agents is not in force: %+v", a)
		}
		for path, may := range map[string]bool{"/new": false, "/tmp/new": true, "/state/new": true, "/run/hermit/new": false} {
			if a := probe.Ask("write", path, "x"); a.OK != may {
				t.Errorf("writing %s: %+v", path, a)
			}
		}
		if a := probe.Ask("read", "/proc/self/limits"); !strings.Contains(strings.Join(strings.Fields(a.Text), " "), "Max open files 128 128") {
			t.Errorf("descriptors are not limited:\n%s", a.Text)
		}
		if a := probe.Ask("read", "/proc/self/oom_score_adj"); strings.TrimSpace(a.Text) != num(oomScore) {
			t.Errorf("oom_score_adj is %q", a.Text)
		}
	})
}

// Every control that is taken away is seen, and the program does not go on.
func TestProgramThatJoinsUnconfinedIsEnded(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		j := h.startAgent(t, agentSpec("one"), nil)
		// Another user could not even read what is staged.
		for what, amend := range map[string]func(*specs.Process){
			"group":        func(p *specs.Process) { p.User.GID = 0 },
			"groups":       func(p *specs.Process) { p.User.AdditionalGids = []uint32{4} },
			"capabilities": func(p *specs.Process) { p.Capabilities.Bounding = []string{"CAP_CHOWN"} },
			"files":        func(p *specs.Process) { p.Rlimits = nil },
			"no new privileges": func(p *specs.Process) {
				p.NoNewPrivileges = false
				p.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_SYS_ADMIN"}, Effective: []string{"CAP_SYS_ADMIN"}, Permitted: []string{"CAP_SYS_ADMIN"}}
			},
		} {
			h.runtime.amendExec = amend
			x, err := j.exec(t, shell("read x"))
			h.runtime.amendExec = nil
			if problem.CodeOf(err) != problem.JailUnconfined {
				t.Errorf("without its %s: %v, %v", what, x, err)
			}
			if left := j.staged(t); len(left) > 0 {
				t.Errorf("left in the jail: %q", left)
			}
		}
		j.noPrograms(t)
	})
}

// noPrograms fails the test unless nothing but the jail's own program runs, with the first process that waits for it, and nothing
// is left of others.
func (j *testJail) noPrograms(t testing.TB) {
	t.Helper()
	// The runtime's own helper, which has made the user namespace, may still be ending.
	var pids []int
	testenv.Eventually(t, 5*time.Second, func() (alone bool) {
		var err error
		pids, err = j.host.limiter.processes(string(j.place.Name))
		must(t, err)
		return len(pids) == 2 && slices.Contains(pids, j.proc.PID)
	}, "something beside %d runs in the jail", j.proc.PID)
	if names, err := os.ReadDir(filepath.Join(j.host.runtime.bundles.Path(), string(j.place.Name), bundleExecs)); err == nil && len(names) > 0 {
		t.Errorf("marks are left: %v", names)
	}
	for _, h := range j.host.limiter.hierarchies {
		if left, err := filepath.Glob(filepath.Join(j.host.limiter.group(h, string(j.place.Name)), execGroup+"*")); err != nil || len(left) > 0 {
			t.Errorf("groups are left: %q, %v", left, err)
		}
	}
}

// stubborn starts children that have left their session and their parents, and that ignore being asked to end.
const stubborn = `trap '' TERM HUP INT; (trap '' TERM HUP INT; (/bin/probe setsid /bin/probe sleep &) &) ; (/bin/probe sleep &); echo up; read x; exit 3`

func TestEndTakesTheWholeTree(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		j := h.startAgent(t, agentSpec("one"), nil)
		x := j.mustExec(t, shell(stubborn))
		if line := x.line(t); line != "up" {
			t.Fatalf("it says %q", line)
		}
		testenv.Eventually(t, 5*time.Second, func() bool {
			pids, err := h.limiter.processes(string(j.place.Name))
			return err == nil && len(pids) >= 4
		}, "the children did not start")
		must(t, x.End(t.Context()))
		must(t, x.End(t.Context()))
		j.noPrograms(t)
		if left := j.staged(t); len(left) > 0 {
			t.Errorf("left in the jail: %q", left)
		}
		if e := x.exit(t); e.Cause != jail.CauseDestroyed {
			t.Errorf("exit is %+v", e)
		}
		// The same when it ends by itself: nothing that it started stays.
		x = j.mustExec(t, shell(stubborn))
		x.line(t)
		_, err := io.WriteString(x.in, "\n")
		must(t, err)
		if e := x.exit(t); e.Code != 3 || e.Cause != jail.CauseExited {
			t.Errorf("exit is %+v", e)
		}
		j.noPrograms(t)
	})
}

// A link that the jail's own programs plant where the host daemon was told to stage is refused, and nothing outside is
// written.
func TestNothingIsStagedThroughWhatWasPlanted(t *testing.T) {
	h, _ := newAgentHost(t, func(o *Options) { o.StageDir = "/state/.cache/clawjail/stage" })
	const id = "00112233445566778899aabbccddeeff"
	h.runtime.newID = func() string { return id }
	for _, at := range []string{".cache", ".cache/clawjail", ".cache/clawjail/stage", ".cache/clawjail/stage/" + id} {
		for what, plant := range map[string]func(t *testing.T, path, outside string){
			"link out":    func(t *testing.T, path, outside string) { must(t, os.Symlink(outside, path)) },
			"link inside": func(t *testing.T, path, _ string) { must(t, os.Symlink("/tmp", path)) },
			"dead link":   func(t *testing.T, path, outside string) { must(t, os.Symlink(outside+"/new", path)) },
			"magic link":  func(t *testing.T, path, _ string) { must(t, os.Symlink("/proc/self/root", path)) },
			"fifo":        func(t *testing.T, path, _ string) { must(t, unix.Mkfifo(path, 0o666)) },
			"file":        func(t *testing.T, path, _ string) { must(t, os.WriteFile(path, nil, 0o666)) },
			"hard link": func(t *testing.T, path, _ string) {
				victim := filepath.Join(filepath.Dir(path), "victim")
				must(t, os.WriteFile(victim, []byte("untouched"), 0o666))
				must(t, os.Link(victim, path))
			},
		} {
			t.Run(what+" at "+at, func(t *testing.T) {
				agent := agentSpec("planted")
				agent.Agent.State = 0
				j := h.startAgent(t, agent, nil)
				outside := t.TempDir()
				state := filepath.Join("/proc", num(uint64(j.proc.PID)), "root/state")
				path := filepath.Join(state, at)
				must(t, os.MkdirAll(filepath.Dir(path), 0o777))
				plant(t, path, outside)
				before := tree(t, state)
				x, err := j.exec(t, shell("exit 0"))
				if code := problem.CodeOf(err); code != problem.Forbidden && code != problem.Conflict {
					t.Errorf("started %v, %v", x, err)
				}
				if after := tree(t, state); after != before && what != "file" {
					t.Errorf("the state changed from\n%s\nto\n%s", before, after)
				}
				if names, err := os.ReadDir(outside); err != nil || len(names) > 0 {
					t.Errorf("written outside: %v, %v", names, err)
				}
				if names, err := os.ReadDir(filepath.Join(filepath.Dir(state), "tmp")); err != nil || len(names) > 0 {
					t.Errorf("written through the link: %v, %v", names, err)
				}
				j.noPrograms(t)
			})
		}
	}
}

// tree describes a folder and what is in it, content included.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var b bytes.Buffer
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		b.WriteString(strings.TrimPrefix(path, dir) + " " + d.Type().String())
		if d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.Write(text)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

// A host daemon that is killed ends none of what it started. The next one does, and the jail runs on.
func TestNextHostDaemonEndsWhatTheLastHadStarted(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		j := h.startAgent(t, agentSpec("one"), nil)
		x := j.mustExec(t, shell(stubborn))
		x.line(t)
		if len(j.staged(t)) != 1 {
			t.Fatal("nothing is staged")
		}
		next, err := NewRuntime(h.o, h.limiter)
		must(t, err)
		t.Cleanup(func() { must(t, next.Close()) })
		j.noPrograms(t)
		if left := j.staged(t); len(left) > 0 {
			t.Errorf("left in the jail: %q", left)
		}
		if a := j.Ask("cwd"); a.Text != jail.StateDir {
			t.Errorf("the jail does not go on: %+v", a)
		}
	})
}

// When host and host daemon are gone together, what was staged goes when the state is mounted the next time.
func TestWhatWasStagedInAnEndedJailGoesWithTheNext(t *testing.T) {
	h, _ := newAgentHost(t)
	p := h.placeAgent(t, agentSpec("one"))
	id := newStageID()
	stage := filepath.Join(p.Root, "state/.cache/clawjail/stage")
	must(t, os.MkdirAll(filepath.Join(stage, id), 0o700))
	must(t, os.WriteFile(filepath.Join(stage, id, jail.StageEnv), []byte("x"), 0o600))
	must(t, os.WriteFile(filepath.Join(stage, "mine"), []byte("x"), 0o600))
	h.end(t, p.Name, jail.Process{})
	p = h.placeAgent(t, agentSpec("one"))
	names, err := os.ReadDir(filepath.Join(p.Root, "state/.cache/clawjail/stage"))
	if err != nil || len(names) != 1 || names[0].Name() != "mine" {
		t.Errorf("left of the last jail: %v, %v", names, err)
	}
}

func TestNothingJoinsAJailThatHasEndedOrIsFull(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		spec := agentSpec("one")
		spec.Limits.Tasks = 24
		j := h.startAgent(t, spec, nil)
		x := j.mustExec(t, shell(`exec 3<&0; (i=0; while [ $i -lt 60 ]; do (read x <&3) & i=$((i+1)); done); read y`))
		testenv.Eventually(t, 5*time.Second, func() bool { return h.limiter.refusals(string(j.place.Name)) > 0 }, "the jail did not fill up")
		var err error
		var more []*joiner
		for range 5 { // the shell that could not go on has left a little room
			var one *joiner
			if one, err = j.exec(t, shell("read x")); err != nil {
				break
			}
			more = append(more, one)
			if n, err := readGroupNumber(h.limiter.group(h.limiter.pids, string(j.place.Name)), "pids.current"); err != nil || n > int64(spec.Limits.Tasks) {
				t.Errorf("%d tasks, %v", n, err)
			}
		}
		if problem.CodeOf(err) != problem.LimitTasks {
			t.Errorf("joining a full jail: %v", err)
		}
		for _, one := range more {
			must(t, one.End(t.Context()))
		}
		must(t, x.End(t.Context()))
		j.noPrograms(t)
		h.end(t, j.place.Name, j.proc)
		if _, err := j.exec(t, shell("exit 0")); err == nil {
			t.Error("a program joined a jail that is gone")
		}
	})
}

func TestEndOfTheJailEndsWhatJoinedIt(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		j := h.startAgent(t, agentSpec("one"), nil)
		x := j.mustExec(t, shell(stubborn))
		x.line(t)
		h.end(t, j.place.Name, j.proc)
		if e := x.exit(t); e.Code == 0 {
			t.Errorf("exit is %+v", e)
		}
	})
}

// Processes that a program has left behind are collected by the first process, and keep no place among the tasks.
func TestWhatIsLeftBehindIsCollected(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		j := h.startAgent(t, agentSpec("one"), nil)
		left := func() (zombies []string) {
			all, err := filepath.Glob("/proc/[0-9]*/stat")
			must(t, err)
			for _, path := range all {
				text, _ := os.ReadFile(path) // it may have gone
				_, rest, _ := strings.Cut(string(text), ") ")
				if strings.HasPrefix(rest, fmt.Sprintf("Z %d ", j.proc.PID)) {
					zombies = append(zombies, path)
				}
			}
			return zombies
		}
		if e := j.mustExec(t, shell("i=0; while [ $i -lt 20 ]; do (sleep 1 &); i=$((i+1)); done")).exit(t); e.Code != 0 {
			t.Fatalf("it ends with %+v", e)
		}
		j.noPrograms(t)
		testenv.Eventually(t, 10*time.Second, func() bool { return len(left()) == 0 }, "nobody waits for what ended")
	})
}
