// Package inventory looks at a host and lists what one clawjail installation has on it.
//
// It is the judge of the promise that nothing is left behind, so it shares no code with the parts that make and
// remove these things: it reads the kernel's own lists. One table lists what can be left, one line per kind;
// the test of this package plants a leak of each kind and fails when the comparison does not see it.
package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/clawjail/clawjail/internal/jail"
)

// Scope says what belongs to the installation.
type Scope struct {
	Installation jail.Installation
	Data, Run    string       // its folders
	Subnet       netip.Prefix // its jails' addresses
	UIDBase      uint32       // the first of its jails' uids
	UIDs         uint32       // how many there are
}

// HostResource is one thing on the host.
type HostResource struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
}

func (t HostResource) String() string { return t.Kind + " " + t.ID }

// probe finds the things of one kind.
type probe struct {
	kind string
	look func(context.Context, Scope) ([]string, error)
}

// Kinds lists the table.
func Kinds() []string {
	var out []string
	for _, p := range table {
		out = append(out, p.kind)
	}
	return out
}

// Take lists everything of the installation that is on the host, in a fixed order. A list that cannot be read is an
// error: an incomplete list must not look like an empty one.
func Take(ctx context.Context, s Scope) ([]HostResource, error) {
	var all []HostResource
	var errs []error
	for _, p := range table {
		ids, err := p.look(ctx, s)
		if err != nil {
			errs = append(errs, fmt.Errorf("list each %s: %w", p.kind, err))
		}
		for _, id := range ids {
			all = append(all, HostResource{p.kind, id})
		}
	}
	slices.SortFunc(all, func(a, b HostResource) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return slices.Compact(all), errors.Join(errs...)
}

// Added lists what is in after and not in before.
func Added(before, after []HostResource) []HostResource {
	old := make(map[HostResource]bool, len(before))
	for _, t := range before {
		old[t] = true
	}
	out := []HostResource{}
	for _, t := range after {
		if !old[t] {
			out = append(out, t)
		}
	}
	return out
}
