package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/beneath"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
)

// undo removes everything that carries the trial's id, whatever state it is in. It works once, and a further call
// returns the same: what it has closed must not be closed again.
func (t *trial) undo(ctx context.Context) error {
	t.undoing.Do(func() { t.left = t.undoAll(ctx) })
	return t.left
}

// undoAll tries every step, also after an error. The folders go last, and only when nothing is mounted in them.
func (t *trial) undoAll(ctx context.Context) error {
	defer t.end()
	if _, made := t.folders.end(); !made {
		return nil
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	if e, ok := t.gateway.end(); ok {
		note(e.close())
	}
	note(t.undoJails(ctx))
	note(t.undoNetwork(ctx))
	if r, ok := t.runtime.end(); ok {
		note(r.Close())
	}
	if s, ok := t.browsers.end(); ok {
		note(s.Close())
	}
	if s, ok := t.storage.end(); ok {
		note(s.Close())
		note(s.Trees().Remove(filepath.Join(t.data, "templates", tiny, "rootfs")))
	}
	o, err := t.options()
	limiter, _ := t.limiter.end()
	firewall, _ := t.firewall.end()
	note(err)
	note(linux.Uninstall(ctx, o, limiter, firewall))
	note(t.removeFolders(ctx))
	return errors.Join(errs...)
}

// undoJails ends what runs and removes what a jail has, in the order of the teardown.
func (t *trial) undoJails(ctx context.Context) error {
	var lists []func(context.Context) ([]jail.Trace, error)
	runtime, hasRuntime := t.runtime.end()
	limiter, hasLimiter := t.limiter.end()
	storage, hasStorage := t.storage.end()
	browsers, hasBrowsers := t.browsers.end()
	if hasRuntime {
		lists = append(lists, runtime.List)
	}
	if hasLimiter {
		lists = append(lists, limiter.List)
	}
	if hasStorage {
		lists = append(lists, storage.List)
	}
	if hasBrowsers {
		lists = append(lists, browsers.List)
	}
	var errs []error
	var names []jail.Name
	for _, list := range lists {
		traces, err := list(ctx)
		errs = append(errs, err)
		for _, trace := range traces {
			if !slices.Contains(names, trace.Name) {
				names = append(names, trace.Name)
			}
		}
	}
	for _, name := range names {
		if hasRuntime {
			errs = append(errs, runtime.Kill(ctx, name, jail.Process{}))
		}
		for _, s := range []*linux.Storage{storage, browsers} {
			if s != nil {
				errs = append(errs, s.Unmount(ctx, name, true))
			}
		}
		if hasRuntime {
			errs = append(errs, runtime.Stop(ctx, name))
		}
		if hasLimiter {
			errs = append(errs, limiter.Remove(ctx, name))
		}
		for _, s := range []*linux.Storage{storage, browsers} {
			if s != nil {
				errs = append(errs, s.Destroy(ctx, name))
			}
		}
	}
	return errors.Join(errs...)
}

// undoNetwork removes slots, members, tables and the bridge.
func (t *trial) undoNetwork(ctx context.Context) error {
	var errs []error
	if f, ok := t.firewall.end(); ok {
		traces, err := f.List(ctx)
		errs = append(errs, err)
		for _, trace := range traces {
			errs = append(errs, f.RemoveTrace(ctx, trace))
		}
	}
	n, ok := t.network.end()
	if !ok {
		return errors.Join(errs...)
	}
	errs = append(errs, n.Close(ctx))
	// A fresh one knows of no slots that wait for their jails, so it removes them all.
	pool, err := t.pool.get()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	fresh, err := linux.OpenNetwork(ctx, linux.NetworkConfig{Installation: t.id, Pool: pool, RunDir: t.run, Log: t.log})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	traces, err := fresh.List(ctx)
	errs = append(errs, err)
	for _, trace := range traces {
		errs = append(errs, fresh.RemoveTrace(ctx, trace))
	}
	return errors.Join(append(errs, fresh.Close(ctx))...)
}

// removeFolders removes the trial's folders, those that were made above them, and the lock. It enters no mount: a folder with
// one in it stays.
func (t *trial) removeFolders(ctx context.Context) error {
	var errs []error
	for _, dir := range []string{t.run, t.data} {
		folder, err := beneath.Open(dir)
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
	for _, dir := range slices.Backward(t.made) {
		// Somebody may be using it by now; then it stays.
		if err := os.Remove(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
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
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
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
func sweepOne(ctx context.Context, c config.Config, log *slog.Logger, id jail.Installation) error {
	t := newTrial(c, log)
	defer t.end()
	t.id = id
	t.data = filepath.Join(c.DataDir, trialPrefix+string(id))
	t.run = filepath.Join(c.RunDir, trialPrefix+string(id))
	// It was killed between making its folder and locking it, when there is no such file; then it has nothing else.
	lock, err := lockTrial(t.data, os.O_CREATE)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil // another doctor is at work, or has just ended
	}
	if err != nil {
		return err
	}
	t.lock = lock
	t.folders.open = func() (jail.Installation, error) { return id, nil }
	t.pool.open = func() (*jail.Pool, error) {
		text, err := os.ReadFile(filepath.Join(t.data, subnetFile))
		if err != nil {
			return nil, err
		}
		network, err := netip.ParsePrefix(string(text))
		if err != nil {
			return nil, err
		}
		return t.poolOf(network)
	}
	// A part that cannot be opened can have left nothing, except for what the folders hold.
	_, foldersErr := t.folders.get()
	_, storageErr := t.storage.get()
	_, runtimeErr := t.runtime.get() // and the limiter
	errs := []error{foldersErr, storageErr, runtimeErr}
	if _, err := t.pool.get(); err == nil {
		_, networkErr := t.network.get()
		_, firewallErr := t.firewall.get()
		errs = append(errs, networkErr, firewallErr)
	}
	if err := errors.Join(errs...); err != nil {
		log.Warn("open the parts of an abandoned trial", "trial", id, "error", err)
	}
	return t.undo(ctx)
}
