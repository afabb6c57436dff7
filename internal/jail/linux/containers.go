//go:build linux

package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// The code below is for the driver whose jails an engine makes: the kernel confines them like any other, so they are looked
// at, and the gateway opened, by the same code.

// ContainerBridge is the name of the bridge that an engine makes for an installation's containers.
func ContainerBridge(id jail.Installation) string { return "cj" + string(id) + "d" }

// OpenContainerFirewall is OpenFirewall for the bridge of containers. The engine names their ports, so that nothing can
// be bound to them; that a container cannot claim another's address is for its missing capabilities. In a table of the
// bridge family what one container sends to another is dropped, whatever rules the engine has:
//
//	table bridge clawjail_k3x9d {
//	  chain forward {
//	    type filter hook forward priority -300; policy accept;
//	    meta protocol ip ip saddr 10.214.16.0/20 drop
//	    meta protocol ip ip daddr 10.214.16.0/20 drop
//	    meta protocol arp arp saddr ip 10.214.16.0/20 drop
//	    meta protocol arp arp daddr ip 10.214.16.0/20 drop
//	  }
//	}
func OpenContainerFirewall(ctx context.Context, c FirewallConfig) (*Firewall, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	filter := filterRuleset(c.Installation, c.Pool.Gateway(), c.Port)
	filter.table.Name += "d"
	filter.rules["prerouting"] = [][]expr.Any{{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceKey(ContainerBridge(c.Installation))},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: "jails"},
	}}
	f := &Firewall{pool: c.Pool, log: log, filter: filter, origins: betweenContainers(filter.table.Name, c.Pool.Subnet())}
	if err := f.Ensure(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// AddAddress makes an address of the subnet that no lease has a member of a table.
func (f *Firewall) AddAddress(ctx context.Context, table jail.Table, addr netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !f.pool.Subnet().Contains(addr) || f.pool.IndexOf(addr) >= 0 || addr == f.pool.Gateway() {
		return fmt.Errorf("%s is not an address of %s beside the leases", addr, f.pool.Subnet())
	}
	set, err := f.set(table)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.withConnection(func() error {
		if err := f.ensure(); err != nil {
			return err
		}
		return f.setMember(set, addr, true)
	})
}

// betweenContainers drops what would go from one port of the bridge to another.
func betweenContainers(table string, subnet netip.Prefix) *ruleset {
	r := &ruleset{table: &nftables.Table{Name: table, Family: nftables.TableFamilyBridge}, rules: map[string][][]expr.Any{}}
	within := func(protocol uint16, offset uint32) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(protocol)},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask(subnet.Bits()), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: subnet.Masked().Addr().AsSlice()},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}
	}
	r.addChain("forward", nftables.ChainHookForward,
		within(unix.ETH_P_IP, 12), within(unix.ETH_P_IP, 16), within(unix.ETH_P_ARP, 14), within(unix.ETH_P_ARP, 24))
	return r
}

func mask(bits int) []byte { return binaryutil.BigEndian.PutUint32(^uint32(0) << (32 - bits)) }

// SeccompJSON is the system-call filter of a profile as engines read it.
func SeccompJSON(p jail.SeccompProfile) ([]byte, error) {
	filter, err := seccompFilter(p)
	if err != nil {
		return nil, err
	}
	return json.Marshal(filter)
}

// FindProcess is the process that has this number now.
func FindProcess(pid int) (jail.Process, error) {
	p, err := openProcess(jail.Process{PID: pid})
	if err != nil {
		return jail.Process{}, err
	}
	defer p.Close()
	started, err := p.started()
	return jail.Process{PID: pid, Started: started}, err
}

// ObserveProcess reads how a process that an engine started is confined: everything but the limits of its control
// groups. It waits until the process has become the jail's program.
func ObserveProcess(ctx context.Context, proc jail.Process, declared jail.Profile) (jail.Observed, error) {
	var o jail.Observed
	pr, err := openProcess(proc)
	if err != nil {
		return o, err
	}
	defer pr.Close()
	if !waitFor(ctx, startLimit, func() bool {
		var inside bool
		inside, err = pr.runsFromItsMounts()
		return inside || err != nil
	}) {
		return o, errors.Join(ctx.Err(), errors.New("the engine's process did not become the jail's program"))
	}
	if err != nil {
		return o, err
	}
	if err := errors.Join(pr.identity(&o), pr.namespaces(&o), pr.files(&o, declared), pr.resources(&o)); err != nil {
		return o, err
	}
	return o, pr.forgetHarmless(&o)
}

// forgetHarmless leaves out of what is writable what harmless says is.
func (p *process) forgetHarmless(o *jail.Observed) error {
	kept := o.Writable[:0]
	for _, point := range o.Writable {
		harmless, err := p.harmless(point)
		if err != nil {
			return err
		}
		if !harmless {
			kept = append(kept, point)
		}
	}
	o.Writable = kept
	return nil
}

// harmless says whether a mount that is not read-only is one that engines make for every container, and that the jail
// cannot keep anything in: folders in memory where only root may make something, and the file system of terminals.
func (p *process) harmless(point string) (bool, error) {
	if point != "/dev" && point != "/dev/pts" && point != "/sys/fs/cgroup" {
		return false, nil
	}
	fd, err := p.openInside(point)
	if err != nil {
		return false, p.failed("root"+point, err)
	}
	defer func() { _ = unix.Close(fd) }() // opened for nothing but its identity
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
		return false, p.failed("root"+point, err)
	}
	const devpts = 0x1cd1
	if point == "/dev/pts" {
		return int64(fs.Type) == devpts, nil
	}
	return int64(fs.Type) == unix.TMPFS_MAGIC && st.Uid == 0 && st.Gid == 0 && st.Mode&0o022 == 0, nil
}

// Inside opens what a process sees at a path, for nothing but its identity. No link is followed.
func Inside(proc jail.Process, path string) (*os.File, error) {
	p, err := openProcess(proc)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	fd, err := p.openInside(path)
	if err != nil {
		return nil, p.failed("root"+path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// AwaitEnd blocks until a process has ended. It need not be a child.
func AwaitEnd(ctx context.Context, proc jail.Process) error {
	f, err := pidfd(proc)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(awaitEnd(ctx, f), f.Close())
}

// Signal signals a process, and no other that has its number later. That it has ended is fine.
func Signal(proc jail.Process, sig syscall.Signal) error {
	f, err := pidfd(proc)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(signalFD(f, sig), f.Close())
}

// StatusField is one line of /proc/<pid>/status.
func StatusField(proc jail.Process, field string) (string, error) {
	p, err := openProcess(proc)
	if err != nil {
		return "", err
	}
	defer p.Close()
	text, err := p.read("status")
	if err != nil {
		return "", err
	}
	return statusField(text, field), nil
}

// InNetworkOf runs f on a thread in the network namespace of a process.
func InNetworkOf(proc jail.Process, f func() error) error {
	p, err := openProcess(proc)
	if err != nil {
		return err
	}
	defer p.Close()
	fd, err := unix.Openat(int(p.dir.Fd()), "ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.failed("ns/net", err)
	}
	defer func() { _ = unix.Close(fd) }() // it only names the namespace
	return OnDiscardedThread(func() error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the jail's network: %w", err)
		}
		return f()
	})
}

// Interfaces counts the interfaces of the calling thread's network beside the loopback, and lists their addresses.
func Interfaces() (count int, addrs []netip.Addr, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	links, err := dump(h.LinkList)
	if err != nil {
		return 0, nil, fmt.Errorf("list interfaces: %w", err)
	}
	loopback := map[int]bool{}
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 {
			loopback[a.Index] = true
		} else if a.Flags&net.FlagUp != 0 { // kernels make unused ones of tunnels in every network
			count++
		}
	}
	all, err := dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return 0, nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range all {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !loopback[a.LinkIndex] {
			addrs = append(addrs, ip.Unmap())
		}
	}
	return count, addrs, nil
}
