//go:build linux

package docker

import (
	"context"
	"fmt"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/cgroup"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

// Differences compares a container with its profile. Nothing in it is the engine's word: the process, its file systems,
// its control groups and its network are read from the kernel. An empty answer is a container that is confined as declared.
func Differences(ctx context.Context, proc jail.Process, declared jail.Profile, lease jail.Lease) ([]string, error) {
	seen, err := linux.ObserveProcess(ctx, proc, declared)
	if err != nil {
		return nil, fmt.Errorf("observe the container: %w", err)
	}
	groups, err := cgroup.Of(proc)
	if err != nil {
		return nil, fmt.Errorf("observe the container: %w", err)
	}
	seen.Memory, seen.MilliCPU, seen.Tasks = groups.Limits()
	diff := declared.Compare(seen)
	more, err := networkDifferences(proc, lease)
	return append(diff, more...), err
}

// networkDifferences says where a container has another network than one interface with its address. More would be a way
// past the gateway. A route to everywhere, which some engines set also in an internal network, is none: the rules are on the bridge.
func networkDifferences(proc jail.Process, lease jail.Lease) ([]string, error) {
	var diff []string
	err := linux.InNetworkOf(proc, func() error {
		links, addrs, err := linux.Interfaces()
		if err != nil {
			return err
		}
		if links != 1 {
			diff = append(diff, fmt.Sprintf("it has %d interfaces beside the loopback, declared 1", links))
		}
		for _, a := range addrs {
			if a != lease.Addr {
				diff = append(diff, fmt.Sprintf("it has the address %s, declared %s", a, lease.Addr))
			}
		}
		if len(addrs) == 0 {
			diff = append(diff, "it has no address")
		}
		return nil
	})
	return diff, err
}

// ProfileFor is how a container is confined. An engine gives no container a user namespace of its own: all of an engine's
// have that of its configuration, or the host's.
//
// An engine has a profile of AppArmor of its own for its containers.
func ProfileFor(s jail.Spec, l jail.Lease) jail.Profile {
	means := jail.AllMeans()
	means.AppArmor, means.OwnUsers = false, false
	return jail.ProfileFor(s, l).With(means)
}
