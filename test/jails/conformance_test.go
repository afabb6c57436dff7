//go:build linux

package jails

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// tiny starts an instance with a template of a shell, a few tools and the probe, built by the program itself, and
// returns it with a client that owns jails. first is done before it starts.
func tiny(t *testing.T, o instance.Options, first ...func(*testkit.Installation)) (*testkit.Installation, *hostd.Client) {
	t.Helper()
	b := testkit.PrepareWith(t, o, func(o *instance.Options, dir string) { o.Templates = filepath.Join(dir, "templates") })
	root := filepath.Join(t.TempDir(), "root")
	inside.Template(t, root)
	for _, tool := range []string{"cat", "sleep"} {
		testkit.CopyFile(t, testenv.Tool(t, tool), filepath.Join(root, "bin", tool))
	}
	if out, err := b.Run(t.Context(), "template", "build", "tiny", "--from", "dir:"+root); err != nil {
		t.Fatalf("build the template: %v\n%s", err, out)
	}
	for _, f := range first {
		f(b)
	}
	b.Up()
	c := hostd.NewClient(hostd.SocketPath(b.Config), nil)
	if err := c.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return b, c
}

func conform(t *testing.T, o instance.Options) {
	b, c := tiny(t, o)
	missing, err := jail.NewName(jail.KindBrowser, b.HostScope().Installation, 99_999)
	if err != nil {
		t.Fatal(err)
	}
	jailtest.Run(t, func(*testing.T) jailtest.Subject {
		return jailtest.Subject{Driver: c, Template: "tiny", Missing: missing, Confines: true,
			Resources: func(ctx context.Context) ([]jail.HostResource, error) { return jailsOnly(c.HostResources(ctx)) }}
	})
}

// jailsOnly leaves out the network slots that are made ahead.
func jailsOnly(all []jail.HostResource, err error) ([]jail.HostResource, error) {
	var out []jail.HostResource
	for _, t := range all {
		if t.Kind != jail.ResourceInterface && t.Kind != jail.ResourceNamespace {
			out = append(out, t)
		}
	}
	return out, err
}

func TestTheLinuxDriverBehindTheHostDaemonConformsWithOverlays(t *testing.T) {
	conform(t, instance.Options{Settings: testkit.NoPool + "storage: overlay\n"})
}

func TestTheLinuxDriverConformsWithRunc(t *testing.T) {
	conform(t, instance.Options{Settings: testkit.NoPool + "runtime: runc\n"})
}

func TestTheLinuxDriverConformsWithSnapshotsWhereTheDataIsOnBtrfs(t *testing.T) {
	testenv.Root(t)
	image := filepath.Join(t.TempDir(), "btrfs")
	dir, err := os.MkdirTemp("", "clawjail-btrfs-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	testkit.Run(t, "truncate", "-s", "512M", image)
	testkit.Run(t, testenv.Tool(t, "mkfs.btrfs"), "-q", image)
	testkit.Run(t, "mount", "-o", "loop", image, dir)
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
		_ = os.Remove(dir) // only when it is unmounted
	})
	conform(t, instance.Options{Parent: dir, Settings: testkit.NoPool}) // chosen by itself
}

// answering answers by UDP at ports of an address, and has seen that it does. Where somebody else has a port it answers at
// another one.
func answering(t *testing.T, address string, ports ...string) map[string]string {
	t.Helper()
	at := map[string]string{}
	for _, port := range ports {
		conn, err := net.ListenPacket("udp", net.JoinHostPort(address, port))
		if err != nil {
			conn, err = net.ListenPacket("udp", net.JoinHostPort(address, "0"))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		go func() { // ends with Close
			text := make([]byte, 512)
			for {
				n, from, err := conn.ReadFrom(text)
				if err != nil {
					return
				}
				_, _ = conn.WriteTo(text[:n], from) // whoever asked has perhaps gone
			}
		}()
		asking, err := net.Dial("udp", conn.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := asking.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := asking.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := asking.Read(make([]byte, 1)); err != nil {
			t.Fatalf("nothing answers the host, so that a jail hears nothing shows nothing: %v", err)
		}
		_ = asking.Close()
		_, at[port], err = net.SplitHostPort(conn.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
	}
	return at
}

// TestOnlyTheGatewayAnswers asks from inside a jail for everything that must not answer: before it is admitted,
// afterwards, and when it is taken out again. Targets are the gateway, listeners of this test on this host, and
// another jail; nothing leaves the machine.
func TestOnlyTheGatewayAnswers(t *testing.T) {
	b, c := tiny(t, instance.Options{Settings: testkit.NoPool})
	info, err := c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	host, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	hostPort := strconv.Itoa(host.Addr().(*net.TCPAddr).Port)
	echo := answering(t, info.Gateway.String(), "53", "3000")

	spec := jailtest.Subject{Template: "tiny"}.Spec("")
	spec.Program.Argv = inside.Argv()
	spec.Limits.Files = 512
	one, other := jailtest.Start(t, jailtest.Subject{Driver: c}, spec), jailtest.Start(t, jailtest.Subject{Driver: c}, spec)
	probe, neighbour := inside.Connect(t, one.Stdio.In, one.Stdio.Out), inside.Connect(t, other.Stdio.In, other.Stdio.Out)
	if a := neighbour.Ask("listen", other.Lease.Addr.String()+":8000"); !a.OK {
		t.Fatalf("the neighbour cannot listen: %+v", a)
	}
	const patience = "20000" // ms
	gateway := net.JoinHostPort(info.Gateway.String(), "3000")
	refused := map[string][]string{
		"a service of the host":     {"dial", "tcp", net.JoinHostPort(info.Gateway.String(), hostPort), patience},
		"another jail":              {"dial", "tcp", other.Lease.Addr.String() + ":8000", patience},
		"DNS by UDP at the gateway": {"dial", "udp", net.JoinHostPort(info.Gateway.String(), echo["53"]), patience, "query"},
		"the gateway's port by UDP": {"dial", "udp", net.JoinHostPort(info.Gateway.String(), echo["3000"]), patience, "hello"},
		"a packet socket":           {"socket", "17", "3", "768"},
		"a raw socket":              {"socket", "2", "3", "1"},
		"a vsock socket":            {"socket", "40", "1", "0"},
	}
	status, err := c.Inspect(t.Context(), one.Name)
	if err != nil {
		t.Fatal(err)
	}
	sentAgain := func() (n int) {
		t.Helper()
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/snmp", status.PID))
		if err == nil {
			n, err = testenv.SentAgain(text)
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	check := func(when string) {
		t.Helper()
		for what, ask := range refused {
			before := sentAgain()
			a := probe.Ask(ask[0], ask[1:]...)
			if a.OK {
				t.Errorf("%s: %s answers: %+v", when, what, a)
			}
			if again := sentAgain() - before; again != 0 || strings.Contains(a.Error, "timeout") {
				t.Errorf("%s: %s was not refused at once: %+v after %d packets that were sent again", when, what, a, again)
			}
		}
	}
	reach := func() bool { return probe.Ask("dial", "tcp", gateway, patience).OK }

	check("before the admission")
	if reach() {
		t.Error("the gateway answers before the admission")
	}
	if err := c.Admit(t.Context(), one.Name); err != nil {
		t.Fatal(err)
	}
	check("after the admission")
	if !reach() {
		t.Error("the gateway does not answer after the admission")
	}
	// The host daemon stands still meanwhile, as it looks after the membership every second.
	if err := syscall.Kill(info.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := sync.OnceFunc(func() { _ = syscall.Kill(info.PID, syscall.SIGCONT) })
	defer goOn()
	testenv.Eventually(t, 10*time.Second, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", info.PID))
		return err == nil && bytes.Contains(stat, []byte(") T "))
	}, "the host daemon does not stand still")
	testkit.Run(t, testenv.Tool(t, "nft"), "flush", "set", "inet", "clawjail_"+string(b.HostScope().Installation), "browser_tasks")
	check("after the removal")
	if reach() {
		t.Error("the gateway answers after the removal")
	}
	// A member that somebody flushed is put back for a living jail.
	goOn()
	testenv.Eventually(t, 10*time.Second, reach, "the membership is not restored")
	// The listeners do answer the host, and the neighbour itself: the probes could have succeeded.
	if a := neighbour.Ask("dial", "tcp", other.Lease.Addr.String()+":8000", patience); !a.OK {
		t.Errorf("the neighbour does not reach its own port: %+v", a)
	}
	if conn, err := net.Dial("tcp", net.JoinHostPort(info.Gateway.String(), hostPort)); err != nil || conn.Close() != nil {
		t.Errorf("the host does not reach its port at the gateway's address: %v", err)
	}
	conn, err := net.Dial("tcp", "127.0.0.1:"+hostPort)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()

	// A reused address inherits nothing: the next jail there is not admitted.
	for _, j := range []*jail.Jail{one, other} {
		j.Stdio.Close()
		if err := c.Destroy(t.Context(), j.Name); err != nil {
			t.Fatal(err)
		}
	}
	next := jailtest.Start(t, jailtest.Subject{Driver: c}, spec)
	if a := inside.Connect(t, next.Stdio.In, next.Stdio.Out).Ask("dial", "tcp", gateway, patience); a.OK {
		t.Error("a new jail is admitted before its admission")
	}
	next.Stdio.Close()
	if err := c.Destroy(t.Context(), next.Name); err != nil {
		t.Fatal(err)
	}
	b.Clean(10 * time.Second)
}

// TestAHostileOwnerCannotKeepAJailPastItsWallClock holds the pipes of a jail that ignores everything.
func TestAHostileOwnerCannotKeepAJailPastItsWallClock(t *testing.T) {
	_, c := tiny(t, instance.Options{Settings: testkit.NoPool})
	spec := jailtest.Subject{Template: "tiny"}.Spec(`trap '' TERM HUP INT; while :; do sleep 1; done`)
	spec.Limits.WallClock = 2 * time.Second
	j := jailtest.Start(t, jailtest.Subject{Driver: c}, spec)
	x, err := c.Wait(t.Context(), j.Name)
	if err != nil || x.Cause != jail.CauseWallClock {
		t.Fatalf("it ended with %+v, %v", x, err)
	}
	if _, err := io.ReadAll(j.Stdio.Out); err != nil {
		t.Fatal(err)
	}
}

// TestNoJailIsMadeOfATemplateThatSomebodyWroteTo changes a template under a running host daemon.
func TestNoJailIsMadeOfATemplateThatSomebodyWroteTo(t *testing.T) {
	b, c := tiny(t, instance.Options{Settings: testkit.NoPool})
	spec := jailtest.Subject{Template: "tiny"}.Spec("exec cat")
	create := func() error {
		j, err := c.Create(t.Context(), spec)
		if err == nil {
			j.Stdio.Close()
			err = c.Destroy(t.Context(), j.Name)
		}
		return err
	}
	if err := create(); err != nil {
		t.Fatal(err)
	}
	added := filepath.Join(b.Config.TemplatesDir, "tiny", "rootfs", "etc", "added")
	if err := os.WriteFile(added, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, pid := range b.Victims("hostd") { // a fresh one looks at once
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	b.Ready()
	testenv.Eventually(t, 20*time.Second, func() bool { return problem.CodeOf(create()) == problem.TemplateChanged },
		"jails are still made of it")
	if err := os.Remove(added); err != nil {
		t.Fatal(err)
	}
}
