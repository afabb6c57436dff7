//go:build linux

package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// ensureBridge makes the installation's bridge, or adopts the one that is there, and returns its index. The bridge
// has the gateway's address, never an IPv6 one, and what comes in by it is never routed onwards: that holds
// even at a moment when somebody has emptied the host's firewall. Where jails are only ended it gets no address.
func ensureBridge(host *netlink.Handle, c NetworkConfig) (int, error) {
	name := bridgeName(c.Installation)
	link, err := host.LinkByName(name)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		link, err = addBridge(host, name)
	}
	if err != nil {
		return 0, fmt.Errorf("look for the bridge %s: %w", name, err)
	}
	if link.Type() != "bridge" {
		return 0, problem.New(problem.Conflict, "remove or rename that interface",
			"the interface %s is not a bridge but a %s", name, link.Type())
	}
	if mac := hardwareAddr(macBridge, 0); !bytes.Equal(link.Attrs().HardwareAddr, mac) {
		if err := host.LinkSetHardwareAddr(link, mac); err != nil { // the one that every jail has written down
			return 0, fmt.Errorf("give the bridge its hardware address: %w", err)
		}
	}
	for setting, value := range map[string]string{
		"ipv6/conf/" + name + "/disable_ipv6":   "1",
		"ipv4/conf/" + name + "/forwarding":     "0",
		"ipv4/conf/" + name + "/send_redirects": "0",
	} {
		if err := sysctl(setting, value); err != nil {
			return 0, err
		}
	}
	if c.Ending {
		return link.Attrs().Index, nil
	}
	if err := ensureBridgeAddress(host, link, c.Pool); err != nil {
		return 0, err
	}
	if err := host.LinkSetUp(link); err != nil {
		return 0, fmt.Errorf("bring the bridge up: %w", err)
	}
	return link.Attrs().Index, nil
}

// addBridge gives the bridge a hardware address of its own; otherwise it would change with the ports, and the
// neighbour entries in the jails would point nowhere.
func addBridge(host *netlink.Handle, name string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	attrs.MTU = slotMTU
	attrs.HardwareAddr = hardwareAddr(macBridge, 0)
	snooping := false
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := host.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("add the bridge: %w", err)
	}
	return bridge, nil
}

// ensureBridgeAddress refuses to change the address of a bridge that jails hang on: each of them knows it.
func ensureBridgeAddress(host *netlink.Handle, link netlink.Link, pool *jail.Pool) error {
	want := netip.PrefixFrom(pool.Gateway(), pool.Subnet().Bits())
	addrs, err := dump(func() ([]netlink.Addr, error) { return host.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list the bridge's addresses: %w", err)
	}
	there := false
	for _, a := range addrs {
		if a.IPNet.String() == want.String() {
			there = true
			continue
		}
		ports, err := bridgePorts(host, link.Attrs().Index)
		if err != nil {
			return err
		}
		if len(ports) > 0 {
			return problem.New(problem.Conflict, "end the jails first, or go back to the old `subnet`",
				"the bridge %s has the address %s and jails use it; it cannot become %s",
				link.Attrs().Name, a.IPNet, want)
		}
		if err := host.AddrDel(link, &a); err != nil {
			return fmt.Errorf("remove the bridge's address %s: %w", a.IPNet, err)
		}
	}
	if there {
		return nil
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP: want.Addr().AsSlice(), Mask: net.CIDRMask(want.Bits(), 32),
	}}
	if err := host.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("give the bridge the address %s: %w", want, err)
	}
	return nil
}

// bridgePorts lists the names of a bridge's ports.
func bridgePorts(host *netlink.Handle, bridge int) ([]string, error) {
	links, err := dump(host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var ports []string
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge {
			ports = append(ports, l.Attrs().Name)
		}
	}
	return ports, nil
}

// UninstallNetwork removes the bridge and the folder of the namespaces. It refuses while a jail hangs on the
// bridge, and succeeds when there is nothing.
func UninstallNetwork(ctx context.Context, id jail.Installation, runDir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer host.Close()
	name := bridgeName(id)
	link, err := host.LinkByName(name)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return removeNamespaceDir(runDir)
	}
	if err != nil {
		return fmt.Errorf("look for the bridge %s: %w", name, err)
	}
	ports, err := bridgePorts(host, link.Attrs().Index)
	if err != nil {
		return err
	}
	if len(ports) > 0 {
		return problem.New(problem.Conflict, "end them first: `clawjail reap` removes unused ones",
			"%d jails are on the bridge %s", len(ports), name)
	}
	if err := host.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove the bridge %s: %w", name, err)
	}
	return removeNamespaceDir(runDir)
}

func removeNamespaceDir(runDir string) error {
	if err := os.Remove(namespaceDir(runDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the folder of the network namespaces: %w", err)
	}
	return nil
}
