//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/clawjail/clawjail/internal/browser"
)

// Bounds of a snapshot that leave nothing of the large page out.
const wholeChars, wholeNodes = 500_000, 50_000

// snapshot measures how quickly a large page is told to an agent, next to the tree as the browser gives it.
func (b *bench) snapshot(ctx context.Context) (err error) {
	r, err := startRelay(ctx, b.site.URL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	if _, err := r.Navigate(ctx, b.site.address("/large")); err != nil {
		return err
	}
	page, err := r.Page(ctx)
	if err != nil {
		return err
	}
	take := func(s browser.Snapshot, whole bool) func() error {
		return func() error {
			out, err := r.Do(ctx, s)
			if err != nil {
				return err
			}
			if got, ok := out.(browser.SnapshotResult); !ok || got.Truncated == whole {
				return fmt.Errorf("%T, truncated: %t", out, got.Truncated)
			}
			return nil
		}
	}
	raw := func() error { // the whole tree, handed on as it is
		var tree struct {
			Nodes json.RawMessage `json:"nodes"`
		}
		err := page.Session().Call(ctx, "Accessibility.getFullAXTree", map[string]any{}, &tree)
		if err == nil && len(tree.Nodes) < 100*largeElements {
			err = fmt.Errorf("%d bytes are not the whole tree", len(tree.Nodes))
		}
		return err
	}
	name := fmt.Sprintf("snapshot: %d elements, ", largeElements)
	ai, aria, tree := name+"ai, whole", name+"aria, whole", name+"raw tree"
	t, err := b.inTurn(b.runs, 2, func(t times) error {
		return inOrder(
			func() error { return t.timed(name+"ai, as it is by default", take(browser.Snapshot{}, false)) },
			func() error { return t.timed(ai, take(browser.Snapshot{MaxChars: wholeChars}, true)) },
			func() error { return t.timed(tree, raw) },
			func() error { return t.timed(aria, take(browser.Snapshot{Format: "aria", Most: wholeNodes}, true)) })
	})
	if err != nil {
		return err
	}
	b.result.Figures[ai].AtMost(100)
	b.result.Beside("the raw tree of the browser", tree, ai, aria)
	b.result.Value(name+"aria to raw tree", "×", ratio(t[aria], t[tree])).AtMost(1.15)
	return nil
}
