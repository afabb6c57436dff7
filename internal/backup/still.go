package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
)

// stopHint is what to do about something that runs.
const stopHint = "stop it: sudo systemctl stop clawjail.service clawjail-hostd.service, or end `clawjail up`; then `clawjail reap`"

// still makes sure that nothing of the installation runs, and keeps it so until release: no host daemon, no control plane
// and no jail.
func still(c config.Config) (release func() error, err error) {
	locked, err := hostd.Lock(c)
	if problem.CodeOf(err) == problem.Conflict {
		return nil, problem.Wrap(err, problem.Conflict, stopHint, "clawjail is running")
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, locked.Close())
		}
	}()
	if err := controlRests(c); err != nil {
		return nil, err
	}
	for _, dir := range hostd.Journals(c) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for jails: %w", err)
		}
		for _, e := range entries {
			if name, found := strings.CutSuffix(e.Name(), ".json"); found && name[0] != '.' {
				return nil, problem.New(problem.Conflict, stopHint, "the jail %s has not ended", name)
			}
		}
	}
	if err := noVolumesInUse(c); err != nil {
		return nil, err
	}
	return locked.Close, nil
}

// controlRests refuses while a control plane runs: it has the spill file for as long.
func controlRests(c config.Config) error {
	spill, taken, err := exclusively(filepath.Join(hostd.ControlDir(c), "audit.spill"))
	switch {
	case taken:
		return problem.New(problem.Conflict, stopHint, "the control plane is running")
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return spill.Close()
}
