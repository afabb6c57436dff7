//go:build linux

package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// A slot is one jail's place on the bridge: a network namespace and a veth pair. Its names and its hardware
// addresses follow from the index of its lease, so that a later process finds a slot without any record of it, and
// so that the neighbour entries on both sides can be written down instead of being asked for: no host on the bridge
// ever has a reason to send or to believe an ARP packet.

// slotInterface is the name of the interface inside a jail.
const slotInterface = "eth0"

// slotMTU is that of Ethernet; nothing a jail sends goes further than this host.
const slotMTU = 1500

// bridgeName is at most 8 of the 15 characters that an interface name may have.
func bridgeName(id jail.Installation) string { return "cjbr" + string(id) }

// portPrefix is what the host's ends of all slots of an installation begin with.
func portPrefix(id jail.Installation) string { return "cj" + string(id) }

// portName is the host's end of a slot.
func portName(id jail.Installation, index int) string {
	return portPrefix(id) + slotSuffix(index)
}

func slotSuffix(index int) string { return fmt.Sprintf("%04x", index) }

// slotIndex is the index in the four digits that slotSuffix writes, or false for anything else.
func slotIndex(s string) (int, bool) {
	if len(s) != 4 {
		return 0, false
	}
	v, err := strconv.ParseUint(s, 16, 16)
	if err != nil || slotSuffix(int(v)) != s {
		return 0, false
	}
	return int(v), true
}

// The third byte of our hardware addresses says which end it is. They are locally administered and need to be
// unique on one bridge only.
const (
	macJail   = 0x01
	macPort   = 0x02
	macBridge = 0x03
)

func hardwareAddr(end byte, index int) net.HardwareAddr {
	mac := net.HardwareAddr{0x0a, 0xc1, end, 0, 0, 0}
	binary.BigEndian.PutUint16(mac[4:], uint16(index))
	return mac
}

// slots makes and removes slots. It remembers nothing; Network does.
type slots struct {
	id      jail.Installation
	gateway netip.Addr
	dir     string // of the namespaces' files
	host    *netlink.Handle
	bridge  int // interface index
}

func (s *slots) path(index int) string { return filepath.Join(s.dir, slotSuffix(index)) }

// make makes the slot of a lease. Remains of an earlier process under the same index are removed first, so that
// nothing of it can be inherited. On error nothing is left.
func (s *slots) make(ctx context.Context, l jail.Lease) (err error) {
	if err := s.remove(ctx, l); err != nil {
		return fmt.Errorf("clear slot %d: %w", l.Index, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make slot %d: %w", l.Index, err), s.remove(context.WithoutCancel(ctx), l))
		}
	}()
	ns, err := newNamespace(s.path(l.Index))
	if err != nil {
		return err
	}
	defer ns.close()
	port, err := s.plug(l, ns.fd)
	if err != nil {
		return err
	}
	eth, err := s.furnish(l, ns.handle)
	if err != nil {
		return err
	}
	for _, end := range []struct {
		handle *netlink.Handle
		link   int
	}{{ns.handle, eth}, {s.host, port}, {s.host, s.bridge}} {
		if err := awaitLink(ctx, end.handle, end.link); err != nil {
			return err
		}
	}
	return nil
}

// linkPatience is longer than the second by which the kernel may put off noticing that a link has become usable.
const (
	linkPatience = 3 * time.Second
	linkPause    = time.Millisecond
)

// awaitLink returns when packets pass through an interface. The kernel notices that a cable was plugged in, so to
// speak, in a work item of its own, and until then a bridge port drops everything; a jail that had connected before
// would have waited a second for its next try. Since Linux 6.8 asking is enough to make it notice.
func awaitLink(ctx context.Context, h *netlink.Handle, index int) error {
	ctx, cancel := context.WithTimeout(ctx, linkPatience)
	defer cancel()
	for {
		link, err := h.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("look at interface %d: %w", index, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if !wake.Sleep(ctx, linkPause) {
			return fmt.Errorf("wait for the interface %s to work: %w", link.Attrs().Name, ctx.Err())
		}
	}
}

// plug makes the veth pair and puts the host's end on the bridge, alone: isolated from the other ports, neither
// learning addresses nor receiving what is meant for somebody else.
func (s *slots) plug(l jail.Lease, nsfd int) (port int, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = portName(s.id, l.Index)
	attrs.HardwareAddr = hardwareAddr(macPort, l.Index)
	attrs.MTU = slotMTU
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         slotInterface,
		PeerHardwareAddr: hardwareAddr(macJail, l.Index),
		PeerNamespace:    netlink.NsFd(nsfd),
	}
	if err := s.host.LinkAdd(veth); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			return 0, problem.Wrap(err, problem.Unsupported, "sudo modprobe veth, or a kernel with CONFIG_VETH", "this kernel has no veth interfaces")
		}
		return 0, fmt.Errorf("add the interface %s: %w", attrs.Name, err)
	}
	if err := disableIPv6(attrs.Name); err != nil {
		return 0, err
	}
	if err := s.host.LinkSetMasterByIndex(veth, s.bridge); err != nil {
		return 0, fmt.Errorf("put %s on the bridge: %w", attrs.Name, err)
	}
	if err := isolatePort(veth.Index); err != nil {
		return 0, fmt.Errorf("isolate %s: %w", attrs.Name, err)
	}
	forward := &netlink.Neigh{ // NOARP is a static entry; a permanent one would mean an address of the host's
		LinkIndex: veth.Index, Family: unix.AF_BRIDGE, State: netlink.NUD_NOARP,
		Flags: netlink.NTF_MASTER, HardwareAddr: hardwareAddr(macJail, l.Index),
	}
	if err := s.host.NeighSet(forward); err != nil {
		return 0, fmt.Errorf("tell the bridge what is behind %s: %w", attrs.Name, err)
	}
	if err := s.host.NeighSet(s.neighbour(l)); err != nil {
		return 0, fmt.Errorf("write down the neighbour %s: %w", l.Addr, err)
	}
	if err := s.host.LinkSetUp(veth); err != nil {
		return 0, fmt.Errorf("bring %s up: %w", attrs.Name, err)
	}
	return veth.Index, nil
}

// neighbour is the host's entry for the jail's address. It belongs to the bridge and therefore outlives the port.
func (s *slots) neighbour(l jail.Lease) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: s.bridge, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: l.Addr.AsSlice(), HardwareAddr: hardwareAddr(macJail, l.Index),
	}
}

// isolatePort sets all properties of a bridge port in one request.
func isolatePort(link int) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(link)
	req.AddData(msg)
	port := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	on, off := []byte{1}, []byte{0}
	port.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, on)
	port.AddRtAttr(nl.IFLA_BRPORT_LEARNING, off)
	port.AddRtAttr(nl.IFLA_BRPORT_UNICAST_FLOOD, off)
	port.AddRtAttr(nl.IFLA_BRPORT_MCAST_FLOOD, off)
	port.AddRtAttr(nl.IFLA_BRPORT_BCAST_FLOOD, off)
	req.AddData(port)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// furnish configures the inside: loopback, the address as a /32, the gateway as a link-scope route with a written
// neighbour, and everything else by way of the gateway. So a packet to any other address reaches the host at once
// and is refused there, where otherwise the jail would wait for an answer to ARP.
//
// UDP is refused by a routing rule inside as well. The host refuses it in any case, but by ICMP, which the kernel
// sends at most six times in a burst and then once a second to the same address; a program that asks for names in a
// loop would wait. This rule is a courtesy and no control.
func (s *slots) furnish(l jail.Lease, inside *netlink.Handle) (eth int, err error) {
	for _, name := range []string{"lo", slotInterface} {
		link, err := inside.LinkByName(name)
		if err != nil {
			return 0, fmt.Errorf("find %s in the namespace: %w", name, err)
		}
		if err := inside.LinkSetUp(link); err != nil {
			return 0, fmt.Errorf("bring %s in the namespace up: %w", name, err)
		}
		eth = link.Attrs().Index
	}
	if err := s.address(l, inside, eth); err != nil {
		return 0, err
	}
	udp := netlink.NewRule()
	udp.Family, udp.Priority, udp.IPProto, udp.Type = unix.AF_INET, 100, unix.IPPROTO_UDP, nl.FR_ACT_PROHIBIT
	if err := inside.RuleAdd(udp); err != nil {
		return 0, fmt.Errorf("refuse UDP in the namespace: %w", err)
	}
	return eth, nil
}

func (s *slots) address(l jail.Lease, inside *netlink.Handle, eth int) error {
	own := &netlink.Addr{IPNet: hostNet(l.Addr), Scope: unix.RT_SCOPE_UNIVERSE}
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: eth}}
	if err := inside.AddrAdd(link, own); err != nil {
		return fmt.Errorf("give the jail its address %s: %w", l.Addr, err)
	}
	gateway := &netlink.Neigh{
		LinkIndex: eth, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: s.gateway.AsSlice(), HardwareAddr: hardwareAddr(macBridge, 0),
	}
	if err := inside.NeighSet(gateway); err != nil {
		return fmt.Errorf("write down the gateway in the namespace: %w", err)
	}
	direct := &netlink.Route{LinkIndex: eth, Dst: hostNet(s.gateway), Scope: netlink.SCOPE_LINK, Src: l.Addr.AsSlice()}
	if err := inside.RouteAdd(direct); err != nil {
		return fmt.Errorf("route to the gateway: %w", err)
	}
	rest := &netlink.Route{LinkIndex: eth, Gw: s.gateway.AsSlice(), Src: l.Addr.AsSlice()}
	if err := inside.RouteAdd(rest); err != nil {
		return fmt.Errorf("route by way of the gateway: %w", err)
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
}

// A removal is tried this often before it is reported as busy, with pauses that double from the first.
const (
	removeTries      = 6
	removeFirstPause = 5 * time.Millisecond
)

// remove takes a slot away and returns when its interface, its neighbour entry and its namespace's file were seen
// to be gone. It succeeds when there is nothing, and is jail.ErrBusy when something stays.
func (s *slots) remove(ctx context.Context, l jail.Lease) error {
	pause := removeFirstPause
	for try := 1; ; try++ {
		err := s.removeOnce(l)
		if err == nil {
			return nil
		}
		if try == removeTries {
			return fmt.Errorf("remove slot %d: %w", l.Index, errors.Join(jail.ErrBusy, err))
		}
		if !wake.Sleep(ctx, pause) {
			return ctx.Err()
		}
		pause *= 2
	}
}

func (s *slots) removeOnce(l jail.Lease) error {
	var errs []error
	errs = append(errs, s.removePort(l.Index), s.removeNeighbour(l), removeNamespace(s.path(l.Index)))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.gone(l)
}

// removePort deletes the host's end, and with it the inner end, which may still be in use by a process that has
// not ended: an interface does not wait for its sockets.
func (s *slots) removePort(index int) error {
	link, err := s.port(index)
	if err != nil || link == nil {
		return err
	}
	if err := s.host.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the interface %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// port is the host's end of a slot, or nil.
func (s *slots) port(index int) (netlink.Link, error) {
	name := portName(s.id, index)
	link, err := s.host.LinkByName(name)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the interface %s: %w", name, err)
	}
	return link, nil
}

func (s *slots) removeNeighbour(l jail.Lease) error {
	if err := s.host.NeighDel(s.neighbour(l)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forget the neighbour %s: %w", l.Addr, err)
	}
	return nil
}

// gone looks at the host. The neighbour entry needs no look: the kernel has just said that it has none.
func (s *slots) gone(l jail.Lease) error {
	link, err := s.port(l.Index)
	if err != nil {
		return err
	}
	if link != nil {
		return fmt.Errorf("the interface %s is still there", link.Attrs().Name)
	}
	if _, err := os.Lstat(s.path(l.Index)); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the namespace %s is still there", s.path(l.Index))
	}
	return nil
}
