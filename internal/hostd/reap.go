package hostd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd/stdio"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/swap"
)

// ReapWithout reaps an installation whose host daemon does not run: what is left of it after all of it was killed.
// A jail that is still running is left alone, because its owner may be waiting for the host daemon to come back;
// programs whose owner is gone are given the time that they need to notice. It refuses while a host daemon runs.
func ReapWithout(ctx context.Context, o RunOptions, how jail.ReapOptions) (report jail.ReapReport, err error) {
	if os.Geteuid() != 0 {
		return report, problem.New(problem.NoRoot, "run it with sudo", "the host daemon does not run, and reaping without it needs root")
	}
	if _, err := os.Lstat(filepath.Join(o.Config.DataDir, InstallationFile)); errors.Is(err, os.ErrNotExist) {
		return jail.ReapReport{Findings: []jail.Finding{}}, nil // clawjail was never started here
	}
	control, err := lookupAccount(o.Config.User)
	if err != nil {
		return report, err
	}
	if err := makeFolders(o.Config, control); err != nil {
		return report, err
	}
	o = o.toEnd()
	err = o.withParts(ctx, func(in Installation, pool *jail.Pool, parts Parts, journal jail.Journal) (err error) {
		defer func() { err = errors.Join(err, parts.Close(context.WithoutCancel(ctx))) }()
		consoles, err := stdio.New(stdio.Options{Installation: in.ID, Dir: consolesDir(o.Config), Logs: LogsDir(o.Config),
			Keep: int64(o.Config.Agents.Log), Log: o.Log})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, consoles.Close()) }()
		life, err := parts.open(ctx, jail.Options{Installation: in.ID, Pool: pool, Journal: journal, Log: o.Log,
			Now: o.Now, Console: consoles})
		if err != nil {
			return err
		}
		defer life.Close()
		life.AwaitOwners()
		if all, err := life.List(ctx); err == nil && len(all) > 0 {
			select {
			case <-time.After(jail.EndedGrace + 100*time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		report, err = life.Reap(ctx, how)
		return err
	})
	return report, err
}

// toEnd are the options of one that only ends jails: it asks for nothing that profiles need, and takes the network as it is.
func (o RunOptions) toEnd() RunOptions {
	o.Config.AppArmor, o.Config.Subnet, o.ending = config.AppArmorOff, netip.Prefix{}, true
	return o
}

// withParts takes the locks of an installation and assembles its driver.
func (o RunOptions) withParts(ctx context.Context, use func(Installation, *jail.Pool, Parts, jail.Journal) error) (err error) {
	locked, err := lock(lockPath(o.Config))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locked.Close()) }()
	// A restore that was killed half way is finished before anything reads what it puts in place.
	if finished, err := swap.Finish(o.Config.DataDir); err != nil {
		return fmt.Errorf("finish a restore: %w", err)
	} else if finished && o.Log != nil {
		o.Log.Info("a restore that had been interrupted is finished", "data_dir", o.Config.DataDir)
	}
	in, err := o.settle(ctx)
	if err != nil {
		return err
	}
	pool, err := jail.NewPool(in.Subnet, o.Config.UIDBase)
	if err != nil {
		return err
	}
	journal, err := OpenJournal(journalPath(o.Config), in.ID, o.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, journal.Close()) }()
	parts, err := o.Substrate.Assemble(ctx, AssembleOptions{o.Config, in.ID, pool, o.ending, o.Log})
	if err != nil {
		return fmt.Errorf("assemble the driver: %w", err)
	}
	if parts.Journal == nil {
		return use(in, pool, parts, journal)
	}
	records, damaged, err := journal.Load(ctx)
	if n := len(records) + len(damaged); err == nil && n > 0 {
		err = problem.New(problem.Conflict, "start clawjail once without kubernetes in its configuration, and end them",
			"%d jails were made on this machine itself, and jails are to be pods now", n)
	}
	if err != nil {
		return errors.Join(err, parts.Close(context.WithoutCancel(ctx)))
	}
	return use(in, pool, parts, parts.Journal)
}
