package hostd

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/jail"
)

// However much there is, it comes in parts that each fit into an answer, each entry once and in order.
func TestAListComesInPartsThatFit(t *testing.T) {
	key := func(s string) string { return s[:4] }
	for _, size := range []int{1, 64 << 10, 1 << 20, pageBytes - 10, pageBytes, maxAnswer / 2} {
		var all []string
		for n := range 12 {
			all = append(all, fmt.Sprintf("k%03d", n)+strings.Repeat("x", size))
		}
		want := slices.Clone(all)
		slices.Reverse(all)
		parts := 0
		got, err := pages(func(behind string) ([]string, string, error) {
			parts++
			part, next, err := page(slices.Clone(all), key, behind)
			if frame := encodeAnswer(part, err); strings.Contains(string(frame[:min(len(frame), 200)]), `"error"`) {
				t.Fatalf("with entries of %d bytes a part of %d does not fit", size, len(part))
			}
			return part, next, err
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("entries of %d bytes: %d came in %d parts, %v", size, len(got), parts, err)
		}
		if fits := 12*size < pageBytes; fits != (parts == 1) {
			t.Errorf("entries of %d bytes came in %d parts", size, parts)
		}
	}
	if got, err := pages(func(string) ([]string, string, error) { return page([]string(nil), key, "") }); len(got) != 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := pages(func(string) ([]string, string, error) { return nil, "k", nil }); err == nil {
		t.Error("a list without an end is asked for again and again")
	}
}

// Agents of one tenant whose declarations are larger together than an answer do not keep that of another from being listed.
func TestAgentsWithMuchInTheirDeclarationsAreListed(t *testing.T) {
	f := newFixture(t, nil)
	c := NewClient(f.socket, nil)
	const many, each = 48, 700_000
	for n := range many {
		k := keptSpec(fmt.Sprintf("n%02d", n), "exit")
		k.Restart = jail.RestartNever
		k.Spec.HomeFiles = []jail.File{{Path: "x", Data: make([]byte, each)}}
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
	if err != nil || len(all) != many+1 || all[many].Spec.Agent.Tenant != "other" {
		t.Fatalf("%d agents, %v", len(all), err)
	}
	bytes := 0
	for _, k := range all {
		data, err := json.Marshal(k, durations())
		if err != nil {
			t.Fatal(err)
		}
		bytes += len(data)
	}
	if bytes <= maxAnswer {
		t.Errorf("they are %d bytes, which one answer may have", bytes)
	}
}
