//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
)

// Bounds of a snapshot that leave nothing of the large page out.
const wholeChars, wholeNodes = 500_000, 50_000

// snapshot measures how quickly a large page is told to an agent, next to the tree as the browser gives it.
func (b *bench) snapshot(ctx context.Context) (err error) {
	r, err := startRelay(ctx, b.site.plain(""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	if _, err := r.Navigate(ctx, b.site.address("/large")); err != nil {
		return err
	}
	raw, err := rawTree(ctx, r)
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
	ways := []struct {
		name string
		do   func() error
	}{
		{"ai, as it is by default", take(browser.Snapshot{}, false)},
		{"ai, whole", take(browser.Snapshot{MaxChars: wholeChars}, true)},
		{"raw tree", raw},
		{"aria, whole", take(browser.Snapshot{Format: "aria", Most: wholeNodes}, true)},
	}
	each := map[string][]time.Duration{}
	for n := range b.runs + 2 { // the first two fill the caches
		for _, way := range ways {
			began := time.Now()
			if err := way.do(); err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			if n >= 2 {
				each[way.name] = append(each[way.name], time.Since(began))
			}
		}
	}
	name := fmt.Sprintf("snapshot: %d elements, ", largeElements)
	for _, way := range ways {
		b.result.Times(name+way.name, each[way.name])
	}
	b.result.AtMost(name+"ai, whole", 100)
	for _, ours := range []string{"ai, whole", "aria, whole"} {
		b.result.Beside(name+ours, name+"raw tree", "the raw tree of the browser")
	}
	var ratios []float64
	for n, tree := range each["raw tree"] {
		ratios = append(ratios, float64(each["aria, whole"][n])/float64(tree))
	}
	slices.Sort(ratios)
	b.result.Value(name+"aria to raw tree", "×", ratios[len(ratios)/2])
	b.result.AtMost(name+"aria to raw tree", 1.15)
	return nil
}

// attachedPage attaches to the first page of a browser, and returns the session of the protocol.
func attachedPage(ctx context.Context, r *relay) (string, error) {
	var targets struct {
		TargetInfos []struct {
			TargetID string `json:"targetId"`
			Type     string `json:"type"`
		} `json:"targetInfos"`
	}
	if err := r.Conn().Call(ctx, "", "Target.getTargets", nil, &targets); err != nil {
		return "", err
	}
	for _, t := range targets.TargetInfos {
		if t.Type != "page" {
			continue
		}
		var attached struct {
			SessionID string `json:"sessionId"`
		}
		err := r.Conn().Call(ctx, "", "Target.attachToTarget", map[string]any{"targetId": t.TargetID, "flatten": true}, &attached)
		return attached.SessionID, err
	}
	return "", errors.New("the browser has no page")
}

// rawTree asks for the whole tree, and hands it on as it is.
func rawTree(ctx context.Context, r *relay) (func() error, error) {
	session, err := attachedPage(ctx, r)
	if err != nil {
		return nil, err
	}
	return func() error {
		var tree struct {
			Nodes json.RawMessage `json:"nodes"`
		}
		err := r.Conn().Call(ctx, session, "Accessibility.getFullAXTree", map[string]any{}, &tree)
		if err == nil && len(tree.Nodes) < 100*largeElements {
			err = fmt.Errorf("%d bytes are not the whole tree", len(tree.Nodes))
		}
		return err
	}, nil
}
