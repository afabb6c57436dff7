package peer

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
)

// rows are those of nodes, of which the one with the name it has can be drained.
type rows struct {
	nodes []store.Node
	now   time.Time
}

func (r *rows) ListNodes(context.Context) ([]store.Node, error) { return r.nodes, nil }

func (r *rows) DrainNode(_ context.Context, name string, drain bool) error {
	at := slices.IndexFunc(r.nodes, func(n store.Node) bool { return n.Name == name && n.StoppedAt.IsZero() })
	if at < 0 {
		return store.ErrNotFound
	}
	if r.nodes[at].DrainingAt = (time.Time{}); drain {
		r.nodes[at].DrainingAt = r.now
	}
	return nil
}

// table authorises by the table alone.
type table struct{}

func (table) Authorize(_ context.Context, by identity.Principal, op identity.Operation, tenant string) error {
	return identity.CanWith(by, op, identity.Object{Tenant: tenant})
}

var (
	admin       = identity.Principal{Kind: identity.KindAdmin, ID: "admin", Role: identity.RoleAdmin}
	tenantAdmin = identity.Principal{Kind: identity.KindOperator, ID: "op", Tenant: "acme", Role: identity.RoleAdmin}
)

func TestNodesAreLostWhenNothingIsHeardOfThem(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC) // the database's, which is not that of this machine
	seen := func(name string, ago time.Duration) store.Node {
		return store.Node{Name: name, StartedAt: now.Add(-time.Hour), SeenAt: now.Add(-ago), ReadAt: now}
	}
	gone := seen("gone", time.Hour)
	gone.StoppedAt = gone.SeenAt
	draining := seen("draining", 0)
	draining.DrainingAt = now
	unknown := error(nil)
	s := &Nodes{Self: "self", Identity: table{}, Store: &rows{nodes: []store.Node{seen("alive", store.NodeAlive), draining, gone,
		seen("lost", store.NodeAlive+time.Microsecond), seen("self", time.Hour)}},
		Sessions: func(context.Context, identity.Principal) ([]session.Session, error) {
			var all []session.Session
			for _, name := range []string{"alive", "self", "alive"} {
				all = append(all, session.Session{ID: "s_" + store.NodeTag(name) + "abc"})
			}
			return all, unknown
		},
		Leaving: func(context.Context) (map[string]int, error) { return map[string]int{"draining": 3}, nil }}
	check := func(counts ...int) {
		t.Helper()
		all, err := s.List(t.Context(), admin)
		if err != nil {
			t.Fatal(err)
		}
		for n, want := range []NodeState{NodeAlive, NodeDraining, NodeStopped, NodeLost, NodeAlive} {
			got := -1
			if all[n].Sessions != nil {
				got = *all[n].Sessions
			}
			if all[n].State != want || all[n].Self != (all[n].Name == "self") || (all[n].Leaving == 3) != (want == NodeDraining) || got != counts[n] {
				t.Errorf("%s is %+v and has %d sessions, want %s and %d", all[n].Name, all[n], got, want, counts[n])
			}
		}
	}
	check(2, 0, 0, -1, 1)
	unknown = problem.New(problem.NodeUnreachable, "", "one does not answer")
	check(-1, -1, -1, -1, 1)
	if _, err := s.List(t.Context(), tenantAdmin); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("an admin of a tenant: %v", err)
	}
}

func TestAdminsOfAllDrainANode(t *testing.T) {
	db, log := &rows{nodes: []store.Node{{Name: "other"}, {Name: "self"}}, now: time.Now()}, new(audittest.Log)
	var told []bool
	s := &Nodes{Self: "self", Identity: table{}, Store: db, Audit: log, Changed: func(drain bool) { told = append(told, drain) },
		Sessions: func(context.Context, identity.Principal) ([]session.Session, error) { return nil, nil },
		Leaving:  func(context.Context) (map[string]int, error) { return nil, nil }}
	drain := func(by identity.Principal, name string, drain bool) (NodeState, string) {
		t.Helper()
		n, err := s.Drain(t.Context(), by, name, drain)
		return n.State, problem.CodeOf(err)
	}
	if _, code := drain(tenantAdmin, "self", true); code != problem.Forbidden || len(log.Begun()) > 0 {
		t.Errorf("an admin of a tenant: %q, and on record is %v", code, log.Begun())
	}
	log.Fail(problem.New(problem.AuditUnavailable, "", "no"))
	if _, code := drain(admin, "self", true); code != problem.AuditUnavailable || !db.nodes[1].DrainingAt.IsZero() {
		t.Errorf("what cannot be recorded: %q", code)
	}
	log.Fail(nil)
	if _, code := drain(admin, "nobody", true); code != problem.NotFound {
		t.Errorf("one that does not run: %q", code)
	}
	if len(told) > 0 {
		t.Errorf("it was told %v", told)
	}
	if state, code := drain(admin, "self", true); state != NodeDraining || code != "" {
		t.Errorf("itself: %s, %q", state, code)
	}
	if state, code := drain(admin, "other", true); state != NodeDraining || code != "" {
		t.Errorf("another one: %s, %q", state, code)
	}
	if state, code := drain(admin, "self", false); state != NodeAlive || code != "" {
		t.Errorf("itself again: %s, %q", state, code)
	}
	if !slices.Equal(told, []bool{true, false}) {
		t.Errorf("it was told %v", told)
	}
	var actions []string
	for _, e := range log.All() {
		actions = append(actions, e.Action+" "+e.Target+" "+string(e.Result))
	}
	if want := []string{"node.drain nobody failed", "node.drain self ok", "node.drain other ok", "node.resume self ok"}; !slices.Equal(actions, want) {
		t.Errorf("on record is %v, want %v", actions, want)
	}
}
