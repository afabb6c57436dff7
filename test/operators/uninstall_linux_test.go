package operators

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/hostd/supervisor"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

const oneAgent = "clawbots:\n  - name: keeper\n    command: [/bin/sh, -c, 'echo kept >> /state/notes; exec sleep 600']\n"

// uninstalled runs the command and reads its answer.
func uninstalled(t *testing.T, b *testkit.Installation, flags ...string) supervisor.Uninstalled {
	t.Helper()
	out, err := b.Run(t.Context(), append([]string{"uninstall", "--json"}, flags...)...)
	if err != nil {
		t.Fatalf("%v\n%.4000s", err, b.Log())
	}
	var u supervisor.Uninstalled
	if err := json.Unmarshal([]byte(out), &u); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return u
}

func has(all []inventory.HostResource, kind string) bool {
	for _, t := range all {
		if t.Kind == kind {
			return true
		}
	}
	return false
}

// nothing fails while something of an installation is on the host.
func nothing(t *testing.T, s inventory.Scope, when string) {
	t.Helper()
	if left, err := inventory.Take(t.Context(), s); err != nil || len(left) > 0 {
		t.Fatalf("%s there are %v, %v", when, left, err)
	}
}

// takeNetwork gives a part of the network of an installation's jails to an interface, as a VPN does that is started meanwhile.
func takeNetwork(t *testing.T, name string, host api.HostInfo) netlink.Link {
	t.Helper()
	subnet := netip.MustParsePrefix(host.Subnet)
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(link) }) // should the test end before it does so
	part := netlink.NewIPNet(net.IP(subnet.Addr().AsSlice()))
	part.Mask = net.CIDRMask(subnet.Bits()+1, 32)
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: part}); err != nil {
		t.Fatal(err)
	}
	if err := linux.CheckSubnet(t.Context(), jail.Installation(host.Installation), subnet); err == nil {
		t.Fatal("a start would not be refused: the test would show nothing")
	}
	return link
}

func TestUninstallLeavesNothingOfAKilledInstallationAndNothingElseIsTouched(t *testing.T) {
	name := "cjun" + strconv.Itoa(os.Getpid()%100000)
	e := testkit.NewEstate(t, "user: "+name+"\n")
	t.Cleanup(func() { // should the test end before the command has done it
		if _, err := user.Lookup(name); err == nil {
			_ = exec.Command(testenv.Tool(t, "userdel"), name).Run() // a user of this test's alone
		}
	})
	beside := testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	e.Sync(oneAgent)
	e.Running("keeper")
	besideThings := beside.Settled()

	// While it runs, and while only one half of it does, it is refused.
	if _, err := e.Run(t.Context(), "uninstall"); err == nil || !strings.Contains(err.Error(), "of this installation runs") {
		t.Fatalf("while it runs: %v", err)
	}
	info, err := e.API.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	scope := e.HostScope()
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	other := takeNetwork(t, name, *info.Host)
	before, err := inventory.Take(t.Context(), scope)
	if err != nil || !has(before, "process") || !has(before, "nft_table") || !has(before, "loop_device") || !has(before, "cgroup") || !has(before, "mount") {
		t.Fatalf("a killed installation has left only %v, %v: the test would show nothing", before, err)
	}

	if u := uninstalled(t, e.Installation, "--dry-run"); !has(u.Removed, "nft_table") || !u.DryRun {
		t.Errorf("a dry run would remove %v", u.Removed)
	}
	if still, err := inventory.Take(t.Context(), scope); err != nil || len(inventory.Added(still, before)) > 0 {
		t.Fatalf("the dry run has removed %v, %v", inventory.Added(still, before), err)
	}

	u := uninstalled(t, e.Installation)
	nothing(t, scope, "after uninstall")
	if err := netlink.LinkDel(other); err != nil {
		t.Errorf("the interface of others: %v", err)
	}
	if len(u.Removed) < len(before) || len(u.Kept) < 2 {
		t.Errorf("it says that it removed %v, and kept %v", u.Removed, u.Kept)
	}
	if _, err := os.Lstat(e.Config.RunDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of the sockets is still there: %v", err)
	}
	for _, path := range []string{hostd.AdminKeyPath(e.Config), filepath.Join(e.Config.DataDir, "state"), e.ConfigFile} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("what is to be kept is gone: %v", err)
		}
	}
	if again := uninstalled(t, e.Installation); len(inventory.Added(nil, again.Removed)) > 1 { // the folder of sockets, made for the lock
		t.Errorf("a second time it removed %v", again.Removed)
	}

	// Data that was kept is used again: the agent runs with what it had.
	e.Up()
	e.Running("keeper")
	if notes, err := e.In("keeper", "cat /state/notes"); err != nil || strings.Count(notes, "kept") < 2 {
		t.Errorf("after it was started again the agent has %q, %v", notes, err)
	}
	scope = e.HostScope()
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}

	// Off a terminal what cannot be undone takes a word.
	if _, err := e.Run(t.Context(), "uninstall", "--data"); err == nil || !strings.Contains(err.Error(), "--yes") {
		t.Errorf("--data without --yes: %v", err)
	}
	if _, err := os.Lstat(e.Config.DataDir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(e.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(e.Config.DataDir, "private-other")
	if err := os.MkdirAll(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	uninstalled(t, e.Installation, "--data", "--yes")
	nothing(t, scope, "after uninstall --data")
	if left, err := os.ReadDir(e.Config.DataDir); err != nil || len(left) != 1 || left[0].Name() != "private-other" {
		t.Errorf("in the data directory are %v, %v, not only what is somebody else's", left, err)
	}
	for _, path := range []string{e.ConfigFile, e.Config.RunDir} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if _, err := user.Lookup(name); err == nil {
		t.Errorf("the user %s is still there", name)
	}
	if err := os.WriteFile(e.ConfigFile, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	uninstalled(t, e.Installation, "--data", "--yes")
	for _, path := range []string{e.ConfigFile, e.Config.DataDir} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}

	// Those who clean up after the test look for the configuration.
	if err := errors.Join(os.MkdirAll(filepath.Dir(e.ConfigFile), 0o755), os.WriteFile(e.ConfigFile, text, 0o644)); err != nil {
		t.Fatal(err)
	}

	// The other installation, on the same host and of another id, goes on as it was.
	if added, gone := inventory.Added(besideThings, beside.Settled()), inventory.Added(beside.Settled(), besideThings); len(added)+len(gone) > 0 {
		t.Errorf("beside it there came %v and went %v", added, gone)
	}
	if _, err := beside.API.Info(t.Context()); err != nil {
		t.Errorf("the installation beside it does not answer: %v", err)
	}
}
