//go:build linux

package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// byHand changes the host's ruleset behind the firewall's back.
func byHand(t testing.TB, change func(c *nftables.Conn)) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	change(c)
	noError(t, c.Flush())
}

func memberIDs(t *testing.T, f *Firewall) []string {
	t.Helper()
	resources, err := f.List(t.Context())
	noError(t, err)
	var ids []string
	for _, tr := range resources {
		ids = append(ids, fmt.Sprintf("%d %s", tr.Index, tr.ID))
	}
	return ids
}

func TestMembersAreListedByIndexAndRemoved(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	ctx := t.Context()
	lease, err := i.pool.Lease(7)
	noError(t, err)
	for range 2 { // adding twice is adding
		noError(t, i.firewall.Add(ctx, jail.TableBrowsers, lease))
	}
	noError(t, i.firewall.Add(ctx, jail.TableAgents, lease))
	if got := fmt.Sprint(memberIDs(t, i.firewall)); got != "[7 browser_tasks 10.213.0.157 7 agent_jails 10.213.0.157]" {
		t.Errorf("members %s", got)
	}
	for range 2 { // removing twice is removing
		noError(t, i.firewall.Remove(ctx, jail.TableAgents, lease))
	}
	if got := fmt.Sprint(memberIDs(t, i.firewall)); got != "[7 browser_tasks 10.213.0.157]" {
		t.Errorf("members %s", got)
	}
	byHand(t, func(c *nftables.Conn) {
		foreign := elements(netip.MustParseAddr("192.0.2.1").AsSlice())
		noError(t, c.SetAddElements(memberSet(i.firewall.filter.table, jail.TableAgents), foreign))
	})
	resources, err := i.firewall.List(ctx)
	noError(t, err)
	if len(resources) != 2 || resources[1].Index != -1 {
		t.Errorf("an address of nobody's is listed as %v", resources)
	}
	for _, tr := range resources {
		noError(t, i.firewall.RemoveResource(ctx, tr))
	}
	if got := memberIDs(t, i.firewall); len(got) > 0 {
		t.Errorf("left %v", got)
	}
	for _, id := range []string{"", "agent_jails", "agent_jails x", "origins 10.213.0.150", "agent_jails ::1"} {
		err := i.firewall.RemoveResource(ctx, jail.HostResource{Kind: jail.ResourceTableMember, Index: 0, ID: id})
		if !errors.Is(err, errNotOurs) {
			t.Errorf("removing %q: %v", id, err)
		}
	}
}

func TestTablesOfAnEarlierProcessAreAdopted(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	lease, err := i.pool.Lease(7)
	noError(t, err)
	noError(t, i.firewall.Add(t.Context(), jail.TableAgents, lease))
	before := generation(t)
	next := i.openFirewall(t)
	if now := generation(t); now != before {
		t.Errorf("adopting changed the ruleset %d times", now-before)
	}
	if got := memberIDs(t, next); len(got) != 1 {
		t.Errorf("members %v", got)
	}
	noError(t, next.Remove(t.Context(), jail.TableAgents, lease))
	noError(t, next.Close())
}

func generation(t *testing.T) uint32 {
	t.Helper()
	r, err := newNFTReader()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	gen, err := r.generation()
	noError(t, err)
	return gen
}

func TestFlushedRulesetIsWrittenAgainBeforeAMemberIsAdded(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/20", 0)
	j := i.jail(t)
	answerTCP(t, "0.0.0.0:8080")
	other := probe{"another port", "tcp", i.pool.Gateway().String() + ":8080"}
	byHand(t, (*nftables.Conn).FlushRuleset)
	if err := j.reach(t, other.network, other.addr, patience); err != nil {
		t.Errorf("without rules: %v; so the refusal below proves nothing", err)
	}
	i.admit(t, j)
	other.refusedAtOnce(t, j, "after the add")
	if got := memberIDs(t, i.firewall); len(got) != 1 {
		t.Errorf("members %v", got)
	}
}

// Each of these weakens the rules in a way of its own.
func deviations(f *Firewall) map[string]func(*testing.T, *nftables.Conn) {
	filter, origins := f.filter, f.origins
	lastRule := func(t *testing.T, c *nftables.Conn, r *ruleset, chain int) *nftables.Rule {
		rules, err := c.GetRules(r.table, r.chains[chain])
		if err != nil || len(rules) == 0 {
			t.Fatalf("no rules in %s: %v", r.chains[chain].Name, err)
		}
		return rules[len(rules)-1]
	}
	accept := func(r *ruleset, chain int) *nftables.Rule {
		return &nftables.Rule{Table: r.table, Chain: r.chains[chain], Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}}
	}
	return map[string]func(*testing.T, *nftables.Conn){
		"a rule is missing": func(t *testing.T, c *nftables.Conn) { noError(t, c.DelRule(lastRule(t, c, filter, 1))) },
		"a rule was added":  func(t *testing.T, c *nftables.Conn) { c.InsertRule(accept(filter, 1)) },
		"a rule was replaced": func(t *testing.T, c *nftables.Conn) {
			r := accept(filter, 1)
			r.Handle = lastRule(t, c, filter, 1).Handle
			c.ReplaceRule(r)
		},
		"a chain was added": func(_ *testing.T, c *nftables.Conn) {
			c.AddChain(&nftables.Chain{Table: filter.table, Name: "more"})
		},
		"the policy was changed": func(_ *testing.T, c *nftables.Conn) {
			drop := nftables.ChainPolicyDrop
			chain := *filter.chains[0]
			chain.Policy = &drop
			c.AddChain(&chain)
		},
		"the table sleeps": func(t *testing.T, _ *nftables.Conn) { // the library cannot say it
			cmd := exec.Command(testenv.Tool(t, "nft"), "add table inet "+filter.table.Name+" { flags dormant; }")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		},
		"the bridge's rule is missing": func(t *testing.T, c *nftables.Conn) { noError(t, c.DelRule(lastRule(t, c, origins, 1))) },
		"the bridge's table is missing": func(_ *testing.T, c *nftables.Conn) {
			c.DelTable(origins.table)
		},
		"an origin is missing": func(t *testing.T, c *nftables.Conn) {
			for range 2 {
				noError(t, c.DelRule(lastRule(t, c, origins, 1)))
				noError(t, c.Flush())
			}
			noError(t, c.SetDeleteElements(origins.sets[0], elements(origins.fixed[originsSet][3])))
			noError(t, c.Flush())
			for _, exprs := range origins.rules["ports"] {
				c.AddRule(&nftables.Rule{Table: origins.table, Chain: origins.chains[1], Exprs: exprs})
			}
		},
		"the table was made again with an origin exchanged": func(t *testing.T, c *nftables.Conn) {
			keys := slices.Clone(origins.fixed[originsSet])
			keys[3] = append(append([]byte{}, keys[3][:16]...), keys[4][16:]...)
			other := *origins
			other.fixed = map[string][][]byte{originsSet: keys}
			c.DelTable(origins.table)
			noError(t, other.write(c))
		},
		"the origins can be changed": func(t *testing.T, c *nftables.Conn) {
			other, set := *origins, *origins.sets[0]
			set.Constant, other.sets = false, []*nftables.Set{&set}
			c.DelTable(origins.table)
			noError(t, other.write(c))
		},
	}
}

func TestEveryDeviationOfTheRulesIsSeenAndRepaired(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/24", 0)
	for what, change := range deviations(i.firewall) {
		t.Run(what, func(t *testing.T) {
			byHand(t, func(c *nftables.Conn) { change(t, c) })
			noError(t, i.firewall.connect())
			wrong, err := i.firewall.wrong()
			if err != nil || len(wrong) != 1 {
				t.Errorf("seen: %+v, %v", wrong, err)
			}
			noError(t, i.firewall.Ensure(t.Context()))
			wrong, err = i.firewall.wrong()
			if err != nil || len(wrong) > 0 {
				t.Errorf("after the repair: %+v, %v", wrong, err)
			}
			before := generation(t)
			noError(t, i.firewall.Ensure(t.Context()))
			if generation(t) != before {
				t.Error("what is right was written again")
			}
		})
	}
}

func TestTheKernelChangesNoOrigin(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	f := install(t, "test", "10.213.0.0/24", 0).firewall
	set, key := f.origins.sets[0], f.origins.fixed[originsSet][3]
	for what, change := range map[string]func(*nftables.Conn) error{
		"an element is removed": func(c *nftables.Conn) error { return c.SetDeleteElements(set, elements(key)) },
		"an element is added": func(c *nftables.Conn) error {
			return c.SetAddElements(set, elements(append(interfaceKey("eth0"), key[16:]...)))
		},
		"all elements are removed": func(c *nftables.Conn) error { c.FlushSet(set); return nil },
	} {
		c, err := nftables.New()
		noError(t, err)
		noError(t, change(c))
		if err := c.Flush(); !errors.Is(err, unix.EBUSY) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The same changes are made to a set that is not constant.
	members := memberSet(f.filter.table, jail.TableAgents)
	addr := netip.MustParseAddr("10.213.0.9").AsSlice()
	byHand(t, func(c *nftables.Conn) { noError(t, c.SetAddElements(members, elements(addr))) })
	byHand(t, func(c *nftables.Conn) { noError(t, c.SetDeleteElements(members, elements(addr))) })
}

// Elements are read again only when the table or a rule was made anew: what others do to their own rules costs little.
func BenchmarkEnsureAfterOthersChangedTheirs(b *testing.B) {
	if !onOwnHost(b) {
		return
	}
	i := install(b, "test", "10.213.0.0/16", 0)
	other := &nftables.Table{Name: "other", Family: nftables.TableFamilyINet}
	for b.Loop() {
		byHand(b, func(c *nftables.Conn) { c.AddTable(other) })
		noError(b, i.firewall.Ensure(b.Context()))
		byHand(b, func(c *nftables.Conn) { c.DelTable(other) })
	}
}

func TestTableWithMembersIsNeverReplaced(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/24", 0)
	ctx := t.Context()
	lease, err := i.pool.Lease(3)
	noError(t, err)
	noError(t, i.firewall.Add(ctx, jail.TableAgents, lease))

	// Another port of the gateway's is another ruleset.
	_, err = OpenFirewall(ctx, FirewallConfig{Installation: i.id, Pool: i.pool, Port: gatewayPort + 1})
	if problem.CodeOf(err) != problem.Conflict {
		t.Errorf("another ruleset while there is a member: %v", err)
	}
	if got := memberIDs(t, i.firewall); len(got) != 1 {
		t.Errorf("members %v", got)
	}
	// The other table has no members and is repaired beneath the jails.
	byHand(t, func(c *nftables.Conn) { c.DelTable(i.firewall.origins.table) })
	noError(t, i.firewall.Ensure(ctx))
	if got := memberIDs(t, i.firewall); len(got) != 1 {
		t.Errorf("after the other table was repaired, members %v", got)
	}
	noError(t, i.firewall.Remove(ctx, jail.TableAgents, lease))
	moved, err := OpenFirewall(ctx, FirewallConfig{Installation: i.id, Pool: i.pool, Port: gatewayPort + 1})
	if err != nil {
		t.Fatalf("without members: %v", err)
	}
	noError(t, moved.Close())
}

func TestConnectionIsMadeAgainAfterAnError(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/24", 0)
	lease, err := i.pool.Lease(3)
	noError(t, err)
	noError(t, i.firewall.reader.close())
	if err := i.firewall.Add(t.Context(), jail.TableAgents, lease); err == nil {
		t.Error("added over a connection that is closed")
	}
	noError(t, i.firewall.Add(t.Context(), jail.TableAgents, lease))
	noError(t, i.firewall.Remove(t.Context(), jail.TableAgents, lease))
}

func TestLargestSubnetFitsOneTransaction(t *testing.T) {
	if !onOwnHost(t) {
		return
	}
	i := install(t, "test", "10.213.0.0/16", 0)
	keys, err := i.firewall.reader.keys(i.firewall.origins.sets[0])
	if err != nil || len(keys) != i.pool.Size() {
		t.Errorf("%d origins for %d leases, %v", len(keys), i.pool.Size(), err)
	}
}
