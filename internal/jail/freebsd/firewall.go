//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Firewall opens the gateway to a jail by adding its address to a table of pf. The rules are the administrator's, who loads
// packaging/freebsd/clawjail.pf.conf into the anchor clawjail/<installation>; they are looked at here and never loaded.
//
// A table that no rule names filters nothing, and pfctl makes one without a word: so before an address is added, the rules
// are read.
type Firewall struct{ o Options }

func newFirewall(o Options) *Firewall { return &Firewall{o: o} }

func (f *Firewall) anchor() string { return "clawjail/" + string(f.o.Installation) }

func memberTables() []jail.Table { return []jail.Table{jail.TableBrowsers, jail.TableAgents} }

func (f *Firewall) pfctl(ctx context.Context, args ...string) (string, error) {
	return f.o.Commands.Run(ctx, "pfctl", args...)
}

func (f *Firewall) missing(err error, format string, a ...any) error {
	return problem.Wrap(errors.Join(errors.ErrUnsupported, err), problem.Unsupported,
		"run /usr/local/libexec/clawjail/pf-anchor, put the two lines that it prints into /etc/pf.conf, and pf_enable=YES into /etc/rc.conf; "+
			"then `service pf reload`", format, a...)
}

// Ensure looks whether pf is on, and whether our rules are in force. Missing rules are for the administrator to load.
func (f *Firewall) Ensure(ctx context.Context) error {
	info, err := f.pfctl(ctx, "-s", "info")
	if err != nil {
		return f.missing(err, "pf does not run on this host")
	}
	if !strings.Contains(info, "Status: Enabled") {
		return f.missing(nil, "pf is not enabled, so nothing would keep jails from the host")
	}
	// A bridge that takes frames for the addresses of its members hands them to the host before the rules of the bridge see
	// them (if_bridge(4)). Before FreeBSD 15 there is no such setting, and they are taken.
	if taken, err := f.o.Commands.Run(ctx, "sysctl", "-n", "net.link.bridge.member_ifaddrs"); err != nil || strings.TrimSpace(taken) != "0" {
		return problem.Wrap(errors.Join(errors.ErrUnsupported, err), problem.Unsupported,
			"with FreeBSD 15 or later: sysctl net.link.bridge.member_ifaddrs=0, and the same line in /etc/sysctl.conf",
			"bridges of this host pass frames to their members without the rules of the firewall")
	}
	return f.rules(ctx)
}

// rules looks whether the rules that name both tables are loaded.
func (f *Firewall) rules(ctx context.Context) error {
	text, err := f.pfctl(ctx, "-a", f.anchor(), "-sr")
	if err != nil {
		return f.missing(err, "the rules of the anchor %s cannot be read", f.anchor())
	}
	for _, t := range memberTables() {
		if !strings.Contains(text, "<"+string(t)+">") {
			return f.missing(nil, "no rule of the anchor %s is about the table %s", f.anchor(), t)
		}
	}
	if !strings.Contains(text, "block") {
		return f.missing(nil, "no rule of the anchor %s blocks anything", f.anchor())
	}
	for _, t := range memberTables() {
		if _, err := f.table(ctx, t, "show"); err != nil {
			return f.missing(err, "the table %s of the anchor %s is not there", t, f.anchor())
		}
	}
	return nil
}

func (f *Firewall) table(ctx context.Context, t jail.Table, args ...string) (string, error) {
	return f.pfctl(ctx, append([]string{"-a", f.anchor(), "-t", string(t), "-T"}, args...)...)
}

// has reports whether an address is a member. A table that is not there has none.
func (f *Firewall) has(ctx context.Context, t jail.Table, addr netip.Addr) (bool, error) {
	members, err := f.members(ctx, t)
	if err != nil {
		return false, err
	}
	for _, m := range members {
		if m == addr {
			return true, nil
		}
	}
	return false, nil
}

// members lists a table. One that is not there is empty.
func (f *Firewall) members(ctx context.Context, t jail.Table) ([]netip.Addr, error) {
	text, err := f.table(ctx, t, "show")
	if hostcmd.Says(err, "Table does not exist") {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list table %s: %w", t, err)
	}
	var out []netip.Addr
	for line := range strings.Lines(text) {
		word := strings.TrimSpace(line)
		if word == "" {
			continue
		}
		addr, err := netip.ParseAddr(strings.TrimSuffix(word, "/32"))
		if err != nil {
			return nil, fmt.Errorf("list table %s: pfctl says %q", t, word)
		}
		out = append(out, addr)
	}
	return out, nil
}

// Add makes a lease's address a member of a table that rules are about.
func (f *Firewall) Add(ctx context.Context, t jail.Table, l jail.Lease) error {
	if err := f.o.Pool.Check(l); err != nil {
		return err
	}
	if err := f.rules(ctx); err != nil {
		return err
	}
	_, failed := f.table(ctx, t, "add", l.Addr.String())
	have, err := f.has(ctx, t, l.Addr)
	if err == nil && !have {
		err = errors.New("pfctl took it and does not show it")
	}
	if err != nil {
		return fmt.Errorf("add %s to %s: %w", l.Addr, t, errors.Join(err, failed))
	}
	return nil
}

// Remove ends the membership of a lease's address, and with it the connections that it has open.
func (f *Firewall) Remove(ctx context.Context, t jail.Table, l jail.Lease) error {
	if err := f.o.Pool.Check(l); err != nil {
		return err
	}
	return f.remove(ctx, t, l.Addr)
}

func (f *Firewall) remove(ctx context.Context, t jail.Table, addr netip.Addr) error {
	have, err := f.has(ctx, t, addr)
	if err != nil || !have {
		return err
	}
	_, failed := f.table(ctx, t, "delete", addr.String())
	_, states := f.pfctl(ctx, "-k", addr.String())
	if have, err = f.has(ctx, t, addr); err == nil && have {
		err = errors.New("pfctl took it and still shows it")
	}
	if err == nil {
		err = states // without it what is open stays open
	}
	if err != nil {
		return fmt.Errorf("remove %s from %s: %w", addr, t, errors.Join(err, failed))
	}
	return nil
}

// List reports the members of both tables, whoever added them.
func (f *Firewall) List(ctx context.Context) ([]jail.HostResource, error) {
	var out []jail.HostResource
	for _, t := range memberTables() {
		members, err := f.members(ctx, t)
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			out = append(out, jail.HostResource{Kind: jail.ResourceTableMember, Index: f.o.Pool.IndexOf(m), ID: string(t) + " " + m.String()})
		}
	}
	return out, nil
}

// RemoveResource removes a member that List reported, also one whose address is outside of the pool.
func (f *Firewall) RemoveResource(ctx context.Context, t jail.HostResource) error {
	table, text, _ := strings.Cut(t.ID, " ")
	addr, err := netip.ParseAddr(text)
	if t.Kind != jail.ResourceTableMember || err != nil || jail.Table(table) != jail.TableBrowsers && jail.Table(table) != jail.TableAgents {
		return fmt.Errorf("%s %q is not a resource of this installation", t.Kind, t.ID)
	}
	return f.remove(ctx, jail.Table(table), addr)
}
