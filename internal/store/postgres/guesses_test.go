package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/postgres"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
)

func TestWrongKeysAreCountedForAll(t *testing.T) {
	url := pgtest.Start(t).Database(t)
	all := []*postgres.DB{open(t, url), open(t, url)}
	const limit = time.Hour
	// Each of both counts the same places in another order.
	var counting sync.WaitGroup
	for n, db := range all {
		counting.Go(func() {
			for range 50 {
				more := []store.Guess{{Place: "a", Left: 10 * time.Second}, {Place: "b", Left: 20 * time.Second}, {Place: "c", Left: time.Millisecond}}
				if n == 1 {
					more[0], more[1] = more[1], more[0]
				}
				if err := db.AddGuesses(t.Context(), more, limit); err != nil {
					t.Error(err)
				}
			}
		})
	}
	counting.Wait()
	time.Sleep(150 * time.Millisecond) // c is forgotten
	near := func(what string, got store.Guess, place string, want time.Duration) {
		t.Helper()
		if got.Place != place || got.Left > want || got.Left < want-time.Minute {
			t.Errorf("%s: %s waits %s, want %s %s", what, got.Place, got.Left, place, want)
		}
	}
	for _, db := range all {
		list, err := db.ListGuesses(t.Context(), 10, limit)
		if err != nil || len(list) != 2 {
			t.Fatalf("%v, %v", list, err)
		}
		near("of 100 times 10 s", list[1], "a", 1000*time.Second)
		near("of 100 times 20 s", list[0], "b", 2000*time.Second)
		if list, err := db.ListGuesses(t.Context(), 1, limit); err != nil || len(list) != 1 || list[0].Place != "b" {
			t.Errorf("the longest is %v, %v", list, err)
		}
	}
	if err := all[0].AddGuesses(t.Context(), []store.Guess{{Place: "a", Left: 2 * limit}, {Place: "d", Left: 2 * limit}}, limit); err != nil {
		t.Fatal(err)
	}
	list, err := all[1].ListGuesses(t.Context(), 10, limit)
	if err != nil || len(list) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, g := range list[:2] {
		near("more than the most", g, g.Place, limit)
	}
	// What is over is removed by the next that counts.
	if err := pgtest.Exec(t.Context(), url, `DO $$ BEGIN ASSERT (SELECT count(*) FROM guesses) = 3; END $$`); err != nil {
		t.Error(err)
	}
	// The clock of the server has gone back by a day.
	if err := pgtest.Exec(t.Context(), url, `UPDATE guesses SET until = until + interval '1 day' WHERE place IN ('a', 'b')`); err != nil {
		t.Fatal(err)
	}
	if list, err := all[0].ListGuesses(t.Context(), 10, limit); err != nil || len(list) != 1 || list[0].Place != "d" {
		t.Errorf("%v, %v", list, err)
	}
	if err := all[0].AddGuesses(t.Context(), []store.Guess{{Place: "a", Left: time.Minute}}, limit); err != nil {
		t.Fatal(err)
	}
	if list, err := all[0].ListGuesses(t.Context(), 10, limit); err != nil || len(list) != 2 || list[1].Place != "a" || list[1].Left > time.Minute {
		t.Errorf("%v, %v", list, err)
	}
	if err := all[0].AddGuesses(t.Context(), []store.Guess{{Place: "\xff"}}, limit); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a name that is no text: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := all[0].AddGuesses(ended, []store.Guess{{Place: "a"}}, limit); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	many := make([]store.Guess, 4096)
	for n := range many {
		many[n] = store.Guess{Place: fmt.Sprint("many ", n), Left: time.Second}
	}
	if err := all[0].AddGuesses(t.Context(), many, limit); err != nil {
		t.Error(err)
	}
}
