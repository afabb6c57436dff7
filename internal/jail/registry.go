package jail

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// RegistryOptions configure a Registry. Every field is required.
type RegistryOptions struct {
	Journal Journal
	Log     *slog.Logger
	Now     func() time.Time
	// Grace is that of Options.
	Grace time.Duration
	// Barrier is that of Options.
	Barrier func(Step)
}

// Registry is the jails of one driver: the record of each, who works on it, and which owners are gone. It owns the
// journal.
type Registry struct {
	o RegistryOptions

	mu      sync.Mutex
	jails   map[Name]*Entry
	number  int                  // of the jail that was made last
	lost    map[string]time.Time // owners that are gone, and since when: zero until they can come back
	awaited time.Time            // since when owners can come back
}

// Entry is one jail of a Registry, whose lock guards its fields; working is held by the goroutine that changes the host for
// the jail.
type Entry struct {
	of       *Registry
	rec      Record
	working  chan struct{} // one token
	active   bool          // being made or torn down by this process
	watched  bool          // somebody waits for its end
	ended    chan struct{} // closed when rec.Exit is set
	cause    Cause         // why it is being ended, when it is not by itself
	tornDown bool
}

// OpenRegistry reads the journal. A record that cannot be read is that of a jail to be removed.
func OpenRegistry(ctx context.Context, o RegistryOptions) (*Registry, error) {
	records, damaged, err := o.Journal.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	g := &Registry{o: o, jails: map[Name]*Entry{}, lost: map[string]time.Time{},
		// Numbers go on from the clock, so that a name is not soon used again after a restart.
		number: int(o.Now().Unix() % (maxNumber + 1))}
	for _, n := range damaged {
		o.Log.Error("damaged journal record", "jail", n)
		records = append(records, Record{Version: recordVersion, Name: n, State: StateStopping, Lease: Lease{Index: -1}})
	}
	for _, r := range records {
		if e := g.add(r); r.Exit != nil {
			close(e.ended)
		}
		if r.Owner != "" {
			g.lost[r.Owner] = time.Time{}
		}
	}
	return g, nil
}

// add makes the entry of a record. The caller holds g.mu.
func (g *Registry) add(r Record) *Entry {
	e := &Entry{of: g, rec: r, working: make(chan struct{}, 1), ended: make(chan struct{})}
	g.jails[r.Name] = e
	return e
}

// Enter gives a new jail the first free name of those that are made of numbers, and its place in the table, already
// marked as being worked on. The caller fills in the other fields of the record.
func (g *Registry) Enter(r Record, name func(number int) (Name, error)) (_ *Entry, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for range maxNumber + 1 {
		g.number = (g.number + 1) % (maxNumber + 1)
		if r.Name, err = name(g.number); err != nil {
			return nil, err
		}
		if _, taken := g.jails[r.Name]; taken {
			continue
		}
		r.Version, r.State, r.Created = recordVersion, StateReserved, g.o.Now()
		r.Deadline = r.Created.Add(r.Spec.Limits.WallClock)
		e := g.add(r)
		e.working <- struct{}{}
		e.active = true
		return e, nil
	}
	return nil, problem.New(problem.PoolExhausted, "close sessions, or end agents", "every jail name is in use")
}

// Lookup finds a jail by its name, or returns ErrNotFound.
func (g *Registry) Lookup(name Name) (*Entry, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, ok := g.jails[name]
	if !ok {
		return nil, fmt.Errorf("jail %s: %w", texts.Clip(string(name), 20), ErrNotFound)
	}
	return e, nil
}

// Running is the record of a jail whose program has begun and has not ended.
func (g *Registry) Running(name Name) (Record, error) {
	e, err := g.Lookup(name)
	if err != nil {
		return Record{}, err
	}
	r := e.Record()
	if r.Exit != nil || r.State != StateStarted && r.State != StateReady {
		return Record{}, problem.New(problem.Conflict, "start it first", "jail %s does not run", name)
	}
	return r, nil
}

// Entries are all jails there are, by name.
func (g *Registry) Entries() []*Entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(maps.Values(g.jails), func(a, b *Entry) int { return cmp.Compare(a.rec.Name, b.rec.Name) })
}

// Stateless refuses when a jail has the state of an agent.
func (g *Registry) Stateless(a Agent) error {
	for _, e := range g.Entries() {
		r := e.Record()
		if own := r.Spec.Agent; own != nil && own.Tenant == a.Tenant && own.Name == a.Name && own.State > 0 {
			return problem.New(problem.Conflict, "end its jail first", "the state of %s is in use by jail %s", a.Name, r.Name)
		}
	}
	return nil
}

// List reports every jail, oldest first.
func (g *Registry) List(context.Context) ([]Status, error) {
	out := []Status{}
	for _, e := range g.Entries() {
		out = append(out, e.Record().Status())
	}
	slices.SortFunc(out, func(a, b Status) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// Status is what others are told of a jail, without its usage.
func (r Record) Status() Status {
	s := Status{Name: r.Name, State: r.State, Spec: r.Spec, Lease: r.Lease, PID: r.Process.PID,
		Created: r.Created, Deadline: r.Deadline, Exit: r.Exit}
	s.Spec.HomeFiles = nil // a listing does not need them
	return s
}

// Wait blocks until the jail's program has ended.
func (g *Registry) Wait(ctx context.Context, name Name) (Exit, error) {
	e, err := g.Lookup(name)
	if err != nil {
		return Exit{}, err
	}
	select {
	case <-e.ended:
		return *e.Record().Exit, nil
	case <-ctx.Done():
		return Exit{}, ctx.Err()
	}
}

// Lost says that an owner is gone. Its owner jails are ended after the grace period, unless it is Found.
func (g *Registry) Lost(owner string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.lost[owner]; !ok && owner != "" {
		g.lost[owner] = g.o.Now()
	}
}

// Found says that an owner is there.
func (g *Registry) Found(owner string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.lost, owner)
}

// AwaitOwners says that owners can come back from now on: each that is gone has its whole grace period, and to ask how
// a program ended as well. Before that no owner of the journal is missed, however long the start takes.
func (g *Registry) AwaitOwners() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.awaited = g.o.Now()
	for o := range g.lost {
		g.lost[o] = g.awaited
	}
}

// EndedGrace is how long a jail is kept whose owner is gone and whose program has ended with it: long enough for an
// owner that comes back after a restart of the host daemon to ask how the program ended.
const EndedGrace = 2 * time.Second

// Verdict is why a jail should not be; without a text it may live.
type Verdict struct {
	Text  string
	Cause Cause
}

// Overdue yields the jails that have to end. All are found at once, and each is judged again when its turn
// comes: ending those before it takes time, in which its owner may have come back.
func (g *Registry) Overdue() iter.Seq2[Record, Verdict] {
	g.mu.Lock()
	defer g.mu.Unlock()
	var late []*Entry
	owners := map[string]bool{}
	for _, e := range g.jails {
		owners[e.rec.Owner] = true
		if g.judge(e).Text != "" {
			late = append(late, e)
		}
	}
	for o := range g.lost {
		if !owners[o] { // its last jail is gone, and the owner makes no others
			delete(g.lost, o)
		}
	}
	return func(yield func(Record, Verdict) bool) {
		for _, e := range late {
			g.mu.Lock()
			r, v := e.rec, g.judge(e)
			g.mu.Unlock()
			if v.Text != "" && !yield(r, v) {
				return
			}
		}
	}
}

// judge says why a jail should not be. The caller holds g.mu.
func (g *Registry) judge(e *Entry) Verdict {
	r, now := e.rec, g.o.Now()
	since, lost := g.lost[r.Owner]
	gone := now.Sub(since)
	switch {
	case e.active, e.tornDown: // being made or ended right now, or gone
	case r.State != StateStarted && r.State != StateReady:
		return Verdict{fmt.Sprintf("left in state %s by a process that is gone", r.State), CauseOwnerLost}
	case r.TimeIsUp(now):
		return Verdict{"its wall clock has run out", CauseWallClock}
	case r.Spec.Lifetime != LifetimeOwner, lost && since.IsZero():
	case lost && gone >= g.o.Grace:
		return Verdict{"its owner is gone", CauseOwnerLost}
	case lost && r.Exit != nil && gone >= min(EndedGrace, g.o.Grace):
		return Verdict{"its owner is gone and its program has ended", CauseOwnerLost}
	case r.Exit != nil && min(now.Sub(r.Exit.At), now.Sub(g.awaited)) >= g.o.Grace:
		return Verdict{"its program has ended and nobody destroyed it", CauseDestroyed}
	}
	return Verdict{}
}

// Record is what is known of the jail now.
func (e *Entry) Record() Record {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	return e.rec
}

// Idle is Record, and says whether the jail is not being made or ended right now.
func (e *Entry) Idle() (Record, bool) {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	return e.rec, !e.active
}

// Change changes the record, in memory alone.
func (e *Entry) Change(f func(*Record)) {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	f(&e.rec)
}

// Put journals a state, then takes it on.
func (e *Entry) Put(ctx context.Context, s State) error {
	r := e.Record()
	r.State = s
	if err := e.of.o.Journal.Put(ctx, r); err != nil {
		return fmt.Errorf("journal %s as %s: %w", r.Name, s, err)
	}
	e.Change(func(r *Record) { r.State = s })
	return nil
}

// Acquire waits until no other goroutine changes the host for the jail. Leave lets the next one do so.
func (e *Entry) Acquire(ctx context.Context) error {
	select {
	case e.working <- struct{}{}:
		e.of.mu.Lock()
		defer e.of.mu.Unlock()
		e.active = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave is the other half of Acquire, and of Registry.Enter.
func (e *Entry) Leave() {
	e.of.mu.Lock()
	e.active = false
	e.of.mu.Unlock()
	<-e.working
}

// SetCause says why the jail is being ended. The first word counts.
func (e *Entry) SetCause(c Cause) {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	e.cause = cmp.Or(e.cause, c)
}

// Cause is why the jail is being ended; empty when it is not, or ends by itself.
func (e *Entry) Cause() Cause {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	return e.cause
}

// Watch says that the caller waits for the end of the program, and will tell Exited. It is false when somebody else does.
func (e *Entry) Watch() bool {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	began := e.watched
	e.watched = true
	return !began
}

// Ended is closed when the program has ended and the record says how.
func (e *Entry) Ended() <-chan struct{} { return e.ended }

// Exited records how the program has ended.
func (e *Entry) Exited(x Exit) {
	e.of.mu.Lock()
	x.Cause = cmp.Or(e.cause, x.Cause)
	if x.Cause == CauseWallClock {
		x.Hit = append(x.Hit, LimitWallClock)
	}
	e.rec.Exit = &x
	e.of.mu.Unlock()
	close(e.ended)
	e.of.o.Log.Info("jail ended", "jail", e.rec.Name, "cause", x.Cause, "code", x.Code, "signal", x.Signal, "hit", x.Hit)
}

// TornDown says whether nothing of the jail is left.
func (e *Entry) TornDown() bool {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	return e.tornDown
}

// Remove takes a jail of which nothing is left out of the table.
func (e *Entry) Remove() {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	if e.rec.Exit == nil && !e.watched {
		// An earlier process was killed while it made the jail. Callers that wait for its end are woken here.
		e.rec.Exit = &Exit{Code: -1, Cause: cmp.Or(e.cause, CauseDestroyed), At: e.of.o.Now()}
		close(e.ended)
	}
	e.tornDown = true
	delete(e.of.jails, e.rec.Name)
}
