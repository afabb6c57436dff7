//go:build linux

package main

import (
	"context"
	"errors"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/identity"
)

// scriptTimes is how often a script does all that it does, scriptRounds how often it runs for each way.
const scriptTimes, scriptRounds = 20, 5

// aSession is the way of a user: a session's own endpoint.
const aSession = "a session"

// driving measures what the guard costs a script of Playwright, and how quickly a client connects to what is open.
func (b *bench) driving(ctx context.Context) (err error) {
	x := b.boxes[cold]
	r, err := startRelay(ctx, b.site.URL)
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
	return errors.Join(b.connects(r, token), b.scripts(r, token))
}

// connects takes the ways to connect in turn.
func (b *bench) connects(r *relay, token api.SessionToken) error {
	const name = "drive: connectOverCDP, "
	_, err := b.inTurn(b.runs, 2, func(t times) error {
		for way, url := range map[string]string{direct: r.endpoint(direct), aSession + ", by its WebSocket": token.WSURL, aSession: token.CDPURL} {
			out, err := b.client.do("connect", map[string]any{"url": url})
			if err != nil {
				return err
			}
			t.add(name+way, out.stage("connect"))
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.result.Figures[name+aSession].AtMost(50)
	b.result.Beside("plain Chromium, direct CDP", name+direct, name+aSession, name+aSession+", by its WebSocket")
	return nil
}

// scripts runs the same script in every way, in turn and in another order each time. The cost of the guard is taken within each
// round alone.
func (b *bench) scripts(r *relay, token api.SessionToken) error {
	const name = "drive: script, "
	ways := []string{direct, guardedClean, guardedOperator, aSession}
	calls, n := times{}, 0
	t, err := b.inTurn(min(scriptRounds, b.runs), 1, func(t times) error {
		for i := range ways {
			way, url, often := ways[(i+n)%len(ways)], token.WSURL, scriptTimes
			if way != aSession {
				url = r.endpoint(way)
			}
			if n == 0 {
				often = 3 // it fills the caches
			}
			out, err := b.client.do("script", map[string]any{"url": url, "page": b.site.address("/form"), "times": often})
			if err != nil {
				return err
			}
			t.add(name+way, out.sum())
			calls.add(way, out.stage("calls"))
		}
		n++
		return nil
	})
	if err != nil {
		return err
	}
	for _, way := range ways[1:] {
		b.result.Beside("plain Chromium, direct CDP", name+direct, name+way)
		whole := b.result.Value(name+way+", to direct", "×", ratio(t[name+way], t[name+direct]))
		if way != aSession {
			whole.AtMost(1.08)
		}
		b.result.Value(name+way+", calls alone, to direct", "×", ratio(calls[way][1:], calls[direct][1:]))
	}
	return nil
}
