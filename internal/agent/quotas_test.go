package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// bots is a file of so many agents, each with so much state.
func bots(prefix string, n int, state string) string {
	text := "clawbots:\n"
	for i := range n {
		text += fmt.Sprintf("- {name: %s%d, command: [/bin/true], limits: {state: %s}}\n", prefix, i, state)
	}
	return text
}

// With ten agents and 100 GiB of disk in all, a tenant has eight of them and 80 GiB, and another one finds the rest.
func TestATenantsAgentsLeaveRoomForThoseOfOthers(t *testing.T) {
	l := newLand(t, func(o *Options) { o.MaxAgents = 10 })
	in := func(tenant string) func(*SyncRequest) { return func(r *SyncRequest) { r.Tenant = tenant } }
	sync := func(tenant, text string) error { _, err := l.sync(text, in(tenant)); return err }
	l.must(sync("default", bots("big", 2, "90GiB"))) // while nobody else is there, that is nobody's loss
	l.operator("acme", identity.RoleAdmin)
	l.operator("rival", identity.RoleAdmin)

	full := func(what string, err error, code, text string) {
		t.Helper()
		if p, _ := problem.As(err); p == nil || p.Code != code || !strings.Contains(p.Message, text) {
			t.Errorf("%s: %v, want %s and %q", what, err, code, text)
		}
	}
	full("nine agents", sync("acme", bots("a", 9, "1GiB")), problem.PoolExhausted, "its share of 10")
	if kept, err := l.keptOf(l.ctx, "acme"); err != nil || len(kept) != 0 {
		t.Errorf("%d agents are made of a file that was refused: %v", len(kept), err)
	}
	full("81 GiB", sync("acme", bots("a", 3, "27GiB")), problem.DiskFull, "its share of 102400.0 MiB")
	l.must(sync("acme", bots("a", 3, "26GiB")))
	l.must(sync("acme", bots("a", 3, "26GiB"))) // what is there is not counted twice
	full("more for those that there are", sync("acme", bots("a", 3, "27GiB")), problem.DiskFull, "tenant acme has 79872.0 MiB")
	l.must(sync("rival", bots("r", 5, "16GiB")))
	full("one more than there may be", sync("rival", bots("r", 6, "1GiB")), problem.PoolExhausted, "this installation has 10 of 10 kept agents")

	look := l.Held(l.ctx)
	for tenant, want := range map[string][2]int64{"default": {2, 180 << 30}, "acme": {3, 78 << 30}, "rival": {5, 80 << 30}} {
		for _, a := range look(quota.Holder{Tenant: tenant}) {
			if a.Kind.Name == quota.Agents().Name && (a.Held.Tenant != want[0] || a.Held.All != 10) || a.Kind.Name == quota.State().Name && a.Held.Tenant != want[1] {
				t.Errorf("%s holds %+v, want %v", tenant, a, want)
			}
		}
	}
}

// Volumes that agents have left count like those in use: a tenant that removes agents and keeps their state gets no more of the disk.
func TestVolumesThatAreLeftCount(t *testing.T) {
	var volumes map[string]int64
	l := newLand(t, func(o *Options) {
		o.Volumes = func(context.Context) (map[string]int64, error) { return volumes, nil }
	})
	sync := func(tenant, text string) error {
		_, err := l.sync(text, func(r *SyncRequest) { r.Tenant = tenant })
		return err
	}
	l.operator("acme", identity.RoleAdmin) // 80 of 100 GiB
	l.must(sync("acme", bots("a", 1, "40GiB")))
	volumes = map[string]int64{"acme.gone": 30 << 30, "acme.a0": 40 << 30, "gone": 79 << 30}
	l.wantCode("81 GiB, of which 30 are left of an agent that is gone", sync("acme", bots("b", 1, "11GiB")), problem.DiskFull)
	l.must(sync("acme", bots("b", 1, "10GiB")))
	volumes = map[string]int64{"acme.a0": 60 << 30} // it was declared larger
	l.wantCode("81 GiB, of which one volume has more than is declared", sync("acme", bots("c", 1, "11GiB")), problem.DiskFull)
	l.must(sync("acme", bots("c", 1, "10GiB")))
	volumes = map[string]int64{"acme.gone": 15 << 30}
	l.must(sync("acme", "clawbots:\n- {name: gone, command: [/bin/true], limits: {state: 20GiB}}\n")) // its own volume, and 5 GiB
	l.wantCode("a container's volume", sync("acme", "clawbots:\n- {name: box, image: some/image, limits: {state: 1GiB}}\n"), problem.DiskFull)
	l.must(sync("default", bots("d", 1, "80GiB")))
	for _, a := range l.Held(l.ctx)(quota.Holder{Tenant: "acme"}) {
		if a.Kind.Name == quota.State().Name && a.Held.Tenant != 80<<30 {
			t.Errorf("acme holds %d GiB", a.Held.Tenant>>30)
		}
	}
}

// The host daemon takes only so many calls that wait. Calls that wait for agents leave some to the sessions and to other tenants.
func TestWhoWaitsForAgentsIsBoundByTenant(t *testing.T) {
	l := newLand(t)
	l.must(func() error { _, err := l.sync(twoBots); return err }())
	l.operator("acme", identity.RoleAdmin)
	calls := map[string]func() error{
		"show": func() error { _, err := l.Get(l.ctx, l.admin, "default", "dev-bot"); return err },
		"type": func() error { _, err := l.Type(l.ctx, l.admin, "default", "dev-bot", "", []byte("x")); return err },
		"webhook": func() error {
			_, err := l.Webhook(l.ctx, l.admin, "default", "dev-bot", WebhookCall{Body: []byte("{}")})
			return err
		},
	}
	g := quota.NewGate(quota.GateOptions{Kind: quota.AgentCalls(), Whole: 4, Tenants: l.who.Counted}) // 3 of a tenant
	l.waits = g
	read := func(wait time.Duration) error {
		_, err := l.ReadLog(l.ctx, l.admin, jail.LogRequest{Tenant: "default", Name: "dev-bot", Stream: jail.Stdout, Limit: 1, Wait: wait})
		return err
	}
	l.must(read(time.Millisecond))
	for what, call := range calls {
		if err := call(); problem.CodeOf(err) == problem.RateLimited {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range 3 {
		if _, err := g.Enter(quota.Holder{Tenant: "default"}); err != nil {
			t.Fatal(err)
		}
	}
	l.wantCode("one more that waits", read(time.Millisecond), problem.RateLimited)
	for what, call := range calls {
		l.wantCode(what, call(), problem.RateLimited)
	}
	l.must(read(0)) // what does not wait is not counted
	if leave, err := l.wait(quota.Holder{Tenant: "acme"}); err != nil {
		t.Errorf("another tenant: %v", err)
	} else {
		leave()
	}
}
