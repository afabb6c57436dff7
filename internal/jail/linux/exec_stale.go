//go:build linux

package linux

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/safepath"
)

// endStale ends the programs that a host daemon had started in jails and that it did not live to end: their stdio has no
// reader any more. It is called before there are others. A program that cannot be ended keeps its mark, and ends with its jail.
func (r *Runtime) endStale() error {
	jails, err := jail.ResourcesIn(r.bundles, jail.ResourceStaged, r.o.Installation)
	if err != nil {
		return err
	}
	for _, t := range jails {
		all, err := r.bundles.Folder(filepath.Join(string(t.Name), bundleExecs))
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		ids, err := all.Names(maxStaged)
		if err := errors.Join(err, all.Close()); err != nil {
			return err
		}
		for _, id := range ids {
			if !validStageID(id) {
				continue
			}
			if err := r.endOne(t.Name, id); err != nil {
				r.o.Log.Error("end a program that an earlier host daemon has started", "jail", t.Name, "error", err)
			} else {
				r.o.Log.Info("ended a program that an earlier host daemon has started", "jail", t.Name)
			}
		}
	}
	return nil
}

func (r *Runtime) endOne(name jail.Name, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), execCleanup)
	defer cancel()
	x := &execution{Joined: jail.Joined{Name: name}, r: r, id: id, group: name + "/" + jail.Name(execGroup+id)}
	x.stage, x.staged = r.stageOf(name), true
	return x.clean(ctx)
}

// stageOf opens the stage of a jail that runs, or returns nil: of one that has ended, the next mount of its state removes
// what is left.
func (r *Runtime) stageOf(name jail.Name) *safepath.Folder {
	if r.o.StageDir == "" {
		stage, err := r.ownStage(name)
		if err != nil {
			return nil // it went with the jail
		}
		return stage
	}
	pid, err := namedProcess(r.bundles, filepath.Join(string(name), bundlePID))
	if err != nil {
		return nil
	}
	p, err := openProcess(jail.Process{PID: pid})
	if err != nil {
		return nil
	}
	defer p.Close()
	// Only now that it is open: the number may be another process's since.
	if pids, err := r.limits.processes(string(name)); err != nil || !slices.Contains(pids, pid) || p.ended() {
		return nil
	}
	root, err := p.rootFolder()
	if err != nil {
		return nil
	}
	defer func() { _ = root.Close() }() // opened for reading
	stage, err := root.Folder(strings.TrimPrefix(r.o.StageDir, "/"))
	if err != nil {
		return nil
	}
	return stage
}
