//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/inventory"
)

// holding is what must not grow.
type holding struct{ rss, descriptors, things, files float64 }

func (x *box) holding(ctx context.Context) (h holding, err error) {
	daemons, _, err := x.processes()
	if err != nil {
		return h, err
	}
	h.rss = megabytes(daemons, "status", "VmRSS:")
	pids, err := x.Processes()
	if err != nil {
		return h, err
	}
	for _, pid := range pids {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return h, err
		}
		h.descriptors += float64(len(fds))
	}
	scope, err := x.Scope()
	if err != nil {
		return h, err
	}
	things, err := inventory.Settled(ctx, scope)
	h.things = float64(len(inventory.CountSlots(things)))
	for _, dir := range []string{x.Config.DataDir, x.Config.RunDir} {
		err = errors.Join(err, filepath.Walk(dir, func(_ string, _ os.FileInfo, err error) error {
			if err == nil {
				h.files++
			}
			return nil // what goes away while walking is not there
		}))
	}
	return h, err
}

// rememberedSessions is how many that have ended are remembered for a while: until there are so many, memory grows.
const rememberedSessions = 300

// growth opens, uses and closes many sessions, and compares what the program holds.
func (b *bench) growth(ctx context.Context) error {
	if b.cycles == 0 {
		return nil
	}
	x := b.boxes[cold]
	cycle := func(int) error {
		s, err := x.api.Open(ctx, api.OpenRequest{})
		if err != nil {
			return err
		}
		if _, err := x.api.Navigate(ctx, s.ID, browser.Navigate{URL: "about:blank"}); err != nil {
			return err
		}
		return x.api.Close(ctx, s.ID, true)
	}
	if _, err := atOnce(2, upTo(min(rememberedSessions, b.cycles)), cycle); err != nil {
		return err
	}
	before, err := x.holding(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := atOnce(2, upTo(b.cycles), cycle); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := x.holding(ctx)
	if err != nil {
		return err
	}
	r, over := &b.result, fmt.Sprintf(", over %d cycles", b.cycles)
	r.Value("growth: memory of the daemons"+over, "MB", after.rss-before.rss).AtMost(5)
	r.Value("growth: descriptors"+over, "", after.descriptors-before.descriptors).AtMost(0)
	r.Value("growth: mounts, interfaces, groups"+over, "", after.things-before.things).AtMost(0)
	r.Value("growth: files"+over, "", after.files-before.files).AtMost(0)
	r.Value("load: open, navigate, close until gone, two at a time", "1/s", float64(b.cycles)/took.Seconds())
	return nil
}
