//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/clawjail/clawjail/bench/report"
	"github.com/clawjail/clawjail/internal/hostd"
)

// arena measures what a user of Playwright waits for: a session is made, connected to, shown a page, and given back. A
// Chromium that Playwright starts itself takes its turn beside it.
func (b *bench) arena(ctx context.Context) error {
	cold, warm := b.cold, b.warm
	key := map[*box]string{}
	for _, x := range []*box{cold, warm} {
		text, err := os.ReadFile(hostd.AdminKeyPath(x.Config))
		if err != nil {
			return err
		}
		key[x] = strings.TrimSpace(string(text))
	}
	program, err := launch("/nonexistent", nowhere)
	if err != nil {
		return err
	}
	session := func(x *box) (took, error) {
		out, err := b.client.do("session", map[string]any{"api": "http://" + x.Config.Listen.String(), "key": key[x], "page": b.site.address("/")})
		if err != nil {
			return out, err
		}
		if out.Warm != (x == warm) {
			return out, fmt.Errorf("warm is %t", out.Warm)
		}
		return out, x.api.Close(ctx, out.ID, true) // nothing of it disturbs the next
	}
	var colds, warms, peers []took
	for n := range b.runs + 2 { // the first two fill the caches
		p, err := b.client.do("launch", map[string]any{"program": program[0], "sandbox": b.client.sandbox, "page": b.site.plain("/")})
		if err != nil {
			return err
		}
		c, err := session(cold)
		if err != nil {
			return fmt.Errorf("cold: %w", err)
		}
		if err := warm.poolFull(ctx); err != nil {
			return err
		}
		w, err := session(warm)
		if err != nil {
			return fmt.Errorf("warm: %w", err)
		}
		if err := warm.poolFull(ctx); err != nil {
			return err
		}
		if n >= 2 {
			peers, colds, warms = append(peers, p), append(colds, c), append(warms, w)
		}
	}
	r := &b.result
	stages := []string{"create", "token", "connect", "goto", "release"}
	stagesOf(r, "arena: plain Playwright", []string{"launch", "goto", "release"}, peers)
	stagesOf(r, "arena: cold", stages, colds)
	r.AtMost("arena: cold, sum", 250)
	r.Value("arena: cold, sum, p95", "ms", r.Figures["arena: cold, sum"].P95)
	r.AtMost("arena: cold, sum, p95", 400)
	stagesOf(r, "arena: warm", stages, warms)
	r.AtMost("arena: warm, sum", 140)
	for _, how := range []string{"cold", "warm"} {
		for _, stage := range []string{"goto", "release", "sum"} {
			r.Beside("arena: "+how+", "+stage, "arena: plain Playwright, "+stage, "plain Playwright")
		}
	}
	return nil
}

// stagesOf adds a figure for each stage and one for their sum.
func stagesOf(r *report.Run, name string, stages []string, all []took) {
	for _, stage := range stages {
		var each []time.Duration
		for _, t := range all {
			each = append(each, t.stage(stage))
		}
		r.Times(name+", "+stage, each)
	}
	var sums []time.Duration
	for _, t := range all {
		sums = append(sums, t.sum())
	}
	r.Times(name+", sum", sums)
}
