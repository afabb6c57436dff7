package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/store"
)

// testEntryMachine lets two nodes create, change, expire and remove entries and agents in any order, and compares every
// answer with a model in memory. No revision has two states, over all runs.
func testEntryMachine(t *testing.T, d Database) {
	nodes := []store.Store{open(t, d), open(t, d)}
	newTenant(t, nodes[0], "acme")
	states := map[int64]map[string]store.Entry{}
	made := 0
	rapid.Check(t, func(r *rapid.T) {
		ctx := r.Context()
		if _, err := nodes[0].DeleteEntriesBefore(ctx, "", at(1e6)); err != nil { // those of earlier runs
			r.Fatal(err)
		}
		m := map[string]store.Entry{}
		var agents []string
		last, err := nodes[0].EntriesRevision(ctx)
		if err != nil {
			r.Fatal(err)
		}
		node := func() store.Store { return rapid.SampledFrom(nodes).Draw(r, "node") }
		some := func() string {
			if len(m) == 0 {
				r.Skip("no entry")
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(m))).Draw(r, "entry")
		}
		taken := func(e store.Entry) bool {
			for id, o := range m {
				if id != e.ID && e.Name != "" && o.Name == e.Name && o.Kind == e.Kind && o.Tenant == e.Tenant && o.Agent == e.Agent {
					return true
				}
			}
			return false
		}
		name := rapid.SampledFrom([]string{"", "x", "y"})
		want := func(what string, err, want error) bool {
			if !errors.Is(err, want) {
				r.Fatalf("%s: got %v, want %v", what, err, want)
			}
			return err == nil
		}
		r.Repeat(map[string]func(*rapid.T){
			"agent": func(r *rapid.T) {
				made++
				id := fmt.Sprint("agent", made)
				if err := node().CreateAgent(ctx, store.Agent{ID: id, Tenant: "acme", Name: id, CreatedAt: at(1)}); err != nil {
					r.Fatal(err)
				}
				agents = append(agents, id)
			},
			"create": func(r *rapid.T) {
				made++
				e := entry(fmt.Sprintf("e%06d", made), made)
				e.Kind = rapid.SampledFrom([]string{"rule", "service"}).Draw(r, "kind")
				e.Tenant = rapid.SampledFrom([]string{"", "acme", "default"}).Draw(r, "tenant")
				e.Name, e.ExpiresAt = name.Draw(r, "name"), at(rapid.IntRange(1, 50).Draw(r, "end"))
				if e.Tenant == "acme" && len(agents) > 0 && rapid.Bool().Draw(r, "own") {
					e.Agent = rapid.SampledFrom(agents).Draw(r, "agent")
				}
				var expected error
				if taken(e) {
					expected = store.ErrExists
				}
				if want("create", node().CreateEntry(ctx, e), expected) {
					m[e.ID] = e
				}
			},
			"update": func(r *rapid.T) {
				e := m[some()]
				e.Name, e.UpdatedAt = name.Draw(r, "name"), at(made)
				e.Body = fmt.Appendf(nil, "%d", made)
				stale := rapid.IntRange(-1, 1).Draw(r, "stale")
				e.Version += int64(stale)
				var expected error
				if stale != 0 || taken(e) {
					expected = store.ErrExists
				}
				if want("update", node().UpdateEntry(ctx, e), expected) {
					e.Version++
					m[e.ID] = e
				}
			},
			"delete": func(*rapid.T) {
				id := some()
				want("delete", node().DeleteEntry(ctx, id), nil)
				delete(m, id)
				want("delete again", node().DeleteEntry(ctx, id), store.ErrNotFound)
			},
			"delete agent": func(r *rapid.T) {
				if len(agents) == 0 {
					r.Skip("no agent")
				}
				i := rapid.IntRange(0, len(agents)-1).Draw(r, "agent")
				want("delete agent", node().DeleteAgent(ctx, agents[i]), nil)
				maps.DeleteFunc(m, func(_ string, e store.Entry) bool { return e.Agent == agents[i] })
				agents = slices.Delete(agents, i, i+1)
			},
			"expire": func(r *rapid.T) {
				before := at(rapid.IntRange(1, 20).Draw(r, "before"))
				expected := len(m)
				maps.DeleteFunc(m, func(_ string, e store.Entry) bool { return e.ExpiresAt.Before(before) })
				if n, err := node().DeleteEntriesBefore(ctx, "", before); err != nil || n != expected-len(m) {
					r.Fatalf("%d have expired, %v; want %d", n, err, expected-len(m))
				}
			},
			"": func(r *rapid.T) {
				s := node()
				revision, err := s.EntriesRevision(ctx)
				if err != nil || revision < last {
					r.Fatalf("revision %d after %d, %v", revision, last, err)
				}
				last = revision
				list, err := s.ListEntries(ctx, "")
				if err != nil {
					r.Fatal(err)
				}
				got := map[string]store.Entry{}
				for i, e := range list {
					got[e.ID] = e
					if i > 0 && e.CreatedAt.Before(list[i-1].CreatedAt) {
						r.Fatalf("%s is older than %s", e.ID, list[i-1].ID)
					}
				}
				if diff := cmp.Diff(m, got); diff != "" {
					r.Fatalf("the entries (-want +got):\n%s", diff)
				}
				if known, ok := states[revision]; !ok {
					states[revision] = got
				} else if diff := cmp.Diff(known, got); diff != "" {
					r.Fatalf("two states of revision %d:\n%s", revision, diff)
				}
			},
		})
	})
}

// testUsageMachine charges any amounts with any limits, and compares what the database decides and counts with
// store.UsageLimit.Allows and store.Usage.Plus.
func testUsageMachine(t *testing.T, d Database) {
	nodes := []store.Store{open(t, d), open(t, d)}
	runs := 0
	rapid.Check(t, func(r *rapid.T) {
		ctx := r.Context()
		runs++
		m := map[store.UsageKey]store.Usage{}
		number := rapid.OneOf(rapid.Int64Range(-50, 50), rapid.Int64Range(-5, 200), rapid.Int64())
		bound := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(1, 150), rapid.Int64Range(0, 1<<62))
		days := []string{"2031-02-03", "2031-02-04", "2031-02-05"}
		r.Repeat(map[string]func(*rapid.T){
			"charge": func(r *rapid.T) {
				u := used(fmt.Sprint("agent", runs), rapid.SampledFrom(days).Draw(r, "day"),
					number.Draw(r, "requests"), number.Draw(r, "input"), number.Draw(r, "output"), number.Draw(r, "cost"))
				u.Provider = rapid.SampledFrom([]string{"", "p"}).Draw(r, "provider")
				limit := store.UsageLimit{Tokens: bound.Draw(r, "tokens"), MicroCost: bound.Draw(r, "money")}
				before, exists := m[u.UsageKey]
				before.UsageKey = u.UsageKey
				want, expected := before, limit.Allows(before, u)
				if expected {
					want = before.Plus(u)
				}
				got, charged, err := rapid.SampledFrom(nodes).Draw(r, "node").ChargeUsage(ctx, u, limit)
				if err != nil || charged != expected {
					r.Fatalf("charge %+v to %+v within %+v: %v, %v; want %v", u, before, limit, charged, err, expected)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					r.Fatalf("charge %+v to %+v (-want +got):\n%s", u, before, diff)
				}
				if charged || exists {
					m[u.UsageKey] = want
				}
			},
			"delete": func(r *rapid.T) {
				day := rapid.SampledFrom(days[:2]).Draw(r, "day")
				expected := len(m)
				maps.DeleteFunc(m, func(k store.UsageKey, _ store.Usage) bool { return k.Day < day })
				// Rows of earlier runs go as well.
				if n, err := nodes[0].DeleteUsageBefore(ctx, day); err != nil || n < expected-len(m) {
					r.Fatalf("%d rows before %s are removed, %v; want %d", n, day, err, expected-len(m))
				}
			},
			"": func(r *rapid.T) {
				list, err := rapid.SampledFrom(nodes).Draw(r, "node").ListUsage(ctx, "default", days[0])
				if err != nil {
					r.Fatal(err)
				}
				got := map[store.UsageKey]store.Usage{}
				for _, u := range list {
					if u.Agent == fmt.Sprint("agent", runs) {
						got[u.UsageKey] = u
					}
				}
				if diff := cmp.Diff(m, got); diff != "" {
					r.Fatalf("the rows (-want +got):\n%s", diff)
				}
			},
		})
		if _, err := nodes[0].DeleteUsageBefore(ctx, "2031-02-06"); err != nil {
			r.Fatal(err)
		}
	})
}
