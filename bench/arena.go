//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/clawjail/clawjail/internal/hostd"
)

// arena measures what a user of Playwright waits for: a session is made, connected to, shown a page, and given back. A
// Chromium that Playwright starts itself takes its turn beside it.
func (b *bench) arena(ctx context.Context) error {
	program, err := launch("/nonexistent", nowhere)
	if err != nil {
		return err
	}
	session := func(t times, name string, size int) error {
		x := b.boxes[size]
		key, err := os.ReadFile(hostd.AdminKeyPath(x.Config))
		if err != nil {
			return err
		}
		out, err := b.client.do("session", map[string]any{"api": "http://" + x.Config.Listen.String(), "key": strings.TrimSpace(string(key)),
			"page": b.site.address("/")})
		if err == nil && out.Warm != (size == warm) {
			err = fmt.Errorf("warm is %t", out.Warm)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		out.add(t, name)
		return x.api.Close(ctx, out.ID, true) // nothing of it disturbs the next
	}
	full := func() error { return b.boxes[warm].poolFull(ctx) }
	_, err = b.inTurn(b.runs, 2, func(t times) error {
		out, err := b.client.do("launch", map[string]any{"program": program[0], "sandbox": b.client.sandbox, "page": b.site.URL})
		if err != nil {
			return err
		}
		out.add(t, "arena: plain Playwright")
		return inOrder(func() error { return session(t, "arena: cold", cold) }, full, func() error { return session(t, "arena: warm", warm) }, full)
	})
	if err != nil {
		return err
	}
	r := &b.result
	sum := r.Figures["arena: cold, sum"]
	sum.AtMost(250)
	r.Value("arena: cold, sum, p95", "ms", sum.P95).AtMost(400)
	r.Figures["arena: warm, sum"].AtMost(140)
	for _, stage := range []string{"goto", "release", "sum"} {
		r.Beside("plain Playwright", "arena: plain Playwright, "+stage, "arena: cold, "+stage, "arena: warm, "+stage)
	}
	return nil
}
