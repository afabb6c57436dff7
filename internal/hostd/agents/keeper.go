// Package agents keeps the jails of agents running: it is the jail.Keeper of the host daemon.
//
// Declarations stand in files, one per agent, and so do the tokens. One goroutine per agent compares what is declared
// with what is there and does the next thing: it starts a jail, takes over one that an earlier host daemon has started, ends
// one that is not wanted any more, or waits before it starts again what has ended. A restart makes a new jail; the volume at
// /state, the log and the token go on. The token is put into the jail only after the jail was seen to be confined as
// declared.
//
// It promises: whichever process is killed, and whenever, each declared agent gets one jail, and a jail without a declaration is ended.
package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// Console is what the Keeper needs of the console beside what the makers do with it.
type Console interface {
	ReadLog(ctx context.Context, r jail.LogRequest) (jail.LogChunk, error)
	Type(ctx context.Context, name jail.Name, data []byte) (int, error)
	RemoveLog(ctx context.Context, a jail.Agent) error
}

// Typist is a Maker whose jails have their stdin elsewhere than at the Console.
type Typist interface {
	Type(ctx context.Context, name jail.Name, data []byte) (int, error)
}

// Options configure a Keeper. Those without a default are required.
type Options struct {
	// Dir is the folder of the declarations and tokens. It is made (0700) when it is missing.
	Dir string
	// Maker returns what makes jails, or containers. It may be asked often, and answer with an error while an engine is away.
	Maker func(ctx context.Context, containers bool) (jail.Maker, error)
	// Console keeps what the jails print.
	Console Console
	// Boot names this run of the host: jails do not outlive it.
	Boot string
	Log  *slog.Logger     // default: nothing is logged
	Now  func() time.Time // default time.Now
	// MaxAgents bounds what is declared. Default 1024.
	MaxAgents int
	// MaxStarts bounds the starts at a time. Default 4.
	MaxStarts int
	// Share is how many of a whole may be of one tenant. Default all.
	Share func(whole int64) int64
	// RemoveMade removes the folders of an agent's mounts that were made for it alone. Without it they stay.
	RemoveMade func(ctx context.Context, a jail.Agent, mounts []jail.Mount) error
	// Room says whether a further jail may be made. May be nil.
	Room func() error
	// FirstPause, LongestPause and Steady are the back-off: a jail that ends is started again after FirstPause, then twice that,
	// up to LongestPause, and after FirstPause again when it has run for Steady. Default 1 s, 1 min, 10 min.
	FirstPause, LongestPause, Steady time.Duration
	// StartLimit bounds one start. Default 1 min.
	StartLimit time.Duration
	// SweepEvery is how often undeclared jails are looked for. Default 1 min.
	SweepEvery time.Duration
}

// Validate fills in defaults and reports everything that is wrong at once.
func (o *Options) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("keeper: %s is missing", what))
		}
	}
	need(o.Dir != "", "the folder of the declarations")
	need(o.Maker != nil, "what makes jails")
	need(o.Console != nil, "the console")
	need(o.Boot != "", "the name of this run of the host")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Room == nil {
		o.Room = func() error { return nil }
	}
	if o.RemoveMade == nil {
		o.RemoveMade = func(context.Context, jail.Agent, []jail.Mount) error { return nil }
	}
	o.MaxAgents = cmp.Or(o.MaxAgents, 1024)
	o.MaxStarts = cmp.Or(o.MaxStarts, 4)
	o.FirstPause = cmp.Or(o.FirstPause, time.Second)
	o.LongestPause = cmp.Or(o.LongestPause, time.Minute)
	o.Steady = cmp.Or(o.Steady, jail.SteadyRun)
	o.StartLimit = cmp.Or(o.StartLimit, time.Minute)
	o.SweepEvery = cmp.Or(o.SweepEvery, time.Minute)
	need(o.MaxAgents > 0 && o.MaxStarts > 0 && o.FirstPause > 0 && o.LongestPause >= o.FirstPause && o.Steady > 0 &&
		o.StartLimit > 0 && o.SweepEvery > 0, "a limit, which must be positive,")
	return errors.Join(errs...)
}

// Keeper keeps jails running. Its methods may be called concurrently, after Start.
type Keeper struct {
	Options
	files  *files
	starts *quota.Turns

	background context.Context
	stop       context.CancelFunc
	working    sync.WaitGroup

	mu      sync.Mutex
	agents  map[string]*agent // by key
	version uint64            // of the listing
	news    chan struct{}     // closed with the next version; nil when no call waits
	closed  bool

	reading sync.Mutex // held while the folder is read
	finding sync.Mutex // held while an engine is asked for what runs
	found   map[bool]map[string][]jail.Status
}

// Open reads what is declared. Nothing is started before Start.
func Open(o Options) (*Keeper, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	f, err := openFiles(o.Dir, o.Log)
	if err != nil {
		return nil, err
	}
	all, err := f.load()
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	k := &Keeper{
		Options: o, files: f, starts: quota.NewTurns(o.MaxStarts, o.Share), agents: map[string]*agent{},
		found: map[bool]map[string][]jail.Status{},
		// Versions go on from the clock, so that one from before a restart is not taken for one of now.
		version: uint64(o.Now().UnixNano()),
	}
	k.background, k.stop = context.WithCancel(context.Background())
	for _, d := range all {
		k.agents[d.Key()] = newAgent(k, d)
	}
	return k, nil
}

// Containers says whether something was declared that an engine makes.
func (k *Keeper) Containers() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.agents {
		if a.declared.Containers {
			return true
		}
	}
	return false
}

// Start begins to keep what is declared. It waits for nothing.
func (k *Keeper) Start() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.agents {
		k.working.Go(a.live)
	}
	k.working.Go(k.sweep)
}

// Close stops keeping. Jails run on; the next Keeper takes them over. A start that is under way is undone.
func (k *Keeper) Close() error {
	k.mu.Lock()
	k.closed = true
	k.stop()
	k.mu.Unlock()
	k.working.Wait()
	return k.files.close()
}

// Keep implements jail.Keeper.
func (k *Keeper) Keep(ctx context.Context, kept jail.Kept, token string) error {
	if err := Validate(kept); err != nil {
		return err
	}
	if token != "" {
		if err := validToken(token); err != nil {
			return err
		}
	}
	kept, err := clone(kept)
	if err != nil {
		return err
	}
	key := kept.Spec.Agent.Key()
	for {
		a, err := k.agentFor(key, kept)
		if err != nil {
			return err
		}
		seq, gone, err := a.declare(kept, token)
		if gone == nil {
			if err != nil || seq == 0 {
				return err
			}
			return a.settledAt(ctx, seq)
		}
		select { // an earlier one of that name is being dropped
		case <-gone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// agentFor finds the agent of a key, or makes one of which nothing is declared yet.
func (k *Keeper) agentFor(key string, kept jail.Kept) (*agent, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, errClosed()
	}
	if a := k.agents[key]; a != nil {
		return a, nil
	}
	if len(k.agents) >= k.MaxAgents {
		return nil, problem.New(problem.PoolExhausted, "remove some: clawjail agent remove NAME", "there are %d agents, the most there may be", k.MaxAgents)
	}
	a := newAgent(k, declaration{Version: declarationVersion, Kept: jail.Kept{Spec: jail.Spec{Agent: kept.Spec.Agent}}})
	a.blank, a.fresh = true, true
	k.agents[key] = a
	k.working.Go(a.live)
	return a, nil
}

// Drop implements jail.Keeper.
func (k *Keeper) Drop(ctx context.Context, tenant, name string, o jail.DropOptions) error {
	id, err := identify(tenant, name)
	if err != nil {
		return err
	}
	var seq uint64
	a, err := k.lookup(id)
	if err == nil {
		seq, err = a.drop(o)
	}
	if errors.Is(err, errUnknown) {
		return k.removeRemains(ctx, id, o)
	}
	if err != nil {
		return err
	}
	return a.settledAt(ctx, seq)
}

// removeRemains removes what an earlier Drop has kept.
func (k *Keeper) removeRemains(ctx context.Context, id jail.Agent, o jail.DropOptions) error {
	var errs []error
	if !o.KeepLog {
		errs = append(errs, k.Console.RemoveLog(ctx, id))
	}
	if !o.KeepState {
		containers, err := k.files.remains(id.Key())
		errs = append(errs, err, k.removeState(ctx, id, containers))
		if errors.Join(errs...) == nil {
			errs = append(errs, k.files.forget(id.Key()))
		}
	}
	return errors.Join(errs...)
}

// Remains are the volumes that agents which are gone have at the engine, by key, with what was declared of each.
func (k *Keeper) Remains() (map[string]int64, error) {
	k.reading.Lock()
	defer k.reading.Unlock()
	return k.files.remembered()
}

// removeState removes the volume of an agent, wherever it has had one.
func (k *Keeper) removeState(ctx context.Context, id jail.Agent, containers bool) error {
	m, err := k.Maker(ctx, false)
	if err == nil {
		err = m.RemoveState(ctx, id)
	}
	if err != nil || !containers {
		return err
	}
	if m, err = k.Maker(ctx, true); err != nil {
		return err
	}
	return m.RemoveState(ctx, id)
}

// SetToken implements jail.Keeper.
func (k *Keeper) SetToken(ctx context.Context, tenant, name, token string) error {
	a, err := k.find(tenant, name)
	if err != nil {
		return err
	}
	if err := validToken(token); err != nil {
		return err
	}
	return a.setToken(ctx, token)
}

// HasToken implements jail.Keeper.
func (k *Keeper) HasToken(_ context.Context, tenant, name string) (bool, error) {
	a, err := k.find(tenant, name)
	if err != nil {
		return false, err
	}
	return a.hasToken()
}

// RestartKept implements jail.Keeper.
func (k *Keeper) RestartKept(ctx context.Context, tenant, name string) error {
	a, err := k.find(tenant, name)
	if err != nil {
		return err
	}
	seq, err := a.restart()
	if err != nil {
		return err
	}
	return a.settledAt(ctx, seq)
}

// ReadLog implements jail.Keeper.
func (k *Keeper) ReadLog(ctx context.Context, r jail.LogRequest) (jail.LogChunk, error) {
	chunk, err := k.Console.ReadLog(ctx, r)
	if problem.CodeOf(err) == problem.NotFound {
		if _, findErr := k.find(r.Tenant, r.Name); findErr == nil { // it has not printed anything yet
			return jail.LogChunk{}, nil
		}
	}
	return chunk, err
}

// maxType bounds what is typed at once.
const maxType = 1 << 20

// Type implements jail.Keeper.
func (k *Keeper) Type(ctx context.Context, tenant, name string, data []byte) (int, error) {
	if len(data) > maxType {
		return 0, problem.New(problem.BadRequest, "type less at once", "%d bytes are more than %d", len(data), maxType)
	}
	a, err := k.find(tenant, name)
	if err != nil {
		return 0, err
	}
	k.mu.Lock()
	running := a.status.Jail
	k.mu.Unlock()
	if running == "" {
		return 0, problem.New(problem.Conflict, "start it first", "the agent %s does not run", name)
	}
	m, err := k.Maker(ctx, running.InContainer())
	if err != nil {
		return 0, err
	}
	if t, ok := m.(Typist); ok {
		return t.Type(ctx, running, data)
	}
	return k.Console.Type(ctx, running, data)
}

var errUnknown = errors.New("no such agent")

func (k *Keeper) find(tenant, name string) (*agent, error) {
	id, err := identify(tenant, name)
	if err != nil {
		return nil, err
	}
	return k.lookup(id)
}

func (k *Keeper) lookup(id jail.Agent) (*agent, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, errClosed()
	}
	a := k.agents[id.Key()]
	if a == nil || a.blank {
		return nil, problem.Wrap(errUnknown, problem.NotFound, "`clawjail agent ls` lists the agents", "no jail is kept for an agent %s", id.Key())
	}
	return a, nil
}

func identify(tenant, name string) (jail.Agent, error) {
	return jail.Agent{Tenant: tenant, Name: name}, errors.Join(jail.ValidAgentName(tenant), jail.ValidAgentName(name))
}

func errClosed() error {
	return problem.New(problem.ShuttingDown, "start it again: sudo clawjail up", "the host daemon is being stopped")
}
