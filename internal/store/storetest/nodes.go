package storetest

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// testNodes: the times are the database's, so they are compared with each other alone.
func testNodes(t *testing.T, s store.Store) {
	ctx := t.Context()
	node := store.Node{Name: "b", Run: "run-1", Version: "v1.0.0", Address: "127.0.0.1:18780", PeerAddress: "10.0.0.1:18790"}
	list := func(want int) []store.Node {
		t.Helper()
		all, err := s.ListNodes(ctx)
		must(t, err)
		if len(all) != want {
			t.Fatalf("there are %d nodes, want %d: %+v", len(all), want, all)
		}
		return all
	}
	list(0)
	must(t, s.StartNode(ctx, node, "", time.Hour))
	first := list(1)[0]
	if first.StartedAt.IsZero() || !first.SeenAt.Equal(first.StartedAt) || !first.StoppedAt.IsZero() || first.ReadAt.Before(first.SeenAt) || first.Silence() < 0 {
		t.Errorf("it is %+v", first)
	}
	if got := (store.Node{Name: first.Name, Run: first.Run, Version: first.Version, Address: first.Address, PeerAddress: first.PeerAddress}); got != node {
		t.Errorf("it is %+v, want %+v", got, node)
	}
	twin := store.Node{Name: "b", Run: "run-2", Version: "v1.0.1"}
	wantError(t, "another run of a name", s.StartNode(ctx, twin, "", time.Hour), store.ErrExists)
	wantError(t, "the run of another", s.SeeNode(ctx, "b", "run-2"), store.ErrNotFound)
	wantError(t, "the run of nobody", s.SeeNode(ctx, "a", "run-1"), store.ErrNotFound)
	must(t, s.StopNode(ctx, "b", "run-2")) // of which nothing is known
	time.Sleep(2 * time.Millisecond)
	must(t, s.SeeNode(ctx, "b", "run-1"))
	if seen := list(1)[0]; !seen.SeenAt.After(first.SeenAt) || !seen.StartedAt.Equal(first.StartedAt) || seen.Run != "run-1" || !seen.StoppedAt.IsZero() {
		t.Errorf("after it was seen it is %+v", seen)
	}

	// One drains from the first time that it is asked on.
	must(t, s.DrainNode(ctx, "b", true))
	drained := list(1)[0].DrainingAt
	time.Sleep(2 * time.Millisecond)
	must(t, s.DrainNode(ctx, "b", true))
	must(t, s.SeeNode(ctx, "b", "run-1"))
	if again := list(1)[0].DrainingAt; drained.IsZero() || !again.Equal(drained) {
		t.Errorf("it drains since %s, and asked once more since %s", drained, again)
	}
	must(t, s.DrainNode(ctx, "b", false))
	if n := list(1)[0]; !n.DrainingAt.IsZero() {
		t.Errorf("it drains still: %+v", n)
	}
	must(t, s.DrainNode(ctx, "b", true))
	wantError(t, "a name that nobody has", s.DrainNode(ctx, "a", true), store.ErrNotFound)

	// A run that is silent for long enough is replaced by another run of the node. The new run was not asked to drain.
	must(t, s.StartNode(ctx, twin, "", 0))
	if n := list(1)[0]; !n.DrainingAt.IsZero() {
		t.Errorf("a new run drains: %+v", n)
	}
	if second := list(1)[0]; second.Run != "run-2" || second.Version != "v1.0.1" || second.Address != "" || !second.StartedAt.After(first.StartedAt) {
		t.Errorf("the one that follows is %+v", second)
	}
	wantError(t, "the one before", s.SeeNode(ctx, "b", "run-1"), store.ErrNotFound)
	must(t, s.StopNode(ctx, "b", "run-1"))
	must(t, s.SeeNode(ctx, "b", "run-2"))
	testLostNodes(t, s)
	// So is one that is known to have ended.
	must(t, s.StartNode(ctx, node, "run-2", time.Hour))
	must(t, s.StartNode(ctx, twin, "run-1", time.Hour))
	// One that has stopped is followed at once.
	must(t, s.StopNode(ctx, "b", "run-2"))
	stopped := list(1)[0]
	if stopped.StoppedAt.IsZero() || !stopped.StoppedAt.Equal(stopped.SeenAt) {
		t.Errorf("stopped it is %+v", stopped)
	}
	must(t, s.StopNode(ctx, "b", "run-2"))
	if again := list(1)[0]; !again.StoppedAt.Equal(stopped.StoppedAt) {
		t.Errorf("stopped twice it is %+v", again)
	}
	wantError(t, "one that has stopped", s.DrainNode(ctx, "b", true), store.ErrNotFound)
	wantError(t, "one that has stopped", s.SeeNode(ctx, "b", "run-2"), store.ErrNotFound)
	must(t, s.StartNode(ctx, node, "", time.Hour))
	must(t, s.StartNode(ctx, store.Node{Name: "a", Run: "run-3"}, "", time.Hour))
	if all := list(2); all[0].Name != "a" || all[1].Name != "b" || !all[1].StoppedAt.IsZero() {
		t.Errorf("they are %+v", all)
	}
	for _, bad := range []store.Node{{Run: "x"}, {Name: "A", Run: "x"}, {Name: "a"}, {Name: "a", Run: "x", Version: "\xff"}, {Name: "a", Run: "\x00"}} {
		wantError(t, "one that is not valid", s.StartNode(ctx, bad, "", time.Hour), store.ErrInvalid)
	}
	check(t, "none is silent for as long", 0)(s.DeleteNodesSilent(ctx, time.Hour))
	time.Sleep(2 * time.Millisecond)
	check(t, "all are silent", 2)(s.DeleteNodesSilent(ctx, 0))
	list(0)
}

// testNodeRace: one of many runs that start at the same time has the name.
func testNodeRace(t *testing.T, s store.Store) {
	var started atomic.Int32
	race(8, func(i int) {
		err := s.StartNode(t.Context(), store.Node{Name: "a", Run: string(rune('a' + i))}, "", time.Hour)
		switch {
		case err == nil:
			started.Add(1)
		case !errors.Is(err, store.ErrExists):
			t.Error(err)
		}
	})
	if n := started.Load(); n != 1 {
		t.Errorf("%d runs have the name", n)
	}
}

// testLostNodes: a node that is given up ends, and what it held is free; that of the run that follows it is its own. There is run-2
// of the node b.
func testLostNodes(t *testing.T, s store.Store) {
	ctx := t.Context()
	newCookieSet(t, s, "c1", "default", "a.example")
	lease := func(session, node string) []string {
		t.Helper()
		busy, err := s.LeaseCookieSets(ctx, store.Lease{Tenant: "default", Session: session, Node: node, At: at(1), ExpiresAt: at(100)}, []string{"a.example"})
		must(t, err)
		return busy
	}
	if busy := lease("s1", "b"); len(busy) > 0 {
		t.Fatalf("the account is busy: %v", busy)
	}
	must(t, s.ReleaseLostLeases(ctx, "b", "run-2")) // it is not lost
	if busy := lease("s2", "a"); len(busy) != 1 {
		t.Errorf("an account of a node that is there is free: %v", busy)
	}
	wantError(t, "a node that was heard of", s.LoseNode(ctx, "b", "run-2", time.Hour), store.ErrNotFound)
	wantError(t, "a run that was followed", s.LoseNode(ctx, "b", "run-1", 0), store.ErrNotFound)
	must(t, s.LoseNode(ctx, "b", "run-2", 0))
	wantError(t, "one that is lost", s.LoseNode(ctx, "b", "run-2", 0), store.ErrNotFound)
	wantError(t, "the lost one", s.DrainNode(ctx, "b", true), store.ErrNotFound)
	wantError(t, "the lost one", s.SeeNode(ctx, "b", "run-2"), store.ErrNotFound)
	all, err := s.ListNodes(ctx)
	must(t, err)
	if !all[0].Lost() || all[0].LostAt.IsZero() {
		t.Errorf("it is %+v", all[0])
	}
	must(t, s.ReleaseLostLeases(ctx, "b", "run-2"))
	if busy := lease("s2", "b"); len(busy) > 0 {
		t.Errorf("an account of a lost node is busy: %v", busy)
	}
	must(t, s.StartNode(ctx, store.Node{Name: "b", Run: "run-3"}, "", time.Hour)) // at once
	must(t, s.ReleaseLostLeases(ctx, "b", "run-2"))                               // late
	if busy := lease("s3", "a"); len(busy) != 1 {
		t.Errorf("an account of the node that has followed is free: %v", busy)
	}
	must(t, s.SeeNode(ctx, "b", "run-3"))
	must(t, s.ReleaseNodeLeases(ctx, "b"))
	must(t, s.StartNode(ctx, store.Node{Name: "b", Run: "run-2"}, "run-3", time.Hour))
}

// testAuditKeys: they are kept by their ids.
func testAuditKeys(t *testing.T, s store.Store) {
	ctx := t.Context()
	check(t, "no keys", []store.AuditKey(nil))(s.ListAuditKeys(ctx))
	b := store.AuditKey{ID: "b", Public: []byte{1, 0, 2}, Voucher: []byte{3}}
	must(t, s.PutAuditKey(ctx, b))
	a := store.AuditKey{ID: "a", Public: []byte{4}, Voucher: []byte{5}}
	must(t, s.PutAuditKey(ctx, a))
	b.Voucher = []byte{6}
	must(t, s.PutAuditKey(ctx, b))
	check(t, "the keys", []store.AuditKey{a, b})(s.ListAuditKeys(ctx))
	wantError(t, "an id that is no text", s.PutAuditKey(ctx, store.AuditKey{ID: "\xff"}), store.ErrInvalid)
}

// testDuties: one run at a time has a duty, until its term is over or it has ended, and it notices that it has lost it when it acts.
func testDuties(t *testing.T, s store.Store) {
	ctx := t.Context()
	must(t, s.StartNode(ctx, store.Node{Name: "a", Run: "run-a"}, "", time.Hour))
	must(t, s.StartNode(ctx, store.Node{Name: "b", Run: "run-b"}, "", time.Hour))
	take := func(node string, term time.Duration) (store.Duty, error) {
		return s.TakeDuty(ctx, "tidy", node, "run-"+node, term)
	}
	first, err := take("a", time.Hour)
	must(t, err)
	check(t, "which is extended", first)(take("a", time.Hour))
	_, err = take("b", time.Hour)
	wantError(t, "a duty that another run has", err, store.ErrExists)
	if other, err := s.TakeDuty(ctx, "another", "b", "run-b", time.Hour); err != nil || other.Name != "another" {
		t.Errorf("another duty: %+v, %v", other, err)
	}
	must(t, s.AppendAudit(ctx, auditRows("n1", 1, 9)))
	check(t, "removed by who has it", 1)(s.TrimAudit(ctx, "n1", 1, first))

	// Its term is over.
	check(t, "which is shortened", first)(take("a", 0))
	time.Sleep(2 * time.Millisecond)
	second, err := take("b", time.Hour)
	must(t, err)
	if second.Number <= first.Number {
		t.Errorf("its number is %d after %d", second.Number, first.Number)
	}
	_, err = s.TrimAudit(ctx, "n1", 2, first)
	wantError(t, "who has lost it", err, store.ErrNotFound)
	check(t, "removed by the next one", 1)(s.TrimAudit(ctx, "n1", 2, second))
	_, err = s.TrimAudit(ctx, "n1", 3, store.Duty{Name: "nobody's", Number: 1})
	wantError(t, "a duty that nobody has", err, store.ErrNotFound)

	// The holder of the duty has stopped, or is lost, or was replaced by another run.
	must(t, s.StopNode(ctx, "b", "run-b"))
	third, err := take("a", time.Hour)
	must(t, err)
	must(t, s.LoseNode(ctx, "a", "run-a", 0))
	must(t, s.StartNode(ctx, store.Node{Name: "b", Run: "run-b"}, "", time.Hour))
	fourth, err := take("b", time.Hour)
	must(t, err)
	must(t, s.StartNode(ctx, store.Node{Name: "b", Run: "run-c"}, "run-b", time.Hour))
	fifth, err := s.TakeDuty(ctx, "tidy", "b", "run-c", time.Hour)
	must(t, err)
	if third.Number <= second.Number || fourth.Number <= third.Number || fifth.Number <= fourth.Number {
		t.Errorf("the numbers are %d, %d, %d, %d", second.Number, third.Number, fourth.Number, fifth.Number)
	}
	var taken atomic.Int32
	must(t, s.StopNode(ctx, "b", "run-c"))
	for i := range 8 {
		must(t, s.StartNode(ctx, store.Node{Name: string(rune('c' + i)), Run: "run" + string(rune('c'+i))}, "", time.Hour))
	}
	race(8, func(i int) {
		node := string(rune('c' + i))
		switch _, err := s.TakeDuty(ctx, "tidy", node, "run"+node, time.Hour); {
		case err == nil:
			taken.Add(1)
		case !errors.Is(err, store.ErrExists):
			t.Error(err)
		}
	})
	if n := taken.Load(); n != 1 {
		t.Errorf("%d runs have it", n)
	}
}
