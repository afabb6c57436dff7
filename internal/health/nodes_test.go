package health

import (
	"context"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// nodes is a database that others use as well.
type nodes []store.Node

func (nodes) Ping(context.Context) error                        { return nil }
func (n nodes) ListNodes(context.Context) ([]store.Node, error) { return n, nil }

// table authorises by the table alone.
type table struct{ Identity }

func (table) Authorize(_ context.Context, by identity.Principal, op identity.Operation, tenant string) error {
	return identity.CanWith(by, op, identity.Object{Tenant: tenant})
}

func TestNodesAreLostWhenNothingIsHeardOfThem(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC) // the database's, which is not that of this machine
	seen := func(name string, ago time.Duration) store.Node {
		return store.Node{Name: name, StartedAt: now.Add(-time.Hour), SeenAt: now.Add(-ago), ReadAt: now}
	}
	gone := seen("gone", time.Hour)
	gone.StoppedAt = gone.SeenAt
	s := &Service{Options: Options{Identity: table{}, Node: "self", Database: nodes{seen("alive", store.NodeAlive), gone, seen("lost", store.NodeAlive+time.Microsecond), seen("self", time.Hour)}}}
	all, err := s.Nodes(t.Context(), identity.Principal{Kind: identity.KindAdmin, ID: "admin", Role: identity.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []NodeState{NodeAlive, NodeStopped, NodeLost, NodeAlive} {
		if all[n].State != want || all[n].Self != (all[n].Name == "self") {
			t.Errorf("%s is %+v", all[n].Name, all[n])
		}
	}
	if _, err := s.Nodes(t.Context(), identity.Principal{Kind: identity.KindOperator, ID: "op", Tenant: "acme", Role: identity.RoleAdmin}); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("an admin of a tenant: %v", err)
	}
}
