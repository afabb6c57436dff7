//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// neighbourID is how a neighbour entry is named in a resource: this and the address. It counts as an interface.
const neighbourID = "neighbour "

// List reports the interfaces, neighbour entries and namespaces of all slots, those that are ready included. Their
// index tells whose they are.
func (n *Network) List(ctx context.Context) ([]jail.HostResource, error) {
	var resources []jail.HostResource
	for _, list := range []func() ([]jail.HostResource, error){n.listPorts, n.listNeighbours, n.listNamespaces} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found, err := list()
		if err != nil {
			return nil, err
		}
		resources = append(resources, found...)
	}
	return resources, nil
}

func (n *Network) listPorts() ([]jail.HostResource, error) {
	links, err := dump(n.slots.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var resources []jail.HostResource
	for _, l := range links {
		if index, ok := n.portIndex(l.Attrs().Name); ok {
			resources = append(resources, jail.HostResource{Kind: jail.ResourceInterface, Index: index, ID: l.Attrs().Name})
		}
	}
	return resources, nil
}

func (n *Network) portIndex(name string) (int, bool) {
	suffix, ok := strings.CutPrefix(name, portPrefix(n.slots.id))
	if !ok {
		return 0, false
	}
	return slotIndex(suffix)
}

func (n *Network) listNeighbours() ([]jail.HostResource, error) {
	entries, err := dump(func() ([]netlink.Neigh, error) { return n.slots.host.NeighList(n.slots.bridge, unix.AF_INET) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	var resources []jail.HostResource
	for _, e := range entries {
		addr, ok := netip.AddrFromSlice(e.IP.To4())
		if !ok || e.State&netlink.NUD_PERMANENT == 0 {
			continue // an entry that the kernel itself made, and forgets
		}
		if index := n.pool.IndexOf(addr); index >= 0 {
			resources = append(resources, jail.HostResource{Kind: jail.ResourceInterface, Index: index, ID: neighbourID + addr.String()})
		}
	}
	return resources, nil
}

func (n *Network) listNamespaces() ([]jail.HostResource, error) {
	entries, err := os.ReadDir(n.slots.dir)
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var resources []jail.HostResource
	for _, e := range entries {
		if index, ok := slotIndex(e.Name()); ok {
			resources = append(resources, jail.HostResource{Kind: jail.ResourceNamespace, Index: index, ID: n.slots.path(index)})
		}
	}
	return resources, nil
}

// RemoveResource removes one thing that List reported. A slot that was made since, or that was handed out and is about
// to become a jail's, is jail.ErrBusy: the report is older than the slot.
func (n *Network) RemoveResource(ctx context.Context, t jail.HostResource) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	lock := n.lock(max(t.Index, 0))
	lock.Lock()
	defer lock.Unlock()
	if state := n.state(t.Index); state != 0 && state != slotAttached {
		return fmt.Errorf("remove %s: slot %d has become one that waits for its jail: %w", t.ID, t.Index, jail.ErrBusy)
	}
	// The index names the thing to remove. The text must be the one that List gives of it.
	switch {
	case t.Index < 0:
	case t.Kind == jail.ResourceNamespace && t.ID == n.slots.path(t.Index):
		return removeNamespace(t.ID)
	case t.Kind == jail.ResourceInterface && t.ID == portName(n.slots.id, t.Index):
		return n.slots.removePort(t.Index)
	case t.Kind == jail.ResourceInterface && strings.HasPrefix(t.ID, neighbourID):
		l, err := n.pool.Lease(t.Index)
		if err != nil {
			return err
		}
		if t.ID == neighbourID+l.Addr.String() {
			return n.slots.removeNeighbour(l)
		}
	}
	return errors.Join(errNotOurs, fmt.Errorf("%s %q of slot %d", t.Kind, t.ID, t.Index))
}

// errNotOurs is returned for a resource that no part of this installation reported.
var errNotOurs = errors.New("not a resource of this installation")
