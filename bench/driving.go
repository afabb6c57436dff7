//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/identity"
)

// scriptTimes is how often a script does all that it does, scriptRounds how often it runs for each way.
const scriptTimes, scriptRounds = 20, 5

// aSession is the way of a user: a session's own endpoint.
const aSession = "a session"

// driving measures what the guard costs a script of Playwright, and how quickly a client connects to what is open.
func (b *bench) driving(ctx context.Context, x *box) (err error) {
	r, err := startRelay(ctx, b.site.plain(""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	s, err := x.api.Open(ctx, api.OpenRequest{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.api.Close(context.WithoutCancel(ctx), s.ID, true)) }()
	token, err := x.api.SessionToken(ctx, s.ID, api.TokenRequest{Scope: identity.ScopeCDP})
	if err != nil {
		return err
	}
	if err := b.connects(r, token); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if err := b.scripts(r, token); err != nil {
		return fmt.Errorf("script: %w", err)
	}
	return nil
}

// connects takes the ways to connect in turn.
func (b *bench) connects(r *relay, token api.SessionToken) error {
	ways := []struct{ name, url string }{
		{"direct", r.endpoint(direct)}, {"a session, by its WebSocket", token.WSURL}, {"a session", token.CDPURL},
	}
	each := map[string][]time.Duration{}
	for n := range b.runs + 2 { // the first two fill the caches
		for _, way := range ways {
			out, err := b.client.do("connect", map[string]any{"url": way.url})
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			if n >= 2 {
				each[way.name] = append(each[way.name], out.stage("connect"))
			}
		}
	}
	for _, way := range ways {
		b.result.Times("drive: connectOverCDP, "+way.name, each[way.name])
	}
	b.result.AtMost("drive: connectOverCDP, a session", 50)
	for _, way := range ways[1:] {
		b.result.Beside("drive: connectOverCDP, "+way.name, "drive: connectOverCDP, direct", "plain Chromium, direct CDP")
	}
	return nil
}

// scripts runs the same script in every way, in turn and in another order each time. The cost of the guard is taken within each
// round alone: the machine is another in the next.
func (b *bench) scripts(r *relay, token api.SessionToken) error {
	ways := []string{direct, guardedClean, guardedOperator, aSession}
	all := map[string][]took{}
	rounds := min(scriptRounds, b.runs)
	for n := range rounds + 1 {
		times := scriptTimes
		if n == 0 {
			times = 3 // it fills the caches
		}
		for i := range ways {
			way := ways[(i+n)%len(ways)]
			url := token.WSURL
			if way != aSession {
				url = r.endpoint(way)
			}
			out, err := b.client.do("script", map[string]any{"url": url, "page": b.site.address("/form"), "times": times})
			if err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			if n > 0 {
				all[way] = append(all[way], out)
			}
		}
	}
	sum, calls := took.sum, func(t took) time.Duration { return t.stage("calls") }
	for _, way := range ways {
		var sums []time.Duration
		for _, t := range all[way] {
			sums = append(sums, t.sum())
		}
		b.result.Times("drive: script, "+way, sums)
		if way != direct {
			b.result.Beside("drive: script, "+way, "drive: script, "+direct, "plain Chromium, direct CDP")
			b.result.Value("drive: script, "+way+", to direct", "×", beside(all[way], all[direct], sum))
			b.result.Value("drive: script, "+way+", calls alone, to direct", "×", beside(all[way], all[direct], calls))
		}
	}
	b.result.AtMost("drive: script, "+guardedClean+", to direct", 1.08)
	b.result.AtMost("drive: script, "+guardedOperator+", to direct", 1.08)
	return nil
}

// beside is how many times as long as the other something took, in the middle of all rounds.
func beside(one, other []took, what func(took) time.Duration) float64 {
	var times []float64
	for n := range one {
		times = append(times, float64(what(one[n]))/float64(what(other[n])))
	}
	slices.Sort(times)
	return times[len(times)/2]
}
