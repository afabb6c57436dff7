package hostd

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// ReapReason is why something was reaped.
type ReapReason string

// The reasons.
const (
	ReapWallClock ReapReason = "wall_clock" // the jail's time was up
	ReapOwnerLost ReapReason = "owner_lost" // its owner was gone for too long
	ReapEnded     ReapReason = "ended"      // its program had ended, and its owner did not remove it
	ReapResidue   ReapReason = "residue"    // what was left by a process that died, or by an ending that did not work
)

// Reaping is one thing that the reaper removed, or could not remove.
type Reaping struct {
	// Seq numbers what was reaped, without gaps. The numbers of an instance begin somewhere.
	Seq    uint64     `json:"seq"`
	At     time.Time  `json:"at"`
	Jail   jail.Name  `json:"jail,omitzero"` // empty when the thing names none
	Reason ReapReason `json:"reason"`
	// What names the thing that was reaped: "jail", or the kind and the id of a host resource.
	What string `json:"what"`
	// Error says why it is still there. It is removed when this is empty.
	Error string `json:"error,omitzero"`
}

// Reaped is what the reaper did and the control plane has not acknowledged yet.
type Reaped struct {
	// Instance is another one with every start of the host daemon. Numbers hold within one instance.
	Instance string `json:"instance"`
	// Dropped is how many entries between the last that was acknowledged and the first here were lost, because nobody asked for them
	// in time. To acknowledge the number before the first is to know of them.
	Dropped uint64    `json:"dropped"`
	Entries []Reaping `json:"entries"` // oldest first
}

const (
	// maxReapings is how many entries are kept for a control plane that is away.
	maxReapings = 1024
	// maxReapError keeps a full queue small.
	maxReapError = 1 << 10
	// firstReapings is what the number of the first entry is below: any integer of JSON, with room to count on.
	firstReapings = 1 << 52
)

// reapings is the queue of what was reaped, for the audit log of the control plane, which may be away.
//
// Its numbers begin somewhere at random, so that an acknowledgement of what another instance said, which comes when
// the control plane has not noticed the restart, is none here.
type reapings struct {
	now      func() time.Time
	instance string
	// isHere says whether an owner is here. No owner is before the first call.
	isHere func(owner string) bool

	mu      sync.Mutex
	next    uint64
	queue   []Reaping
	known   uint64                   // the last that was acknowledged
	states  map[jail.Name]jail.State // as journalled
	ending  map[jail.Name]ReapReason // what the reaper has begun to end
	failing map[string]string        // what could not be removed when it was last tried, and why
}

func newReapings(now func() time.Time) *reapings {
	var random [8]byte
	rand.Read(random[:]) // never fails, see its documentation
	first := 1 + binary.BigEndian.Uint64(random[:])%firstReapings
	return &reapings{
		now: now, instance: rand.Text(), next: first, known: first - 1,
		isHere: func(string) bool { return false },
		states: map[jail.Name]jail.State{}, ending: map[jail.Name]ReapReason{}, failing: map[string]string{},
	}
}

// add puts an entry at the end of the queue. The caller holds q.mu.
func (q *reapings) add(r Reaping) {
	r.Seq, r.At, r.Error = q.next, q.now(), clipText(r.Error, maxReapError)
	q.next++
	if len(q.queue) == maxReapings {
		q.queue = slices.Delete(q.queue, 0, 1)
	}
	q.queue = append(q.queue, r)
}

// behind forgets the entries up to a number, and returns the others. A number that was not given out acknowledges
// nothing.
func (q *reapings) behind(after uint64) Reaped {
	q.mu.Lock()
	defer q.mu.Unlock()
	if after > q.known && after < q.next {
		q.queue, q.known = slices.DeleteFunc(q.queue, func(r Reaping) bool { return r.Seq <= after }), after
	}
	// Its numbers have no gaps: the first that is there is the next one, when nothing was lost.
	return Reaped{Instance: q.instance, Dropped: q.next - uint64(len(q.queue)) - q.known - 1, Entries: slices.Clone(q.queue)}
}

// note queues what a report says of things that belong to no jail, and of what could not be removed: once, and again
// when the error changes. The jails that were removed are queued by reapJournal.
func (q *reapings) note(report jail.ReapReport) {
	q.mu.Lock()
	defer q.mu.Unlock()
	failing := map[string]string{}
	for _, f := range report.Findings {
		r := Reaping{Jail: f.Name, Reason: ReapResidue, What: whatJail, Error: f.Error}
		if f.Name != "" {
			r.Reason = cmp.Or(q.ending[f.Name], ReapResidue)
		} else if f.Resource != nil {
			r.What = fmt.Sprintf("%s %s", f.Resource.Kind, f.Resource.ID)
		}
		if f.Error != "" {
			id := string(r.Jail) + " " + r.What
			failing[id] = f.Error
			if q.failing[id] == f.Error {
				continue
			}
		} else if f.Name != "" || !f.Removed {
			continue
		}
		q.add(r)
	}
	q.failing = failing
}

// whatJail stands for all that there was of a jail.
const whatJail = "jail"

// reaperKey marks a context.
type reaperKey struct{}

// asReaper marks what is done in a context as the reaper's. Every ending of a jail is the same for the journal; the
// context, which the lifecycle passes on, tells those that nobody asked for.
func asReaper(ctx context.Context) context.Context { return context.WithValue(ctx, reaperKey{}, true) }

func isReaper(ctx context.Context) bool { return ctx.Value(reaperKey{}) != nil }

// reapJournal queues the jails that the reaper has removed. Forgetting a jail is the last step of its ending, and is
// done when nothing of it is left.
type reapJournal struct {
	jail.Journal
	reaped *reapings
}

// Load implements jail.Journal.
func (j *reapJournal) Load(ctx context.Context) ([]jail.Record, []jail.Name, error) {
	records, damaged, err := j.Journal.Load(ctx)
	j.reaped.mu.Lock()
	defer j.reaped.mu.Unlock()
	for _, r := range records {
		j.reaped.states[r.Name] = r.State
	}
	return records, damaged, err
}

// Put implements jail.Journal.
func (j *reapJournal) Put(ctx context.Context, r jail.Record) error {
	if r.State == jail.StateStopping && isReaper(ctx) {
		j.reaped.begin(r) // also when the disk is full: the jail is ended all the same
	}
	err := j.Journal.Put(ctx, r)
	if err == nil {
		j.reaped.mu.Lock()
		defer j.reaped.mu.Unlock()
		j.reaped.states[r.Name] = r.State
	}
	return err
}

// Delete implements jail.Journal.
func (j *reapJournal) Delete(ctx context.Context, name jail.Name) error {
	err := j.Journal.Delete(ctx, name)
	if err == nil {
		j.reaped.ended(name, isReaper(ctx))
	}
	return err
}

// begin remembers why the reaper ends a jail. A jail that it tries again keeps its first reason.
func (q *reapings) begin(r jail.Record) {
	here := q.isHere(r.Owner)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ending[r.Name] == "" {
		q.ending[r.Name] = reasonToReap(r, q.states[r.Name], here, q.now())
	}
}

// ended queues a jail of which nothing is left, if it was the reaper that ended it.
func (q *reapings) ended(name jail.Name, byReaper bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// On a full disk a jail is forgotten twice.
	if reason := q.ending[name]; byReaper && reason != "" {
		q.add(Reaping{Jail: name, Reason: reason, What: whatJail})
	}
	delete(q.ending, name)
	delete(q.states, name)
}

// reasonToReap is why the lifecycle ends a jail by itself; was is the state that it had before, empty when the journal
// did not know it.
func reasonToReap(r jail.Record, was jail.State, ownerHere bool, now time.Time) ReapReason {
	switch {
	case was != jail.StateStarted && was != jail.StateReady:
		return ReapResidue
	case r.TimeIsUp(now):
		return ReapWallClock
	case r.Exit == nil || !ownerHere: // a program that runs is ended for no other reason
		return ReapOwnerLost
	}
	return ReapEnded
}

// scan compares the host with the journal now and then, until the context ends.
func scan(ctx context.Context, life Jails, every time.Duration, reaped *reapings, log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		report, err := life.Reap(asReaper(ctx), jail.ReapOptions{})
		reaped.note(report)
		if err != nil && ctx.Err() == nil {
			log.Error("reap", "error", err)
		}
	}
}

// Reaped returns what the host daemon has removed without its owner asking, and what it could not remove. after is the
// number of the last entry that the caller has dealt with, or 0: the host daemon forgets those up to it. So an entry
// comes until it is acknowledged, and may come twice. Only one caller at a time can make use of it.
func (c *Client) Reaped(ctx context.Context, after uint64) (Reaped, error) {
	return ask[Reaped](ctx, c, OpReaped, reapedArguments{After: after})
}
