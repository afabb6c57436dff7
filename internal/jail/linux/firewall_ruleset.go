//go:build linux

package linux

import (
	"bytes"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// The ruleset, as `nft list ruleset` shows it for the installation k3x9:
//
//	table inet clawjail_k3x9 {
//	  set browser_tasks { type ipv4_addr; }
//	  set agent_jails { type ipv4_addr; }
//	  chain prerouting {
//	    type filter hook prerouting priority raw; policy accept;
//	    iifname "cjbrk3x9" goto jails
//	  }
//	  chain jails {
//	    ip saddr @browser_tasks ip daddr 10.213.0.1 tcp dport 3000 accept
//	    ip saddr @agent_jails ip daddr 10.213.0.1 tcp dport 3000 accept
//	    meta l4proto tcp reject with tcp reset
//	    reject with icmpx admin-prohibited
//	  }
//	}
//	table bridge clawjail_k3x9 {
//	  set origins { type ifname . ipv4_addr; flags constant; elements = { "cjk3x90000" . 10.213.0.150, … } }
//	  chain prerouting {
//	    type filter hook prerouting priority -300; policy accept;
//	    iifname "cjk3x9*" goto ports
//	  }
//	  chain ports {
//	    meta protocol ip iifname . ip saddr @origins accept
//	    drop
//	  }
//	}
//
// The first table decides by address, for every single packet and before connection tracking, so that removing a
// member ends what it has open. The second binds each address to its port: a frame that says it comes from somebody
// else is dropped before the first table could believe it, and so are ARP and IPv6, which no jail needs. Because
// both the port's name and the address follow from the index, that set is filled once, for all leases there can be,
// and making a jail never touches it. It is constant: the kernel changes no element of it while a rule uses it.

// Priorities below the connection tracking of either family.
const rulesetPriority = -300

const originsSet = "origins"

// ruleset is one table as it should be, without the members of its tables of addresses.
type ruleset struct {
	table  *nftables.Table
	sets   []*nftables.Set
	fixed  map[string][][]byte // elements by the set's name; the other sets belong to Add and Remove
	chains []*nftables.Chain
	rules  map[string][][]expr.Any // by the chain's name

	compared string // the table and the rules whose elements were last seen to be right
}

func tableName(id jail.Installation) string { return "clawjail_" + string(id) }

// memberTables are the tables of addresses.
func memberTables() []jail.Table { return []jail.Table{jail.TableBrowsers, jail.TableAgents} }

func (r *ruleset) addChain(name string, hook *nftables.ChainHook, rules ...[]expr.Any) {
	c := &nftables.Chain{Name: name, Table: r.table}
	if hook != nil {
		c.Hooknum, c.Type = hook, nftables.ChainTypeFilter
		c.Priority = nftables.ChainPriorityRef(rulesetPriority)
		accept := nftables.ChainPolicyAccept // of what is not from a jail, which is none of our business
		c.Policy = &accept
	}
	r.chains = append(r.chains, c)
	r.rules[name] = rules
}

// filterRuleset is the table that decides.
func filterRuleset(id jail.Installation, gateway netip.Addr, port uint16) *ruleset {
	r := &ruleset{
		table: &nftables.Table{Name: tableName(id), Family: nftables.TableFamilyINet},
		rules: map[string][][]expr.Any{},
	}
	var rules [][]expr.Any
	for _, t := range memberTables() {
		r.sets = append(r.sets, memberSet(r.table, t))
		rules = append(rules, []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
			sourceAddress(1),
			&expr.Lookup{SourceRegister: 1, SetName: string(t)},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: gateway.AsSlice()},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
			&expr.Verdict{Kind: expr.VerdictAccept},
		})
	}
	rules = append(rules,
		[]expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
		},
		[]expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}},
	)
	r.addChain("prerouting", nftables.ChainHookPrerouting, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceKey(bridgeName(id))},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: "jails"},
	})
	r.addChain("jails", nil, rules...)
	return r
}

// originRuleset is the table that binds addresses to ports.
func originRuleset(id jail.Installation, pool *jail.Pool) (*ruleset, error) {
	r := &ruleset{
		table: &nftables.Table{Name: tableName(id), Family: nftables.TableFamilyBridge},
		rules: map[string][][]expr.Any{},
	}
	origins := &nftables.Set{
		Table: r.table, Name: originsSet, Concatenation: true, Constant: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr),
	}
	r.sets = append(r.sets, origins)
	keys := make([][]byte, pool.Size())
	for i := range keys {
		l, err := pool.Lease(i)
		if err != nil {
			return nil, err
		}
		keys[i] = append(interfaceKey(portName(id, i)), l.Addr.AsSlice()...)
	}
	r.fixed = map[string][][]byte{originsSet: keys}
	r.addChain("prerouting", nftables.ChainHookPrerouting, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(portPrefix(id))}, // shorter than a name: a prefix
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: "ports"},
	})
	r.addChain("ports", nil,
		[]expr.Any{
			&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(unix.ETH_P_IP)},
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			sourceAddress(2), // the 16 bytes of register 1 are the name, what follows them is register 2
			&expr.Lookup{SourceRegister: 1, SetName: originsSet},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
		[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}},
	)
	return r, nil
}

func memberSet(table *nftables.Table, t jail.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: string(t), KeyType: nftables.TypeIPAddr}
}

func sourceAddress(register uint32) *expr.Payload {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
}

// interfaceKey is an interface's name as the kernel compares it: 16 bytes, the rest zero.
func interfaceKey(name string) []byte {
	key := make([]byte, unix.IFNAMSIZ)
	copy(key, name)
	return key
}

// elementsPerMessage keeps a message below the 64 KiB that one netlink attribute can hold.
const elementsPerMessage = 512

// write puts the whole table into the connection's batch.
func (r *ruleset) write(c *nftables.Conn) error {
	c.AddTable(r.table)
	for _, s := range r.sets {
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("write the set %s: %w", s.Name, err)
		}
		for keys := r.fixed[s.Name]; len(keys) > 0; {
			n := min(len(keys), elementsPerMessage)
			if err := c.SetAddElements(s, elements(keys[:n]...)); err != nil {
				return fmt.Errorf("write the elements of %s: %w", s.Name, err)
			}
			keys = keys[n:]
		}
	}
	// All chains first: a rule can only go to a chain that is there.
	for _, chain := range r.chains {
		c.AddChain(chain)
	}
	for _, chain := range r.chains {
		for _, exprs := range r.rules[chain.Name] {
			c.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: exprs})
		}
	}
	return nil
}

func elements(keys ...[]byte) []nftables.SetElement {
	els := make([]nftables.SetElement, len(keys))
	for i, k := range keys {
		els[i] = nftables.SetElement{Key: k}
	}
	return els
}

// difference compares the rules in force with those that should be, expression by expression, and says what is
// different; it is empty when nothing is. handles are those of the rules: the kernel gives none of a table twice. Elements
// are compared by the caller.
func (r *ruleset) difference(c *nftables.Conn) (handles []uint64, what string, err error) {
	sets, err := c.GetSets(r.table)
	if err != nil {
		return nil, "", fmt.Errorf("list the sets of %s: %w", r.table.Name, err)
	}
	have := map[string]*nftables.Set{}
	for _, s := range sets {
		have[s.Name] = s
	}
	for _, want := range r.sets {
		if s := have[want.Name]; s == nil || s.KeyType.GetNFTMagic() != want.KeyType.GetNFTMagic() ||
			s.HasTimeout || s.Interval || s.IsMap || s.Constant != want.Constant {
			return nil, "the set " + want.Name, nil
		}
	}
	all, err := c.ListChainsOfTableFamily(r.table.Family)
	if err != nil {
		return nil, "", fmt.Errorf("list the chains of %s: %w", r.table.Name, err)
	}
	chains := map[string]*nftables.Chain{}
	for _, chain := range all {
		if chain.Table.Name == r.table.Name {
			chains[chain.Name] = chain
		}
	}
	if len(chains) != len(r.chains) {
		return nil, fmt.Sprintf("%d chains, not %d", len(chains), len(r.chains)), nil
	}
	for _, want := range r.chains {
		if !sameHook(chains[want.Name], want) {
			return nil, "the chain " + want.Name, nil
		}
		rules, err := c.GetRules(r.table, want)
		if err != nil {
			return nil, "", fmt.Errorf("list the rules of %s: %w", want.Name, err)
		}
		if !r.sameRules(rules, want.Name) {
			return nil, "the rules of the chain " + want.Name, nil
		}
		for _, rule := range rules {
			handles = append(handles, rule.Handle)
		}
	}
	return handles, "", nil
}

func sameHook(have, want *nftables.Chain) bool {
	if have == nil || have.Type != want.Type || (have.Hooknum == nil) != (want.Hooknum == nil) {
		return false
	}
	if want.Hooknum == nil {
		return true
	}
	return *have.Hooknum == *want.Hooknum && have.Priority != nil && *have.Priority == *want.Priority &&
		have.Policy != nil && *have.Policy == *want.Policy
}

func (r *ruleset) sameRules(have []*nftables.Rule, chain string) bool {
	want := r.rules[chain]
	if len(have) != len(want) {
		return false
	}
	for i := range want {
		if !sameExprs(byte(r.table.Family), have[i].Exprs, want[i]) {
			return false
		}
	}
	return true
}

// sameExprs compares in the form in which expressions travel, where equal ones have equal bytes.
func sameExprs(family byte, have, want []expr.Any) bool {
	if len(have) != len(want) {
		return false
	}
	for i := range want {
		h, errH := expr.Marshal(family, withoutNumbers(have[i]))
		w, errW := expr.Marshal(family, withoutNumbers(want[i]))
		if errH != nil || errW != nil || !bytes.Equal(h, w) {
			return false
		}
	}
	return true
}

// withoutNumbers drops what holds within one batch only.
func withoutNumbers(e expr.Any) expr.Any {
	if l, ok := e.(*expr.Lookup); ok {
		without := *l
		without.SetID = 0
		return &without
	}
	return e
}
