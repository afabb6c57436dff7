package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/store"
)

// testGrantMachine lets two nodes issue, use, revoke, remove and restart in any order, and compares every answer with
// a model in memory. A grant has at most one success, whatever happens.
func testGrantMachine(t *testing.T, d Database) {
	newTenant(t, open(t, d), "acme")
	var names atomic.Int64
	var nodes [2]store.Store // they go on from one run to the next
	t.Cleanup(func() {
		for _, s := range nodes {
			if s != nil {
				must(t, s.Close())
			}
		}
	})
	rapid.Check(t, func(r *rapid.T) {
		m := &machine{d: d, names: &names, nodes: &nodes, now: start, model: map[string]store.Grant{}, uses: map[string]int{}}
		for i := range nodes {
			if nodes[i] == nil {
				m.open(r, i)
			}
		}
		r.Repeat(map[string]func(*rapid.T){
			"": m.check, "issue": m.issue, "use": m.use, "race": m.race, "revoke": m.revoke, "wait": m.wait,
			"remove": m.remove, "restart": m.restart,
		})
	})
}

type machine struct {
	d     Database
	names *atomic.Int64
	nodes *[2]store.Store
	now   time.Time
	ids   []string // also of those that were removed
	model map[string]store.Grant
	uses  map[string]int // successes, by ID
}

func (m *machine) open(r *rapid.T, node int) {
	s, err := m.d.Open(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	m.nodes[node] = s
}

func (m *machine) node(r *rapid.T) store.Store {
	return m.nodes[rapid.IntRange(0, len(m.nodes)-1).Draw(r, "node")]
}

func (m *machine) id(r *rapid.T) string {
	if len(m.ids) == 0 {
		r.Skip("no grant yet")
	}
	return rapid.SampledFrom(m.ids).Draw(r, "grant")
}

func seconds(r *rapid.T, what string, from, to int) time.Duration {
	return time.Duration(rapid.IntRange(from, to).Draw(r, what)) * time.Second
}

func (m *machine) issue(r *rapid.T) {
	g := grant(fmt.Sprint("m", m.names.Add(1)), rapid.SampledFrom([]string{"default", "acme"}).Draw(r, "tenant"))
	g.IssuedAt = m.now
	g.NotBefore = m.now.Add(seconds(r, "from", -2, 5))
	g.ExpiresAt = g.NotBefore.Add(seconds(r, "life", 1, 20))
	if err := m.node(r).CreateGrant(r.Context(), g); err != nil {
		r.Fatal(err)
	}
	m.ids = append(m.ids, g.ID)
	m.model[g.ID] = g
}

// usable is the model of UseGrant.
func (m *machine) usable(id, tenant string) bool {
	g, exists := m.model[id]
	return exists && g.Tenant == tenant && g.UsedAt.IsZero() && g.RevokedAt.IsZero() && !m.now.Before(g.NotBefore) && m.now.Before(g.ExpiresAt)
}

func (m *machine) used(id, session string) {
	g := m.model[id]
	g.UsedAt, g.UsedBy = m.now, session
	m.model[id] = g
	m.uses[id]++
}

func (m *machine) use(r *rapid.T) {
	id := m.id(r)
	tenant := rapid.SampledFrom([]string{"default", "acme"}).Draw(r, "as")
	session := fmt.Sprint("s", m.names.Add(1))
	expected := m.usable(id, tenant)
	got, used, err := m.node(r).UseGrant(r.Context(), id, tenant, session, m.now)
	want, exists := m.model[id]
	if !exists {
		if !errors.Is(err, store.ErrNotFound) || used {
			r.Fatalf("a removed grant: used %v, %v", used, err)
		}
		return
	}
	if err != nil || used != expected {
		r.Fatalf("used %v, %v; want %v for %+v at %v", used, err, expected, want, m.now)
	}
	if used {
		m.used(id, session)
	}
	if diff := cmp.Diff(m.model[id], got); diff != "" {
		r.Fatalf("what UseGrant returns (-want +got):\n%s", diff)
	}
}

// race uses one grant on both nodes at once.
func (m *machine) race(r *rapid.T) {
	id := m.id(r)
	g, exists := m.model[id]
	if !exists {
		r.Skip("removed")
	}
	expected := 0
	if m.usable(id, g.Tenant) {
		expected = 1
	}
	sessions := make([]string, 6)
	for i := range sessions {
		sessions[i] = fmt.Sprint("s", m.names.Add(1))
	}
	winners := make([]bool, len(sessions))
	race(len(sessions), func(i int) {
		_, used, err := m.nodes[i%len(m.nodes)].UseGrant(r.Context(), id, g.Tenant, sessions[i], m.now)
		if err != nil {
			r.Error(err)
		}
		winners[i] = used
	})
	won := 0
	for i, used := range winners {
		if used {
			won++
			m.used(id, sessions[i])
		}
	}
	if won != expected {
		r.Fatalf("%d of %d used the grant, want %d", won, len(sessions), expected)
	}
}

func (m *machine) revoke(r *rapid.T) {
	id := m.id(r)
	by := rapid.SampledFrom([]string{"ann", "bob"}).Draw(r, "by")
	err := m.node(r).RevokeGrant(r.Context(), id, by, m.now)
	g, exists := m.model[id]
	switch {
	case !exists && errors.Is(err, store.ErrNotFound):
		return
	case !exists || err != nil:
		r.Fatalf("revoke: %v, and it exists: %v", err, exists)
	}
	if g.RevokedAt.IsZero() {
		g.RevokedAt, g.RevokedBy = m.now, by
		m.model[id] = g
	}
}

func (m *machine) wait(r *rapid.T) { m.now = m.now.Add(seconds(r, "time", 1, 6)) }

// remove removes what has expired, also of earlier runs.
func (m *machine) remove(r *rapid.T) {
	before := m.now.Add(-seconds(r, "age", 0, 10))
	if _, err := m.node(r).DeleteGrantsBefore(r.Context(), before); err != nil {
		r.Fatal(err)
	}
	for id, g := range m.model {
		if g.ExpiresAt.Before(before) {
			delete(m.model, id)
		}
	}
}

// restart is rare, because it takes longer than all the rest.
func (m *machine) restart(r *rapid.T) {
	if rapid.IntRange(0, 5).Draw(r, "dice") != 0 {
		return
	}
	node := rapid.IntRange(0, len(m.nodes)-1).Draw(r, "node")
	s := m.nodes[node]
	m.nodes[node] = nil
	if err := s.Close(); err != nil {
		r.Fatal(err)
	}
	m.open(r, node)
}

// check is called after every step.
func (m *machine) check(r *rapid.T) {
	if len(m.ids) == 0 {
		return
	}
	id := rapid.SampledFrom(m.ids).Draw(r, "checked")
	if m.uses[id] > 1 {
		r.Fatalf("the grant %s was used %d times", id, m.uses[id])
	}
	got, err := m.node(r).Grant(r.Context(), id)
	want, exists := m.model[id]
	if !exists {
		if !errors.Is(err, store.ErrNotFound) {
			r.Fatalf("a removed grant: %v", err)
		}
		return
	}
	if err != nil {
		r.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.Fatalf("the row (-want +got):\n%s", diff)
	}
}
