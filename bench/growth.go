//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/inventory"
)

// holding is what must not grow.
type holding struct {
	rss          float64
	descriptors  int
	things       int
	bytes, files int64
}

func (x *box) holding(ctx context.Context) (h holding, err error) {
	if h.rss, err = x.daemons(); err != nil {
		return h, err
	}
	pids, err := x.Processes()
	if err != nil {
		return h, err
	}
	for _, pid := range pids {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return h, err
		}
		h.descriptors += len(fds)
	}
	scope, err := x.Scope()
	if err != nil {
		return h, err
	}
	things, err := inventory.Settled(ctx, scope)
	h.things = len(inventory.CountSlots(things))
	if err != nil {
		return h, err
	}
	for _, dir := range []string{x.Config.DataDir, x.Config.RunDir} {
		err = errors.Join(err, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
			if err == nil {
				h.files++
				h.bytes += info.Size()
			}
			return nil // what goes away while walking is not there
		}))
	}
	return h, err
}

// rememberedSessions is how many that have ended are remembered for a while: until there are so many, memory grows.
const rememberedSessions = 300

// growth opens, uses and closes many sessions, and compares what the program holds.
func (b *bench) growth(ctx context.Context, x *box) error {
	if b.cycles == 0 {
		return nil
	}
	cycle := func() error {
		s, err := x.api.Open(ctx, api.OpenRequest{})
		if err != nil {
			return err
		}
		if _, err := x.api.Navigate(ctx, s.ID, browser.Navigate{URL: "about:blank"}); err != nil {
			return err
		}
		return x.api.Close(ctx, s.ID, true)
	}
	if err := inPairs(min(rememberedSessions, b.cycles), cycle); err != nil {
		return err
	}
	before, err := x.holding(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := inPairs(b.cycles, cycle); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := x.holding(ctx)
	if err != nil {
		return err
	}
	r := &b.result
	over := fmt.Sprintf(", over %d cycles", b.cycles)
	for _, f := range []struct {
		what, unit    string
		growth, limit float64
	}{
		{"memory of the daemons", "MB", after.rss - before.rss, 5},
		{"descriptors", "", float64(after.descriptors - before.descriptors), 0},
		{"mounts, interfaces, groups", "", float64(after.things - before.things), 0},
		{"files", "", float64(after.files - before.files), 0},
	} {
		r.Value("growth: "+f.what+over, f.unit, f.growth)
		r.AtMost("growth: "+f.what+over, f.limit)
	}
	r.Value("load: open, navigate, close until gone, two at a time", "1/s", float64(b.cycles)/took.Seconds())
	return nil
}

// inPairs does something many times, two at a time.
func inPairs(times int, do func() error) error {
	var begun atomic.Int64
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i := range errs {
		both.Go(func() {
			for errs[i] == nil && begun.Add(1) <= int64(times) {
				errs[i] = do()
			}
		})
	}
	both.Wait()
	return errors.Join(errs...)
}
