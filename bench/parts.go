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

	began      time.Time
	site       *site       // what browsers load
	client     *playwright // nil when it is not installed
	cold, warm *box        // without a warm pool and with one; nil while no part needs them
}

// need is what has to be there before a part is measured.
type need int

const (
	nothing need = iota
	aSite        // what browsers load
	aCold        // that, and an instance without a warm pool
	aWarm        // that, and another one with a warm pool
)

// part is what can be measured alone.
type part struct {
	name    string
	needs   need
	client  bool // it needs Playwright
	measure func(context.Context, *bench) error
}

// parts are measured one after the other, those that need the same beside each other.
func parts() []part {
	alone := func(do func(*bench, context.Context) error) func(context.Context, *bench) error {
		return func(ctx context.Context, b *bench) error { return do(b, ctx) }
	}
	cold := func(do func(*bench, context.Context, *box) error) func(context.Context, *bench) error {
		return func(ctx context.Context, b *bench) error { return do(b, ctx, b.cold) }
	}
	return []part{
		{name: "gateway", measure: alone((*bench).gatewayPart)},
		{name: "agents", measure: alone((*bench).agentsPart)},
		{name: "templates", measure: alone((*bench).templatesPart)},
		{name: "console", needs: aSite, measure: alone((*bench).consolePart)},
		{name: "starts", needs: aWarm, measure: alone((*bench).startsBeside)},
		{name: "arena", needs: aWarm, client: true, measure: alone((*bench).arena)},
		{name: "injection", needs: aWarm, measure: alone((*bench).warmInjection)},
		{name: "identity", needs: aCold, measure: cold((*bench).identity)},
		{name: "memory", needs: aCold, measure: cold((*bench).memory)},
		{name: "sustained", needs: aCold, measure: cold((*bench).sustained)},
		{name: "twenty", needs: aCold, measure: cold((*bench).twenty)},
		{name: "growth", needs: aCold, measure: cold((*bench).growth)},
		{name: "driving", needs: aCold, client: true, measure: cold((*bench).driving)},
		{name: "snapshot", needs: aSite, measure: alone((*bench).snapshot)},
		{name: "go", measure: alone((*bench).goPart)},
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
	defer func() { err = errors.Join(err, b.end()) }()
	wanted := parts()
	if len(b.only) > 0 {
		wanted = slices.DeleteFunc(wanted, func(p part) bool { return !slices.Contains(b.only, p.name) })
	}
	for n, p := range wanted {
		b.progress("part %d of %d: %s", n+1, len(wanted), p.name)
		err := b.prepare(ctx, p)
		if err == nil && (!p.client || b.client != nil) {
			err = p.measure(ctx, b)
		}
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

// prepare starts what a part needs and is not there, and ends what none needs any more, which would be in the way.
func (b *bench) prepare(ctx context.Context, p part) (err error) {
	if b.warm != nil && p.needs != aWarm {
		err, b.warm = b.warm.end(), nil
	}
	if b.cold != nil && p.needs < aCold {
		err, b.cold = errors.Join(err, b.cold.end()), nil
	}
	if err != nil {
		return err
	}
	if p.needs >= aSite && b.site == nil {
		if b.site, err = startSite(); err != nil {
			return err
		}
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
	if p.needs >= aCold && b.cold == nil {
		if b.cold, err = b.start(ctx, 1_879_600_000, "warm_pool:\n  size: 0\n"+b.site.settings()); err != nil {
			return err
		}
	}
	if p.needs == aWarm && b.warm == nil {
		b.warm, err = b.start(ctx, 1_879_700_000, "warm_pool:\n  size: 2\n"+b.site.settings())
	}
	return err
}

// end ends whatever runs still.
func (b *bench) end() error {
	var errs []error
	for _, x := range []*box{b.warm, b.cold} {
		if x != nil {
			errs = append(errs, x.end())
		}
	}
	if b.client != nil {
		errs = append(errs, b.client.end())
	}
	if b.site != nil {
		errs = append(errs, b.site.end())
	}
	return errors.Join(errs...)
}

// progress tells whoever waits, with the time that has passed.
func (b *bench) progress(format string, a ...any) {
	passed := time.Since(b.began).Round(time.Second)
	fmt.Fprintf(os.Stderr, "%5s  %s\n", passed, strings.ReplaceAll(fmt.Sprintf(format, a...), "\n", "\n       "))
}

// note keeps something that a reader of the figures is to know.
func (b *bench) note(format string, a ...any) {
	b.result.Notes = append(b.result.Notes, fmt.Sprintf(format, a...))
}

// leaveOut keeps what is not measured, and why.
func (b *bench) leaveOut(what, format string, a ...any) {
	l := report.LeftOut{What: what, Why: fmt.Sprintf(format, a...)}
	b.result.LeftOut = append(b.result.LeftOut, l)
	b.progress("left out: %s: %s", l.What, l.Why)
}
