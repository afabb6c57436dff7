//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// times are durations by the names of their figures, a round's each.
type times map[string][]time.Duration

// inTurn does the same in several rounds, so that all that it times sees the same noise, and adds the figures. The rounds before
// them fill the caches, and are not counted.
func (b *bench) inTurn(rounds, before int, do func(times) error) (times, error) {
	t := times{}
	for n := range before + rounds {
		if n == before {
			clear(t)
		}
		if err := do(t); err != nil {
			return nil, err
		}
	}
	for name, all := range t {
		b.result.Times(name, all)
	}
	return t, nil
}

// timed does something, and keeps how long that took.
func (t times) timed(name string, do func() error) error {
	began := time.Now()
	err := do()
	t.add(name, time.Since(began))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (t times) add(name string, took time.Duration) { t[name] = append(t[name], took) }

// ratio is how many times as long as the other something took, in the middle of all rounds: the machine is another in each.
func ratio(ours, theirs []time.Duration) float64 {
	var all []float64
	for n := range ours {
		all = append(all, float64(ours[n])/float64(theirs[n]))
	}
	return median(all)
}

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

// milliseconds are how programs print durations.
func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// inOrder does one after the other, up to the first that does not work.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// atOnce has several callers do something over and over, as long as there is more. It is told how often it was begun already, and
// returns how often it was done.
func atOnce(callers int, more func(begun int) bool, do func(n int) error) (int, error) {
	var begun, done atomic.Int64
	errs := make([]error, callers)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for n := int(begun.Add(1)) - 1; more(n); n = int(begun.Add(1)) - 1 {
				if errs[i] = do(n); errs[i] != nil {
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	return int(done.Load()), errors.Join(errs...)
}

// upTo is more for atOnce: so often altogether.
func upTo(times int) func(int) bool { return func(begun int) bool { return begun < times } }

// during is more for atOnce: for so long.
func during(span time.Duration) func(int) bool {
	end := time.Now().Add(span)
	return func(int) bool { return time.Now().Before(end) }
}

// await asks until something is so.
func await(limit, pause time.Duration, what string, is func() (bool, error)) error {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(pause) {
		if ok, err := is(); ok || err != nil {
			return err
		}
	}
	return fmt.Errorf("not within %s: %s", limit, what)
}
