//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestSlotNamesFollowFromTheIndex(t *testing.T) {
	t.Parallel()
	for index, want := range map[int]string{0: "cjk3x90000", 255: "cjk3x900ff", 65384: "cjk3x9ff68"} {
		if got := portName("k3x9", index); got != want || len(got) > unix.IFNAMSIZ-1 {
			t.Errorf("slot %d: %q, want %q", index, got, want)
		}
		if got, ok := slotIndex(slotSuffix(index)); !ok || got != index {
			t.Errorf("slot %d reads back as %d, %v", index, got, ok)
		}
	}
	for _, s := range []string{"", "0", "00000", "00FF", "+001", "0x01", "zzzz", "br00"} {
		if got, ok := slotIndex(s); ok {
			t.Errorf("%q is taken for slot %d", s, got)
		}
	}
	n := &Network{slots: &slots{id: "brk3"}}
	if index, ok := n.portIndex(bridgeName("k3x9")); ok {
		t.Errorf("another installation's bridge is taken for slot %d", index)
	}
	seen := map[string]bool{}
	for index := range 65385 {
		for _, end := range []byte{macJail, macPort, macBridge} {
			seen[hardwareAddr(end, index).String()] = true
		}
	}
	if len(seen) != 3*65385 {
		t.Errorf("%d hardware addresses for %d interfaces", len(seen), 3*65385)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		NetworkConfig{RunDir: "run", Ready: -1}.Validate(),
		FirewallConfig{}.Validate(),
	} {
		if problem.CodeOf(err) != problem.BadConfig || len(strings.Split(err.Error(), "\n")) < 3 {
			t.Errorf("got %v", err)
		}
	}
}

// netnsOf tells namespaces apart.
func netnsOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestSlotsAreMadeAheadAndUsedOnce(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 3)
	full := func() bool { return i.network.Prepared() == 3 }
	testenv.Eventually(t, 10*time.Second, full, "three slots ready")
	if got := i.network.Ready(); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("ready are %v", got)
	}
	before := netnsOf(t, i.network.slots.path(0))
	j := i.jail(t)
	if j.lease.Index != 0 || netnsOf(t, j.ns) != before {
		t.Errorf("the jail got slot %d and not the one that was ready first", j.lease.Index)
	}
	testenv.Eventually(t, 10*time.Second, full, "the used slot replaced")
	if got := i.network.Ready(); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("after one was used, ready are %v", got)
	}

	// A ready slot is nobody's to remove.
	resources, err := i.network.List(t.Context())
	noError(t, err)
	if len(resources) != 4*3 {
		t.Errorf("%d resources of four slots, want an interface, a neighbour and a namespace of each: %v", len(resources), resources)
	}
	for _, tr := range resources {
		if tr.Index == 0 {
			continue
		}
		if err := i.network.RemoveResource(t.Context(), tr); !errors.Is(err, jail.ErrBusy) {
			t.Errorf("removing %s of a ready slot: %v", tr.ID, err)
		}
	}
	noError(t, i.network.Close(t.Context()))
	resources, err = i.openNetwork(t, 0).listOnce(t)
	noError(t, err)
	for _, tr := range resources {
		if tr.Index != 0 {
			t.Errorf("close left %s %s", tr.Kind, tr.ID)
		}
	}
	if len(resources) != 3 {
		t.Errorf("of the jail's slot there is %v", resources)
	}
	if got := i.pool.InUse(); got != 1 {
		t.Errorf("%d leases are out after close, want the jail's", got)
	}
	i.network = i.openNetwork(t, 0) // for what the end of the test removes
}

// listOnce lists and closes.
func (n *Network) listOnce(t *testing.T) ([]jail.HostResource, error) {
	resources, err := n.List(t.Context())
	return resources, errors.Join(err, n.Close(t.Context()))
}

func TestSlotIsAsDeclared(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	j := i.jail(t)
	j.netlinkInside(t, func(h *netlink.Handle, eth netlink.Link) error {
		links, err := dump(h.LinkList)
		if err != nil {
			return err
		}
		for _, l := range links {
			a := l.Attrs()
			if known := a.Name == "lo" || a.Name == slotInterface; known && a.Flags&net.FlagUp == 0 || !known && a.Flags&net.FlagUp != 0 {
				t.Errorf("%s has the flags %v", a.Name, a.Flags)
			}
		}
		addrs, err := h.AddrList(eth, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		if len(addrs) != 1 || addrs[0].IPNet.String() != j.lease.Addr.String()+"/32" {
			t.Errorf("addresses %v", addrs)
		}
		routes, err := h.RouteList(eth, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		if len(routes) != 2 {
			t.Errorf("routes %v", routes)
		}
		neighbours, err := h.NeighList(eth.Attrs().Index, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		if len(neighbours) != 1 || neighbours[0].State != netlink.NUD_PERMANENT {
			t.Errorf("neighbours %v", neighbours)
		}
		return nil
	})
	port, err := netlink.LinkByName(portName(i.id, j.lease.Index))
	if err != nil {
		t.Fatal(err)
	}
	info, err := netlink.LinkGetProtinfo(port)
	if err != nil {
		t.Fatal(err)
	}
	if !info.Isolated || info.Learning || info.Flood {
		t.Errorf("the port is %+v", info)
	}
	conn, err := j.dial(t, net.Dialer{}, "udp", "127.0.0.1:9")
	if err != nil {
		t.Errorf("UDP on the jail's own loopback: %v", err)
	} else {
		conn.Close()
	}
}

func TestReusedIndexInheritsNothing(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	answerTCP(t, fmt.Sprintf("%s:%d", i.pool.Gateway(), gatewayPort))
	first := i.jail(t)
	gateway := probe{"the gateway", "tcp", fmt.Sprintf("%s:%d", i.pool.Gateway(), gatewayPort)}
	i.admit(t, first)
	if err := first.reach(t, gateway.network, gateway.addr, patience); err != nil {
		t.Fatal(err)
	}
	first.netlinkInside(t, func(h *netlink.Handle, eth netlink.Link) error {
		return errors.Join(withoutUDPRule(h),
			h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "mine"}}),
			h.AddrAdd(eth, &netlink.Addr{IPNet: hostNet(netip.MustParseAddr("10.213.9.9"))}))
	})
	noError(t, i.firewall.Remove(t.Context(), jail.TableBrowsers, first.lease))

	clean := func(when string, j inmate) {
		t.Helper()
		j.netlinkInside(t, func(h *netlink.Handle, eth netlink.Link) error {
			if _, err := h.LinkByName("mine"); err == nil {
				t.Errorf("%s, the interface of the earlier jail is still there", when)
			}
			addrs, err := h.AddrList(eth, netlink.FAMILY_V4)
			if len(addrs) != 1 {
				t.Errorf("%s, the addresses are %v", when, addrs)
			}
			return errors.Join(err, withoutUDPRule(h))
		})
		gateway.refusedAtOnce(t, j, when)
	}
	// It went as it should.
	noError(t, i.network.Detach(t.Context(), first.name, first.lease))
	if _, err := i.network.Attach(t.Context(), first.name, first.lease); err != nil {
		t.Fatal(err)
	}
	clean("after a detach", first)

	// Its daemon died, and the next one knows nothing of it.
	first.netlinkInside(t, func(h *netlink.Handle, _ netlink.Link) error {
		return h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "mine"}})
	})
	i.network.setState(first.lease.Index, 0)
	if _, err := i.network.Attach(t.Context(), first.name, first.lease); err != nil {
		t.Fatal(err)
	}
	clean("after the daemon died", first)
}

func TestResourcesOfADeadDaemonAreRemoved(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	dead := i.openNetwork(t, 2)
	dead.Start()
	testenv.Eventually(t, 10*time.Second, func() bool { return dead.Prepared() == 2 }, "two slots ready")
	dead.queue = nil // it dies: nobody removes what was ready
	noError(t, dead.Close(t.Context()))
	j := i.jail(t)

	resources, err := i.network.List(t.Context())
	noError(t, err)
	if len(resources) != 9 {
		t.Errorf("%d resources of three slots: %v", len(resources), resources)
	}
	for range 2 { // also when it is gone already
		for _, tr := range resources {
			if tr.Index != j.lease.Index {
				noError(t, i.network.RemoveResource(t.Context(), tr))
			}
		}
	}
	resources, err = i.network.List(t.Context())
	noError(t, err)
	if len(resources) != 3 || resources[0].Index != j.lease.Index {
		t.Errorf("the orphans were removed, and this is left: %v", resources)
	}
	for _, tr := range []jail.HostResource{
		{Kind: jail.ResourceInterface, Index: 0, ID: "lo"},
		{Kind: jail.ResourceInterface, Index: 0, ID: neighbourID + "10.0.0.1"},
		{Kind: jail.ResourceInterface, Index: 3, ID: portName("othr", 3)},
		{Kind: jail.ResourceNamespace, Index: 0, ID: "/etc/passwd"},
		{Kind: jail.ResourceNamespace, Index: -1, ID: i.network.slots.dir},
		{Kind: jail.ResourceMount, Index: 0, ID: i.network.slots.path(0)},
	} {
		if err := i.network.RemoveResource(t.Context(), tr); !errors.Is(err, errNotOurs) {
			t.Errorf("removing %s %s: %v", tr.Kind, tr.ID, err)
		}
	}
}

func TestWhatCannotGoIsBusy(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	j := i.jail(t)
	noError(t, i.network.Detach(t.Context(), j.name, j.lease))
	stuck := filepath.Join(j.ns, "stuck")
	noError(t, os.MkdirAll(stuck, 0o700))
	if err := i.network.Detach(t.Context(), j.name, j.lease); !errors.Is(err, jail.ErrBusy) {
		t.Errorf("detach of what does not go: %v", err)
	}
	noError(t, os.Remove(stuck))
	noError(t, i.network.Detach(t.Context(), j.name, j.lease))
}

func TestWrongLeasesAndNamesAreRefused(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	j := i.jail(t)
	wrong := j.lease
	wrong.Index++
	far := j.lease
	far.Index = 1 << 20
	for _, l := range []jail.Lease{wrong, far} {
		if _, err := i.network.Attach(t.Context(), j.name, l); err == nil {
			t.Errorf("attached %+v", l)
		}
		if err := i.network.Detach(t.Context(), j.name, l); err == nil {
			t.Errorf("detached %+v", l)
		}
		if err := i.firewall.Add(t.Context(), jail.TableBrowsers, l); err == nil {
			t.Errorf("admitted %+v", l)
		}
	}
	if _, err := i.network.Attach(t.Context(), "bothr00001", j.lease); err == nil {
		t.Error("attached a jail of another installation")
	}
	if err := i.firewall.Add(t.Context(), "no_such_table", j.lease); err == nil {
		t.Error("added to a table that is none")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.network.Reserve(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("reserve after the end: %v", err)
	}
	if err := i.network.Detach(ended, j.name, j.lease); !errors.Is(err, context.Canceled) {
		t.Errorf("detach after the end: %v", err)
	}
}

func TestInstallationsDoNotTouchEachOther(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	one, two := install(t, "aaaa", "10.213.0.0/20", 2), install(t, "bbbb", "10.214.0.0/20", 0)
	j := two.jail(t)
	two.admit(t, j)
	addr := fmt.Sprintf("%s:%d", two.pool.Gateway(), gatewayPort)
	answerTCP(t, addr)
	conn, err := j.dial(t, net.Dialer{Timeout: patience}, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	noError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	neighbour := one.jail(t)
	one.admit(t, neighbour)
	probe{"the other installation's gateway", "tcp", addr}.refusedAtOnce(t, neighbour, "as a member of its own")

	resources, err := one.network.List(t.Context())
	noError(t, err)
	members, err := one.firewall.List(t.Context())
	noError(t, err)
	for _, tr := range append(resources, members...) {
		if strings.Contains(tr.ID, "bbbb") || strings.Contains(tr.ID, "10.214.") {
			t.Errorf("one installation lists %s of the other", tr.ID)
		}
	}
	if err := UninstallNetwork(t.Context(), two.id, two.runDir); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("uninstalling a network in use: %v", err)
	}
	if err := two.firewall.Uninstall(t.Context()); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("uninstalling a firewall in use: %v", err)
	}
	noError(t, one.firewall.Remove(t.Context(), jail.TableBrowsers, neighbour.lease))
	noError(t, one.firewall.Uninstall(t.Context()))
	if err := exchange(conn); err != nil {
		t.Errorf("uninstalling one cut the other's connection: %v", err)
	}
	noError(t, one.firewall.Ensure(t.Context()))
}

func TestManyAtOnceGetSlotsOfTheirOwn(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/24", 4)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[int]bool{}
	)
	for worker := range 8 {
		wg.Go(func() {
			for round := range 4 {
				l, err := i.network.Reserve(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				name, _ := jail.NewName(jail.KindBrowser, i.id, 10*worker+round)
				_, err = i.network.Attach(t.Context(), name, l)
				noError(t, err)
				noError(t, i.firewall.Add(t.Context(), jail.TableBrowsers, l))
				mu.Lock()
				if seen[l.Index] {
					t.Errorf("two jails have slot %d", l.Index)
				}
				seen[l.Index] = true
				mu.Unlock()
				noError(t, i.firewall.Remove(t.Context(), jail.TableBrowsers, l))
				mu.Lock()
				delete(seen, l.Index)
				mu.Unlock()
				noError(t, i.network.Detach(t.Context(), name, l))
				i.network.Release(l)
			}
		})
	}
	wg.Wait()
}

func TestExhaustedPoolIsAnErrorAndRecovers(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/24", 0)
	for i.pool.InUse() < i.pool.Size()-1 {
		if _, err := i.pool.Take(); err != nil {
			t.Fatal(err)
		}
	}
	j := i.jail(t)
	if _, err := i.network.Reserve(t.Context()); problem.CodeOf(err) != problem.PoolExhausted {
		t.Errorf("reserve without an address left: %v", err)
	}
	i.pool.Release((j.lease.Index + 1) % i.pool.Size())
	l, err := i.network.Reserve(t.Context())
	noError(t, err)
	noError(t, i.network.Detach(t.Context(), j.name, l))
	i.network.Release(l)
}

func TestBridgeIsAdoptedAndKeepsItsAddressWhileInUse(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	bridge, err := netlink.LinkByName(i.network.Bridge())
	if err != nil {
		t.Fatal(err)
	}
	noError(t, netlink.LinkSetHardwareAddr(bridge, hardwareAddr(macBridge, 99))) // which no jail knows
	adopted := i.openNetwork(t, 0)
	if again, err := netlink.LinkByName(i.network.Bridge()); err != nil ||
		!slices.Equal(again.Attrs().HardwareAddr, hardwareAddr(macBridge, 0)) {
		t.Errorf("the bridge is %+v, %v", again.Attrs(), err)
	}
	if adopted.slots.bridge != bridge.Attrs().Index {
		t.Error("a second bridge was made")
	}
	noError(t, adopted.Close(t.Context()))

	other, err := jail.NewPool(netip.MustParsePrefix("10.214.0.0/20"), 200_000)
	noError(t, err)
	j := i.jail(t)
	moved := NetworkConfig{Installation: i.id, Pool: other, RunDir: i.runDir}
	if _, err := OpenNetwork(t.Context(), moved); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("another subnet while a jail is there: %v", err)
	}
	noError(t, i.network.Detach(t.Context(), j.name, j.lease))
	n, err := OpenNetwork(t.Context(), moved)
	if err != nil {
		t.Fatal(err)
	}
	noError(t, n.Close(t.Context()))
	addrs, err := netlink.AddrList(bridge, netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 || addrs[0].IPNet.String() != "10.214.0.1/20" {
		t.Errorf("the bridge has %v, %v", addrs, err)
	}
}
