package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/safepath"
)

// undo removes everything that carries the trial's id, whatever state it is in. It works once, and a further call
// returns the same: what it has closed must not be closed again.
func (t *trial) undo(ctx context.Context) error {
	t.undoing.Do(func() { t.left = t.undoAll(ctx) })
	return t.left
}

// undoAll tries every step, also after an error. The folders go last, and only when nothing is mounted in them.
func (t *trial) undoAll(ctx context.Context) error {
	defer t.cancel()
	if _, made := t.folders.seal(); !made {
		return nil
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	if stop, ok := t.gateway.seal(); ok {
		note(stop())
	}
	note(t.reap(ctx))
	if r, ok := t.runtime.seal(); ok {
		note(r.Close())
	}
	if s, ok := t.browsers.seal(); ok {
		note(s.Close())
	}
	if s, ok := t.storage.seal(); ok {
		note(s.Close())
		note(s.Trees().Remove(filepath.Join(t.data, "templates", tiny, "rootfs")))
	}
	limiter, _ := t.limiter.seal()
	firewall, _ := t.firewall.seal()
	note(linux.Uninstall(ctx, t.options(), limiter, firewall))
	note(t.removeFolders(ctx))
	return errors.Join(errs...)
}

// reap has the reaper of jails remove what they and their slots left. Its pool and its network are new: those of the checks may
// still have leases that are never given back.
func (t *trial) reap(ctx context.Context) (err error) {
	parts := jail.Parts{Storage: absent{}, Network: absent{}, Firewall: absentFirewall{}, Runtime: absent{}, Limiter: absent{}}
	subnet := jail.DefaultSubnets()[0] // any will do where none was taken
	if own, ok := t.pool.seal(); ok {
		subnet = own.Subnet()
	}
	pool, err := jail.NewPool(subnet, 0)
	if err != nil {
		return err
	}
	if n, ok := t.network.seal(); ok {
		fresh, openErr := t.openNetwork(ctx, pool)
		err = errors.Join(n.Close(ctx), openErr)
		if openErr == nil {
			parts.Network = fresh
			defer func() { err = errors.Join(err, fresh.Close(ctx)) }()
		}
	}
	if f, ok := t.firewall.seal(); ok {
		parts.Firewall = f
	}
	if l, ok := t.limiter.seal(); ok {
		parts.Limiter = l
	}
	if r, ok := t.runtime.seal(); ok {
		parts.Runtime = r
	}
	for _, p := range []*part[*linux.Storage]{&t.storage, &t.browsers} {
		if s, ok := p.seal(); ok {
			parts.Storage = s // either sees what both have cloned
		}
	}
	life, lifeErr := t.lifecycle(ctx, pool, parts)
	if lifeErr != nil {
		return errors.Join(err, lifeErr)
	}
	defer life.Close()
	_, reapErr := life.Reap(ctx, jail.ReapOptions{})
	return errors.Join(err, reapErr)
}

// absent stands for parts that were never opened, to the reaper: there is nothing of them.
type absent struct {
	jail.Storage
	jail.Network
	jail.Runtime
	jail.Limiter
}

func (absent) List(context.Context) ([]jail.HostResource, error)   { return nil, nil }
func (absent) Kill(context.Context, jail.Name, jail.Process) error { return nil }
func (absent) Unmount(context.Context, jail.Name, bool) error      { return nil }
func (absent) Stop(context.Context, jail.Name) error               { return nil }
func (absent) Remove(context.Context, jail.Name) error             { return nil }
func (absent) Destroy(context.Context, jail.Name) error            { return nil }

type absentFirewall struct{ jail.Firewall }

func (absentFirewall) List(context.Context) ([]jail.HostResource, error) { return nil, nil }

// removeFolders removes the trial's folders, those that were made above them, and the lock. It enters no mount: a folder with
// one in it stays.
func (t *trial) removeFolders(ctx context.Context) error {
	var errs []error
	for _, dir := range []string{t.run, t.data} {
		folder, err := safepath.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(folder.Empty(ctx), folder.Close())
		}
		if err == nil {
			err = os.Remove(dir)
		}
		errs = append(errs, err)
	}
	for _, dir := range t.made {
		// Somebody may be using it by now, or it is a link to what is not mounted; then it stays.
		if err := unix.Rmdir(dir); !slices.Contains([]error{nil, unix.ENOTEMPTY, unix.EBUSY, unix.ENOTDIR, unix.ENOENT}, err) {
			errs = append(errs, &os.PathError{Op: "rmdir", Path: dir, Err: err})
		}
	}
	if t.lock != nil {
		errs = append(errs, t.lock.Close())
	}
	return errors.Join(errs...)
}

// sweep removes trials whose process was killed.
func sweep(ctx context.Context, c config.Config, log *slog.Logger) error {
	entries, err := os.ReadDir(c.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, entry := range entries {
		id, ok := strings.CutPrefix(entry.Name(), trialPrefix)
		if _, bad := jail.ParseInstallation(id); !ok || bad != nil || !entry.IsDir() {
			continue
		}
		if err := sweepOne(ctx, c, log, jail.Installation(id)); err != nil {
			errs = append(errs, fmt.Errorf("trial %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// sweepOne opens the parts of an abandoned trial as they were, which makes them see what it left, and undoes it.
func sweepOne(ctx context.Context, c config.Config, log *slog.Logger, id jail.Installation) (err error) {
	t := newTrial(c, log)
	defer t.cancel()
	t.id = id
	t.data, t.run = filepath.Join(c.DataDir, trialPrefix+string(id)), filepath.Join(c.RunDir, trialPrefix+string(id))
	// It was killed between making its folder and locking it, when there is no such file; then it has nothing else.
	t.lock, err = lockTrial(t.data)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil // another doctor is at work, or has just ended
	}
	if err != nil {
		return err
	}
	t.folders.open = func() (jail.Installation, error) { return id, nil }
	// A part that cannot be opened can have left nothing, except for what the folders hold.
	_, storageErr := t.storage.get()
	_, runtimeErr := t.runtime.get() // and the limiter
	errs := []error{storageErr, runtimeErr}
	if _, err := os.Stat(filepath.Join(t.data, subnetFile)); err == nil {
		_, networkErr := t.network.get()
		_, firewallErr := t.firewall.get()
		errs = append(errs, networkErr, firewallErr)
	}
	if err := errors.Join(errs...); err != nil {
		log.Warn("open the parts of an abandoned trial", "trial", id, "error", err)
	}
	return t.undo(ctx)
}
