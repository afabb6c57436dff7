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

// failure is why something was given up. Parts consist of steps of which none makes sense when an earlier one did not work: they
// check each, and attempt returns the reason to the code that measures the next part.
type failure struct{ error }

// check gives up unless all is well.
func check(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		panic(failure{err})
	}
}

// must is what a step returned; it gives up when that did not work.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// attempt does something, and returns why it was given up.
func attempt(do func()) (err error) {
	defer func() {
		switch why := recover().(type) {
		case nil:
		case failure:
			err = why.error
		default:
			panic(why)
		}
	}()
	do()
	return nil
}

// times are durations by the names of their figures, a round's each.
type times map[string][]time.Duration

// inTurn does the same in several rounds, so that all that it times sees the same noise, and adds the figures. The rounds before
// them fill the caches, and are not counted.
func (b *bench) inTurn(rounds, before int, do func(times)) times {
	t := times{}
	for n := range before + rounds {
		if n == before {
			clear(t)
		}
		do(t)
	}
	for name, all := range t {
		b.result.Times(name, all)
	}
	return t
}

// timed does something, and keeps how long that took.
func (t times) timed(name string, do func()) {
	began := time.Now()
	err := attempt(do)
	t.add(name, time.Since(began))
	if err != nil {
		check(fmt.Errorf("%s: %w", name, err))
	}
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

// atOnce has several callers do something over and over, as long as there is more. It is told how often it was begun already, and
// returns how often it was done.
func atOnce(callers int, more func(begun int) bool, do func(n int)) int {
	var begun, done atomic.Int64
	errs := make([]error, callers)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			errs[i] = attempt(func() {
				for n := int(begun.Add(1)) - 1; more(n); n = int(begun.Add(1)) - 1 {
					do(n)
					done.Add(1)
				}
			})
		})
	}
	all.Wait()
	check(errs...)
	return int(done.Load())
}

// upTo is more for atOnce: so often altogether.
func upTo(times int) func(int) bool { return func(begun int) bool { return begun < times } }

// during is more for atOnce: for so long.
func during(span time.Duration) func(int) bool {
	end := time.Now().Add(span)
	return func(int) bool { return time.Now().Before(end) }
}

// await asks until something is so.
func await(limit, pause time.Duration, what string, is func() bool) {
	for end := time.Now().Add(limit); !is(); time.Sleep(pause) {
		if time.Now().After(end) {
			check(fmt.Errorf("not within %s: %s", limit, what))
		}
	}
}
