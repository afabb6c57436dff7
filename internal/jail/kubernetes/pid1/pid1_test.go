//go:build linux

package pid1_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/link"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestTheProgramOfPodsIsSmallAndStatic(t *testing.T) {
	testenv.Tool(t, "go")
	program, err := builtShim()
	if err != nil {
		t.Fatal(err)
	}
	if len(program) > 8_000_000 {
		t.Errorf("it has %d bytes", len(program))
	}
	if bytes.Contains(program, []byte("ld-linux")) {
		t.Error("it needs a dynamic linker")
	}
}

// What a runtime leaves away is seen by the pod itself, before any program runs in it.
func TestAPodSaysHowItIsConfined(t *testing.T) {
	for name, c := range map[string]struct {
		container
		want string
	}{
		"as declared":             {},
		"groups of the host":      {container{SharedGroups: true}, "namespaces shared with the host: cgroup"},
		"a writable root":         {container{Writable: true}, "the root file system is writable"},
		"capabilities":            {container{Capabilities: true}, "capability CAP_SYS_ADMIN was not declared"},
		"root":                    {container{Privileged: true}, "uid in the jail is 0, declared 1000"},
		"no filter":               {container{NoFilter: true}, "no seccomp filter is active"},
		"programs in /tmp":        {container{ExecTmp: true}, "tmpfs /tmp allows programs to be run"},
		"a larger /tmp":           {container{BigTmp: true}, "tmpfs /tmp has 16777216 bytes, declared 8388608"},
		"a volume":                {container{Volume: true}, "/opt is writable and was not declared"},
		"the network of the host": {container{HostNetwork: true}, "it has addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			if own, err := os.Readlink("/proc/self/ns/cgroup"); c.SharedGroups && (err != nil || own != "cgroup:[4026531835]") {
				t.Skip("SKIPPED: these tests run in control groups that are not the machine's first")
			}
			w := newFixture(t, time.Minute)
			if !c.HostNetwork {
				c.Argv = w.argv("127.0.0.1:1")
			}
			s := w.start(c.container, func(first jail.Process) {
				if !c.HostNetwork {
					w.listen(inNetworkOf(t, first), "127.0.0.1:1")
				}
			})
			p := w.connected(s)
			report, err := p.Prepare(t.Context(), shim.Prepare{Profile: declared(), Sandbox: true})
			if err != nil {
				t.Fatal(err)
			}
			// Of its own filter nothing is said, however often it is asked.
			if again, err := p.Prepare(t.Context(), shim.Prepare{Profile: declared()}); err != nil || again.Observed.SeccompFilter == c.NoFilter {
				t.Errorf("the second time a filter is %v, %v", again.Observed.SeccompFilter, err)
			}
			if report.Unsandboxed != "" {
				t.Errorf("a browser has no sandbox: %s", report.Unsandboxed)
			}
			diff := slices.DeleteFunc(declared().Compare(report.Observed), func(one string) bool {
				return strings.HasPrefix(one, "limit memory") || strings.HasPrefix(one, "limit cpu") || strings.HasPrefix(one, "limit tasks") // these tests set none
			})
			if len(report.Addresses) > 0 {
				diff = append(diff, "it has addresses")
			}
			if c.want == "" && len(diff) > 0 || c.want != "" && !slices.Contains(diff, c.want) {
				t.Errorf("the differences are %q", diff)
			}
			if report.Host != report.Observed.InsideUID || c.want == "" && report.Host != user {
				t.Errorf("its user is %d on the host", report.Host)
			}
		})
	}
}

func TestProbesSayWhatAPodReaches(t *testing.T) {
	w := newFixture(t, time.Minute)
	beside, err := net.Listen("tcp", "127.0.0.1:0") // of the host, where the pod is not
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = beside.Close() })
	s := w.start(container{Argv: w.argv("127.0.0.1:1")}, func(first jail.Process) {
		inside := inNetworkOf(t, first)
		w.listen(inside, "127.0.0.1:1")
		var names net.PacketConn
		if err := inside(func() (err error) {
			names, err = net.ListenPacket("udp", "127.0.0.53:53")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			b := make([]byte, 512)
			for {
				n, from, err := names.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = names.WriteTo(b[:n], from)
			}
		}()
		t.Cleanup(func() {
			_ = names.Close()
			<-answered
		})
	})
	p := w.connected(s)
	probe := func(name, network, address string) shim.Probe {
		return shim.Probe{Name: name, Network: network, Address: netip.MustParseAddrPort(address)}
	}
	report, err := p.Prepare(t.Context(), shim.Prepare{Profile: declared(), Probes: []shim.Probe{
		probe("gateway", "tcp", "127.0.0.1:1"), probe("name server", "dns", "127.0.0.53:53"),
		probe("host", "tcp", beside.Addr().String()), probe("other name server", "dns", "127.0.0.54:53"), probe("Internet", "tcp", "198.51.100.1:443"),
	}})
	if err != nil || !slices.Equal(report.Reached, []string{"gateway", "name server"}) {
		t.Errorf("it reaches %q: %v", report.Reached, err)
	}
	if _, err := p.Prepare(t.Context(), shim.Prepare{Profile: declared(), Probes: []shim.Probe{probe("x", "carrier pigeon", "127.0.0.1:1")}}); code(err) != problem.Unsupported {
		t.Errorf("a probe by what there is not: %v", err)
	}
}

func TestAProgramHasItsStdioAndThePodEndsAsItDoes(t *testing.T) {
	for _, c := range []struct {
		wire   jail.Wire
		script string
	}{
		{jail.WireStdio, `read line; echo "got $line"; echo "to stderr" >&2; exit 7`},
		{jail.WirePipe34, `read line <&3; echo "got $line" >&4; echo "to stderr"; exit 7`},
	} {
		t.Run(string(c.wire), func(t *testing.T) {
			w := newFixture(t, time.Minute)
			s, p := w.prepared()
			run := shell(c.script, true)
			run.Program.Wire = c.wire
			one := w.mustRun(p, run)
			if _, err := one.in.WriteString("hello\n"); err != nil {
				t.Fatal(err)
			}
			exit := w.exit(one)
			if exit.Code != 7 || exit.Signal != "" || exit.Cause != jail.CauseExited || exit.At.IsZero() {
				t.Errorf("it ended with %+v", exit)
			}
			if out, err := one.out.text(), one.err.text(); out != "got hello\n" || err != "to stderr\n" {
				t.Errorf("it printed %q and %q", out, err)
			}
			if status := s.status(t); status != 7 {
				t.Errorf("the pod ended with %d\n%s", status, s.log)
			}
		})
	}
}

func TestAProgramHasItsEnvironmentAndItsFiles(t *testing.T) {
	w := newFixture(t, time.Minute)
	_, p := w.prepared()
	run := shell(`echo "$A,$HOME,$IMAGE,$KUBERNETES_SERVICE_HOST,$LANG,$(pwd)"; cat .config/x; ulimit -n; ulimit -c 0; grep -c "core file size *1 *1 " /proc/self/limits; id -u; ls -l .config/x | cut -c1-10; test -e /proc/self/fd/5 || echo no more descriptors`, false)
	run.Program.Env = map[string]string{"A": "it's"}
	run.HomeFiles = []jail.File{{Path: ".config/x", Data: []byte("a file\n")}}
	one := w.mustRun(p, run)
	if exit := w.exit(one); exit.Code != 0 {
		t.Errorf("it ended with %+v: %s", exit, one.err.text())
	}
	if got, want := one.out.text(), "it's,/mnt,yes,,C.UTF-8,/mnt\na file\n256\n1\n1000\n-rw-------\nno more descriptors\n"; got != want {
		t.Errorf("it printed %q, want %q", got, want)
	}
	run.Program.Without, run.Program.Dir, run.HomeFiles = []string{"IMAGE"}, "/tmp", nil
	run.Program.Argv[2] = `echo "$IMAGE,$(pwd)"`
	one = w.mustRun(p, run)
	if got := one.out.text(); got != ",/tmp\n" {
		t.Errorf("it printed %q", got)
	}
	// Folders are made in those that are there, once.
	run.Program.Argv[2] = `ls -d /mnt/made | tr '\n' ' '`
	run.Make = []string{"/mnt/made"}
	for range 2 {
		if got := w.mustRun(p, run).out.text(); got != "/mnt/made \n" && got != "/mnt/made " {
			t.Errorf("it printed %q", got)
		}
	}
	run.Make = []string{"/mnt/nowhere/made"}
	if _, err := w.run(p, run); code(err) != problem.JailFailed || !strings.Contains(err.Error(), "a folder for the program could not be made") {
		t.Errorf("a folder in one that is not there: %v", err)
	}
	if err := p.Token(t.Context(), []byte("token")); code(err) != problem.Conflict {
		t.Errorf("a token, in a pod that has no place for one: %v", err)
	}
	if _, err := w.run(p, shim.Run{Program: jail.Program{Argv: []string{"/nowhere"}}}); code(err) != problem.JailFailed || !strings.Contains(err.Error(), "/nowhere could not be started: no such file") {
		t.Errorf("a program that is not there: %v", err)
	}
	if _, err := w.run(p, shim.Run{Main: true, Program: jail.Program{Argv: []string{"/nowhere"}}}); code(err) != problem.JailFailed || !strings.Contains(err.Error(), "/nowhere could not be started: no such file") {
		t.Errorf("a program that is not there, as the pod's own: %v", err)
	}
}

func TestWhatAProgramLeavesEndsWithIt(t *testing.T) {
	w := newFixture(t, time.Minute)
	_, p := w.prepared()
	main := w.mustRun(p, shell(`exec sleep 1000`, true))
	one := w.mustRun(p, shell(`for n in 1 2 3; do (setsid sh -c 'sleep 999 & exec sleep 999' &) ; done; sleep 0.2; echo begun; exec sleep 999`, false))
	testenv.Eventually(t, 10*time.Second, func() bool {
		return strings.HasPrefix(w.says(p, `grep -lx 'sleep.999.*' /proc/[0-9]*/cmdline -a | wc -l`), "7\n")
	}, "the program's processes run")
	if err := one.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit := w.exit(one); exit.Code != 128+9 || exit.Signal != "killed" {
		t.Errorf("it ended with %+v", exit)
	}
	if got := w.says(p, `grep -lx 'sleep.999.*' /proc/[0-9]*/cmdline -a | wc -l; grep -lx 'sleep.1000.*' /proc/[0-9]*/cmdline -a | wc -l`); got != "0\n1\n0" {
		t.Errorf("what is left is %q", got)
	}
	// Of a program that has ended by itself nothing is left either. One that has left its output open ends all the same.
	if got := w.says(p, `(setsid sleep 999 &); echo done`); got != "done\n0" {
		t.Errorf("it printed %q", got)
	}
	if got := w.says(p, `grep -lx 'sleep.999.*' /proc/[0-9]*/cmdline -a | wc -l; grep -l '^State:.Z' /proc/[0-9]*/status | wc -l`); got != "0\n0\n0" {
		t.Errorf("what is left, and dead, is %q", got)
	}
	if err := p.End(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if exit := w.exit(main); exit.Signal != "killed" {
		t.Errorf("the pod's program ended with %+v", exit)
	}
}

func TestZombiesAreCollected(t *testing.T) {
	w := newFixture(t, time.Minute)
	_, p := w.prepared()
	w.mustRun(p, shell(`for n in $(seq 200); do (sleep 0.01 &) ; done; exec sleep 1000`, true))
	testenv.Eventually(t, 20*time.Second, func() bool {
		return w.says(p, `ls -d /proc/[0-9]* | wc -l; grep -l '^State:.Z' /proc/[0-9]*/status | wc -l`) == "6\n0\n0" // the shim, sleep, the holder, the shell, ls and wc
	}, "only those are left who run")
}

// Programs of the pod are of the same user as its first process.
func TestProgramsCannotHarmTheFirstProcess(t *testing.T) {
	w := newFixture(t, time.Minute)
	s, p := w.prepared()
	w.mustRun(p, shell(`exec sleep 1000`, true))
	for script, want := range map[string]string{
		`for s in KILL STOP SEGV ABRT QUIT HUP TRAP USR1 PIPE ALRM SYS 32 33 34 64; do kill -$s 1; done; echo sent`: "sent\n0",
		`cat /proc/1/environ 2>&1 | grep -c denied`:                                                                 "1\n0",
		`cat /proc/1/mem 2>&1 | grep -c denied`:                                                                     "1\n0",
		`ls /proc/1/fd 2>&1 | grep -c denied`:                                                                       "1\n0",
		`(echo x >/proc/1/comm) 2>&1 | grep -c denied`:                                                              "1\n0",
		// No signal but KILL and STOP has the default action, which is fatal when it comes at the wrong moment.
		`grep -E 'Sig(Ign|Cgt)' /proc/1/status`: "SigIgn:\t0000000280000000\nSigCgt:\tfffffffd7ffbfeff\n0",
		`cat /proc/1/comm`:                      "shim\n0",
		`ls /proc/$$/fd; true`:                  "0\n1\n2\n0", // of one's own they can be listed; a pipe would be one more
	} {
		if got := w.says(p, script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	// Whoever kills what holds a program ends the pod, for what that has started would go on.
	one, err := w.run(p, shell(`kill -9 $PPID; exec sleep 999`, false))
	if err == nil { // it was not so fast that nobody has heard of it
		_, err = one.Wait(t.Context())
	}
	if code(err) != problem.JailFailed || !strings.Contains(err.Error(), "what holds a program") {
		t.Errorf("it ended with %v", err)
	}
	if status := s.status(t); status != 70 {
		t.Errorf("the pod ended with %d\n%s", status, s.log)
	}
}

func TestAPodIsReadyWhenItIsToldSo(t *testing.T) {
	w := newFixture(t, time.Minute)
	s, p := w.pod()
	ready := func() string { return w.says(p, `/srv/shim ready`) }
	if err := p.Ready(t.Context()); code(err) != problem.Conflict {
		t.Errorf("ready before it has said how it is confined: %v", err)
	}
	if _, err := w.run(p, shell("true", false)); code(err) != problem.Conflict {
		t.Errorf("a program before that: %v", err)
	}
	if _, err := p.Prepare(t.Context(), shim.Prepare{Profile: declared()}); err != nil {
		t.Fatal(err)
	}
	if got := ready(); got != "1" {
		t.Errorf("before: %q", got)
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ready(); got != "0" {
		t.Errorf("after: %q", got)
	}
	if _, err := p.Prepare(t.Context(), shim.Prepare{Profile: declared()}); code(err) != problem.Conflict {
		t.Errorf("prepared while programs have run: %v", err)
	}
	_ = s
}

func TestAPodThatKubernetesEndsLetsItsProgramEnd(t *testing.T) {
	w := newFixture(t, time.Minute)
	s, p := w.prepared()
	one, ours, err := w.launch(p, shell(`trap 'echo goodbye; exit 3' TERM; echo begun; while :; do sleep 0.05; done`, true))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(ours[0].Close(), ours[1].Close(), ours[2].Close()) }()
	out := bufio.NewReader(ours[1])
	if line, err := out.ReadString('\n'); line != "begun\n" || err != nil { // from now on it handles the signal
		t.Fatalf("it printed %q: %v", line, err)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit, err := one.Wait(t.Context()); err != nil || exit.Code != 3 {
		t.Errorf("it ended with %+v, %v", exit, err)
	}
	if got, err := io.ReadAll(out); string(got) != "goodbye\n" || err != nil {
		t.Errorf("it printed %q: %v", got, err)
	}
	if status := s.status(t); status != 3 && status != 128+15 {
		t.Errorf("the pod ended with %d\n%s", status, s.log)
	}
}

func TestPortsOfThePodAreReached(t *testing.T) {
	w := newFixture(t, time.Minute)
	var listener net.Listener
	s := w.start(container{Argv: w.argv("127.0.0.1:1")}, func(first jail.Process) {
		inside := inNetworkOf(t, first)
		w.listen(inside, "127.0.0.1:1")
		if err := inside(func() (err error) {
			listener, err = net.Listen("tcp", "127.0.0.1:8080")
			return err
		}); err != nil {
			t.Fatal(err)
		}
	})
	p := w.connected(s)
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			var all []byte
			all, err = io.ReadAll(conn) // until the other side has said everything
			_, err2 := conn.Write(append([]byte("heard "), all...))
			err = errors.Join(err, err2, conn.Close())
		}
		served <- errors.Join(err, listener.Close())
	}()
	conn, err := p.Dial(t.Context(), 8080)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Write([]byte("hello"))
	if err := errors.Join(err, unix.Shutdown(int(conn.Fd()), unix.SHUT_WR)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err := errors.Join(err, conn.Close(), <-served); err != nil || string(got) != "heard hello" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := p.Dial(t.Context(), 8081); code(err) != problem.UpstreamUnreachable {
		t.Errorf("a port where nobody listens: %v", err)
	}
}

// The connection is cut again and again while a program copies its stdin to its stdout.
func TestNoByteOfAProgramIsLostOrDoubledWhenConnectionsBreak(t *testing.T) {
	w := newFixture(t, time.Minute)
	s, p := w.prepared()
	one := w.mustRun(p, shell(`exec cat`, true))
	const size = 24 << 20
	sent := make([]byte, size)
	dice := rand.NewChaCha8([32]byte{7})
	_, _ = dice.Read(sent)
	wrote := make(chan error, 1)
	go func() {
		_, err := io.Copy(one.in, bytes.NewReader(sent))
		wrote <- errors.Join(err, one.in.Close())
	}()
	cuts := 0
	for over := false; !over; {
		select {
		case <-time.After(time.Duration(10+rand.IntN(60)) * time.Millisecond):
			w.relay.Lead(w.address) // cuts what is there
			cuts++
		case <-one.out.done:
			over = true
		}
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if got := one.out.Bytes(); sha256.Sum256(got) != sha256.Sum256(sent) {
		t.Errorf("%d bytes came back of %d, or others", len(got), len(sent))
	}
	if exit := w.exit(one); exit.Code != 0 || s.status(t) != 0 {
		t.Errorf("it ended with %+v", exit)
	}
	t.Logf("cut %d times", cuts)
	if cuts == 0 {
		t.Error("the connection was never cut")
	}
}

func TestAPodEndsWhenItsConnectionIsLostForTooLong(t *testing.T) {
	w := newFixture(t, 2*time.Second)
	s, p := w.prepared()
	one := w.mustRun(p, shell(`exec sleep 1000`, true))
	w.relay.Lead("")
	time.Sleep(500 * time.Millisecond) // within the window
	w.relay.Lead(w.address)
	if got := w.says(p, `echo alive`); got != "alive\n0" {
		t.Fatalf("after a break within the window: %q", got)
	}
	w.relay.Lead("")
	if _, err := one.Wait(t.Context()); !errors.Is(err, link.ErrLost) || code(err) != problem.JailFailed {
		t.Errorf("the control plane sees %v", err)
	}
	if status := s.status(t); status != 69 {
		t.Errorf("the pod ended with %d\n%s", status, s.log)
	}
	if !strings.Contains(s.log.String(), "the control plane is lost") {
		t.Errorf("its log:\n%s", s.log)
	}
}

// A pod in which nothing has begun is as good as a new one: it outlives the control plane.
func TestAPodInWhichNothingHasBegunWaitsForTheNextControlPlane(t *testing.T) {
	w := newFixture(t, time.Second)
	s, p := w.prepared()
	p.Forget()
	next := w.connected(s)
	if next == p {
		t.Fatal("it is the same connection")
	}
	if _, err := w.run(next, shell("true", false)); code(err) != problem.Conflict {
		t.Errorf("a program before it has said again how it is confined: %v", err)
	}
	if _, err := next.Prepare(t.Context(), shim.Prepare{Profile: declared()}); err != nil {
		t.Fatal(err)
	}
	if got := w.says(next, `echo hello`); got != "hello\n0" {
		t.Errorf("%q", got)
	}
	// From now on it is not.
	next.Forget()
	if status := s.status(t); status != 69 {
		t.Errorf("the pod ended with %d\n%s", status, s.log)
	}
}

func TestAPodRefusesWhoIsNotItsControlPlane(t *testing.T) {
	w := newFixture(t, time.Minute)
	w.pin = base64.StdEncoding.EncodeToString(make([]byte, 32))
	s := w.start(container{HostNetwork: true}, nil)
	testenv.Eventually(t, 20*time.Second, func() bool {
		return strings.Contains(s.log.String(), "what answers there is not the control plane: it has another key")
	}, "it says so")
	select {
	case <-w.arrived:
		t.Error("it has connected")
	default:
	}
}

func TestWhatIsNotTheFirstProcessOfAPodDoesNothing(t *testing.T) {
	w := newFixture(t, time.Minute)
	s := w.start(container{HostNetwork: true, Argv: append([]string{"/bin/sh", "-c", `"$@"; exit $?`, "sh"}, w.argv(w.relay.Addr())...)}, nil)
	if status := s.status(t); status != 64 || !strings.Contains(s.log.String(), "is not the first process of its pod") {
		t.Errorf("it ended with %d\n%s", status, s.log)
	}
	for _, argv := range [][]string{{"/srv/shim"}, {"/srv/shim", "--gateway", "nowhere"}, {"/srv/shim", "--unknown"}, {"/srv/shim", "hold"}} {
		if status := w.start(container{Argv: argv}, nil).status(t); status != 64 {
			t.Errorf("%q ended with %d", argv, status)
		}
	}
}

func TestAPodHasOneProgramOfItsOwn(t *testing.T) {
	w := newFixture(t, time.Minute)
	_, p := w.prepared()
	w.mustRun(p, shell(`exec sleep 1000`, true))
	if _, err := w.run(p, shell(`true`, true)); code(err) != problem.Conflict {
		t.Errorf("a second one: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Usage(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("asked by who does not wait: %v", err)
	}
	if _, err := p.Usage(t.Context()); err != nil {
		t.Error(err)
	}
	if p.Name() != "one" || p.Address() != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("it is %s at %s", p.Name(), p.Address())
	}
	if fmt.Sprint(os.Getpid()) == "1" {
		t.Error("these tests are the first process themselves")
	}
}
