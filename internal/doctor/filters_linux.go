package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// inputFilters lists the chains of nf_tables that see a packet from a jail's bridge to an address of the host, without
// clawjail's own. Those of firewalld, of ufw and of the newer iptables are among them.
func inputFilters(ctx context.Context) (_ []Filter, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nf_tables: %w", err)
	}
	defer func() { err = errors.Join(err, conn.CloseLasting()) }()
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list the firewall's chains: %w", err)
	}
	var out []Filter
	for _, c := range chains {
		if !seesInput(c) {
			continue
		}
		f := Filter{Family: familyName(c.Table.Family), Table: c.Table.Name, Chain: c.Name, Drops: c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return nil, fmt.Errorf("list the rules of %s: %w", f, err)
		}
		for _, r := range rules {
			f.Refuses = f.Refuses || refuses(r)
		}
		if f.Accepts, err = acceptedInterfaces(ctx, conn, chains, c.Table); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// seesInput reports whether a chain of somebody else decides about packets to the host.
func seesInput(c *nftables.Chain) bool {
	if c.Hooknum == nil || c.Table == nil || strings.HasPrefix(c.Table.Name, "clawjail_") {
		return false
	}
	if c.Table.Family != nftables.TableFamilyIPv4 && c.Table.Family != nftables.TableFamilyINet {
		return false
	}
	return *c.Hooknum == *nftables.ChainHookInput || *c.Hooknum == *nftables.ChainHookPrerouting
}

func familyName(f nftables.TableFamily) string {
	if f == nftables.TableFamilyIPv4 {
		return "ip"
	}
	return "inet"
}

// refuses reports whether a rule ends with a drop or a reject. Rules of the newer iptables say it in an extension.
func refuses(r *nftables.Rule) bool {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Reject:
			return true
		case *expr.Verdict:
			if e.Kind == expr.VerdictDrop {
				return true
			}
		case *expr.Target:
			if e.Name == "REJECT" {
				return true
			}
		}
	}
	return false
}

// acceptedInterfaces are those that some rule of a table lets in by name. Managers of firewalls keep such rules in
// chains of their own.
func acceptedInterfaces(ctx context.Context, conn *nftables.Conn, chains []*nftables.Chain, table *nftables.Table) ([]string, error) {
	var out []string
	for _, c := range chains {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if c.Table.Name != table.Name || c.Table.Family != table.Family {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return nil, fmt.Errorf("list the rules of %s: %w", c.Name, err)
		}
		for _, r := range rules {
			if name := acceptedInterface(r); name != "" {
				out = append(out, name)
			}
		}
	}
	return out, nil
}

// acceptedInterface is the interface that a rule lets in, or nothing.
func acceptedInterface(r *nftables.Rule) string {
	name, named, accepts := "", false, false
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Meta:
			named = e.Key == expr.MetaKeyIIFNAME
		case *expr.Cmp:
			if named && e.Op == expr.CmpOpEq && len(e.Data) <= unix.IFNAMSIZ {
				name = string(bytes.TrimRight(e.Data, "\x00"))
			}
			named = false
		case *expr.Verdict:
			accepts = accepts || e.Kind == expr.VerdictAccept
		}
	}
	if !accepts {
		return ""
	}
	return name
}
