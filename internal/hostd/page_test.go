package hostd

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
)

// However much there is, it comes in parts that each fit into an answer, each entry once and in order.
func TestAListComesInPartsThatFit(t *testing.T) {
	if pageBytes+maxRequest > maxAnswer/2 {
		t.Error("a part, with one entry that is as large as a request, may be larger than an answer")
	}
	key := func(s string) string { return s[:4] }
	const limit = 1000
	for _, size := range []int{1, 50, 90, 200, limit - 7, limit - 6, limit, 5 * limit} {
		var all []string
		for n := range 12 {
			all = append(all, fmt.Sprintf("k%03d", n)+strings.Repeat("x", size))
		}
		want := slices.Clone(all)
		slices.Reverse(all)
		parts := 0
		got, err := pages(func(behind string) ([]string, string, error) {
			parts++
			part, next, err := page(slices.Clone(all), key, behind, limit)
			if bytes := len(strings.Join(part, "")) + 2*len(part); bytes > limit && len(part) > 1 {
				t.Errorf("entries of %d bytes: a part has %d", size, bytes)
			}
			return part, next, err
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("entries of %d bytes: %d came in %d parts, %v", size, len(got), parts, err)
		}
		if fits := 12*(size+6) <= limit; fits != (parts == 1) {
			t.Errorf("entries of %d bytes came in %d parts", size, parts)
		}
	}
	if got, err := pages(func(string) ([]string, string, error) { return page([]string(nil), key, "", limit) }); len(got) != 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := pages(func(string) ([]string, string, error) { return nil, "k", nil }); err == nil {
		t.Error("a list without an end is asked for again and again")
	}
}

// Agents of one tenant whose declarations are larger together than an answer may be do not keep that of another from being
// listed.
func TestAgentsWithMuchInTheirDeclarationsAreListed(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.ListBytes = 64 << 10 })
	c := NewClient(f.socket, nil)
	const many, each = 12, 16 << 10
	for n := range many {
		k := keptSpec(fmt.Sprintf("n%02d", n), "exit")
		k.Restart = jail.RestartNever
		k.Spec.Program.Env = map[string]string{"MUCH": strings.Repeat("x", each)}
		if err := c.Keep(t.Context(), k, agentToken); err != nil {
			t.Fatal(err)
		}
	}
	k := keptSpec("last", "exit")
	k.Spec.Agent.Tenant = "other"
	if err := c.Keep(t.Context(), k, agentToken); err != nil {
		t.Fatal(err)
	}
	_, all, err := c.Kept(t.Context(), 0, false)
	if err != nil || len(all) != many+1 || all[many].Spec.Agent.Tenant != "other" || len(all[0].Spec.Program.Env["MUCH"]) != each {
		t.Fatalf("%d agents, %v", len(all), err)
	}
	// One question brings a part alone.
	part, err := ask[keptResult](t.Context(), c, OpKept, keptArguments{})
	if err != nil || len(part.All) == 0 || len(part.All) > 4 || part.Next == "" {
		t.Errorf("a part has %d agents, and the next is behind %q, %v", len(part.All), part.Next, err)
	}
}
