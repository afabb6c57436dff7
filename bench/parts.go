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
	ends   []func() error
}

// The sizes of warm pools.
const cold, warm = 0, 2

// part is what can be measured alone.
type part struct {
	name    string
	boxes   []int // the instances that it needs
	own     bool  // what it leaves in them is in the way of others
	client  bool  // it needs Playwright
	measure func(*bench, context.Context)
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

// all measures what was asked for. A part that fails is noted, and the others are measured all the same: it gives up only
// when nothing of this run is to be kept, because it was interrupted or what it started is not gone.
func (b *bench) all(ctx context.Context) {
	wanted := parts()
	for _, name := range b.only {
		if !slices.Contains(partNames(), name) {
			check(fmt.Errorf("%q is none of the parts, which are %s", name, strings.Join(partNames(), ", ")))
		}
	}
	if len(b.only) > 0 {
		wanted = slices.DeleteFunc(wanted, func(p part) bool { return !slices.Contains(b.only, p.name) })
	}
	b.site = startSite()
	defer b.site.Close()
	check(b.within(func() {
		b.atEnd(func() error {
			if b.client == nil {
				return b.endBoxes(nil)
			}
			return errors.Join(b.endBoxes(nil), b.client.end())
		})
		for n, p := range wanted {
			b.progress("part %d of %d: %s", n+1, len(wanted), p.name)
			err := b.one(ctx, p)
			if ctx.Err() != nil {
				check(fmt.Errorf("interrupted in part %s; nothing is written", p.name))
			}
			if err != nil {
				b.result.Failed = append(b.result.Failed, report.LeftOut{What: p.name, Why: err.Error()})
				b.progress("%s: failed: %v", p.name, err)
			}
		}
	}))
}

// one measures a part. What it needs and is not there is started before, and what it does not need, which would be in the way, is
// ended.
func (b *bench) one(ctx context.Context, p part) error {
	err := b.within(func() {
		check(b.endBoxes(p.boxes))
		if p.client && b.client == nil {
			b.client = startPlaywright(ctx)
		}
		if p.client && b.client == nil {
			b.leaveOut(p.name, "Playwright is not installed; run scripts/clients.sh")
			return
		}
		for _, size := range p.boxes {
			if b.boxes[size] == nil {
				b.boxes[size] = b.start(ctx, size)
			}
		}
		p.measure(b, ctx)
	})
	if p.own {
		err = errors.Join(err, b.endBoxes(nil))
	}
	return err
}

// within does something, and then what that has said to be done at its end, the last first.
func (b *bench) within(do func()) error {
	before := len(b.ends)
	err := attempt(do)
	for _, end := range slices.Backward(b.ends[before:]) {
		err = errors.Join(err, end())
	}
	b.ends = b.ends[:before]
	return err
}

func (b *bench) atEnd(end func() error) { b.ends = append(b.ends, end) }

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
