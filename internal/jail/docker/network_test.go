//go:build linux

package docker

import (
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/google/nftables"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/testenv"
)

// The rules are looked after until the host daemon ends, also while the network is being removed. No engine is needed.
func TestRulesThatAreBeingRemovedDoNotComeBack(t *testing.T) {
	testenv.Need(t, testenv.Root)
	number := installations.Add(1)
	pool, err := jail.NewPool(freeSubnet(t, byte(number)), jail.AgentUID)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Installation: jail.Installation("d" + testenv.Tag(number)), Socket: filepath.Join(t.TempDir(), "none"), Port: 3000,
		RunDir: t.TempDir(), DataDir: t.TempDir(), Journal: &memoryJournal{recs: map[jail.Name]jail.Record{}}}
	synctest.Test(t, func(t *testing.T) {
		d, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		firewall, err := d.openFirewall(t.Context(), linux.FirewallConfig{Installation: o.Installation, Pool: pool, Port: o.Port})
		if err != nil {
			t.Fatal(err)
		}
		d.firewall, d.pool = firewall, pool
		remove := func() {
			t.Helper()
			if err := firewall.Uninstall(t.Context()); err != nil {
				t.Error(err)
			}
		}
		tables := func() int {
			t.Helper()
			c, err := nftables.New()
			if err != nil {
				t.Fatal(err)
			}
			list, err := c.ListTables()
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
		with := tables()
		remove()
		without := tables()
		if err := d.guard(t.Context()); err != nil || without == with || tables() != with {
			t.Errorf("what somebody else took away is not put back: %d tables of %d, %v", tables(), with, err)
		}

		d.preparing <- struct{}{} // as RemoveNetwork does, step by step
		remove()
		guarded := make(chan error)
		go func() { guarded <- d.guard(t.Context()) }()
		synctest.Wait()
		d.mu.Lock()
		d.firewall, d.pool = nil, nil
		d.mu.Unlock()
		<-d.preparing
		if err := <-guarded; err != nil || tables() != without {
			t.Errorf("when the network was removed there are %d tables, not %d: %v", tables(), without, err)
		}
		remove()
		if err := firewall.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
