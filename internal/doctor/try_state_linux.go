package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// trialState is the size of the volume that is tried.
const trialState = 8 << 20

// tryState gives a jail that is never started a volume, as an agent's has one, and writes more to it than it may hold.
func (t *trial) tryState(ctx context.Context) (_ Facts, err error) {
	if _, err := t.sample.get(); err != nil {
		return nil, err
	}
	s, err := t.storage.get()
	if err != nil {
		return nil, err
	}
	name := t.name(21)
	agent := jail.Agent{Tenant: "default", Name: "doctor", State: trialState}
	spec := jail.Spec{Kind: jail.KindAgent, Template: tiny, Agent: &agent}
	root, err := s.Clone(ctx, name, spec)
	if err != nil {
		return nil, err
	}
	defer func() {
		undo := context.WithoutCancel(ctx)
		err = errors.Join(err, s.Unmount(undo, name, true), s.Destroy(undo, name), s.RemoveState(undo, agent))
	}()
	placement := jail.Placement{Name: name, Spec: spec, Profile: jail.ProfileFor(spec, jail.Lease{}), Root: root}
	if err := s.Mount(ctx, placement); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(root, jail.StateDir, "too-much"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write to a volume: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, trialState); !errors.Is(err, unix.ENOSPC) {
		return nil, fmt.Errorf("a volume of %s held as much as that and its own structure: %v", human(trialState), err)
	}
	return Facts{"bytes": trialState}, nil
}
