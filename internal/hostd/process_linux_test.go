package hostd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// runHelper is the main function of this test binary when it is another process. Its settings are in the
// arguments after the first.
func runHelper(name string) int {
	helpers := map[string]func(args []string) error{
		"hostd": helperHostd, "agents": helperAgents, "run": helperRun, "info": helperInfo, "note": helperNote, "heir": helperHeir, "journal": helperJournal, "hardened": helperHardened,
	}
	if err := helpers[name](os.Args[1:]); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// process is a helper that runs.
type process struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner // its stdout
	in    io.WriteCloser
}

func startHelper(t *testing.T, binary, name string, credential *syscall.Credential, args ...string) *process {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), helperVariable+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, lines: bufio.NewScanner(out), in: in}
	t.Cleanup(func() { p.kill() })
	return p
}

// kill ends it as nothing can prevent. A second call does nothing.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// expect reads lines until one has the prefix, and returns the rest of it.
func (p *process) expect(t *testing.T, prefix string) string {
	t.Helper()
	var seen []string
	for p.lines.Scan() {
		if rest, ok := strings.CutPrefix(p.lines.Text(), prefix); ok {
			return rest
		}
		seen = append(seen, p.lines.Text())
	}
	t.Fatalf("the process ended without saying %q: %q", prefix, seen)
	return ""
}

// helperHostd serves a disk. Arguments: its folder, the socket, the step to stop at (or "-"). At the step it says so
// and waits to be killed.
func helperHostd(args []string) error {
	d, err := newDisk(args[0])
	if err != nil {
		return err
	}
	journal, err := OpenJournal(filepath.Join(args[0], "journal"), "test", nil)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return Serve(ctx, Options{
		Socket: args[1], Group: -1, ControlUID: uint32(os.Geteuid()), Installation: "test", Pool: d.pool,
		Parts: Parts{Parts: d.parts()}, Journal: journal, Checkpoints: filepath.Join(args[0], "checkpoints"),
		Keep: keepIn(args[0]), Grace: 20 * time.Millisecond,
		HasTemplate: func(context.Context, string) error { return nil },
		Templates:   func(context.Context) ([]Template, error) { return nil, nil },
		Barrier: func(s jail.Step) {
			if string(s) == args[2] {
				fmt.Println("at", s)
				select {}
			}
		},
		Notify: func(state string) error { fmt.Println(state); return nil },
	})
}

// left lists what is on a disk, in the journal, and which of its programs run.
func left(t *testing.T, dir string) []string {
	t.Helper()
	d, err := newDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	resources, err := d.list(jail.ResourceKinds()...)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, trace := range resources {
		out = append(out, fmt.Sprint(trace))
	}
	records, err := filepath.Glob(filepath.Join(dir, "journal", "*"))
	if err != nil {
		t.Fatal(err)
	}
	out = append(out, records...)
	// Programs carry the folder in their arguments.
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range commands {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "program-of-"+filepath.Base(dir)) {
			out = append(out, path)
		}
	}
	return out
}

// The host daemon is killed, as a real process, at every step of a jail's life; then another one starts. The steps
// come from the lifecycle's own list.
func TestNothingIsLeftWhereverTheHostDaemonIsKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range jail.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			socket := newSocket(t)
			dir := filepath.Dir(socket)
			victim := startHelper(t, self, "hostd", nil, dir, socket, string(step))
			victim.expect(t, "READY=1")
			c := NewClient(socket, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if err := c.Hold(ctx); err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			lived := make(chan struct{})
			go func() { // errors are expected: its host daemon is killed under it
				defer close(lived)
				s := spec("trap '' TERM; while :; do sleep 1; done # program-of-" + filepath.Base(dir))
				j, err := c.Create(ctx, s)
				if err != nil {
					return
				}
				defer j.Stdio.Close()
				if c.Admit(ctx, j.Name) == nil {
					_ = c.Destroy(ctx, j.Name)
				}
			}()
			if got := victim.expect(t, "at "); got != string(step) {
				t.Fatalf("stopped at %s", got)
			}
			victim.kill()
			<-lived
			// Every step but the first has something to leave; otherwise this test would prove nothing.
			if n := len(left(t, dir)); n == 0 && step != jail.StepReserve {
				t.Error("nothing was there to be cleaned up")
			}
			c.Close()
			next := startHelper(t, self, "hostd", nil, dir, socket, "-")
			next.expect(t, "READY=1")
			testenv.Eventually(t, patience, func() bool {
				_, err := NewClient(socket, nil).Reap(t.Context(), jail.ReapOptions{})
				return err == nil && len(left(t, dir)) == 0
			}, "left on the host")
			if rest := left(t, dir); len(rest) > 0 {
				t.Errorf("left on the host: %v", rest)
			}
		})
	}
}

// The host daemon is killed at every step of a kept jail's life: the next one brings about what is declared, once, and what
// is dropped is gone.
func TestAgentsConvergeWhereverTheHostDaemonIsKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range jail.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			socket := newSocket(t)
			dir := filepath.Dir(socket)
			victim := startHelper(t, self, "hostd", nil, dir, socket, string(step))
			victim.expect(t, "READY=1")
			c := NewClient(socket, nil)
			k := keptSpec("bot", "while :; do sleep 1; done # program-of-"+filepath.Base(dir))
			done := make(chan struct{})
			go func() { // errors are expected: its host daemon is killed under it
				defer close(done)
				if c.Keep(t.Context(), k, agentToken) == nil {
					_ = c.RestartKept(t.Context(), "default", "bot")
				}
			}()
			if got := victim.expect(t, "at "); got != string(step) {
				t.Fatalf("stopped at %s", got)
			}
			victim.kill()
			<-done
			next := startHelper(t, self, "hostd", nil, dir, socket, "-")
			next.expect(t, "READY=1")
			testenv.Eventually(t, patience, func() bool {
				s := keptStatus(t, c, "bot")
				all, err := c.List(t.Context())
				return err == nil && s.Phase == jail.PhaseRunning && len(all) == 1 && all[0].Name == s.Jail
			}, "there is not one jail")
			s := keptStatus(t, c, "bot")
			if data, err := os.ReadFile(filepath.Join(dir, "token-"+string(s.Jail))); err != nil || string(data) != agentToken {
				t.Errorf("its token is %q, %v", data, err)
			}
			if err := c.Drop(t.Context(), "default", "bot", jail.DropOptions{}); err != nil {
				t.Fatal(err)
			}
			if rest := left(t, dir); len(rest) > 0 {
				t.Errorf("left on the host: %v", rest)
			}
			for _, pattern := range []string{"state-*", "agents/*", "logs/*", "console/*"} {
				if rest, err := filepath.Glob(filepath.Join(dir, pattern)); err != nil || len(rest) > 0 {
					t.Errorf("left are %v, %v", rest, err)
				}
			}
		})
	}
}

func TestKillingTheHostDaemonLeavesGoodJailsAlone(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := newSocket(t)
	dir := filepath.Dir(socket)
	first := startHelper(t, self, "hostd", nil, dir, socket, "-")
	first.expect(t, "READY=1")
	c := NewClient(socket, nil)
	if err := c.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	j := create(t, c, spec("exec cat"))
	first.kill()
	second := startHelper(t, self, "hostd", nil, dir, socket, "-")
	second.expect(t, "READY=1")
	create(t, c, spec("exec cat")) // the hold is there again
	if _, err := c.Reap(t.Context(), jail.ReapOptions{}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(j.Stdio.In, "still here")
	if line, err := bufio.NewReader(j.Stdio.Out).ReadString('\n'); line != "still here\n" {
		t.Fatalf("the jail answers %q, %v", line, err)
	}
	all, err := c.List(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("list: %v, %v", all, err)
	}
	for _, st := range all {
		if err := c.Destroy(t.Context(), st.Name); err != nil {
			t.Fatal(err)
		}
	}
	if rest := left(t, dir); len(rest) > 0 {
		t.Errorf("left: %v", rest)
	}
}

// helperInfo asks for the info of a host daemon. Arguments: the socket.
func helperInfo(args []string) error {
	info, err := NewClient(args[0], nil).Info(context.Background())
	if err != nil {
		return err
	}
	fmt.Println("installation:", info.Installation)
	return nil
}

// helperNote asks for what was reaped, and has a note kept. Arguments: the socket, the note.
func helperNote(args []string) error {
	c := NewClient(args[0], nil)
	_, err := c.Reaped(context.Background(), 0)
	if e := c.AppendCheckpoint(context.Background(), []byte(args[1])); err != nil || e != nil {
		fmt.Println("reaped:", err)
		return e
	}
	fmt.Println("kept")
	return nil
}

// copyOfThisBinary is one that every user can run.
func copyOfThisBinary(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "hostd-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "helper")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, path} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestOnlyTheControlPlanesUserAndRootGetAnAnswer(t *testing.T) {
	testenv.Need(t, testenv.Root)
	binary := copyOfThisBinary(t)
	const control, group, stranger = 64001, 64002, 64003
	var log strings.Builder
	f := newFixture(t, func(o *Options) {
		o.ControlUID, o.Group = control, group
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	// The stranger is in the group, so the file's permissions let it through: the kernel's word decides.
	if err := os.Chmod(filepath.Dir(f.socket), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		uid  uint32
		ok   bool
	}{{"control plane", control, true}, {"stranger", stranger, false}, {"root", 0, true}} {
		t.Run(c.name, func(t *testing.T) {
			p := startHelper(t, binary, "info", &syscall.Credential{Uid: c.uid, Gid: group}, f.socket)
			if c.ok {
				p.expect(t, "installation: test")
				return
			}
			if said := p.expect(t, "error:"); !strings.Contains(said, "does not answer") {
				t.Errorf("it was told %q", said)
			}
		})
	}
	note := newNoteKey(t).note(t, 1)
	for uid, want := range map[uint32]string{control: "kept", stranger: "reaped: the host daemon does not answer"} {
		p := startHelper(t, binary, "note", &syscall.Credential{Uid: uid, Gid: group}, f.socket, string(note))
		p.expect(t, want)
		if uid == stranger {
			p.expect(t, "error: the host daemon does not answer")
		}
	}
	if got := noted(t, filepath.Join(filepath.Dir(f.socket), "checkpoints")); len(got) != 1 {
		t.Errorf("the notes are %v: a stranger's is kept, or the control plane's is not", got)
	}
	if err := f.stop(); err != nil { // the log is complete
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "refused a connection") || !strings.Contains(log.String(), strconv.Itoa(stranger)) {
		t.Errorf("the log says nothing of the stranger:\n%s", log.String())
	}
}

// helperHeir holds an owner, makes a jail and gives the connection to a child that outlives it. Arguments: the
// socket.
func helperHeir(args []string) error {
	ctx := context.Background()
	c := NewClient(args[0], nil)
	conn, err := c.openHold(ctx)
	if err != nil {
		return err
	}
	held, err := conn.File()
	if err != nil {
		return err
	}
	c.end = func() {}
	c.setHeld(true)
	if _, err := c.Create(ctx, spec("exec sleep 1000")); err != nil {
		return err
	}
	heir := exec.Command("/bin/sleep", "1000")
	heir.ExtraFiles = []*os.File{held}
	if err := heir.Start(); err != nil {
		return err
	}
	fmt.Println("heir", heir.Process.Pid)
	select {}
}

func TestAnInheritedConnectionDoesNotSpeakForADeadOwner(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, nil)
	if err := peerPIDFD(t, f.socket); err != nil {
		testenv.Missing(t, "SO_PEERPIDFD: "+err.Error(), "use Linux 6.5 or newer")
	}
	p := startHelper(t, self, "heir", nil, f.socket)
	heir, err := strconv.Atoi(p.expect(t, "heir "))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(heir, unix.SIGKILL) }()
	if n := len(f.host.Resources()); n == 0 {
		t.Fatal("there is no jail")
	}
	p.kill()
	if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", heir)); err != nil || !strings.HasPrefix(to, "socket:") {
		t.Fatalf("the heir does not have the connection: %q, %v", to, err)
	}
	f.empty(t)
}

// peerPIDFD says whether this kernel tells the process of a connection.
func peerPIDFD(t *testing.T, socket string) error {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		var pidfd int
		if pidfd, optErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); optErr == nil {
			optErr = unix.Close(pidfd)
		}
	})
	return errors.Join(err, optErr)
}
