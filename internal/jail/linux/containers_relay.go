//go:build linux

package linux

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// OutsideBridge is the name of the bridge of the network on which the relay reaches the control plane.
func OutsideBridge(id jail.Installation) string { return "cj" + string(id) + "o" }

// OpenRelayFirewall is OpenContainerFirewall for a gateway that is a container on the bridge, at an address of its own. Traffic
// from one port of the bridge to another is decided in the bridge family, where it passes whatever the host's settings
// are; of the bridge's own address nothing is open to anybody:
//
//	table bridge clawjail_k3x9d {
//	  set browser_tasks { type ipv4_addr; }
//	  set agent_jails { type ipv4_addr; }
//	  chain forward {
//	    type filter hook forward priority -300; policy accept;
//	    meta protocol ip ip saddr @agent_jails ip daddr 10.214.16.6 tcp dport 3000 accept
//	    meta protocol ip ip saddr 10.214.16.6 ip daddr @agent_jails tcp sport 3000 tcp flags & (syn|ack) != syn accept
//	    meta protocol arp arp saddr ip @agent_jails arp daddr ip 10.214.16.6 accept
//	    meta protocol arp arp saddr ip 10.214.16.6 arp daddr ip @agent_jails accept
//	    … the rules of OpenContainerFirewall, which drop everything else
//	  }
//	  chain input {
//	    type filter hook input priority -300; policy accept;
//	    meta protocol ip ip daddr 10.214.16.6 drop
//	  }
//	}
//	table inet clawjail_k3x9d {
//	  chain prerouting {
//	    type filter hook prerouting priority raw; policy accept;
//	    iifname "cjk3x9d" goto jails
//	  }
//	  chain jails {
//	    ip daddr 10.214.16.6 tcp dport 3000 accept
//	    ip saddr 10.214.16.6 tcp sport 3000 tcp flags & (syn|ack) != syn accept
//	    meta l4proto tcp reject with tcp reset
//	    reject with icmpx admin-prohibited
//	  }
//	}
//
// The second table sees what is bridged as well where br_netfilter is on, and lets pass what the first decides about. A packet that is
// for the relay and came to the host to be routed, so that the first chain would not see it, is dropped by the chain input;
// what the relay sends to the host, whatever it calls itself, belongs to no connection.
func OpenRelayFirewall(ctx context.Context, c FirewallConfig, relay netip.Addr) (*Firewall, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if !c.Pool.Subnet().Contains(relay) || c.Pool.IndexOf(relay) >= 0 {
		return nil, errors.New("the relay's address is not in the subnet, or is a container's")
	}
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &Firewall{pool: c.Pool, log: log, filter: relayRuleset(c, relay), origins: bridgeClosed(c, relay)}
	if err := f.Ensure(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// relayRuleset is the table that decides.
func relayRuleset(c FirewallConfig, relay netip.Addr) *ruleset {
	r := betweenContainers(tableName(c.Installation)+"d", c.Pool.Subnet())
	drop := r.rules["forward"]
	r.chains, r.rules = nil, map[string][][]expr.Any{}
	protocol := func(p uint16) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(p)},
		}
	}
	var rules [][]expr.Any
	for _, t := range memberTables() {
		r.sets = append(r.sets, memberSet(r.table, t))
		member := func(offset uint32) []expr.Any {
			return []expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
				&expr.Lookup{SourceRegister: 1, SetName: string(t)},
			}
		}
		accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
		rules = append(rules,
			join(protocol(unix.ETH_P_IP), member(12), address(16, relay), tcpPort(2, c.Port), accept),
			join(protocol(unix.ETH_P_IP), address(12, relay), member(16), tcpPort(0, c.Port), answers(), accept),
			join(protocol(unix.ETH_P_ARP), member(14), address(24, relay), accept),
			join(protocol(unix.ETH_P_ARP), address(14, relay), member(24), accept),
		)
	}
	r.addChain("forward", nftables.ChainHookForward, append(rules, drop...)...)
	r.addChain("input", nftables.ChainHookInput,
		join(protocol(unix.ETH_P_IP), address(16, relay), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}))
	return r
}

// bridgeClosed is the table that keeps the host from what is on the bridge.
func bridgeClosed(c FirewallConfig, relay netip.Addr) *ruleset {
	r := filterRuleset(c.Installation, c.Pool.Gateway(), c.Port)
	refuse := r.rules["jails"][len(memberTables()):]
	r.table.Name += "d"
	r.sets, r.chains, r.rules = nil, nil, map[string][][]expr.Any{}
	ip := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
	}
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	r.addChain("prerouting", nftables.ChainHookPrerouting, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceKey(ContainerBridge(c.Installation))},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: "jails"},
	})
	r.addChain("jails", nil, append([][]expr.Any{
		join(ip, address(16, relay), tcpPort(2, c.Port), accept),
		join(ip, address(12, relay), tcpPort(0, c.Port), answers(), accept),
	}, refuse...)...)
	return r
}

func join(parts ...[]expr.Any) (all []expr.Any) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func address(offset uint32, a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
	}
}

func tcpPort(offset uint32, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

// answers matches what does not begin a connection.
func answers() []expr.Any {
	const flags, syn, ack = 13, 0x02, 0x10
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{syn}},
	}
}
