package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/store"
)

// follower is a database that tells what a test sends it. Nil breaks its connection.
type follower struct{ told chan *store.Changed }

func (f follower) Follow(ctx context.Context, changed func(store.Changed)) error {
	changed(store.ChangedUnknown)
	for {
		select {
		case <-ctx.Done():
			return nil
		case kind := <-f.told:
			if kind == nil {
				return errors.New("the connection is broken")
			}
			changed(*kind)
		}
	}
}

func TestWhoKnowsOfWhatHasChangedLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		db := follower{make(chan *store.Changed)}
		rules, keys := 0, 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			follow(ctx, db, map[store.Changed][]func(){
				store.ChangedEntries: {func() { rules++ }},
				store.ChangedKeys:    {func() { keys++ }},
			}, slog.New(slog.DiscardHandler))
		}()
		want := func(after string, wantRules, wantKeys int) {
			t.Helper()
			time.Sleep(2 * lookPause)
			synctest.Wait()
			if rules != wantRules || keys != wantKeys {
				t.Errorf("after %s: rules are looked at %d times, keys %d times; want %d and %d", after, rules, keys, wantRules, wantKeys)
			}
		}
		tell := func(kind store.Changed) { db.told <- &kind }
		want("the beginning", 1, 1)
		tell(store.ChangedEntries)
		want("a rule", 2, 1)
		tell(store.ChangedKeys)
		want("a key", 2, 2)
		tell("of a later version")
		want("what this version does not know", 2, 2)
		tell(store.ChangedEntries) // at once
		synctest.Wait()
		for range 1000 { // together
			tell(store.ChangedEntries)
		}
		want("many rules", 4, 2)
		db.told <- nil
		want("a connection that broke", 4, 2)
		time.Sleep(followAgain)
		want("the next one", 5, 3)
		stop()
		<-ended
	})
}
