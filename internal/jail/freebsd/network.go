//go:build linux || freebsd

package freebsd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
)

// Network gives each jail an epair: one end is a private member of the installation's bridge, which has the gateway's
// address, and the other becomes the jail's own when jail(8) makes its vnet.
//
// A jail has no default route: the gateway is on its link. When a jail goes, its end comes back to the host; destroying
// either end destroys both.
type Network struct {
	o     Options
	jails jails

	mu sync.Mutex // makes the bridge
}

func newNetwork(o Options) *Network { return &Network{o: o, jails: jails{o.Commands}} }

// The names of the two ends. They have at most 15 characters, as jail.MaxNameLength provides for.
func endOutside(name jail.Name) string { return "e0a_" + string(name) }
func endInside(name jail.Name) string  { return "e0b_" + string(name) }

func (n *Network) bridge() string { return "cj" + string(n.o.Installation) }

func (n *Network) ifconfig(ctx context.Context, args ...string) (string, error) {
	return n.o.Commands.Run(ctx, "ifconfig", args...)
}

// look is what ifconfig says of an interface, and whether there is one.
func (n *Network) look(ctx context.Context, name string) (text string, there bool, err error) {
	text, err = n.ifconfig(ctx, name)
	if hostcmd.Says(err, "does not exist") {
		return "", false, nil
	}
	return text, err == nil, err
}

// ensureBridge makes the bridge with the gateway's address, where it is missing.
func (n *Network) ensureBridge(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := n.bridge()
	text, there, err := n.look(ctx, name)
	if err != nil {
		return err
	}
	gateway := n.o.Pool.Gateway().String()
	if there && hasAddress(text, gateway) {
		return nil
	}
	if !there {
		// One that could not be renamed is left under the name that the command has printed.
		out, err := n.ifconfig(ctx, "bridge", "create", "name", name)
		if err != nil {
			if left := strings.TrimSpace(out); strings.HasPrefix(left, "bridge") {
				_, undo := n.ifconfig(context.WithoutCancel(ctx), left, "destroy")
				err = errors.Join(err, undo)
			}
			return fmt.Errorf("make bridge %s: %w", name, err)
		}
	}
	_, err = n.ifconfig(ctx, name, "inet", fmt.Sprintf("%s/%d", gateway, n.o.Pool.Subnet().Bits()), "up",
		"description", "clawjail "+string(n.o.Installation))
	if err == nil {
		text, _, err = n.look(ctx, name)
	}
	if err == nil && !hasAddress(text, gateway) {
		err = fmt.Errorf("it does not have the address %s", gateway)
	}
	if err != nil {
		return fmt.Errorf("make bridge %s: %w", name, err)
	}
	return nil
}

// removeBridge removes the bridge of an installation that has no jails.
func (n *Network) removeBridge(ctx context.Context) error {
	_, there, err := n.look(ctx, n.bridge())
	if err != nil || !there {
		return err
	}
	_, failed := n.ifconfig(ctx, n.bridge(), "destroy")
	if _, there, err = n.look(ctx, n.bridge()); err != nil || there {
		return fmt.Errorf("remove bridge %s: %w", n.bridge(), errors.Join(err, failed, jail.ErrBusy))
	}
	return nil
}

func hasAddress(text, addr string) bool {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "inet" && f[1] == addr {
			return true
		}
	}
	return false
}

// Reserve leases an address.
func (n *Network) Reserve(ctx context.Context) (jail.Lease, error) {
	if err := ctx.Err(); err != nil {
		return jail.Lease{}, err
	}
	return n.o.Pool.Take()
}

// Release gives a lease back.
func (n *Network) Release(l jail.Lease) { n.o.Pool.Release(l.Index) }

// Attach makes the epair. It returns the name of the end that becomes the jail's.
func (n *Network) Attach(ctx context.Context, name jail.Name, l jail.Lease) (_ string, err error) {
	if err := errors.Join(n.check(name, l), ctx.Err()); err != nil {
		return "", err
	}
	if err := n.ensureBridge(ctx); err != nil {
		return "", fmt.Errorf("attach %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("attach %s: %w", name, err), n.remove(context.WithoutCancel(ctx), name))
		}
	}()
	// In one command: a pair that was made and not described could not be told from anybody else's. A cancelled caller
	// does not end it half-way.
	out, err := n.ifconfig(context.WithoutCancel(ctx), "epair", "create", "description", description(name))
	if err != nil {
		return "", err
	}
	a := strings.TrimSpace(out)
	unit, ok := strings.CutSuffix(a, "a")
	if !ok || !generic(a) {
		return "", fmt.Errorf("ifconfig names %q as the new epair", a)
	}
	outside, inside := endOutside(name), endInside(name)
	macA, macB := addresses(name)
	for _, args := range [][]string{
		{a, "name", outside}, {unit + "b", "name", inside},
		{outside, "ether", macA}, {inside, "ether", macB},
		{inside, "description", description(name)},
		{outside, "description", description(name), "up"},
		{n.bridge(), "addm", outside}, {n.bridge(), "private", outside},
	} {
		if _, err := n.ifconfig(ctx, args...); err != nil {
			return "", err
		}
	}
	return inside, n.attached(ctx, outside, inside)
}

// attached looks whether both ends are there, and whether the outer one is a private member of the bridge.
func (n *Network) attached(ctx context.Context, outside, inside string) error {
	all, err := n.epairs(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(all, outside) || !slices.Contains(all, inside) {
		return fmt.Errorf("the ends %s and %s were made and are not there", outside, inside)
	}
	text, _, err := n.look(ctx, n.bridge())
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "member:" && f[1] == outside && strings.Contains(f[2], "PRIVATE") {
			return nil
		}
	}
	return fmt.Errorf("%s is not a private member of %s", outside, n.bridge())
}

// addresses are the hardware addresses of both ends. The kernel's own are unique in one network only (epair(4)).
func addresses(name jail.Name) (a, b string) {
	sum := sha256.Sum256([]byte(name))
	// 58:9c:fc is the prefix of the FreeBSD Foundation.
	base := fmt.Sprintf("58:9c:fc:%02x:%02x:%x", sum[0], sum[1], sum[2]>>4)
	return base + "a", base + "b"
}

// configure gives the jail's end its address, in the jail's own network.
func (n *Network) configure(ctx context.Context, name jail.Name, l jail.Lease) error {
	inside := endInside(name)
	for _, args := range [][]string{
		{inside, "inet6", "ifdisabled"},
		{inside, "inet", fmt.Sprintf("%s/%d", l.Addr, n.o.Pool.Subnet().Bits()), "up"},
		{"lo0", "inet", "127.0.0.1/8", "up"},
	} {
		if _, err := n.ifconfig(ctx, append([]string{"-j", string(name)}, args...)...); err != nil {
			return fmt.Errorf("configure the network of jail %s: %w", name, err)
		}
	}
	return nil
}

// apart reports whether the jail's end is in the jail with its address, and not on the host: the jail has a network of its
// own then.
func (n *Network) apart(ctx context.Context, name jail.Name, l jail.Lease) (bool, error) {
	text, err := n.ifconfig(ctx, "-j", string(name), endInside(name))
	if err != nil {
		return false, err
	}
	host, err := n.ifconfig(ctx, "-l")
	if err != nil {
		return false, err
	}
	return hasAddress(text, l.Addr.String()) && !slices.Contains(strings.Fields(host), endInside(name)), nil
}

// check makes sure that index and address belong together.
func (n *Network) check(name jail.Name, l jail.Lease) error {
	if err := n.o.check(name); err != nil {
		return err
	}
	return n.o.Pool.Check(l)
}
