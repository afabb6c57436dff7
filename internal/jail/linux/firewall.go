//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"

	"github.com/google/nftables"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// FirewallConfig is what a Firewall needs to know.
type FirewallConfig struct {
	Installation jail.Installation
	Pool         *jail.Pool
	Port         uint16       // of the gateway
	Log          *slog.Logger // nil discards
}

// Validate reports everything that is wrong at once.
func (c FirewallConfig) Validate() error {
	bad := problem.ValidationError{Code: problem.BadConfig}
	if _, err := jail.ParseInstallation(string(c.Installation)); err != nil {
		bad.Add("installation", "%v", err)
	}
	if c.Pool == nil {
		bad.Add("pool", "is missing")
	}
	if c.Port == 0 {
		bad.Add("port", "the gateway's port is missing")
	}
	return bad.Err()
}

// Firewall is the part of the driver that opens the gateway to a jail, by nf_tables.
//
// The rules are static: jails are members of sets. Every change is one transaction of the kernel's and is read back.
// Before a member is added, the rules are known to be in force: the kernel numbers the generations of its ruleset,
// and when somebody else has made one since, the rules are read and compared, expression by expression, and written
// again when they are missing (as after `nft flush ruleset`). All methods may be called concurrently.
type Firewall struct {
	pool    *jail.Pool
	log     *slog.Logger
	filter  *ruleset
	origins *ruleset

	mu     sync.Mutex
	conn   *nftables.Conn // nil after an error, which a connection does not get over
	reader *nftReader
	known  uint32 // the generation in which the rules and their elements were seen to be right; 0 is none
}

var _ jail.Firewall = (*Firewall)(nil)

// OpenFirewall makes the tables, or adopts those that are there. It is a conflict when there is one that differs
// and has members.
func OpenFirewall(ctx context.Context, c FirewallConfig) (*Firewall, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	origins, err := originRuleset(c.Installation, c.Pool)
	if err != nil {
		return nil, err
	}
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &Firewall{
		pool: c.Pool, log: log, origins: origins,
		filter: filterRuleset(c.Installation, c.Pool.Gateway(), c.Port),
	}
	if err := f.Ensure(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close closes the connections to the kernel. The tables stay: jails may outlive the process.
func (f *Firewall) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.disconnect()
}

// Ensure looks whether the rules and the elements that are part of them are in force, and writes what is missing. It is cheap when nobody has changed the
// host's ruleset since the last time, and meant to be called on a timer: until then, a host whose ruleset was flushed
// is open to its jails. Members that went with a flushed table are not known here; their owners add them again.
func (f *Firewall) Ensure(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.withConnection(func() error { return f.ensure() })
}

// Add makes a lease's address a member of a table.
func (f *Firewall) Add(ctx context.Context, table jail.Table, l jail.Lease) error {
	return f.change(ctx, table, l, true)
}

// Remove ends the membership of a lease's address, and with it what it has open.
func (f *Firewall) Remove(ctx context.Context, table jail.Table, l jail.Lease) error {
	return f.change(ctx, table, l, false)
}

func (f *Firewall) change(ctx context.Context, table jail.Table, l jail.Lease, member bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := f.pool.Check(l); err != nil {
		return err
	}
	set, err := f.set(table)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.withConnection(func() error {
		if member {
			if err := f.ensure(); err != nil {
				return err
			}
		}
		return f.setMember(set, l.Addr, member)
	})
}

func (f *Firewall) set(table jail.Table) (*nftables.Set, error) {
	for _, t := range memberTables() {
		if t == table {
			return memberSet(f.filter.table, t), nil
		}
	}
	return nil, fmt.Errorf("there is no table %q in the firewall", table)
}

// setMember makes it so, where it is not, and reads it back.
func (f *Firewall) setMember(set *nftables.Set, addr netip.Addr, member bool) error {
	key := addr.AsSlice()
	what, write := "add %s to %s: %w", f.conn.SetAddElements
	if !member {
		what, write = "remove %s from %s: %w", f.conn.SetDeleteElements
	}
	if !member { // to delete what is not there is an error of the kernel's, to add what is there is none
		have, err := f.reader.has(set, key)
		if err != nil || !have {
			return err
		}
	}
	if err := write(set, elements(key)); err != nil {
		return fmt.Errorf(what, addr, set.Name, err)
	}
	if err := f.flush(); err != nil {
		return fmt.Errorf(what, addr, set.Name, err)
	}
	have, err := f.reader.has(set, key)
	if err != nil {
		return err
	}
	if have != member {
		return fmt.Errorf(what, addr, set.Name, errors.New("the kernel took it and does not show it"))
	}
	return nil
}

// List reports the members of all tables, whoever added them.
func (f *Firewall) List(ctx context.Context) ([]jail.HostResource, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var resources []jail.HostResource
	err := f.withConnection(func() error {
		for _, t := range memberTables() {
			keys, err := f.reader.keys(memberSet(f.filter.table, t))
			if err != nil {
				return err
			}
			for _, key := range keys {
				addr, ok := netip.AddrFromSlice(key)
				if !ok {
					return fmt.Errorf("the table %s has a member of %d bytes", t, len(key))
				}
				resources = append(resources, jail.HostResource{
					Kind: jail.ResourceTableMember, Index: f.pool.IndexOf(addr), ID: string(t) + " " + addr.String(),
				})
			}
		}
		return nil
	})
	return resources, err
}

// RemoveResource removes a member that List reported, also one whose address is outside of the pool.
func (f *Firewall) RemoveResource(ctx context.Context, t jail.HostResource) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	table, text, _ := strings.Cut(t.ID, " ")
	addr, err := netip.ParseAddr(text)
	set, errSet := f.set(jail.Table(table))
	if t.Kind != jail.ResourceTableMember || err != nil || errSet != nil || !addr.Is4() {
		return errors.Join(errNotOurs, fmt.Errorf("%s %q", t.Kind, t.ID))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.withConnection(func() error { return f.setMember(set, addr, false) })
}

// Uninstall removes both tables. It refuses while there are members, and succeeds when there is nothing.
func (f *Firewall) Uninstall(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.withConnection(func() error {
		members, err := f.members()
		if err != nil {
			return err
		}
		if members > 0 {
			return problem.New(problem.Conflict, "end them first: `clawjail reap` removes unused ones",
				"%d jails are in the firewall's table %s", members, f.filter.table.Name)
		}
		f.known = 0
		for _, r := range []*ruleset{f.filter, f.origins} {
			table, err := f.table(r)
			if err != nil {
				return err
			}
			if table != nil {
				f.conn.DelTable(r.table)
			}
		}
		if err := f.flush(); err != nil {
			return fmt.Errorf("remove the tables %s: %w", f.filter.table.Name, err)
		}
		return nil
	})
}
