package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

// reachBound is how long a connection to the gateway may take on an ordinary machine. It takes less than a millisecond there,
// and what is refused is refused at once; only what somebody drops takes longer.
const reachBound = 1500 * time.Millisecond

// slot is a lease with its network namespace.
type slot struct {
	network *linux.Network
	lease   jail.Lease
	path    string
}

// withSlot runs f with a slot, which is gone afterwards.
func (t *trial) withSlot(ctx context.Context, number int, f func(slot) error) (err error) {
	n, err := t.network.get()
	if err != nil {
		return err
	}
	name := t.name(number)
	lease, err := n.Reserve(ctx)
	if err != nil {
		return err
	}
	undo := context.WithoutCancel(ctx)
	defer func() {
		if gone := n.Detach(undo, name, lease); gone != nil {
			err = errors.Join(err, gone)
			return // the lease stays taken: something of it is left
		}
		n.Release(lease)
	}()
	path, err := n.Attach(ctx, name, lease)
	if err != nil {
		return err
	}
	return f(slot{n, lease, path})
}

// tryNetwork makes a slot and looks from inside whether it has its address.
func (t *trial) tryNetwork(ctx context.Context) (Facts, error) {
	facts := Facts{}
	err := t.withSlot(ctx, 4, func(s slot) error {
		facts["bridge"], facts["address"] = s.network.Bridge(), s.lease.Addr.String()
		return inside(s.path, func() error {
			addrs, err := net.InterfaceAddrs()
			if err != nil {
				return fmt.Errorf("list the addresses in the slot: %w", err)
			}
			if !slices.ContainsFunc(addrs, func(a net.Addr) bool {
				p, err := netip.ParsePrefix(a.String())
				return err == nil && p.Addr() == s.lease.Addr
			}) {
				return fmt.Errorf("the slot has not the address %s", s.lease.Addr)
			}
			return nil
		})
	})
	return facts, err
}

// tryPort listens where the gateway would: on the bridge of the trial.
func (t *trial) tryPort(context.Context) error {
	_, err := t.gateway.get()
	return err
}

// tryElement does to the firewall what a jail's beginning and end do, and looks what a jail outside of the table gets.
func (t *trial) tryElement(ctx context.Context) (Facts, error) {
	if _, err := t.gateway.get(); err != nil { // without something that answers, every connection would be refused
		return nil, err
	}
	f, err := t.firewall.get()
	if err != nil {
		return nil, err
	}
	table := jail.KindBrowser.Table()
	return nil, t.withSlot(ctx, 5, func(s slot) error {
		if err := t.refused(ctx, s); err != nil {
			return fmt.Errorf("before an address is in the table: %w", err)
		}
		// Both look whether the kernel has done it.
		return errors.Join(f.Add(ctx, table, s.lease), f.Remove(context.WithoutCancel(ctx), table, s.lease))
	})
}

// tryReach connects from a slot to the gateway, with everything open that clawjail opens.
func (t *trial) tryReach(ctx context.Context) (reached bool, err error) {
	if _, err := t.gateway.get(); err != nil {
		return false, err
	}
	f, err := t.firewall.get()
	if err != nil {
		return false, err
	}
	table := jail.KindBrowser.Table()
	err = t.withSlot(ctx, 6, func(s slot) (err error) {
		if err := f.Add(ctx, table, s.lease); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Remove(context.WithoutCancel(ctx), table, s.lease)) }()
		reached = t.dial(ctx, s) == nil
		return ctx.Err()
	})
	return reached, err
}

// refused is nil when a connection from a slot is refused at once.
func (t *trial) refused(ctx context.Context, s slot) error {
	err := t.dial(ctx, s)
	var timeout net.Error
	switch {
	case err == nil:
		return errors.New("a connection was not refused")
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("a connection was not refused at once: %w", err)
	}
	return nil
}

// dial takes the byte of openGateway inside a slot.
func (t *trial) dial(ctx context.Context, s slot) error {
	pool, err := t.pool.get()
	if err != nil {
		return err
	}
	gateway := netip.AddrPortFrom(pool.Gateway(), t.c.Gateway.Port).String()
	return inside(s.path, func() error {
		// To one address, Go makes the socket in the calling goroutine, and so on this thread.
		limit := t.pace.Longer(reachBound)
		d := net.Dialer{Timeout: limit}
		conn, err := d.DialContext(ctx, "tcp4", gateway)
		if err != nil {
			return err
		}
		defer conn.Close() // nothing more is said
		if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 1))
		return err
	})
}

// inside runs f in a network namespace.
func inside(namespace string, f func() error) error {
	return linux.OnDiscardedThread(func() error {
		fd, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the slot: %w", err)
		}
		defer func() { _ = unix.Close(fd) }() // it only names a namespace
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the slot: %w", err)
		}
		return f()
	})
}
