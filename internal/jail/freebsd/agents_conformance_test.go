//go:build linux

package freebsd

import (
	"bufio"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestAgentsJailsKeepTheirPromisesOnTheSimulator(t *testing.T) {
	t.Parallel()
	// The suite looks at these through /proc, which jails on FreeBSD do not have, or through networks, which the simulator
	// does not have. All but the network are shown by the tests below.
	apart := []string{"nothing can be written but state, workspace and tmp", "nothing can be run from tmp", "nothing answers but the gateway",
		"a program that joins is confined, and ends with all that it started"}
	w := newFixture(t)
	l := w.life(w.open())
	jailtest.RunAgents(t, func(t *testing.T) jailtest.Agents {
		dir, err := os.MkdirTemp(filepath.Join(w.host.Root(), "ws"), "a")
		must(t, err, os.Chmod(dir, 0o755))
		return jailtest.Agents{Maker: l, Template: "tiny", Workspaces: dir, Gateway: netip.MustParseAddrPort("10.99.0.1:3000"),
			Resources: func(ctx context.Context) ([]jail.HostResource, error) { return l.HostResources(ctx) }}
	}, apart...)
}

// resident is a jail of an agent with the probe in it.
type resident struct {
	*inside.Probe
	*jail.Jail
}

func (w *fixture) agent(l *jail.Lifecycle) resident {
	w.t.Helper()
	s := w.agentSpec()
	s.Program.Argv = inside.Argv()
	j, err := l.Create(context.Background(), s)
	must(w.t, err)
	w.t.Cleanup(func() {
		j.Stdio.Close()
		must(w.t, l.Destroy(context.Background(), j.Name))
	})
	return resident{inside.Connect(w.t, j.Stdio.In, j.Stdio.Out), j}
}

func TestNothingCanBeWrittenInAJailButStateWorkspaceAndTmp(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	j := w.agent(w.life(w.open()))
	for path, may := range map[string]bool{
		"/state/x": true, "/workspace/x": true, "/tmp/x": true,
		"/x": false, "/bin/x": false, "/bin/sh": false, "/etc/hosts": false, "/run/x": false, "/run/hermit/token": false, "/run/hermit/x": false,
		"/run/clawjail/x": false, "/run/clawjail/launch.sh": false, "/run/clawjail/exec/x": false, "/var/x": false, "/home/x": false, "/dev/x": false,
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
}

// joined is a program that joined a jail.
type joined struct {
	jail.Execution
	in  *os.File
	out *bufio.Reader
}

func (w *fixture) join(l *jail.Lifecycle, name jail.Name, argv ...string) joined {
	w.t.Helper()
	inRead, inWrite, err1 := os.Pipe()
	outRead, outWrite, err2 := os.Pipe()
	must(w.t, err1, err2)
	x, err := l.Exec(context.Background(), name, jail.Program{Argv: argv, Wire: jail.WireStdio, Env: map[string]string{"TRICKY": "a'b $(no)"}},
		[3]*os.File{inRead, outWrite, outWrite})
	must(w.t, inRead.Close(), outWrite.Close(), err)
	w.t.Cleanup(func() {
		must(w.t, x.End(context.Background()), inWrite.Close(), outRead.Close())
	})
	return joined{x, inWrite, bufio.NewReader(outRead)}
}

func (x joined) line(t *testing.T) string {
	t.Helper()
	line, err := x.out.ReadString('\n')
	must(t, err)
	return strings.TrimSpace(line)
}

func TestAProgramThatJoinsIsConfinedAndEndsWithAllThatItStarted(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	h := w.open()
	l := w.life(h)
	j := w.agent(l)
	x := w.join(l, j.Name, "/bin/sh", "-c", `echo "$TRICKY"; : >/x || echo refused; echo x >/state/x && cat /state/x; exit 7`)
	if got := x.line(t); got != "a'b $(no)" {
		t.Errorf("the environment has %q", got)
	}
	if e, err := x.Wait(t.Context()); err != nil || e.Code != 7 && e.Code != 2 {
		t.Errorf("it ended with %+v, %v", e, err)
	}
	if j.Ask("write", "/x", "x").OK {
		t.Error("the root file system can be written")
	}
	before, err := h.Runtime.jails.processes(t.Context(), j.Name)
	must(t, err)
	// Children that have left their session and their parents, and that ignore being asked to end.
	x = w.join(l, j.Name, "/bin/sh", "-c", `trap '' TERM HUP INT; (trap '' TERM HUP INT; (`+inside.ProbePath+` setsid `+inside.ProbePath+
		` sleep &) &); (sleep 600 &); echo up; read x`)
	if got := x.line(t); got != "up" {
		t.Fatalf("it says %q", got)
	}
	testenv.Eventually(t, 10*time.Second, func() bool {
		all, err := h.Runtime.jails.processes(t.Context(), j.Name)
		return err == nil && len(all) >= len(before)+3
	}, "the children did not start")
	must(t, x.End(t.Context()))
	after, err := h.Runtime.jails.processes(t.Context(), j.Name)
	must(t, err)
	if len(after) != len(before) {
		t.Errorf("%d processes are left, before there were %d", len(after), len(before))
	}
	own := filepath.Join(h.Runtime.folders.Path(), string(j.Name))
	for _, dir := range []string{execFolder, marksFolder} {
		if left, err := os.ReadDir(filepath.Join(own, dir)); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
	if a := j.Ask("cwd"); !a.OK {
		t.Errorf("the jail does not go on: %+v", a)
	}
}

func TestTheNextHostDaemonEndsWhatJoinedBeforeIt(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	h := w.open()
	l := w.life(h)
	j := w.agent(l)
	x := w.join(l, j.Name, "/bin/sh", "-c", `(sleep 600 & wait) & echo up; read x`)
	x.line(t)
	before, err := h.Runtime.jails.processes(t.Context(), j.Name)
	must(t, err)
	next := w.open()
	after, err := next.Runtime.jails.processes(t.Context(), j.Name)
	must(t, err)
	if len(before) != 4 || len(after) != 1 {
		t.Errorf("of %d processes %d are left, not the first alone", len(before), len(after))
	}
	if _, err := x.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}
