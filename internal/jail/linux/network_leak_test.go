//go:build linux

package linux

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// holdings is what a process has of the things that leak.
type holdings struct{ files, astray, goroutines, interfaces, mounts int }

func holdingsNow(t *testing.T) holdings {
	t.Helper()
	count := func(dir string) int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	astray := 0 // threads in another network than the process
	own, err := os.Readlink("/proc/self/ns/net")
	noError(t, err)
	threads, err := os.ReadDir("/proc/self/task")
	noError(t, err)
	for _, thread := range threads {
		if at, err := os.Readlink("/proc/self/task/" + thread.Name() + "/ns/net"); err == nil && at != own {
			astray++
		}
	}
	links, err := dump(netlink.LinkList)
	noError(t, err)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	noError(t, err)
	return holdings{
		files: count("/proc/self/fd"), astray: astray, goroutines: runtime.NumGoroutine(),
		interfaces: len(links), mounts: strings.Count(string(mounts), "\n"),
	}
}

func TestCyclesLeaveNothing(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 4)
	full := func() bool { return i.network.Prepared() == 4 }
	cycle := func() {
		l, err := i.network.Reserve(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		name, _ := jail.NewName(jail.KindBrowser, i.id, l.Index)
		_, err = i.network.Attach(t.Context(), name, l)
		noError(t, err)
		noError(t, i.firewall.Add(t.Context(), jail.TableBrowsers, l))
		noError(t, i.firewall.Remove(t.Context(), jail.TableBrowsers, l))
		noError(t, i.network.Detach(t.Context(), name, l))
		i.network.Release(l)
	}
	for range 10 {
		cycle()
	}
	testenv.Eventually(t, 10*time.Second, full, "the slots filled")
	before := holdingsNow(t)
	for range 200 {
		cycle()
	}
	testenv.Eventually(t, 10*time.Second, full, "the slots filled")
	testenv.Eventually(t, 10*time.Second, func() bool {
		return holdingsNow(t) == before
	}, "as many of everything as before 200 cycles; before: %+v", before)
	members, err := i.firewall.List(t.Context())
	if err != nil || len(members) > 0 {
		t.Errorf("members left: %v, %v", members, err)
	}
	noError(t, i.network.Close(t.Context()))
	n := i.openNetwork(t, 0)
	resources, err := n.listOnce(t)
	if err != nil || len(resources) > 0 {
		t.Errorf("left after close: %v, %v", resources, err)
	}
	noError(t, i.firewall.Uninstall(t.Context()))
	noError(t, UninstallNetwork(t.Context(), i.id, i.runDir))
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if now := holdingsNow(t); now.interfaces != 1 || len(tables) > 0 || err != nil || i.pool.InUse() > 0 {
		t.Errorf("after uninstalling: %d interfaces, tables %v, %v, %d leases", now.interfaces, tables, err, i.pool.InUse())
	}
}

func TestInterfaceGoesAlsoWhenSomebodyHoldsTheNamespace(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	j := i.jail(t)
	held, err := os.Open(j.ns)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	noError(t, i.network.Detach(t.Context(), j.name, j.lease))
	if resources, err := i.network.List(t.Context()); err != nil || len(resources) > 0 {
		t.Errorf("left: %v, %v", resources, err)
	}
}
