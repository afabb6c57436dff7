//go:build linux

package docker

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestFromInsideAContainer(t *testing.T) {
	h := newHost(t)
	if err := os.Mkdir(filepath.Join(h.work, "ro"), 0o777); err != nil {
		t.Fatal(err)
	}
	_, p := h.probe(t, func(s *jail.Spec) {
		s.Mounts = []jail.Mount{
			{Source: filepath.Join(h.work, "a/b"), Target: jail.WorkspaceDir, Make: []string{"bot"}},
			{Source: filepath.Join(h.work, "ro"), Target: "/mnt/ro", ReadOnly: true},
		}
	})
	for _, path := range []string{"/x", "/etc/x", "/bin/x", "/run/x", "/run/hermit/x", "/dev/x", "/dev/mqueue/x", "/mnt/ro/x",
		"/sys/fs/cgroup/x", "/sys/fs/cgroup/pids/x", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"} {
		if a := p.Ask("write", path, "x"); a.OK {
			t.Errorf("%s can be written", path)
		}
	}
	for _, path := range []string{"/state/x", "/tmp/x", "/dev/shm/x", "/workspace/x", "/workspace/bot/x"} {
		if a := p.Ask("write", path, "x"); !a.OK {
			t.Errorf("%s cannot be written: %s", path, a.Error)
		}
	}
	if _, err := os.Stat(filepath.Join(h.work, "a/b/bot/x")); err != nil {
		t.Errorf("what is written in the workspace is not on the host: %v", err)
	}
	for field, want := range map[string]string{"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"} {
		if a := p.Ask("status", field); a.Text != want {
			t.Errorf("%s is %q, want %q", field, a.Text, want)
		}
	}
	for _, s := range []struct {
		what   string
		family int
		kind   int
		ok     bool
	}{
		{"TCP", unix.AF_INET, unix.SOCK_STREAM, true}, {"packets", unix.AF_PACKET, unix.SOCK_RAW, false},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, false}, {"raw", unix.AF_INET, unix.SOCK_RAW, false},
	} {
		if a := p.Ask("socket", fmt.Sprint(s.family), fmt.Sprint(s.kind), "0"); a.OK != s.ok {
			t.Errorf("a socket for %s: %+v", s.what, a)
		}
	}
	for _, flag := range []int{unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWNET} {
		if a := p.Ask("unshare", fmt.Sprint(flag)); a.OK {
			t.Errorf("unshare %#x is allowed", flag)
		}
	}
	if a := p.Ask("read", "/etc/hosts"); !strings.Contains(a.Text, h.Gateway().String()+"\tgateway") ||
		!strings.Contains(a.Text, h.Gateway().String()+"\thermit_shell") {
		t.Errorf("the gateway has no name in %q", a.Text)
	}
	if a := p.Ask("read", "/proc/net/if_inet6"); strings.TrimSpace(a.Text) != "" && !onlyLoopback(a.Text) {
		t.Errorf("there is IPv6: %q", a.Text)
	}
}

func onlyLoopback(text string) bool {
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(strings.TrimSpace(line), " lo") {
			return false
		}
	}
	return true
}

func TestLimitsHoldInsideAContainer(t *testing.T) {
	h := newHost(t)
	t.Run("programs in /tmp are not run", func(t *testing.T) {
		_, p := h.probe(t)
		if a := p.Ask("runcopy", "/tmp/p"); a.OK || a.Errno != "EACCES" {
			t.Errorf("a program in /tmp: %+v", a)
		}
		if a := p.Ask("runcopy", "/state/p"); !a.OK {
			t.Errorf("a program in /state: %+v", a)
		}
	})
	t.Run("tasks", func(t *testing.T) {
		j, p := h.probe(t, func(s *jail.Spec) { s.Limits.Tasks = 24 })
		a := p.Ask("fork", "100")
		if a.Number <= 0 || a.Number >= 24 {
			t.Errorf("%d processes could be started with a limit of 24 tasks: %+v", a.Number, a)
		}
		if st, err := h.Inspect(t.Context(), j.Name); err != nil || !containsLimit(st.Usage.Hit, jail.LimitTasks) {
			t.Errorf("the limit that was hit is not reported: %+v, %v", st.Usage, err)
		}
	})
	t.Run("memory", func(t *testing.T) {
		j := h.start(t, spec(jail.LifetimeOwner, inside.Argv()...))
		defer j.Stdio.Close()
		_, _ = inside.Connect(t, j.Stdio.In, j.Stdio.Out).Try("memory", fmt.Sprint(256<<20)) // it does not live to answer
		x, err := h.Wait(t.Context(), j.Name)
		if err != nil || x.Cause != jail.CauseMemory || x.Signal != "killed" {
			t.Errorf("a hog of memory ended as %+v, %v", x, err)
		}
	})
	t.Run("files and disk", func(t *testing.T) {
		_, p := h.probe(t)
		if a := p.Ask("files", "1000"); a.Number <= 0 || a.Number > 128 {
			t.Errorf("%d files could be opened: %+v", a.Number, a)
		}
		if a := p.Ask("fill", "/tmp/big", fmt.Sprint(64<<20)); a.OK || a.Number > 4<<20 {
			t.Errorf("/tmp took %+v", a)
		}
	})
}

func containsLimit(all []jail.LimitName, want jail.LimitName) bool {
	for _, l := range all {
		if l == want {
			return true
		}
	}
	return false
}

// listener counts connections to a port on every address of the host.
func listener(t *testing.T, addr string) (port string, count *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	count = &atomic.Int32{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, count
}

// The rules decide: without them a container reaches what listens on the host, with them the gateway's port when it is
// admitted, and nothing else.
func TestAContainerReachesTheGatewaysPortAndNothingElse(t *testing.T) {
	h := newHost(t)
	other, _ := listener(t, "0.0.0.0:0")
	j, p := h.probe(t)
	k, q := h.probe(t, named("other"))
	gateway := h.Gateway().String()
	_, _ = listener(t, gateway+":3000")
	dial := func(p *inside.Probe, addr string) inside.Answer { return p.Ask("dial", "tcp4", addr, "3000") }

	reached := func(when string, p *inside.Probe, addr string, want bool) {
		t.Helper()
		if a := dial(p, addr); a.OK != want {
			t.Errorf("%s: %s answers: %v (%s), want %v", when, addr, a.OK, a.Error, want)
		}
	}
	reached("before Admit", p, gateway+":3000", false)
	if err := h.Admit(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	if err := h.Admit(t.Context(), j.Name); err != nil {
		t.Fatalf("admit again: %v", err)
	}
	reached("admitted", p, gateway+":3000", true)
	reached("admitted", p, "hermit_shell:3000", true)
	reached("admitted", p, gateway+":"+other, false)
	reached("not admitted", q, gateway+":3000", false)
	host := hostAddress(t)
	if host != "" {
		reached("admitted", p, net.JoinHostPort(host, other), false)
	}
	// Another container, which listens.
	if a := q.Ask("listen", k.Lease.Addr.String()+":8000"); !a.OK {
		t.Fatalf("listen: %+v", a)
	}
	reached("another container", p, k.Lease.Addr.String()+":8000", false)

	// Without the rules all of it answers: they, and nothing else, are what refuses.
	h.mu.Lock()
	firewall := h.firewall
	h.mu.Unlock()
	if err := firewall.Remove(t.Context(), jail.TableAgents, j.Lease); err != nil {
		t.Fatal(err)
	}
	if err := firewall.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	reached("without rules", p, gateway+":"+other, true)
	testenv.Eventually(t, 10*time.Second, func() bool { return dial(p, k.Lease.Addr.String()+":8000").OK },
		"without rules another container does not answer: the test shows nothing")
	// And they come back by themselves, with the members.
	if err := h.guard(t.Context()); err != nil {
		t.Fatal(err)
	}
	reached("rules put back", p, gateway+":"+other, false)
	reached("rules put back", p, gateway+":3000", true)
	h.destroy(t, j.Name)
	members, err := firewall.List(t.Context())
	if err != nil || len(members) != 0 {
		t.Errorf("after its end the table has %+v, %v", members, err)
	}
}

// An address that was left in the table by a container before opens nothing to the next one that has it.
func TestAnAddressThatWasLeftInTheTableOpensNothing(t *testing.T) {
	h := newHost(t)
	if _, err := h.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := h.pool.Lease(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.firewall.Add(t.Context(), jail.TableAgents, left); err != nil {
		t.Fatal(err)
	}
	j, p := h.probe(t)
	if j.Lease.Addr != left.Addr {
		t.Fatalf("the container has %s, not %s", j.Lease.Addr, left.Addr)
	}
	_, _ = listener(t, h.Gateway().String()+":3000")
	if a := p.Ask("dial", "tcp4", h.Gateway().String()+":3000", "3000"); a.OK {
		t.Error("the gateway is open before Admit")
	}
}

// A container that ended while there was no firewall yet, right after a restart, left its address in the table: the rules
// can be removed all the same.
func TestAnAddressThatWasLeftDoesNotKeepTheRulesFromBeingRemoved(t *testing.T) {
	h := newHost(t)
	if _, err := h.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := h.pool.Lease(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.firewall.Add(t.Context(), jail.TableAgents, left); err != nil {
		t.Fatal(err)
	}
	h.pool.Release(left.Index)
	if err := h.RemoveNetwork(t.Context()); err != nil {
		t.Errorf("the rules stay: %v", err)
	}
	// One that a container has is not touched.
	j, _ := h.probe(t)
	if err := h.Admit(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	if err := h.RemoveNetwork(t.Context()); err == nil {
		t.Error("the network of a container was removed")
	}
	if members, err := h.firewall.List(t.Context()); err != nil || len(members) != 1 {
		t.Errorf("the table has %+v, %v", members, err)
	}
}

func hostAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !strings.HasPrefix(n.IP.String(), "10.201.") {
			return n.IP.String()
		}
	}
	return ""
}

// The engine's own resolver would forward what a container asks. It is told to ask the bridge, where the rules refuse:
// without them the question arrives.
func TestNamesAreNotAskedOutside(t *testing.T) {
	h := newHost(t)
	_, p := h.probe(t)
	pc, err := net.ListenPacket("udp4", h.Gateway().String()+":53")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			if _, _, err := pc.ReadFrom(buf); err != nil {
				return
			}
			asked.Add(1)
		}
	}()
	defer func() { _ = pc.Close(); <-done }()
	if a := p.Ask("read", "/etc/resolv.conf"); !strings.Contains(a.Text, "127.0.0.11") {
		t.Errorf("the container does not ask the engine's resolver, but: %q", a.Text)
	}
	if a := p.Ask("dial", "tcp4", "secret-data.example.com:80", "3000"); a.OK {
		t.Error("a name outside was found")
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d questions arrived", n)
	}
	h.mu.Lock()
	firewall := h.firewall
	h.mu.Unlock()
	if err := firewall.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Ask("dial", "tcp4", "secret-data.example.com:80", "3000")
	testenv.Eventually(t, 5*time.Second, func() bool { return asked.Load() > 0 }, "without the rules no question arrives: the test shows nothing")
}

func TestTheTokenIsThereWhenItIsDeliveredAndReplacedInPlace(t *testing.T) {
	h := newHost(t)
	s := spec(jail.LifetimeOwner, inside.Argv()...)
	waiting := []string{"/usr/bin/dash", "/bin/sh", "/sbin/docker-init"} // the shell, or what is about to become it
	j, err := h.CreateFor(t.Context(), "", s, func(ctx context.Context, j *jail.Jail) error {
		st, err := h.Inspect(ctx, j.Name)
		if err != nil {
			return err
		}
		child, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", st.PID))
		if err != nil {
			return err
		}
		if exe, err := os.Readlink("/proc/" + strings.TrimSpace(string(child)) + "/exe"); err != nil || !slices.Contains(waiting, exe) {
			t.Errorf("before it was delivered the program has begun: %s, %v", exe, err)
		}
		if all, err := os.ReadDir(h.stagePath(j.Name, tokenFolder)); err != nil || len(all) > 0 {
			t.Errorf("before it was delivered there is a token: %v, %v", all, err)
		}
		return h.Token(ctx, j.Name, []byte("first-token"))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer h.destroy(t, j.Name)
	defer j.Stdio.Close()
	p := inside.Connect(t, j.Stdio.In, j.Stdio.Out)
	if a := p.Ask("read", "/run/hermit/token"); a.Text != "first-token" {
		t.Errorf("the token is %+v", a)
	}
	if err := h.Token(t.Context(), j.Name, []byte("second-token")); err != nil {
		t.Fatal(err)
	}
	if a := p.Ask("read", "/run/hermit/token"); a.Text != "second-token" {
		t.Errorf("the new token is %+v", a)
	}
	got, err := h.engine.ContainerInspect(t.Context(), string(j.Name), client.ContainerInspectOptions{})
	if err != nil || strings.Contains(string(got.Raw), "-token\"") || strings.Contains(string(got.Raw), "second-token") {
		t.Errorf("the engine shows the token, or nothing: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(h.stagePath(j.Name, tokenFolder, jail.TokenName), &st); err != nil || st.Mode&0o777 != 0o600 || st.Uid != 1000 {
		t.Errorf("the token has mode %o and owner %d, %v", st.Mode, st.Uid, err)
	}
}

func TestAPortInsideCanBeDialled(t *testing.T) {
	h := newHost(t)
	j, p := h.probe(t)
	for _, addr := range []string{"127.0.0.1:8000", j.Lease.Addr.String() + ":8001"} {
		if a := p.Ask("listen", addr); !a.OK {
			t.Fatalf("listen: %+v", a)
		}
	}
	for _, port := range []uint16{8000, 8001} {
		f, err := h.Dial(t.Context(), j.Name, port)
		if err != nil {
			t.Fatalf("dial %d: %v", port, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := h.Dial(t.Context(), j.Name, 9); err == nil {
		t.Error("a port on which nothing listens answers")
	}
	own, err := linux.FindProcess(os.Getpid())
	if err != nil || own.Started == 0 {
		t.Errorf("%+v, %v", own, err)
	}
}
