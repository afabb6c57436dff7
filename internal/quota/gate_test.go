package quota

import (
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestAGateLetsNobodyHoldMoreThanTheirShare(t *testing.T) {
	g := NewGate(GateOptions{Kind: Connections(), Whole: 10, Admins: true, Quotas: config.Quotas{Tenant: 80, Agent: 50}, Tenants: func() int { return 2 }})
	var leaves []func()
	many := func(who Holder) (n int64) {
		for {
			leave, err := g.Enter(who)
			if err != nil {
				if problem.CodeOf(err) != problem.RateLimited {
					t.Errorf("%+v: %v", who, err)
				}
				return n
			}
			leaves = append(leaves, leave)
			if n++; n > 20 {
				t.Fatal("there is no end")
			}
		}
	}
	for _, turn := range []struct {
		who  Holder
		want int64
	}{{Holder{"a", "bot"}, 4}, {Holder{"a", "twin"}, 4}, {Holder{"a", ""}, 0}, {Holder{"b", ""}, 2}} {
		if n := many(turn.who); n != turn.want {
			t.Errorf("%+v holds %d, want %d", turn.who, n, turn.want)
		}
	}
	leave, err := g.Enter(Holder{})
	if err != nil {
		t.Errorf("an admin of all tenants is kept out: %v", err)
	}
	if a := g.Amounts(Holder{"a", "bot"}); len(a) != 1 || a[0].Held != (Held{11, 8, 4}) || a[0].Whole != 10 {
		t.Errorf("%+v", a)
	}
	leave()
	for _, leave := range leaves {
		leave()
		leave()
	}
	if a := g.Amounts(Holder{"a", "bot"}); a[0].Held != (Held{}) || len(g.held)+len(g.sums) != 0 {
		t.Errorf("%+v is held by nobody", a)
	}
}

func TestAGateOfBytesIsNarrowerForOneAgent(t *testing.T) {
	g := NewGate(GateOptions{Kind: Bodies(), Whole: 100, Agent: 30, Tenants: func() int { return 2 }}) // 80 of a tenant
	for _, turn := range []struct {
		who  Holder
		n    int64
		want bool
	}{
		{Holder{"a", "one"}, 31, false}, {Holder{"a", "one"}, 30, true}, {Holder{"a", "two"}, 30, true}, {Holder{"a", "three"}, 21, false},
		{Holder{"a", "three"}, 20, true}, {Holder{"b", "one"}, 21, false}, {Holder{"b", "one"}, 20, true},
	} {
		if err := g.Take(turn.who, turn.n); (err == nil) != turn.want {
			t.Errorf("%+v takes %d: %v", turn.who, turn.n, err)
		}
	}
	g.Give(Holder{"a", "two"}, 30)
	if err := g.Take(Holder{"b", "two"}, 30); err != nil {
		t.Errorf("what was given back: %v", err)
	}
}
