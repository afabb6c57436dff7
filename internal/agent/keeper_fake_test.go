package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// memoryKeeper keeps jails that are a few maps.
type memoryKeeper struct {
	jail.Keeper // what is not here is not called
	// step is called before and after everything that changes something; an error of it stands for a process that is gone.
	step func(op string) error
	// missing are the sources that no jail can be made of.
	missing map[string]error
	dial    func(ctx context.Context, name jail.Name, port uint16) (*os.File, error)

	mu      sync.Mutex // guards what follows
	version uint64
	news    chan struct{}
	kept    map[string]*jail.KeptStatus // by key
	tokens  map[string]string
	states  map[string]bool
	jails   int
	changes []string
	away    error // of every listing
	typed   string
}

func newMemoryKeeper() *memoryKeeper {
	return &memoryKeeper{version: 1, news: make(chan struct{}), kept: map[string]*jail.KeptStatus{}, tokens: map[string]string{}, states: map[string]bool{},
		missing: map[string]error{}}
}

func (k *memoryKeeper) at(op string) error {
	if k.step == nil {
		return nil
	}
	return k.step(op)
}

// changed is called with mu held.
func (k *memoryKeeper) changed(format string, args ...any) {
	k.version++
	k.changes = append(k.changes, fmt.Sprintf(format, args...))
	close(k.news)
	k.news = make(chan struct{})
}

// restart is called with mu held.
func (k *memoryKeeper) restart(s *jail.KeptStatus) {
	k.jails++
	s.Jail, s.Addr = jail.Name(fmt.Sprintf("atest%05d", k.jails)), netip.AddrFrom4([4]byte{10, 0, byte(k.jails >> 8), byte(k.jails)})
	s.Phase, s.Problem = jail.PhaseRunning, ""
	if s.Stopped {
		s.Phase, s.Jail, s.Addr = jail.PhaseStopped, "", netip.Addr{}
	}
}

func (k *memoryKeeper) Keep(_ context.Context, kept jail.Kept, token string) error {
	if err := k.at("keep"); err != nil {
		return err
	}
	if err := kept.Spec.Validate(); err != nil {
		return err
	}
	key := kept.Spec.Agent.Key()
	k.mu.Lock()
	old := k.kept[key]
	if token == "" && k.tokens[key] == "" {
		k.mu.Unlock()
		return problem.New(problem.NotFound, "", "there is no token for %s", key)
	}
	if token != "" {
		k.tokens[key] = token
	}
	switch {
	case old == nil, old.Revision != kept.Revision, old.Stopped != kept.Stopped:
		s := &jail.KeptStatus{Kept: kept}
		s.Spec.HomeFiles = nil // as the host daemon shows it
		k.kept[key], k.states[key] = s, true
		k.restart(s)
		k.changed("keep %s stopped=%t", key, kept.Stopped)
	case old.Restart != kept.Restart || token != "":
		old.Restart = kept.Restart
		k.changed("keep %s again", key)
	}
	k.mu.Unlock()
	return k.at("kept")
}

func (k *memoryKeeper) Drop(_ context.Context, tenant, name string, o jail.DropOptions) error {
	if err := k.at("drop"); err != nil {
		return err
	}
	key := jail.Agent{Tenant: tenant, Name: name}.Key()
	k.mu.Lock()
	if !o.KeepState {
		delete(k.states, key)
	}
	if k.kept[key] != nil {
		delete(k.kept, key)
		delete(k.tokens, key)
		k.changed("drop %s", key)
	}
	k.mu.Unlock()
	return k.at("dropped")
}

func (k *memoryKeeper) Kept(ctx context.Context, after uint64, _ bool) (uint64, []jail.KeptStatus, error) {
	for {
		k.mu.Lock()
		if k.away != nil {
			defer k.mu.Unlock()
			return 0, nil, k.away
		}
		if k.version != after {
			defer k.mu.Unlock()
			var all []jail.KeptStatus
			for _, key := range slices.Sorted(maps.Keys(k.kept)) {
				all = append(all, *k.kept[key])
			}
			return k.version, all, nil
		}
		news := k.news
		k.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return after, nil, ctx.Err()
		}
	}
}

func (k *memoryKeeper) CheckKept(_ context.Context, all []jail.Kept) ([]error, error) {
	out := make([]error, len(all))
	for i, kept := range all {
		out[i] = k.missing[kept.Spec.Template+kept.Spec.Image]
	}
	return out, nil
}

func (k *memoryKeeper) SetToken(_ context.Context, tenant, name, token string) error {
	if err := k.at("set token"); err != nil {
		return err
	}
	key := jail.Agent{Tenant: tenant, Name: name}.Key()
	k.mu.Lock()
	k.tokens[key] = token
	k.changed("token %s", key)
	k.mu.Unlock()
	return k.at("token set")
}

func (k *memoryKeeper) HasToken(_ context.Context, tenant, name string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tokens[jail.Agent{Tenant: tenant, Name: name}.Key()] != "", nil
}

func (k *memoryKeeper) RestartKept(_ context.Context, tenant, name string) error {
	key := jail.Agent{Tenant: tenant, Name: name}.Key()
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.kept[key]; s != nil {
		k.restart(s)
		k.changed("restart %s", key)
	}
	return nil
}

func (k *memoryKeeper) ReadLog(_ context.Context, r jail.LogRequest) (jail.LogChunk, error) {
	return jail.LogChunk{Data: []byte(r.Tenant + "/" + r.Name)}, nil
}

func (k *memoryKeeper) Type(_ context.Context, tenant, name string, data []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.typed = tenant + "/" + name + ": " + string(data)
	return len(data), nil
}

func (k *memoryKeeper) DialIn(ctx context.Context, name jail.Name, port uint16) (*os.File, error) {
	return k.dial(ctx, name, port)
}

// edit changes what the keeper says of an agent, as if something had happened to its jail.
func (k *memoryKeeper) edit(key string, change func(*jail.KeptStatus)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k.kept[key])
	k.changed("edit %s", key)
}

func (k *memoryKeeper) status(key string) (jail.KeptStatus, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.kept[key]; s != nil {
		return *s, true
	}
	return jail.KeptStatus{}, false
}

func (k *memoryKeeper) token(key string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tokens[key]
}

// done is what was changed since the last call.
func (k *memoryKeeper) done() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.changes
	k.changes = nil
	return out
}
