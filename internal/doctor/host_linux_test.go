package doctor

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/testenv"
)

// ownHost names the test that runs in network and mount namespaces of its own.
const ownHost = "CLAWJAIL_DOCTOR_TEST_OWN_HOST"

// onOwnHost runs the test again in a process with a network and mounts of its own, so that its firewall and its bridges
// are nobody else's. It is true in that process, and false in the one that waits for it.
func onOwnHost(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownHost) == t.Name() {
		t.Cleanup(func() { goleak.VerifyNone(t) })
		for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} { // nobody else's, and as under systemd
			if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
				t.Fatalf("make mounts its own: %v", err)
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Fatalf("bring loopback up: %v", err)
		}
		return true
	}
	testenv.Need(t, testenv.Root)
	again(t, ownHost, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS})
	return false
}

// again runs the test in a process of its own.
func again(t *testing.T, variable string, attributes *syscall.SysProcAttr) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.v", "-test.count=1", "-test.timeout=80s", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	cmd.SysProcAttr = attributes
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("on its own host: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("on its own host the test did not run:\n%s", out)
	}
	t.Logf("%s", out)
}

// testConfig has folders of its own.
func testConfig(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	c := config.Default()
	c.DataDir, c.RunDir = filepath.Join(dir, "var", "data"), filepath.Join(dir, "run")
	c.TemplatesDir = filepath.Join(c.DataDir, "templates")
	return c
}

// testTrial is a trial that must leave nothing.
func testTrial(t *testing.T, change ...func(*config.Config)) *trial {
	t.Helper()
	c := testConfig(t)
	for _, f := range change {
		f(&c)
	}
	tr := newTrial(c, nil)
	t.Cleanup(func() {
		if err := tr.undo(context.Background()); err != nil {
			t.Errorf("undo: %v", err)
		}
		nothingLeft(t, tr)
	})
	return tr
}

// nothingLeft looks with the inventory, which shares no code with what makes and removes things.
func nothingLeft(t *testing.T, tr *trial) {
	t.Helper()
	for _, dir := range []string{tr.c.DataDir, tr.c.RunDir} {
		if entries, err := os.ReadDir(dir); err == nil {
			t.Errorf("%s was made and is left, with %v", dir, entries)
		}
	}
	if tr.id == "" {
		return
	}
	left, err := inventory.Take(context.Background(), inventory.Scope{Installation: tr.id, Data: tr.data, Run: tr.run})
	if err != nil {
		t.Error(err)
	}
	for _, thing := range left {
		t.Errorf("left on the host: %s", thing)
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Error(err)
	}
	for _, l := range links { // on a host of its own there is nobody else's
		if os.Getenv(ownHost) == t.Name() && strings.HasPrefix(l.Name, "cj") {
			t.Errorf("left on the host: interface %s", l.Name)
		}
	}
}

// within bounds a trial as Run does.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Bound)
	t.Cleanup(cancel)
	return ctx
}

// sh runs a command of a hint, as whoever reads it would.
func sh(t *testing.T, command string) {
	t.Helper()
	command, _, _ = strings.Cut(command, "\n")
	command = strings.ReplaceAll(command, "sudo ", "")
	if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// wildcard listens on a port of all addresses until the test ends.
func wildcard(t *testing.T, port uint16) {
	t.Helper()
	l, err := net.Listen("tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), port).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}
