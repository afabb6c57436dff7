package jailtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Agents is a driver that makes the jails of agents, under test on a host of its own.
type Agents struct {
	Maker jail.Maker
	// Template, or Image, holds /bin/sh and the probe at inside.ProbePath.
	Template, Image string
	// Workspaces is an empty folder of the host beneath one of the driver's workspace roots.
	Workspaces string
	// Gateway is the address that jails which were admitted reach. A server listens there, and so one does at each of
	// Closed: addresses of the host that no jail reaches.
	Gateway netip.AddrPort
	Closed  []netip.AddrPort
	// Resources lists everything that the installation has on the host.
	Resources func(context.Context) ([]jail.HostResource, error)
}

// agentTasks is the number of tasks that a jail of an agent may have: one more fails.
const agentTasks = 64

// Spec is the jail of an agent with the limits that agents have, in which the probe waits for what it is asked.
func (s Agents) Spec(name string, mounts ...jail.Mount) jail.Spec {
	return jail.Spec{
		Kind: jail.KindAgent, Lifetime: jail.LifetimeOwner, Template: s.Template, Image: s.Image,
		Program: jail.Program{Argv: inside.Argv(), Wire: jail.WireStdio},
		Limits: jail.Limits{Memory: 128 << 20, MilliCPU: 2000, Tasks: agentTasks, Disk: 32 << 20,
			SharedMemory: 16 << 20, Files: 256, WallClock: 10 * time.Minute},
		Agent:  &jail.Agent{Tenant: "default", Name: name, State: 32 << 20, Token: true},
		Mounts: mounts,
	}
}

// resident is the jail of an agent, and the probe in it.
type resident struct {
	*inside.Probe
	*jail.Jail
}

// start makes a jail, which is gone when the test ends.
func (s Agents) start(t *testing.T, spec jail.Spec) resident {
	t.Helper()
	j, err := s.Maker.CreateFor(t.Context(), "", spec, func(context.Context, *jail.Jail) error { return nil })
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() { s.end(t, j) })
	return resident{inside.Connect(t, j.Stdio.In, j.Stdio.Out), j}
}

func (s Agents) end(t *testing.T, j *jail.Jail) { destroy(t, Subject{Driver: s.Maker}, j) }

// RunAgents is what every driver promises of agents' jails, seen from inside. A driver whose jails cannot be looked into in
// this way shows the promises that it names, as they are written here, by tests of its own.
func RunAgents(t *testing.T, make func(*testing.T) Agents, apart ...string) {
	promises := []struct {
		promise string
		check   func(*testing.T, Agents)
	}{
		{"nothing can be written but state, workspace and tmp", writes},
		{"nothing can be run from tmp", runs},
		{"the task after the last is refused", taskLimit},
		{"whoever takes all memory or tasks disturbs nobody", hogs},
		{"nothing answers but the gateway", reach},
		{"the token comes when it is delivered and is replaced in place", tokens},
		{"the state outlives the jail", states},
		{"workspaces are seen as declared and shared where declared", workspaces},
		{"links out of the workspaces are refused before anything is made", plantedLinks},
		{"a program that joins is confined, and ends with all that it started", joins},
		{"a port inside can be connected to", dials},
	}
	for _, name := range apart {
		before := len(promises)
		for i, c := range promises {
			if c.promise == name {
				promises = slices.Delete(promises, i, i+1)
				break
			}
		}
		if len(promises) == before {
			t.Errorf("%q is no promise", name)
		}
	}
	for _, c := range promises {
		t.Run(c.promise, func(t *testing.T) {
			s := make(t)
			list := Subject{Resources: s.Resources}
			before := resources(t, list)
			t.Run("", func(t *testing.T) { c.check(t, s) }) // whose end is the end of its jails
			for _, name := range []string{"one", "two"} {
				if err := s.Maker.RemoveState(t.Context(), jail.Agent{Tenant: "default", Name: name}); err != nil {
					t.Errorf("remove the state of %s: %v", name, err)
				}
			}
			Clean(t, list, before)
		})
	}
}

func writes(t *testing.T, s Agents) {
	j := s.start(t, s.Spec("one", jail.Mount{Source: filepath.Join(s.Workspaces, "ws"), Target: jail.WorkspaceDir}))
	for path, may := range map[string]bool{
		"/state/x": true, "/workspace/x": true, "/tmp/x": true, "/dev/shm/x": true,
		"/x": false, "/bin/x": false, "/bin/sh": false, "/etc/hosts": false, "/run/x": false, "/run/hermit/token": false, "/run/hermit/x": false,
		"/var/x": false, "/home/x": false, "/dev/x": false, "/proc/sys/kernel/hostname": false, "/proc/sysrq-trigger": false,
	} {
		if a := j.Ask("write", path, "x"); a.OK != may {
			t.Errorf("writing %s: %+v, want %v", path, a, may)
		}
	}
	for _, dir := range []string{"/tmp", jail.StateDir, jail.WorkspaceDir} {
		if a := j.Ask("mknod", dir+"/null", "1", "3"); a.OK {
			t.Errorf("a device was made in %s", dir)
		}
	}
	for field, want := range map[string]string{"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
		"Uid": "1000\t1000\t1000\t1000", "Gid": "1000\t1000\t1000\t1000"} {
		if a := j.Ask("status", field); a.Text != want {
			t.Errorf("%s is %q, want %q", field, a.Text, want)
		}
	}
}

func runs(t *testing.T, s Agents) {
	j := s.start(t, s.Spec("one"))
	for _, path := range []string{"/tmp/x", "/dev/shm/x"} {
		if a := j.Ask("runcopy", path); a.Errno != "EACCES" {
			t.Errorf("running %s: %+v", path, a)
		}
	}
	if a := j.Ask("runcopy", "/state/x"); !a.OK || a.Number != 0 {
		t.Errorf("a program of its own does not run: %+v", a)
	}
	builds := s.Spec("two")
	builds.Agent.Builds = true
	if a := s.start(t, builds).Ask("runcopy", "/tmp/x"); !a.OK || a.Number != 0 {
		t.Errorf("who builds does not run what it made: %+v", a)
	}
}

func taskLimit(t *testing.T, s Agents) {
	j := s.start(t, s.Spec("one"))
	a := j.Ask("fork", strconv.Itoa(2*agentTasks))
	if a.Errno != "EAGAIN" || a.Number >= agentTasks || a.Number < agentTasks/2 {
		t.Errorf("after %d tasks: %+v", a.Number, a)
	}
}

func hogs(t *testing.T, s Agents) {
	hog, neighbour := s.start(t, s.Spec("one")), s.start(t, s.Spec("two"))
	eater := s.join(t, hog.Name, jail.Program{Argv: []string{inside.ProbePath, "memory", strconv.Itoa(1 << 30)}, Wire: jail.WireStdio})
	if x := eater.exit(t); x.Code == 0 {
		t.Errorf("it got eight times its memory: %+v", x)
	}
	bomb := s.join(t, hog.Name, script(`b() { b | b & }; while :; do b; done`))
	for range 20 {
		if a := neighbour.Ask("fork", "4"); !a.OK {
			t.Fatalf("the neighbour is disturbed: %+v", a)
		}
	}
	st, err := s.Maker.Inspect(t.Context(), hog.Name)
	if err != nil || st.Usage.Tasks > agentTasks {
		t.Errorf("the hog has %d tasks, %v", st.Usage.Tasks, err)
	}
	bomb.end(t)
}

func reach(t *testing.T, s Agents) {
	one, two := s.start(t, s.Spec("one")), s.start(t, s.Spec("two"))
	if a := two.Ask("listen", "0.0.0.0:7000"); !a.OK {
		t.Fatalf("listen: %+v", a)
	}
	dial := func(to string) bool { return one.Ask("dial", "tcp", to, "1000").OK }
	if dial(s.Gateway.String()) {
		t.Error("the gateway answers before the jail is admitted")
	}
	for _, j := range []resident{one, two} {
		if err := s.Maker.Admit(t.Context(), j.Name); err != nil {
			t.Fatalf("admit: %v", err)
		}
	}
	if !dial(s.Gateway.String()) {
		t.Error("the gateway does not answer")
	}
	if len(s.Closed) == 0 {
		t.Fatal("the host has nothing that could be reached by mistake")
	}
	for _, addr := range append(slices.Clone(s.Closed), netip.AddrPortFrom(two.Lease.Addr, 7000)) {
		if dial(addr.String()) {
			t.Errorf("%s answers", addr)
		}
	}
}

func tokens(t *testing.T, s Agents) {
	j := s.start(t, s.Spec("one"))
	path := jail.TokenDir + "/" + jail.TokenName
	if a := j.Ask("read", path); a.OK {
		t.Fatalf("there is a token before one was delivered: %+v", a)
	}
	for _, token := range []string{"the first", "the second"} {
		if err := s.Maker.Token(t.Context(), j.Name, []byte(token)); err != nil {
			t.Fatalf("deliver: %v", err)
		}
		if a := j.Ask("read", path); a.Text != token {
			t.Errorf("the token reads %+v, want %q", a, token)
		}
	}
	if a := j.Ask("names", jail.TokenDir); !slices.Equal(a.List, []string{jail.TokenName}) {
		t.Errorf("beside the token: %q", a.List)
	}
	for _, file := range []string{"/proc/self/environ", "/proc/1/environ", "/proc/1/cmdline"} {
		if a := j.Ask("read", file); strings.Contains(a.Text, "the second") {
			t.Errorf("the token is in %s", file)
		}
	}
	s.end(t, j.Jail)
	if a := s.start(t, s.Spec("one")).Ask("read", path); a.OK {
		t.Errorf("the next jail begins with a token: %+v", a)
	}
}

func states(t *testing.T, s Agents) {
	j := s.start(t, s.Spec("one"))
	for _, path := range []string{"/state/kept", "/tmp/lost"} {
		if a := j.Ask("write", path, "x"); !a.OK {
			t.Fatalf("write %s: %+v", path, a)
		}
	}
	if err := s.Maker.RemoveState(t.Context(), jail.Agent{Tenant: "default", Name: "one"}); err == nil {
		t.Error("the state of a jail that runs was removed")
	}
	s.end(t, j.Jail)
	j = s.start(t, s.Spec("one"))
	if a := j.Ask("read", "/state/kept"); a.Text != "x" {
		t.Errorf("what was kept reads %+v", a)
	}
	if a := j.Ask("read", "/tmp/lost"); a.OK {
		t.Error("/tmp outlived its jail")
	}
	if a := s.start(t, s.Spec("two")).Ask("read", "/state/kept"); a.OK {
		t.Error("another agent has the same state")
	}
	s.end(t, j.Jail)
	if err := s.Maker.RemoveState(t.Context(), jail.Agent{Tenant: "default", Name: "one"}); err != nil {
		t.Fatalf("remove: %v", err)
	}
	if a := s.start(t, s.Spec("one")).Ask("read", "/state/kept"); a.OK {
		t.Error("what was removed is still there")
	}
}

func workspaces(t *testing.T, s Agents) {
	team := jail.Mount{Source: filepath.Join(s.Workspaces, "team"), Target: jail.WorkspaceDir, Make: []string{"one", "two"}}
	reader := team
	reader.ReadOnly = true
	one, two := s.start(t, s.Spec("one", team)), s.start(t, s.Spec("two", reader))
	if a := one.Ask("write", "/workspace/one/note", "from one"); !a.OK {
		t.Fatalf("write: %+v", a)
	}
	if a := two.Ask("read", "/workspace/one/note"); a.Text != "from one" {
		t.Errorf("the other reads %+v", a)
	}
	for _, path := range []string{"/workspace/x", "/workspace/two/x"} {
		if a := two.Ask("write", path, "x"); a.Errno != "EROFS" {
			t.Errorf("writing %s where it may only be read: %+v", path, a)
		}
	}
	text, err := os.ReadFile(filepath.Join(s.Workspaces, "team/one/note"))
	if err != nil || string(text) != "from one" {
		t.Errorf("on the host it reads %q, %v", text, err)
	}
}

func plantedLinks(t *testing.T, s Agents) {
	outside := t.TempDir()
	for name, to := range map[string]string{"out": outside, "up": "../..", "proc": "/proc/self/root", "none": "missing"} {
		if err := os.Symlink(to, filepath.Join(s.Workspaces, name)); err != nil {
			t.Fatal(err)
		}
		spec := s.Spec("one", jail.Mount{Source: filepath.Join(s.Workspaces, name, "ws"), Target: jail.WorkspaceDir})
		if err := s.Maker.Check(t.Context(), spec); err == nil {
			t.Errorf("a link to %s is not seen before", to)
		}
		j, err := s.Maker.Create(t.Context(), spec)
		if err == nil {
			s.end(t, j)
			t.Errorf("a link to %s was followed", to)
		}
	}
	if names, err := os.ReadDir(outside); err != nil || len(names) > 0 {
		t.Errorf("written outside: %v, %v", names, err)
	}
	if err := s.Maker.Check(t.Context(), s.Spec("one", jail.Mount{Source: "/etc", Target: jail.WorkspaceDir})); err == nil {
		t.Error("a folder outside of the roots is granted")
	}
}

// joined is a program that has joined a jail.
type joined struct {
	jail.Execution
	in, out *os.File
}

func script(text string) jail.Program {
	return jail.Program{Argv: []string{"/bin/sh", "-c", text}, Wire: jail.WireStdio}
}

func (s Agents) join(t *testing.T, name jail.Name, p jail.Program) joined {
	t.Helper()
	inRead, inWrite, err1 := os.Pipe()
	outRead, outWrite, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	x, err := s.Maker.Exec(t.Context(), name, p, [3]*os.File{inRead, outWrite, outWrite})
	_, _ = inRead.Close(), outWrite.Close() // the program has its own copies
	if err != nil {
		_, _ = inWrite.Close(), outRead.Close()
		t.Fatalf("join: %v", err)
	}
	j := joined{x, inWrite, outRead}
	t.Cleanup(func() {
		j.end(t)
		_, _ = inWrite.Close(), outRead.Close()
	})
	return j
}

func (x joined) end(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testenv.Patience*20*time.Second)
	defer cancel()
	if err := x.End(ctx); err != nil {
		t.Errorf("end: %v", err)
	}
}

func (x joined) exit(t *testing.T) jail.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience*20*time.Second)
	defer cancel()
	e, err := x.Wait(ctx)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return e
}

func joins(t *testing.T, s Agents) {
	j := s.start(t, s.Spec("one"))
	x := s.join(t, j.Name, jail.Program{Argv: inside.Argv(), Wire: jail.WireStdio, Env: map[string]string{"TRICKY": "a'b $(no)"}, Without: []string{"TZ"}})
	probe := inside.Connect(t, x.in, x.out)
	for name, want := range map[string]string{"TRICKY": "a'b $(no)", "LANG": "C.UTF-8", "TZ": ""} {
		if a := probe.Ask("env", name); a.Text != want {
			t.Errorf("%s is %q, want %q", name, a.Text, want)
		}
	}
	if a := j.Ask("env", "TZ"); a.Text != "UTC" {
		t.Errorf("TZ of the jail's own program is %q", a.Text)
	}
	for field, want := range map[string]string{"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
		"Uid": "1000\t1000\t1000\t1000", "Gid": "1000\t1000\t1000\t1000"} {
		if a := probe.Ask("status", field); a.Text != want {
			t.Errorf("%s is %q, want %q", field, a.Text, want)
		}
	}
	if a := probe.Ask("write", "/x", "x"); a.OK {
		t.Error("the root file system can be written")
	}
	if a := probe.Ask("write", "/state/x", "x"); !a.OK || j.Ask("read", "/state/x").Text != "x" {
		t.Errorf("it does not see the jail's state: %+v", a)
	}
	x.end(t)
	if e := s.join(t, j.Name, script("exit 7")).exit(t); e.Code != 7 {
		t.Errorf("exit is %+v", e)
	}
	// Children that have left their session and their parents, and that ignore being asked to end.
	probePath := inside.ProbePath
	x = s.join(t, j.Name, script(fmt.Sprintf(`trap '' TERM HUP INT; (trap '' TERM HUP INT; (%s setsid %s sleep &) &); (%s sleep &); echo up; read x`, probePath, probePath, probePath)))
	if line, err := bufio.NewReader(x.out).ReadString('\n'); line != "up\n" || err != nil {
		t.Fatalf("it says %q, %v", line, err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return j.sleepers() == 2 }, "the children did not start")
	x.end(t)
	if n := j.sleepers(); n != 0 {
		t.Errorf("%d of its children are left", n)
	}
	if a := j.Ask("names", "/state"); slices.Contains(a.List, jail.StageEnv) {
		t.Errorf("left in the state: %q", a.List)
	}
	if a := j.Ask("cwd"); !a.OK {
		t.Errorf("the jail does not go on: %+v", a)
	}
}

// sleepers counts the probes that sleep in a jail.
func (r resident) sleepers() (n int) {
	for _, pid := range r.Ask("names", "/proc").List {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		if a := r.Ask("read", "/proc/"+pid+"/cmdline"); strings.HasSuffix(a.Text, "\x00sleep\x00") && !strings.Contains(a.Text, "setsid") {
			n++
		}
	}
	return n
}

func dials(t *testing.T, s Agents) {
	j := s.start(t, s.Spec("one"))
	for _, listen := range []string{"127.0.0.1:8000", net4(j.Lease.Addr, 8001)} {
		if a := j.Ask("listen", listen); !a.OK {
			t.Fatalf("listen at %s: %+v", listen, a)
		}
		port := netip.MustParseAddrPort(listen).Port()
		f, err := s.Maker.Dial(t.Context(), j.Name, port)
		if err != nil {
			t.Errorf("dial %s: %v", listen, err)
			continue
		}
		text, err := io.ReadAll(f)
		if string(text) != "hello\n" || err != nil {
			t.Errorf("%s says %q, %v", listen, text, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if f, err := s.Maker.Dial(t.Context(), j.Name, 9); err == nil {
		_ = f.Close()
		t.Error("a port where nobody listens was connected to")
	}
}

func net4(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
