//go:build linux

package main

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/bench/report"
)

func TestWhatIsGivenUpEndsWhatItHasStarted(t *testing.T) {
	b, step, stop := &bench{}, errors.New("a step"), errors.New("an end")
	var ended []string
	start := func(name string, err error) {
		b.atEnd(func() error { ended = append(ended, name); return err })
	}
	err := b.within(func() {
		start("first", nil)
		check(b.within(func() { start("within", nil) }))
		start("second", stop)
		must(0, step)
		t.Error("it goes on")
	})
	if !errors.Is(err, step) || !errors.Is(err, stop) {
		t.Errorf("the error is %v", err)
	}
	if want := []string{"within", "second", "first"}; !slices.Equal(ended, want) {
		t.Errorf("ended: %q", ended)
	}
	if err := b.within(func() { check(nil, nil) }); err != nil || len(b.ends) != 0 {
		t.Errorf("nothing was wrong: %v, %d ends", err, len(b.ends))
	}
}

func TestRoundsThatFillTheCachesAreNotCounted(t *testing.T) {
	b, n := &bench{result: report.Run{Figures: map[string]*report.Figure{}}}, 0
	b.inTurn(3, 2, func(t times) {
		n++
		t.add("a: b", time.Duration(n)*time.Millisecond)
	})
	if f := b.result.Figures["a: b"]; f.N != 3 || f.P50 != 4 || f.Max != 5 {
		t.Errorf("%+v", f)
	}
}

func TestManyDoEachOnceAndTellWhatWentWrong(t *testing.T) {
	each, wrong := make([]int, 100), errors.New("the last")
	if done := atOnce(8, upTo(len(each)), func(n int) { each[n]++ }); done != len(each) || slices.Min(each) != 1 || slices.Max(each) != 1 {
		t.Errorf("%d were done: %v", done, each)
	}
	err := attempt(func() {
		atOnce(8, upTo(len(each)), func(n int) {
			if n == len(each)-1 {
				check(wrong)
			}
		})
	})
	if !errors.Is(err, wrong) {
		t.Errorf("the error is %v", err)
	}
}
