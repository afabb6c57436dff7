package egress

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Book holds rules, settings, services, providers and requests for access, and answers what a caller may do. It may be used by many goroutines.
type Book struct {
	o      Options
	reader reader
	state  atomic.Pointer[state]
	// stale says that the rules of now are not known: the store has not answered for long, or not after a change.
	stale     atomic.Bool
	whenStale *EffectivePolicy // what deaf gives
	nobody    *EffectivePolicy // for a caller that is no jail of an agent or a session

	loading  sync.Mutex // one at a time, so that no state takes the place of a later one
	changing sync.Mutex // of changes that count before they add

	waiting waiting
	models  models
	look    wake.Signal // for a comparison with the store

	stop    context.CancelFunc
	stopped <-chan struct{}
	running sync.WaitGroup
}

const (
	// patience is how many comparisons with the store in a row may fail.
	patience = 10
	// answerTime is how long the store may take for reading everything.
	answerTime = 10 * time.Second
)

// Open reads the entries. Close must be called.
func Open(ctx context.Context, o Options) (*Book, error) {
	o.Fixed = slices.Clone(o.Fixed)
	for i := range o.Fixed {
		if o.Fixed[i].Priority == 0 {
			o.Fixed[i].Priority = defaultPriority
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	b := &Book{o: o, reader: reader{seed: maphash.MakeSeed(), fixed: o.Fixed, log: o.Log}, whenStale: closedView(policy.RuleUnknown),
		nobody: closedView("caller-unknown"), look: wake.New()}
	if err := b.load(ctx); err != nil {
		return nil, fmt.Errorf("read what agents may reach: %w", err)
	}
	within, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stop, b.stopped = stop, within.Done()
	b.running.Go(func() { b.watch(within) })
	return b, nil
}

// Close stops comparing with the store, and ends every wait.
func (b *Book) Close() {
	b.stop()
	b.running.Wait()
}

// Look starts a comparison of the entries with the store. It does not wait for that.
func (b *Book) Look() { b.look.Send() }

// watch reads what other processes change.
func (b *Book) watch(ctx context.Context) {
	every := time.NewTicker(b.o.Recheck)
	defer every.Stop()
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		case <-b.look:
		}
		within, cancel := context.WithTimeout(ctx, answerTime)
		err := b.load(within)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failed = 0
			continue
		}
		if failed++; failed == 1 || failed == patience {
			b.o.Log.Error("what agents may reach cannot be read", "failed", failed, "denies_all", failed >= patience, "error", err)
		}
		if failed >= patience {
			b.stale.Store(true)
		}
	}
}

// load reads the entries if they have changed.
func (b *Book) load(ctx context.Context) error {
	b.loading.Lock()
	defer b.loading.Unlock()
	// The number is read first: what changes in between has a later one, and is read again.
	revision, err := b.o.Store.EntriesRevision(ctx)
	if err != nil {
		return err
	}
	before := b.state.Load()
	if before == nil || before.revision != revision {
		entries, err := b.o.Store.ListEntries(ctx, "")
		if err != nil {
			return err
		}
		b.state.Store(b.reader.next(before, revision, entries))
		if before != nil {
			close(before.changed)
		}
	}
	b.stale.Store(false)
	return nil
}

// current is what the store has now, for listings: another process may have changed it, and entries of
// an agent that was deleted went with it. Decisions about requests of agents use what is in memory.
func (b *Book) current(ctx context.Context) (*state, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	revision, err := b.o.Store.EntriesRevision(ctx) // outside of load's lock: a store that hangs holds up only this call
	if err != nil {
		return nil, err
	}
	if s := b.state.Load(); s.revision == revision {
		return s, nil
	}
	if err := b.load(ctx); err != nil {
		return nil, err
	}
	return b.state.Load(), nil
}

// reload puts into effect what this process has just changed. When it cannot, everything is denied until it can: what
// was changed may have been something that is not allowed any more.
func (b *Book) reload(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	if err := b.load(ctx); err != nil {
		b.stale.Store(true)
		b.o.Log.Error("what agents may reach was changed and cannot be read", "denies_all", true, "error", err)
	}
}

// may says whether somebody may do something with what is a tenant's, or an agent's.
func (b *Book) may(ctx context.Context, by identity.Principal, op identity.Operation, of scope) error {
	return b.o.Identity.AuthorizeWith(ctx, by, op, identity.Object{Tenant: of.tenant, Agent: of.agent})
}

// mayWith is may for one thing, which a stranger is told that it does not exist.
func (b *Book) mayWith(ctx context.Context, by identity.Principal, op identity.Operation, of scope, missing error) error {
	err := b.may(ctx, by, op, of)
	if by.Hides(err) {
		return missing
	}
	return err
}

// mayChange is may for a change, which needs more when it is for all tenants or leads inside.
func (b *Book) mayChange(ctx context.Context, by identity.Principal, op identity.Operation, tenant string, inside bool) error {
	if err := b.may(ctx, by, op, scope{tenant: tenant}); err != nil {
		return err
	}
	if tenant == "" || inside {
		return b.may(ctx, by, identity.EgressInside, scope{})
	}
	return nil
}

// step is one thing that is done and recorded.
type step struct {
	by     identity.Principal
	op     identity.Operation
	of     scope
	target string
	fields audit.Fields
	// ends says that something is taken away, which no record holds up.
	ends bool
}

func (s step) intent() audit.Intent {
	if s.fields == nil {
		s.fields = audit.Fields{}
	}
	if s.of.agent != "" {
		s.fields["agent_id"] = s.of.agent
	}
	return audit.Intent{Action: string(s.op), Tenant: s.of.tenant, Actor: s.by.Actor(), Target: texts.Clip(s.target, 900), Detail: audit.NewDetail(s.fields)}
}

// change does something between its intent and its outcome, and puts it into effect.
func (b *Book) change(ctx context.Context, s step, do func() error) error {
	effective := func() error {
		defer b.reload(ctx)
		return do()
	}
	if s.ends {
		return audit.Ending(b.o.Audit, s.intent(), effective)
	}
	return audit.Do(ctx, b.o.Audit, s.intent(), effective)
}

// agentOf checks that an agent is one of a tenant.
func (b *Book) agentOf(ctx context.Context, of scope) error {
	if of.agent == "" {
		return nil
	}
	a, err := b.o.Store.AgentByID(ctx, of.agent)
	if errors.Is(err, store.ErrNotFound) || err == nil && a.Tenant != of.tenant {
		return noAgent()
	}
	return err
}

func noAgent() error {
	return problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no such agent")
}

// entry finds an entry of a kind, wherever it was made.
func (b *Book) entry(ctx context.Context, kind, id string, missing error) (store.Entry, error) {
	if id == "" || !clean(id, 128) {
		return store.Entry{}, missing
	}
	e, err := b.o.Store.Entry(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && e.Kind != kind {
		return store.Entry{}, missing
	}
	return e, err
}

// removed deletes an entry.
func (b *Book) removed(ctx context.Context, id string, missing error) error {
	err := b.o.Store.DeleteEntry(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return missing
	}
	return err
}

// create keeps a new entry. One that has expired does not keep its name from it.
func (b *Book) create(ctx context.Context, e store.Entry, now time.Time) error {
	err := b.o.Store.CreateEntry(ctx, e)
	if !errors.Is(err, store.ErrExists) || e.Name == "" {
		return failure(err)
	}
	old, _, findErr := b.find(ctx, e.Kind, e.Name, scope{e.Tenant, e.Agent})
	if findErr != nil || old.ID == "" || !expired(old.ExpiresAt, now) {
		return errors.Join(failure(err), findErr)
	}
	if err := b.o.Store.DeleteEntry(ctx, old.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return failure(b.o.Store.CreateEntry(ctx, e))
}

// failure is what a caller is told about an entry that could not be kept.
func failure(err error) error {
	switch {
	case errors.Is(err, store.ErrExists):
		return problem.Wrap(err, problem.Conflict, "look at what there is now, and try again", "the entry exists already, or somebody else changed it meanwhile")
	case errors.Is(err, store.ErrNotFound):
		return problem.Wrap(err, problem.NotFound, "look at what there is now", "the tenant, the agent or the entry does not exist")
	}
	return err
}

func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:20]) }

func (b *Book) now() time.Time { return store.Microsecond(b.o.Now()) }

// Tidy removes what has expired, and usage older than 400 days. Rules and settings, which may refuse things, are kept for keepExpired
// more: a clock that was wrong for a while must not take them away. Entries of others are theirs to remove.
func (b *Book) Tidy(ctx context.Context) error {
	now := b.now()
	var errs []error
	for _, kind := range []string{kindRule, kindService, kindProvider, kindSettings, kindAccess} {
		before := now
		if kind == kindRule || kind == kindSettings {
			before = now.Add(-keepExpired)
		}
		_, err := b.o.Store.DeleteEntriesBefore(ctx, kind, before)
		errs = append(errs, err)
	}
	_, usageErr := b.o.Store.DeleteUsageBefore(ctx, now.AddDate(0, 0, -keepUsage).Format(dayForm))
	b.models.forget(now.Format(dayForm))
	return errors.Join(append(errs, usageErr, b.load(ctx))...)
}
