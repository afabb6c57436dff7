//go:build linux

package pid1_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// runtimeVariable makes of the test the runtime of containers that a pod is started by: a small one, in the pod's new namespaces.
const runtimeVariable = "CLAWJAIL_TEST_POD_RUNTIME"

func TestMain(m *testing.M) {
	if os.Getenv(runtimeVariable) != "" {
		if err := becomePod(); err != nil {
			fmt.Fprintln(os.Stderr, "the runtime:", err)
		}
		os.Exit(125)
	}
	goleak.VerifyTestMain(m)
}

// container is how a runtime makes a pod's container. What is false or 0 is as Kubernetes does it for a pod that is restricted.
type container struct {
	Folder       string // what is at /srv
	Root         string // where its root file system is put together
	Argv         []string
	SharedGroups bool // it sees the control groups of the host
	HostNetwork  bool
	Writable     bool // the root file system
	Capabilities bool // are kept in the bounding set
	Privileged   bool // it runs as root
	NoFilter     bool // of system calls
	ExecTmp      bool // programs can be run from /tmp
	BigTmp       bool // /tmp has more room than was declared
	Volume       bool // it has a writable volume that was not declared
}

const (
	user = 1000
	home = "/mnt"
	disk = 8 << 20
)

// becomePod confines this process as a runtime does, and becomes the pod's first program.
func becomePod() error {
	var c container
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return err
	}
	in := func(path string) string { return filepath.Join(c.Root, path) }
	tmpfs := func(path, options string, flags uintptr) error {
		return unix.Mount("tmpfs", in(path), "tmpfs", flags|unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	bind := func(from, to string, flags uintptr) error {
		return errors.Join(unix.Mount(from, to, "", unix.MS_BIND, ""), unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""))
	}
	var readOnly, tmpExec uintptr = unix.MS_RDONLY, unix.MS_NOEXEC
	if c.Writable {
		readOnly = 0
	}
	if c.ExecTmp {
		tmpExec = 0
	}
	size := disk
	if c.BigTmp {
		size *= 2
	}
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		bind("/", c.Root, readOnly|unix.MS_NOSUID|unix.MS_NODEV),
		bind(c.Folder, in("/srv"), unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV),
		unix.Mount("proc", in("/proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
		tmpfs("/dev", "size=64k,mode=755", 0),
		os.Mkdir(in("/dev/shm"), 0o755),
		os.WriteFile(in("/dev/null"), nil, 0o666),
		unix.Mount("/dev/null", in("/dev/null"), "", unix.MS_BIND, ""),
		tmpfs("/dev/shm", "size=1m,mode=1777", unix.MS_NOEXEC),
		tmpfs("/tmp", fmt.Sprintf("size=%d,mode=1777", size), tmpExec),
		tmpfs(home, fmt.Sprintf("size=%d,mode=700,uid=%d,gid=%d", disk, user, user), unix.MS_NOEXEC),
	); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if c.Volume {
		if err := tmpfs("/opt", "mode=777", 0); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Chdir(c.Root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), os.Chdir("/")); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if !c.Capabilities {
		for n := range uintptr(64) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("drop capability %d: %w", n, err)
			}
		}
	}
	if !c.Privileged {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(user, user, user), syscall.Setresuid(user, user, user)); err != nil {
			return fmt.Errorf("become uid %d: %w", user, err)
		}
	}
	if !c.NoFilter {
		allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000}} // SECCOMP_RET_ALLOW
		program := unix.SockFprog{Len: 1, Filter: &allow[0]}
		if err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
			unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)); err != nil {
			return fmt.Errorf("filter system calls: %w", err)
		}
	}
	return fmt.Errorf("execute %s: %w", c.Argv[0], syscall.Exec(c.Argv[0], c.Argv, []string{"IMAGE=yes", "KUBERNETES_SERVICE_HOST=10.0.0.1"}))
}

// builtShim is the program, as it is built for a release.
var builtShim = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", dir+"/shim", "github.com/clawjail/clawjail/cmd/clawjail-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(dir + "/shim")
})

// fixture is a control plane's side, and what a pod needs to reach it.
type fixture struct {
	t       testing.TB
	server  *shim.Server
	relay   *testenv.Relay
	address string
	folder  string // the pod's /srv
	arrived chan *shim.Pod
	pin     string
	window  time.Duration
	log     *testenv.Buffer
}

const token = "the token of pod one"

func newFixture(t testing.TB, window time.Duration) *fixture {
	t.Helper()
	testenv.Root(t)
	testenv.Tool(t, "go")
	program, err := builtShim()
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{t: t, folder: t.TempDir(), arrived: make(chan *shim.Pod, 16), window: window, log: &testenv.Buffer{}}
	if err := os.Chmod(w.folder, 0o755); err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	side, pin, err := shim.ServerTLS(key)
	if err != nil {
		t.Fatal(err)
	}
	w.pin = pin
	w.write("shim", program, 0o755)
	w.write("token", []byte(token), 0o644)
	w.server = shim.NewServer(shim.Options{
		TLS: side,
		Who: func(_ context.Context, given string, _ netip.Addr) (string, any, error) {
			switch given {
			case token:
				return "one", nil, nil
			case "the token of pod two":
				return "two", nil, nil
			}
			return "", nil, problem.New(problem.Unauthorized, "use the token of the pod", "the token is of no pod")
		},
		Arrived: func(p *shim.Pod) { w.arrived <- p }, Window: window, Log: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	w.relay = testenv.NewRelay(t, nil)
	w.address = w.listen(func(f func() error) error { return f() }, "127.0.0.1:0")
	w.relay.Lead(w.address)
	t.Cleanup(w.server.Close)
	return w
}

// listen lets pods in at an address of a network.
func (w *fixture) listen(within func(func() error) error, address string) string {
	w.t.Helper()
	var l net.Listener
	if err := within(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		w.server.Serve(l)
		close(done)
	}()
	w.t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func (w *fixture) write(name string, data []byte, mode os.FileMode) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.folder, name), data, mode); err != nil {
		w.t.Fatal(err)
	}
}

// started is a container that runs.
type started struct {
	cmd *exec.Cmd
	log *testenv.Buffer // of the shim
	end chan struct{}
}

// status waits for its end.
func (s *started) status(t testing.TB) int {
	t.Helper()
	select {
	case <-s.end:
	case <-time.After(30 * time.Second):
		t.Fatalf("the pod does not end; its log:\n%s", s.log)
	}
	return s.cmd.ProcessState.ExitCode()
}

// start starts a pod. prepare is done when its namespaces are there, and nothing runs in them.
func (w *fixture) start(c container, prepare func(first jail.Process)) *started {
	w.t.Helper()
	c.Folder, c.Root = w.folder, w.t.TempDir()
	if len(c.Argv) == 0 {
		c.Argv = w.argv(w.relay.Addr())
	}
	cmd := exec.Command("/proc/self/exe")
	s := &started{cmd: cmd, log: &testenv.Buffer{}, end: make(chan struct{})}
	cmd.Env = append(os.Environ(), runtimeVariable+"=1")
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC, Setsid: true}
	if !c.SharedGroups {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWCGROUP
	}
	if !c.HostNetwork {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNET
	}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // how it ended is in its state
		close(s.end)
	}()
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-s.end
	})
	if prepare != nil {
		prepare(jail.Process{PID: cmd.Process.Pid})
	}
	err = json.NewEncoder(in).Encode(c)
	if closed := in.Close(); !errors.Is(closed, os.ErrClosed) { // a pod may have ended by now, and Wait closes it, too
		err = errors.Join(err, closed)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *fixture) argv(gateway string) []string {
	return []string{"/srv/shim", "--gateway", gateway, "--pin", w.pin, "--token", "/srv/token"}
}

// pod starts one on the network of the host and waits until it has connected.
func (w *fixture) pod() (*started, *shim.Pod) {
	w.t.Helper()
	s := w.start(container{HostNetwork: true}, nil)
	return s, w.connected(s)
}

func (w *fixture) connected(s *started) *shim.Pod {
	w.t.Helper()
	select {
	case p := <-w.arrived:
		return p
	case <-s.end:
		w.t.Fatalf("the pod ended: %v\n%s", s.cmd.ProcessState, s.log)
	case <-time.After(20 * time.Second):
		w.t.Fatalf("no pod has connected\n%s\n%s", s.log, w.log)
	}
	return nil
}

// prepared is one whose programs may be started.
func (w *fixture) prepared() (*started, *shim.Pod) {
	w.t.Helper()
	s, p := w.pod()
	if _, err := p.Prepare(w.t.Context(), shim.Prepare{Profile: declared()}); err != nil {
		w.t.Fatal(err)
	}
	return s, p
}

// declared is how the pods of these tests should be confined.
func declared() jail.Profile {
	limits := jail.Limits{Memory: 1 << 30, MilliCPU: 1000, Tasks: 100, Disk: disk, SharedMemory: 1 << 20, Files: 256, WallClock: time.Hour}
	p := jail.ProfileFor(jail.Spec{Kind: jail.KindAgent, Limits: limits}, jail.Lease{UID: user}).With(jail.Means{Seccomp: true, SharedMemoryFolder: true})
	for n := range p.Tmpfs {
		if p.Tmpfs[n].Path == jail.StateDir {
			p.Tmpfs[n].Path = home // there is no /state where these tests run
		}
	}
	return p
}

// program is one that runs in a pod.
type program struct {
	*shim.Running
	in       *os.File
	out, err *output
}

// output is what a program prints.
type output struct {
	bytes.Buffer
	done chan struct{}
}

func (o *output) text() string {
	<-o.done
	return o.String()
}

// plain starts a program, and returns its stdin and its stdout. Nobody reads its stderr.
func (w *fixture) plain(p *shim.Pod, run shim.Run) (in, out *os.File) {
	w.t.Helper()
	_, ours, err := w.launch(p, run)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = errors.Join(ours[0].Close(), ours[1].Close(), ours[2].Close()) })
	return ours[0], ours[1]
}

// launch starts a program, and returns the other ends of its stdio.
func (w *fixture) launch(p *shim.Pod, run shim.Run) (running *shim.Running, ours [3]*os.File, err error) {
	w.t.Helper()
	var theirs [3]*os.File
	for n := range ours {
		r, wr, err := os.Pipe()
		if err != nil {
			w.t.Fatal(err)
		}
		if ours[n], theirs[n] = r, wr; n == 0 {
			ours[n], theirs[n] = wr, r
		}
	}
	run.Home = home
	if running, err = p.Run(w.t.Context(), run, theirs); err != nil {
		_ = errors.Join(ours[0].Close(), ours[1].Close(), ours[2].Close())
	}
	return running, ours, err
}

// run starts a program, and collects what it prints.
func (w *fixture) run(p *shim.Pod, run shim.Run) (*program, error) {
	w.t.Helper()
	running, ours, err := w.launch(p, run)
	if err != nil {
		return nil, err
	}
	out := &program{Running: running, in: ours[0]}
	w.t.Cleanup(func() { _ = out.in.Close() })
	collect := func(f *os.File) *output {
		o := &output{done: make(chan struct{})}
		go func() {
			defer close(o.done)
			_, _ = io.Copy(o, f)
			_ = f.Close()
		}()
		w.t.Cleanup(func() {
			_ = f.Close() // so that nobody waits for a pod that a failed test has left
			<-o.done
		})
		return o
	}
	out.out, out.err = collect(ours[1]), collect(ours[2])
	return out, nil
}

// shell is a program of /bin/sh.
func shell(script string, main bool) shim.Run {
	return shim.Run{Main: main, Program: jail.Program{Argv: []string{"/bin/sh", "-c", script}, Wire: jail.WireStdio}}
}

func (w *fixture) mustRun(p *shim.Pod, run shim.Run) *program {
	w.t.Helper()
	out, err := w.run(p, run)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// exit waits for a program's end.
func (w *fixture) exit(p *program) jail.Exit {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	exit, err := p.Wait(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	return exit
}

// says runs a script beside the pod's program, and returns what it prints.
func (w *fixture) says(p *shim.Pod, script string) string {
	w.t.Helper()
	one := w.mustRun(p, shell(script, false))
	_ = one.in.Close()
	exit := w.exit(one)
	return fmt.Sprintf("%s%s%d", one.out.text(), one.err.text(), exit.Code)
}

func code(err error) string {
	var p *problem.Error
	if !errors.As(err, &p) {
		return ""
	}
	return p.Code
}

// inNetworkOf does something in the network of a pod, with its loopback up.
func inNetworkOf(t *testing.T, first jail.Process) func(func() error) error {
	return func(f func() error) error {
		return linux.InNetworkOf(first, func() error {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(s) }()
			lo, err := unix.NewIfreq("lo")
			if err != nil {
				return err
			}
			lo.SetUint16(unix.IFF_UP)
			return errors.Join(unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo), f())
		})
	}
}
