package hostd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

func addEntries(n int, q *reapings) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range n {
		q.add(Reaping{Reason: ReapResidue, What: whatJail})
	}
}

func TestWhatWasReapedComesInOrderUntilItIsAcknowledged(t *testing.T) {
	q := newReapings(newClock().Now)
	if got := q.behind(0); len(got.Entries) != 0 || got.Dropped != 0 || got.Instance == "" {
		t.Fatalf("at the start: %+v", got)
	}
	addEntries(5, q)
	first := q.behind(0).Entries[0].Seq
	for range 2 { // an answer may be lost on its way
		got := q.behind(first + 1)
		var seqs []uint64
		for _, e := range got.Entries {
			seqs = append(seqs, e.Seq-first)
		}
		if !slices.Equal(seqs, []uint64{2, 3, 4}) {
			t.Errorf("behind the second come %v", seqs)
		}
	}
	if got := q.behind(0).Entries; len(got) != 3 {
		t.Errorf("%d entries are there, and two of five were acknowledged", len(got))
	}
	if got := q.behind(first + 4).Entries; len(got) != 0 {
		t.Errorf("all were acknowledged, and %v is there", got)
	}
	addEntries(1, q)
	if got := q.behind(first + 4).Entries; len(got) != 1 || got[0].Seq != first+5 {
		t.Errorf("the next one is %v", got)
	}
}

func TestTheOldestAreDroppedAndCounted(t *testing.T) {
	q := newReapings(newClock().Now)
	first := q.next
	addEntries(maxReapings, q)
	if got := q.behind(0); len(got.Entries) != maxReapings || got.Dropped != 0 {
		t.Fatalf("%d entries, %d dropped", len(got.Entries), got.Dropped)
	}
	addEntries(7, q)
	got := q.behind(0)
	if len(got.Entries) != maxReapings || got.Dropped != 7 || got.Entries[0].Seq != first+7 {
		t.Fatalf("%d entries from %d, %d dropped", len(got.Entries), got.Entries[0].Seq-first, got.Dropped)
	}
	if got = q.behind(0); got.Dropped != 7 {
		t.Errorf("%d dropped, and nobody has said that they know", got.Dropped)
	}
	// Who knows of the loss acknowledges what is before the first entry. Whoever begins after that is not told of it again.
	for _, after := range []uint64{first + 6, 0} {
		if got = q.behind(after); len(got.Entries) != maxReapings || got.Dropped != 0 {
			t.Errorf("behind %d: %d entries, %d dropped", after, len(got.Entries), got.Dropped)
		}
	}
	// Those that were seen before they were dropped are not lost.
	seen := q.behind(0).Entries[4].Seq
	addEntries(7, q)
	if got = q.behind(seen); len(got.Entries) != maxReapings || got.Dropped != 2 {
		t.Errorf("%d entries, %d dropped, of seven of which five were seen", len(got.Entries), got.Dropped)
	}
	// Entries that were acknowledged are not dropped.
	if got = q.behind(q.next - 1); len(got.Entries) != 0 || got.Dropped != 0 {
		t.Errorf("%d entries, %d dropped", len(got.Entries), got.Dropped)
	}
	addEntries(1, q)
	if got = q.behind(0); len(got.Entries) != 1 || got.Dropped != 0 {
		t.Errorf("%d entries, %d dropped", len(got.Entries), got.Dropped)
	}
}

func TestNumbersOfAnotherInstanceAcknowledgeNothing(t *testing.T) {
	q := newReapings(newClock().Now)
	first := q.next
	addEntries(3, q)
	for _, after := range []uint64{0, 1, first - 1, q.next, q.next + 1, 1<<64 - 1} {
		if got := q.behind(after).Entries; len(got) != 3 {
			t.Errorf("%d acknowledges %d entries", after, 3-len(got))
		}
	}
	if other := newReapings(newClock().Now); other.instance == q.instance || other.known == q.known {
		t.Error("two instances cannot be told apart")
	}
}

func TestAnErrorInTheQueueIsShort(t *testing.T) {
	q := newReapings(newClock().Now)
	q.note(jail.ReapReport{Findings: []jail.Finding{{Name: "btest00001", Error: strings.Repeat("x", 1<<20)}}})
	if got := q.behind(0).Entries; len(got) != 1 || len(got[0].Error) > maxReapError+4 {
		t.Errorf("%d entries", len(got))
	}
}

// reaped waits for entries about a jail.
func (f *fixture) reaped(t *testing.T, name jail.Name) (found []Reaping) {
	t.Helper()
	c := NewClient(f.socket, nil)
	testenv.Eventually(t, patience, func() bool {
		all, err := c.Reaped(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		found = slices.DeleteFunc(all.Entries, func(r Reaping) bool { return r.Jail != name })
		return len(found) > 0
	}, "nothing was said of jail %q", name)
	return found
}

func TestJailsThatTheReaperEndsAreToldWithTheirReason(t *testing.T) {
	const long = 300 * 24 * time.Hour
	for _, c := range []struct {
		name      string
		script    string
		wallClock time.Duration
		leaves    bool // its owner
		want      ReapReason
	}{
		{"its time is up", "exec sleep 1000", time.Second, false, ReapWallClock},
		{"its owner is gone", "exec sleep 1000", long, true, ReapOwnerLost},
		{"its owner is gone and its program has ended", "", long, true, ReapOwnerLost},
		{"its program has ended", "", long, false, ReapEnded},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := newClock()
			f := newFixture(t, func(o *Options) { o.Now, o.Grace = at.Now, time.Minute })
			owner := f.client(t)
			s := spec(c.script)
			s.Limits.WallClock = c.wallClock
			j, destroyed := create(t, owner, s), create(t, owner, spec("exec sleep 1000"))
			if err := owner.Destroy(t.Context(), destroyed.Name); err != nil {
				t.Fatal(err)
			}
			if c.script == "" {
				if _, err := owner.Wait(t.Context(), j.Name); err != nil {
					t.Fatal(err)
				}
			}
			if c.leaves {
				owner.Close()
			}
			var got Reaped
			testenv.Eventually(t, patience, func() bool {
				at.Forward(time.Minute) // the host daemon sees that an owner has left a little later
				var err error
				if got, err = NewClient(f.socket, nil).Reaped(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				return len(got.Entries) > 0
			}, "nothing was told")
			// A jail that its owner destroyed is not told.
			if e := got.Entries[0]; len(got.Entries) != 1 || e.Jail != j.Name || e.Reason != c.want || e.What != whatJail ||
				e.Error != "" || !e.At.After(newClock().Now()) {
				t.Errorf("got %+v, want jail %s and %s", got.Entries, j.Name, c.want)
			}
		})
	}
}

func TestWhatADeadHostDaemonLeftIsTold(t *testing.T) {
	host, socket := jailtest.NewHost(), newSocket(t)
	stray := jail.HostResource{Kind: jail.ResourceClone, Name: "btest00007", Index: -1, ID: "btest00007"}
	loose := jail.HostResource{Kind: jail.ResourceTableMember, Index: 77, ID: "10.99.0.77"}
	host.Plant(stray)
	host.Plant(loose)
	f := startServer(t, host, socket, nil)
	c := NewClient(socket, nil)
	first, err := c.Reaped(t.Context(), 0)
	if err != nil || len(first.Entries) != 2 {
		t.Fatalf("%+v, %v", first, err)
	}
	for _, e := range first.Entries {
		if e.Reason != ReapResidue || e.Error != "" || e.Jail == "" && e.What != "table_member 10.99.0.77" || e.Jail != "" && e.What != whatJail {
			t.Errorf("got %+v", e)
		}
	}
	last := first.Entries[1].Seq
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	host.Plant(stray)
	startServer(t, host, socket, nil)
	second, err := c.Reaped(t.Context(), last) // it has not noticed the restart
	if err != nil || second.Instance == first.Instance || len(second.Entries) != 1 || second.Entries[0].Jail != stray.Name {
		t.Errorf("after a restart: %+v, %v", second, err)
	}
	if third, err := c.Reaped(t.Context(), second.Entries[0].Seq); err != nil || len(third.Entries) != 0 {
		t.Errorf("acknowledged, and still there: %+v, %v", third, err)
	}
}

func TestTheHostIsComparedWithTheJournalByItself(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.ScanEvery = 10 * time.Millisecond })
	f.host.Plant(jail.HostResource{Kind: jail.ResourceNamespace, Index: 78, ID: "78"})
	f.host.Plant(jail.HostResource{Kind: jail.ResourceClone, Name: "btest00008", Index: -1, ID: "btest00008"})
	if got := f.reaped(t, "btest00008"); len(got) != 1 || got[0].Reason != ReapResidue {
		t.Errorf("got %+v", got)
	}
	if got := f.reaped(t, ""); len(got) != 1 || got[0].What != "namespace 78" {
		t.Errorf("got %+v", got)
	}
}

// stuckStorage cannot destroy anything for as long as it is stuck.
type stuckStorage struct {
	jail.Storage
	stuck *atomic.Bool
}

func (s stuckStorage) Destroy(ctx context.Context, n jail.Name) error {
	if s.stuck.Load() {
		return errors.New("the disk does not answer")
	}
	return s.Storage.Destroy(ctx, n)
}

func TestWhatCannotBeRemovedIsToldOnceAndWhenItIs(t *testing.T) {
	var stuck atomic.Bool
	stuck.Store(true)
	f := newFixture(t, func(o *Options) { o.Parts.Storage = stuckStorage{o.Parts.Storage, &stuck} })
	const name = "btest00009"
	f.host.Plant(jail.HostResource{Kind: jail.ResourceClone, Name: name, Index: -1, ID: name})
	c := NewClient(f.socket, nil)
	for range 3 {
		if _, err := c.Reap(t.Context(), jail.ReapOptions{}); err == nil {
			t.Fatal("the clone is gone")
		}
		// A dry run says nothing of what can be removed.
		if dry, err := c.Reap(t.Context(), jail.ReapOptions{DryRun: true}); err != nil || len(dry.Findings) != 1 {
			t.Fatalf("%+v, %v", dry, err)
		}
	}
	if got := f.reaped(t, name); len(got) != 1 || !strings.Contains(got[0].Error, "the disk does not answer") || got[0].Reason != ReapResidue {
		t.Errorf("got %+v", got)
	}
	stuck.Store(false)
	testenv.Eventually(t, patience, func() bool { return len(f.reaped(t, name)) == 2 }, "its removal is not told")
	if got := f.reaped(t, name); got[1].Error != "" || got[1].Reason != ReapResidue || got[1].Seq != got[0].Seq+1 {
		t.Errorf("got %+v", got)
	}
}

// A jail whose owner could not end it is the reaper's when the reaper ends it.
func TestTheReaperTellsWhatItFinishes(t *testing.T) {
	var stuck atomic.Bool
	f := newFixture(t, func(o *Options) { o.Parts.Storage = stuckStorage{o.Parts.Storage, &stuck} })
	c := f.client(t)
	j := create(t, c, spec("exec sleep 1000"))
	stuck.Store(true)
	if err := c.Destroy(t.Context(), j.Name); err == nil {
		t.Fatal("the clone is gone")
	}
	stuck.Store(false)
	if got := f.reaped(t, j.Name); got[len(got)-1].Reason != ReapResidue || got[len(got)-1].Error != "" {
		t.Errorf("got %+v", got)
	}
}
