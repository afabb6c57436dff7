//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/bench/report"
)

type bench struct {
	binary, templates string
	runs, cycles      int
	only              []string // the names of parts; empty is all
	result            report.Run

	began  time.Time
	site   *site        // what browsers load
	client *playwright  // nil while no part needs it, and when it is not installed
	boxes  map[int]*box // instances by the size of their warm pool
}

// The sizes of warm pools.
const cold, warm = 0, 2

// part is what can be measured alone.
type part struct {
	name    string
	boxes   []int // the instances that it needs
	own     bool  // what it leaves in them is in the way of others
	client  bool  // it needs Playwright
	measure func(*bench, context.Context) error
}

// parts are measured one after the other, those that need the same beside each other.
func parts() []part {
	one, both := []int{cold}, []int{cold, warm}
	return []part{
		{name: "gateway", measure: (*bench).gatewayPart},
		{name: "agents", boxes: one, own: true, measure: (*bench).agents},
		{name: "templates", boxes: one, own: true, measure: (*bench).templatesPart},
		{name: "console", boxes: one, own: true, measure: (*bench).console},
		{name: "starts", boxes: both, measure: (*bench).starts},
		{name: "arena", boxes: both, client: true, measure: (*bench).arena},
		{name: "injection", boxes: both, measure: (*bench).warmInjection},
		{name: "identity", boxes: one, measure: (*bench).identity},
		{name: "memory", boxes: one, measure: (*bench).memory},
		{name: "sustained", boxes: one, measure: (*bench).sustained},
		{name: "twenty", boxes: one, measure: (*bench).twenty},
		{name: "growth", boxes: one, measure: (*bench).growth},
		{name: "driving", boxes: one, client: true, measure: (*bench).driving},
		{name: "snapshot", measure: (*bench).snapshot},
		{name: "go", measure: (*bench).goPart},
	}
}

func partNames() (names []string) {
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

// all measures what was asked for. A part that fails is noted, and the others are measured all the same: an error is
// returned only when nothing of this run is to be kept, because it was interrupted or what it started is not gone.
func (b *bench) all(ctx context.Context) (err error) {
	b.site = startSite()
	defer func() {
		err = errors.Join(err, b.endBoxes(nil))
		if b.client != nil {
			err = errors.Join(err, b.client.end())
		}
		b.site.Close()
	}()
	wanted := parts()
	if len(b.only) > 0 {
		wanted = slices.DeleteFunc(wanted, func(p part) bool { return !slices.Contains(b.only, p.name) })
	}
	for n, p := range wanted {
		b.progress("part %d of %d: %s", n+1, len(wanted), p.name)
		err := b.one(ctx, p)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted in part %s; nothing is written", p.name)
		}
		if err != nil {
			b.result.Failed = append(b.result.Failed, report.LeftOut{What: p.name, Why: err.Error()})
			b.progress("%s: failed: %v", p.name, err)
		}
	}
	return nil
}

// one measures a part. What it needs and is not there is started before, and what it does not need, which would be in the way, is
// ended.
func (b *bench) one(ctx context.Context, p part) (err error) {
	if err := b.endBoxes(p.boxes); err != nil {
		return err
	}
	if p.client && b.client == nil {
		if b.client, err = startPlaywright(ctx); err != nil {
			return err
		}
		if b.client == nil {
			b.leaveOut(p.name, "Playwright is not installed; run scripts/clients.sh")
			return nil
		}
	}
	for _, size := range p.boxes {
		if b.boxes[size] == nil {
			x, err := b.start(ctx, size)
			if err != nil {
				return err
			}
			b.boxes[size] = x
		}
	}
	err = p.measure(b, ctx)
	if p.own {
		err = errors.Join(err, b.endBoxes(nil))
	}
	return err
}

// endBoxes ends the instances but those that are needed.
func (b *bench) endBoxes(needed []int) (err error) {
	for size, x := range b.boxes {
		if !slices.Contains(needed, size) {
			err = errors.Join(err, x.end())
			delete(b.boxes, size)
		}
	}
	return err
}

// progress tells whoever waits, with the time that has passed.
func (b *bench) progress(format string, a ...any) {
	passed := time.Since(b.began).Round(time.Second)
	fmt.Fprintf(os.Stderr, "%5s  %s\n", passed, strings.ReplaceAll(fmt.Sprintf(format, a...), "\n", "\n       "))
}

// leaveOut keeps what is not measured, and why.
func (b *bench) leaveOut(what, format string, a ...any) {
	l := report.LeftOut{What: what, Why: fmt.Sprintf(format, a...)}
	b.result.LeftOut = append(b.result.LeftOut, l)
	b.progress("left out: %s: %s", l.What, l.Why)
}
