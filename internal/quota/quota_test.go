package quota

import (
	"math"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestDivide(t *testing.T) {
	usual := config.Default().Quotas
	for _, test := range []struct {
		q       config.Quotas
		whole   int64
		tenants int
		want    Bounds
	}{
		{usual, 64, 1, Bounds{64, 64, 51}},
		{usual, 64, 2, Bounds{64, 51, 40}},
		{usual, 64, 900, Bounds{64, 51, 40}},
		{usual, 1, 2, Bounds{1, 1, 1}},
		{usual, 2, 2, Bounds{2, 1, 1}},
		{config.Quotas{Tenant: 50, Agent: 50}, math.MaxInt64, 2, Bounds{math.MaxInt64, math.MaxInt64 / 2, math.MaxInt64 / 4}},
		{config.Quotas{Tenant: 100, Agent: 100}, 64, 2, Bounds{64, 64, 64}},
		{config.Quotas{Tenant: 1, Agent: 1}, 64, 2, Bounds{64, 1, 1}},
	} {
		if got := Divide(test.q, test.whole, test.tenants); got != test.want {
			t.Errorf("%d for %d tenants by %+v: %+v, want %+v", test.whole, test.tenants, test.q, got, test.want)
		}
	}
}

func TestCheckNamesWhoseShareIsUsedUp(t *testing.T) {
	bounds := Bounds{All: 10, Tenant: 8, Agent: 6}
	kind := Sessions()
	for _, test := range []struct {
		held  Held
		agent string
		want  string
		key   string
	}{
		{Held{9, 7, 5}, "ag_1", "", ""},
		{Held{10, 2, 1}, "ag_1", "this installation has 10 of 10 sessions", "sessions.max"},
		{Held{9, 8, 2}, "ag_1", "tenant a has 8 of 8 sessions, its share of 10", "quotas.tenant"},
		{Held{9, 7, 6}, "ag_1", "this agent has 6 of 6 sessions, its share of 10", "quotas.agent"},
		{Held{9, 7, 7}, "", "", ""}, // people share what is left of their tenant's
	} {
		err := bounds.Check(kind, Holder{Tenant: "a", Agent: test.agent}, test.held, 1)
		if test.want == "" {
			if err != nil {
				t.Errorf("%+v: %v", test.held, err)
			}
			continue
		}
		p, _ := problem.As(err)
		if p == nil || p.Code != kind.Code || p.Message != test.want || !strings.Contains(p.Hint, test.key) {
			t.Errorf("%+v: %v, want %q and %s", test.held, err, test.want, test.key)
		}
	}
	if err := bounds.Check(kind, Holder{Tenant: "a"}, Held{0, 0, 0}, 11); err == nil {
		t.Error("more than there is may be held at once")
	}
}

func TestCountsByHolder(t *testing.T) {
	asks := Holder{Tenant: "a", Agent: "x"}
	var h Held
	for _, holds := range []Holder{{"a", "x"}, {"a", "y"}, {"a", ""}, {"b", "x"}} {
		h.Count(asks, holds, 2)
	}
	if want := (Held{8, 6, 2}); h != want {
		t.Errorf("%+v, want %+v", h, want)
	}
}
