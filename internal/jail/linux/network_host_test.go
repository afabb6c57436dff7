//go:build linux

package linux

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// The tests of network and firewall run on a host of their own: the test runs itself again in new network and mount
// namespaces. So no packet can leave for the machine's real network, no rule of the machine's takes part, and what a
// failed test leaves behind ends with its process.

const ownHost = "CLAWJAIL_TEST_OWN_HOST"

// onOwnHost reports whether this process is on a host of its own. If not, it runs the test there, takes over its
// result and returns false: the caller returns.
func onOwnHost(t testing.TB) bool {
	t.Helper()
	if os.Getenv(ownHost) == t.Name() {
		if _, bench := t.(*testing.B); !bench { // which has goroutines of the framework around it
			t.Cleanup(func() { goleak.VerifyNone(t) })
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatalf("make mounts private: %v", err)
		}
		link, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Fatalf("bring loopback up: %v", err)
		}
		return true
	}
	testenv.Need(t, testenv.Root)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	only := "^" + t.Name() + "$"
	args := []string{"-test.v", "-test.count=1", "-test.timeout=100s", "-test.run=" + only}
	_, bench := t.(*testing.B)
	if bench {
		args = []string{"-test.count=1", "-test.run=^$", "-test.bench=" + only,
			"-test.benchtime=" + flag.Lookup("test.benchtime").Value.String()}
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), ownHost+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	if bench && err == nil {
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "Benchmark") || strings.Contains(line, "ns/op") {
				fmt.Print(line)
			}
		}
		t.SkipNow() // the figures were printed by the process that measured them
	}
	if err != nil {
		t.Fatalf("on its own host: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("on its own host the test did not run:\n%s", out)
	}
	t.Logf("%s", out)
	return false
}

const gatewayPort = 3000

// installation is a network and a firewall on a host of their own.
type installation struct {
	id       jail.Installation
	pool     *jail.Pool
	runDir   string
	network  *Network
	firewall *Firewall
}

// install opens both, and when the test ends closes them and uninstalls, which fails when something was left.
func install(t testing.TB, id jail.Installation, subnet string, ready int) *installation {
	t.Helper()
	pool, err := jail.NewPool(netip.MustParsePrefix(subnet), 200_000)
	if err != nil {
		t.Fatal(err)
	}
	i := &installation{id: id, pool: pool, runDir: t.TempDir()}
	i.network = i.openNetwork(t, ready)
	i.firewall = i.openFirewall(t)
	t.Cleanup(func() {
		ctx := context.Background()
		noError(t, i.network.Close(ctx))
		noError(t, i.firewall.Uninstall(ctx))
		noError(t, i.firewall.Close())
		noError(t, UninstallNetwork(ctx, id, i.runDir))
	})
	i.network.Start()
	return i
}

func (i *installation) openNetwork(t testing.TB, ready int) *Network {
	t.Helper()
	n, err := OpenNetwork(t.Context(), NetworkConfig{Installation: i.id, Pool: i.pool, RunDir: i.runDir, Ready: ready})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (i *installation) openFirewall(t testing.TB) *Firewall {
	t.Helper()
	f, err := OpenFirewall(t.Context(), FirewallConfig{Installation: i.id, Pool: i.pool, Port: gatewayPort})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// inmate is a jail as far as network and firewall know one.
type inmate struct {
	name  jail.Name
	lease jail.Lease
	ns    string
}

// jail attaches a jail, which the end of the test takes away again.
func (i *installation) jail(t testing.TB) inmate {
	t.Helper()
	lease, err := i.network.Reserve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	name, err := jail.NewName(jail.KindBrowser, i.id, lease.Index)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := i.network.Attach(t.Context(), name, lease)
	if err != nil {
		t.Fatal(err)
	}
	j := inmate{name, lease, ns}
	t.Cleanup(func() {
		noError(t, i.firewall.Remove(context.Background(), jail.TableBrowsers, lease))
		i.detach(t, j)
	})
	return j
}

func (i *installation) detach(t testing.TB, j inmate) {
	t.Helper()
	noError(t, i.network.Detach(context.Background(), j.name, j.lease))
	i.network.Release(j.lease)
}

func (i *installation) admit(t testing.TB, j inmate) {
	t.Helper()
	noError(t, i.firewall.Add(t.Context(), jail.TableBrowsers, j.lease))
}

// unprotected removes one of the installation's two tables by force, for the other half of a test: what was refused
// must now get through.
func (i *installation) unprotected(t testing.TB, families ...nftables.TableFamily) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		c.DelTable(&nftables.Table{Name: tableName(i.id), Family: family})
	}
	noError(t, c.Flush())
}

// inside runs f on a thread within the jail's network.
func (j inmate) inside(t testing.TB, f func() error) error {
	t.Helper()
	return OnDiscardedThread(func() error {
		fd, err := unix.Open(j.ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// netlinkInside gives f the jail's own netlink, as a process would have that became root in it.
func (j inmate) netlinkInside(t testing.TB, f func(h *netlink.Handle, eth netlink.Link) error) {
	t.Helper()
	noError(t, j.inside(t, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		eth, err := h.LinkByName(slotInterface)
		if err != nil {
			return err
		}
		return f(h, eth)
	}))
}

// dial connects from inside the jail.
func (j inmate) dial(t testing.TB, d net.Dialer, network, addr string) (conn net.Conn, err error) {
	t.Helper()
	err = j.inside(t, func() error {
		conn, err = d.Dial(network, addr)
		return err
	})
	return conn, err
}

// reach tries to get an answer over TCP or UDP from inside the jail. The listeners of these tests send back what
// they get.
func (j inmate) reach(t testing.TB, network, addr string, patience time.Duration) error {
	t.Helper()
	conn, err := j.dial(t, net.Dialer{Timeout: patience}, network, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	return exchange(conn)
}

func exchange(conn net.Conn) error {
	if _, err := conn.Write([]byte("ping")); err != nil {
		return err
	}
	answer := make([]byte, 4)
	_, err := conn.Read(answer)
	return err
}

// refused is true for what a program is told at once, and false for silence.
func refused(err error) bool {
	for _, errno := range []syscall.Errno{unix.ECONNREFUSED, unix.ECONNRESET, unix.EHOSTUNREACH, unix.ENETUNREACH,
		unix.EACCES, unix.EPERM, unix.EADDRNOTAVAIL} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// answerTCP answers on an address of the test's host until the test ends.
func answerTCP(t testing.TB, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	serveTCP(t, l)
}

func serveTCP(t testing.TB, l net.Listener) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
			go echo(conn)
		}
		for _, c := range conns {
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

// echo ends with its connection, which serveTCP closes.
func echo(conn net.Conn) {
	buf := make([]byte, 64)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

func answerUDP(t testing.TB, addr string) {
	t.Helper()
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			n, from, err := c.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteTo(buf[:n], from) // an answer that is refused is part of the tests
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
}

// tcpInside and udpInside listen within the jail.
func (j inmate) tcpInside(t testing.TB, addr string) {
	t.Helper()
	noError(t, j.inside(t, func() error {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			serveTCP(t, l)
		}
		return err
	}))
}

func sysctlForTest(t testing.TB, name, value string) {
	t.Helper()
	noError(t, os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0))
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
