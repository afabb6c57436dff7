package controlplane

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// followAgain is how long after its connection to the database broke this control plane listens again.
	followAgain = time.Second
	// lookPause is between two looks at what has changed, so that many changes are few of them.
	lookPause = 100 * time.Millisecond
)

// looks are called when rows of a kind were changed, perhaps by another control plane. Permissions are entries.
func (p *plane) looks() map[store.Changed][]func() {
	return map[store.Changed][]func(){
		store.ChangedEntries: {p.book.Look, p.sessions.Look},
		store.ChangedKeys:    {p.identity.Look, p.agents.Look},
		store.ChangedSignIns: {p.signin.Look},
		store.ChangedGuesses: {p.identity.LookAtGuesses},
		store.ChangedNodes:   {p.peers.Look, p.nodeLook.Send, p.goneLook.Send},
	}
}

// followStore has everybody look at what other control planes change, as soon as the database tells it. They look now and then
// anyway: the database may be away, or a pooler before it.
func (p *plane) followStore(ctx context.Context) error {
	if db, shared := p.store.(store.Follower); shared {
		follow(ctx, db, p.looks(), p.Log)
	}
	return nil
}

// follow calls those who look, until ctx ends.
func follow(ctx context.Context, db store.Follower, looks map[store.Changed][]func(), log *slog.Logger) {
	c := changes{some: wake.New(), kinds: map[store.Changed]bool{}}
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		for again := true; again; again = wake.Sleep(ctx, followAgain) {
			if err := db.Follow(ctx, c.add); err != nil {
				log.Debug("listen to the database", "error", err)
			}
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.some:
		}
		kinds := c.take()
		for kind, look := range looks {
			if kinds[kind] || kinds[store.ChangedUnknown] {
				for _, look := range look {
					look()
				}
			}
		}
		wake.Sleep(ctx, lookPause)
	}
}

// changes are the kinds of rows that have changed and were not looked at yet.
type changes struct {
	some wake.Signal

	mu    sync.Mutex
	kinds map[store.Changed]bool
}

func (c *changes) add(kind store.Changed) {
	c.mu.Lock()
	c.kinds[kind] = true
	c.mu.Unlock()
	c.some.Send()
}

func (c *changes) take() map[store.Changed]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	kinds := c.kinds
	c.kinds = map[store.Changed]bool{}
	return kinds
}
