//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/jail"
)

// epairs are the names of all ends of epairs on the host.
func (n *Network) epairs(ctx context.Context) ([]string, error) {
	text, err := n.ifconfig(ctx, "-g", "epair")
	if err != nil {
		return nil, fmt.Errorf("list epairs: %w", err)
	}
	return strings.Fields(text), nil
}

// generic reports whether a name is one that the kernel gave: epair0a.
func generic(name string) bool {
	number, ok := strings.CutPrefix(name, "epair")
	if !ok || len(number) < 2 || (number[len(number)-1] != 'a' && number[len(number)-1] != 'b') {
		return false
	}
	return strings.Trim(number[:len(number)-1], "0123456789") == ""
}

// owners are the ends of this installation's epairs by jail: by their names, and by their descriptions those that a killed
// process has not yet named.
func (n *Network) owners(ctx context.Context) (map[jail.Name][]string, error) {
	all, err := n.epairs(ctx)
	if err != nil {
		return nil, err
	}
	out := map[jail.Name][]string{}
	for _, end := range all {
		var name jail.Name
		switch {
		case strings.HasPrefix(end, "e0a_"), strings.HasPrefix(end, "e0b_"):
			name = jail.Name(end[4:])
		case generic(end):
			text, there, err := n.look(ctx, end)
			if err != nil {
				return nil, err
			}
			if there {
				name = describedAs(text)
			}
		}
		if name.Belongs(n.o.Installation) {
			out[name] = append(out[name], end)
		}
	}
	return out, nil
}

func describedAs(text string) jail.Name {
	for line := range strings.Lines(text) {
		if d, ok := strings.CutPrefix(strings.TrimSpace(line), "description: clawjail "); ok {
			return jail.Name(strings.TrimSpace(d))
		}
	}
	return ""
}

// Detach destroys the jail's epair. While the jail is dying its end is on its way back, which older kernels did not survive
// when the pair was destroyed meanwhile: ErrBusy until it is gone.
func (n *Network) Detach(ctx context.Context, name jail.Name, l jail.Lease) error {
	if err := n.check(name, l); err != nil {
		return err
	}
	if err := n.remove(ctx, name); err != nil {
		return fmt.Errorf("detach %s: %w", name, err)
	}
	return nil
}

// remove destroys the epair of a jail, and looks whether it is gone.
func (n *Network) remove(ctx context.Context, name jail.Name) error {
	all, err := n.owners(ctx)
	if err != nil || len(all[name]) == 0 {
		return err
	}
	if p, there, err := n.jails.find(ctx, name); err != nil || there && p.dying {
		return errors.Join(err, fmt.Errorf("jail %s is dying and has its end of the epair: %w", name, jail.ErrBusy))
	}
	var errs []error
	for _, end := range slices.Sorted(slices.Values(all[name])) { // the outer end comes first
		if _, there, err := n.look(ctx, end); err != nil || !there {
			errs = append(errs, err)
			continue
		}
		_, err := n.ifconfig(ctx, end, "destroy")
		errs = append(errs, err)
	}
	if all, err = n.owners(ctx); err != nil {
		return err
	}
	if left := all[name]; len(left) > 0 {
		return errors.Join(append(errs, fmt.Errorf("%s is still there: %w", left[0], jail.ErrBusy))...)
	}
	return nil
}

// List reports the ends of epairs. Each names its jail.
func (n *Network) List(ctx context.Context) ([]jail.HostResource, error) {
	all, err := n.owners(ctx)
	if err != nil {
		return nil, err
	}
	var out []jail.HostResource
	for name, ends := range all {
		for _, end := range ends {
			out = append(out, jail.HostResource{Kind: jail.ResourceInterface, Name: name, Index: -1, ID: end})
		}
	}
	slices.SortFunc(out, func(a, b jail.HostResource) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// RemoveResource removes an end that List reported, and the other one with it.
func (n *Network) RemoveResource(ctx context.Context, t jail.HostResource) error {
	if t.Kind != jail.ResourceInterface || !t.Name.Belongs(n.o.Installation) {
		return fmt.Errorf("%s %q is not a resource of this installation", t.Kind, t.ID)
	}
	return n.remove(ctx, t.Name)
}
