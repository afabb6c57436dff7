package inventory

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// Settled waits until two looks at the host in a row agree, for at most ten seconds: closing returns before the
// network has been refilled.
func Settled(ctx context.Context, s Scope) ([]HostResource, error) {
	var last []HostResource
	for n := range 40 {
		now, err := Take(ctx, s)
		if err != nil {
			return nil, err
		}
		if n > 0 && len(Added(last, now)) == 0 && len(Added(now, last)) == 0 {
			return now, nil
		}
		last = now
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(250 * time.Millisecond):
		}
	}
	return last, nil
}

// CountSlots leaves out the network slots that are made ahead: each is used once, so which there are changes.
// Their number is compared instead.
func CountSlots(all []HostResource) []HostResource {
	var out []HostResource
	slots := map[string]int{}
	for _, t := range all {
		if t.Kind == "interface" || t.Kind == "namespace" || t.Kind == "mount" && filepath.Base(filepath.Dir(t.ID)) == "netns" || t.Kind == "process" {
			slots[t.Kind]++
			continue
		}
		out = append(out, t)
	}
	for kind, n := range slots {
		out = append(out, HostResource{Kind: kind, ID: fmt.Sprintf("number %d", n)})
	}
	return out
}
