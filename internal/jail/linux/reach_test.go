//go:build linux

package linux

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// patience is how long an answer is waited for. A refusal came at once when no packet was sent twice.
const patience = testenv.Patience * 2 * time.Second

// probe is something that a jail might try.
type probe struct{ what, network, addr string }

func (p probe) refusedAtOnce(t *testing.T, j inmate, when string) {
	t.Helper()
	before := j.sentAgain(t)
	err := j.reach(t, p.network, p.addr, patience)
	if again := j.sentAgain(t) - before; !refused(err) || again != 0 {
		t.Errorf("%s, %s (%s %s): %v after %d packets that were sent again, want a refusal at once", when, p.what, p.network, p.addr, err, again)
	}
}

// sentAgain is what [testenv.SentAgain] says of the jail.
func (j inmate) sentAgain(t *testing.T) (n int) {
	t.Helper()
	err := j.inside(t, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err == nil {
			n, err = testenv.SentAgain(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOnlyTheGatewaysPortAnswers(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	// Hosts with a container engine hand bridged packets to the IP firewall as well, others do not.
	for _, bridged := range []string{"1", "0"} {
		t.Run("bridge-nf-call-iptables="+bridged, func(t *testing.T) {
			bridgedPacketsToFirewall(t, bridged)
			onlyTheGatewaysPortAnswers(t)
		})
	}
}

func bridgedPacketsToFirewall(t *testing.T, value string) {
	t.Helper()
	const setting = "bridge/bridge-nf-call-iptables"
	if _, err := os.Stat("/proc/sys/net/" + setting); err == nil {
		sysctlForTest(t, setting, value)
	} else if value == "1" {
		testenv.Missing(t, "br_netfilter", "load that module")
	}
}

func onlyTheGatewaysPortAnswers(t *testing.T) {
	i := install(t, "test", "10.213.0.0/20", 0)
	a, b := i.jail(t), i.jail(t)
	gateway := i.pool.Gateway().String()

	const metadata = "169.254.169.254"
	outside := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "outside"}}
	noError(t, netlink.LinkAdd(outside))
	defer func() { noError(t, netlink.LinkDel(outside)) }()
	for _, addr := range []string{metadata + "/32", "192.0.2.7/32", "2001:db8::7/128"} {
		parsed, err := netlink.ParseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		parsed.Flags = unix.IFA_F_NODAD
		noError(t, netlink.AddrAdd(outside, parsed))
	}
	noError(t, netlink.LinkSetUp(outside))

	open := probe{"the gateway", "tcp", fmt.Sprintf("%s:%d", gateway, gatewayPort)}
	answerTCP(t, open.addr)
	answerTCP(t, "0.0.0.0:8080")
	answerUDP(t, "0.0.0.0:53")
	answerUDP(t, "192.0.2.7:5353")
	answerTCP(t, fmt.Sprintf("%s:80", metadata))
	b.tcpInside(t, "0.0.0.0:9000")
	overTCP := []probe{
		{"another port of the host, open on all addresses", "tcp", gateway + ":8080"},
		{"another address of the host", "tcp", "192.0.2.7:8080"},
		{"the metadata service", "tcp", metadata + ":80"},
		{"another jail", "tcp", b.lease.Addr.String() + ":9000"},
	}
	overUDP := []probe{
		{"a resolver at the gateway", "udp", gateway + ":53"},
		{"a resolver elsewhere", "udp", "192.0.2.7:5353"},
	}
	elsewhere := []probe{
		{"an address that nobody has", "tcp", "198.51.100.9:443"},
		{"an address of the jails' network that nobody has", "tcp", "10.213.14.9:3000"},
		{"the gateway over IPv6", "tcp", "[2001:db8::7]:3000"},
		{"a neighbour over IPv6", "tcp", "[fe80::1%eth0]:3000"},
	}
	closed := append(append(overTCP, overUDP...), elsewhere...)

	tryAll := func(when string) {
		t.Helper()
		for _, p := range closed {
			p.refusedAtOnce(t, a, when)
		}
	}
	tryAll("before the add")
	open.refusedAtOnce(t, a, "before the add")

	i.admit(t, a)
	if err := a.reach(t, open.network, open.addr, patience); err != nil {
		t.Errorf("a member cannot reach the gateway: %v", err)
	}
	tryAll("as a member")
	open.refusedAtOnce(t, b, "the other jail, which is no member,")

	noError(t, i.firewall.Remove(t.Context(), jail.TableBrowsers, a.lease))
	tryAll("after the removal")
	open.refusedAtOnce(t, a, "after the removal")

	// UDP is refused by a rule of the jail's own routing; here is what the host does without it.
	a.netlinkInside(t, func(h *netlink.Handle, _ netlink.Link) error { return withoutUDPRule(h) })
	for _, p := range overUDP {
		p.refusedAtOnce(t, a, "without the rule inside")
	}

	// The other half: without the tables everything that there is answers.
	i.unprotected(t, nftables.TableFamilyINet, nftables.TableFamilyBridge)
	sysctlForTest(t, "ipv4/conf/"+i.network.Bridge()+"/forwarding", "1") // for the other jail
	for _, p := range append(append(overTCP, overUDP...), open) {
		if err := a.reach(t, p.network, p.addr, patience); err != nil {
			t.Errorf("without the tables, %s (%s): %v; so its refusal proves nothing", p.what, p.addr, err)
		}
	}
	noError(t, i.firewall.Ensure(t.Context()))
	for _, p := range append(append(overTCP, elsewhere...), open) {
		p.refusedAtOnce(t, a, "after the tables were written again")
	}
}

// withoutUDPRule removes the jail's own refusal of UDP.
func withoutUDPRule(h *netlink.Handle) error {
	rules, err := h.RuleList(unix.AF_INET)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.IPProto == unix.IPPROTO_UDP {
			return h.RuleDel(&r)
		}
	}
	return errors.New("the jail has no rule for UDP")
}

// A port that the kernel has not yet noticed to be up drops everything, and the jail's first try waits for a second.
func TestFreshSlotWorksAtOnce(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	answerTCP(t, "0.0.0.0:"+strconv.Itoa(gatewayPort))
	for round := range 5 {
		t.Run("bridge "+strconv.Itoa(round), func(t *testing.T) {
			i := install(t, "test", "10.213.0.0/24", 0)
			for range 2 { // the first one on a bridge wakes the bridge, too
				j := i.jail(t)
				i.admit(t, j)
				if err := j.reach(t, "tcp", i.pool.Gateway().String()+":3000", patience); err != nil {
					t.Errorf("slot %d: %v", j.lease.Index, err)
				}
				if again := j.sentAgain(t); again != 0 {
					t.Errorf("slot %d: %d packets were lost", j.lease.Index, again)
				}
			}
		})
	}
}

func TestManyUDPPacketsAreAllRefusedAtOnce(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	j := i.jail(t)
	i.admit(t, j)
	p := probe{"a resolver", "udp", i.pool.Gateway().String() + ":53"}
	for range 40 { // the host alone would answer six
		p.refusedAtOnce(t, j, "in a loop")
	}
}

func TestIPv6IsImpossible(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		testenv.Missing(t, "IPv6 in its kernel", "there is nothing to test without it")
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	j := i.jail(t)
	i.admit(t, j)
	j.netlinkInside(t, func(h *netlink.Handle, _ netlink.Link) error {
		addrs, err := h.AddrList(nil, netlink.FAMILY_V6)
		if err == nil && len(addrs) > 0 {
			t.Errorf("the jail has IPv6 addresses: %v", addrs)
		}
		return err
	})
	for _, link := range []string{i.network.Bridge(), portName(i.id, j.lease.Index)} {
		l, err := netlink.LinkByName(link)
		if err != nil {
			t.Fatal(err)
		}
		if addrs, err := netlink.AddrList(l, netlink.FAMILY_V6); err != nil || len(addrs) > 0 {
			t.Errorf("%s has IPv6 addresses: %v, %v", link, addrs, err)
		}
	}

	// Give both ends IPv6 by force. The tables still let nothing through, and are what prevents it.
	six := func(h *netlink.Handle, link netlink.Link, addr string) error {
		if err := sysctl("ipv6/conf/"+link.Attrs().Name+"/disable_ipv6", "0"); err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		return h.AddrAdd(link, a)
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	bridge, err := host.LinkByName(i.network.Bridge())
	if err != nil {
		t.Fatal(err)
	}
	noError(t, six(host, bridge, "fd00::1/64"))
	j.netlinkInside(t, func(h *netlink.Handle, eth netlink.Link) error { return six(h, eth, "fd00::2/64") })
	answerTCP(t, fmt.Sprintf("[fd00::1]:%d", gatewayPort))
	const silence = 300 * time.Millisecond
	reach := func() error { return j.reach(t, "tcp", fmt.Sprintf("[fd00::1]:%d", gatewayPort), silence) }

	if err := reach(); err == nil {
		t.Error("IPv6 gets through both tables")
	}
	i.unprotected(t, nftables.TableFamilyBridge)
	if err := reach(); err == nil {
		t.Error("IPv6 gets through the table inet alone")
	}
	i.unprotected(t, nftables.TableFamilyINet)
	testenv.Eventually(t, 10*time.Second, func() bool { return reach() == nil },
		"IPv6 never works here, so its refusal proves nothing")
}

func TestRemovalCutsEstablishedConnections(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	a, b := i.jail(t), i.jail(t)
	addr := fmt.Sprintf("%s:%d", i.pool.Gateway(), gatewayPort)
	answerTCP(t, addr)
	connect := func(j inmate) net.Conn {
		t.Helper()
		i.admit(t, j)
		conn, err := j.dial(t, net.Dialer{Timeout: patience}, "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		noError(t, conn.SetDeadline(time.Now().Add(patience)))
		noError(t, exchange(conn))
		return conn
	}
	cut, kept := connect(a), connect(b)
	noError(t, i.firewall.Remove(t.Context(), jail.TableBrowsers, a.lease))
	if err := exchange(cut); !refused(err) {
		t.Errorf("on the removed jail's connection: %v, want a reset", err)
	}
	if err := exchange(kept); err != nil {
		t.Errorf("the other jail's connection was hit too: %v", err)
	}
}

// packets opens a socket that sees every IPv4 packet that arrives in the jail.
func (j inmate) packets(t *testing.T) int {
	t.Helper()
	fd := -1
	noError(t, j.inside(t, func() (err error) {
		const ipBigEndian = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, ipBigEndian)
		return err
	}))
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// received reads all that has arrived and reports whether something came from an address.
func received(t *testing.T, fd int, from [4]byte) bool {
	t.Helper()
	found := false
	for {
		buf := make([]byte, 2048)
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if n >= 20 && [4]byte(buf[12:16]) == from {
			found = true
		}
	}
}

func TestSpoofedSourceGetsNothing(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	a, b := i.jail(t), i.jail(t)
	i.admit(t, b)
	addr := fmt.Sprintf("%s:%d", i.pool.Gateway(), gatewayPort)
	answerTCP(t, addr)
	seen := b.packets(t)

	// The host's answers to the thief go to the owner of the address. So the owner sees what the host believed.
	a.netlinkInside(t, func(h *netlink.Handle, eth netlink.Link) error {
		return h.AddrAdd(eth, &netlink.Addr{IPNet: hostNet(b.lease.Addr)})
	})
	steal := func() bool {
		t.Helper()
		thief := net.Dialer{
			Timeout:   50 * time.Millisecond,
			LocalAddr: &net.TCPAddr{IP: b.lease.Addr.AsSlice()},
		}
		if conn, err := a.dial(t, thief, "tcp", addr); err == nil {
			conn.Close()
			t.Error("a connection with a stolen address was established")
		}
		// A refusal of the thief's own address means that the host is done with what was sent before.
		own := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: a.lease.Addr.AsSlice()}}
		if _, err := a.dial(t, own, "tcp", addr); !refused(err) {
			t.Errorf("with its own address: %v", err)
		}
		return received(t, seen, i.pool.Gateway().As4())
	}
	if steal() {
		t.Error("the host answered to a stolen address")
	}
	i.unprotected(t, nftables.TableFamilyBridge)
	// The thief may be out of time before it has sent anything.
	testenv.Eventually(t, 10*time.Second, steal, "without the table bridge the host does not answer either, so the silence proves nothing")
}

func TestJailsDoNotReachEachOtherOnTheBridge(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	a, b := i.jail(t), i.jail(t)
	i.admit(t, a)
	i.admit(t, b)
	bridgedPacketsToFirewall(t, "0") // where the IP firewall sees bridged packets, it refuses these as well
	seen := b.packets(t)
	// As root in its jail, a writes down where b is instead of asking the gateway.
	a.netlinkInside(t, func(h *netlink.Handle, eth netlink.Link) error {
		index := eth.Attrs().Index
		return errors.Join(withoutUDPRule(h),
			h.RouteAdd(&netlink.Route{LinkIndex: index, Dst: hostNet(b.lease.Addr), Scope: netlink.SCOPE_LINK}),
			h.NeighSet(&netlink.Neigh{LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
				IP: b.lease.Addr.AsSlice(), HardwareAddr: hardwareAddr(macJail, b.lease.Index)}))
	})
	send := func() bool {
		t.Helper()
		conn, err := a.dial(t, net.Dialer{}, "udp", b.lease.Addr.String()+":7")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("psst")); err != nil {
			t.Fatal(err)
		}
		probe{"the host", "tcp", i.pool.Gateway().String() + ":1"}.refusedAtOnce(t, a, "after sending")
		return received(t, seen, a.lease.Addr.As4())
	}
	if send() {
		t.Error("a packet went from jail to jail")
	}
	for _, j := range []inmate{a, b} {
		link, err := netlink.LinkByName(portName(i.id, j.lease.Index))
		if err != nil {
			t.Fatal(err)
		}
		noError(t, netlink.LinkSetIsolated(link, false))
	}
	if !send() {
		t.Error("without isolation the packet does not arrive either, so its absence proves nothing")
	}
}

func TestTheBridgeNeverRoutesOnwards(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	sysctlForTest(t, "ipv4/ip_forward", "1")
	i := install(t, "test", "10.213.0.0/20", 0)
	a, b := i.jail(t), i.jail(t)
	b.tcpInside(t, "0.0.0.0:9000")
	i.unprotected(t, nftables.TableFamilyINet, nftables.TableFamilyBridge)
	addr := b.lease.Addr.String() + ":9000"
	if err := a.reach(t, "tcp", addr, 300*time.Millisecond); err == nil {
		t.Error("without the tables the host routes between jails")
	}
	sysctlForTest(t, "ipv4/conf/"+i.network.Bridge()+"/forwarding", "1")
	if err := a.reach(t, "tcp", addr, patience); err != nil {
		t.Errorf("with forwarding: %v; so its absence proves nothing", err)
	}
}
