package template

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/keyfile"
)

// Names inside the folder of templates. None is a valid name of a template.
const (
	buildingPrefix = ".building-"
	oldPrefix      = ".old-"
	firstPrefix    = ".lock-" // and a name: the lock of the process that builds that template for all
	storeLockName  = ".lock"
)

// Names inside a folder under construction, next to those of the finished template.
const (
	livenessName = "lock" // held locked by the builder for as long as it lives
	workName     = "work"
)

// holdersName is beside the tree of a template that was replaced: the names of the jails that may run from it.
const holdersName = "jails"

// ownerName is there too: the installation that replaced the template.
const ownerName = "owner"

// discardTime is how long the commands of a host may take that make a folder free to be removed.
const discardTime = 2 * time.Minute

// lockPoll is how often a lock that somebody else holds is tried again.
const lockPoll = 50 * time.Millisecond

// lock takes the lock of the folder of templates. It is held for the short moments in which folders get and lose their
// names, so that no process takes a folder whose builder is just making it or giving it its name for an abandoned one.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	// The data directory above is not for root alone.
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of templates: %w", err)
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the folder of templates: %w", err)
	}
	return lockFile(ctx, filepath.Join(s.dir, storeLockName), nil)
}

// lockCache takes the lock of the package cache, and makes the cache where there is none.
func (b *build) lockCache(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(b.store.cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the package cache: %w", err)
	}
	return lockFile(ctx, filepath.Join(b.store.cache, ".clawjail-lock"), nil)
}

// lockFile waits for the exclusive lock of a file, and calls waiting, where there is one, if somebody else has it. The kernel releases it
// when the holder dies.
func lockFile(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a lock: %w", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		held, err := tryLock(f)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if held {
			// Closing the only descriptor releases the lock; there is nothing to write that could fail.
			return func() { _ = f.Close() }, nil
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another build: %w", context.Cause(ctx)), f.Close())
		case <-tick.C:
		}
	}
}

// tryLock takes the lock of an open file, or reports that somebody else has it.
func tryLock(f *os.File) (held bool, err error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		default:
			return false, err
		}
	}
}

// beginBuilding makes a folder under construction and locks it. closeDir releases the lock.
func (s *Store) beginBuilding(ctx context.Context, name string) (dir string, closeDir func() error, err error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	dir, err = s.freeName(buildingPrefix, name)
	if err != nil {
		return "", nil, err
	}
	// Others may enter the folder of a template; the folder above is root's alone.
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", nil, fmt.Errorf("make the folder of the build: %w", err)
	}
	undo := func(err error) error { return errors.Join(err, os.RemoveAll(dir)) }
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask is
		return "", nil, undo(fmt.Errorf("make the folder of the build: %w", err))
	}
	f, err := os.OpenFile(filepath.Join(dir, livenessName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", nil, undo(fmt.Errorf("lock the folder of the build: %w", err))
	}
	if held, err := tryLock(f); err != nil || !held {
		return "", nil, errors.Join(undo(fmt.Errorf("lock the folder of the build: %w", err)), f.Close())
	}
	return dir, f.Close, nil
}

// freeName is the path of a folder that does not exist yet.
func (s *Store) freeName(prefix, name string) (string, error) {
	path := filepath.Join(s.dir, prefix+name+"-"+strings.ToLower(rand.Text()[:12]))
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("choose a name for a folder: %s is taken: %w", path, err)
	}
	return path, nil
}

// Sweep removes what interrupted builds and removals have left, and templates that were replaced, mounts below them included, and
// returns the names of the folders. A build that is still running is not touched, and neither is what jails may run from.
func (s *Store) Sweep(ctx context.Context) (removed []string, err error) {
	if _, err := os.Lstat(s.dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("look for abandoned builds: %w", err)
	}
	var problems []error
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			problems = append(problems, context.Cause(ctx))
			break
		}
		path := filepath.Join(s.dir, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), oldPrefix):
		case strings.HasPrefix(entry.Name(), buildingPrefix):
			alive, err := isAlive(path)
			if err != nil {
				problems = append(problems, fmt.Errorf("look for the owner of %s: %w", path, err))
				continue
			}
			if alive {
				continue
			}
		default:
			continue
		}
		gone, err := s.retire(ctx, path)
		if err != nil {
			problems = append(problems, fmt.Errorf("remove the abandoned folder %s: %w", path, err))
		}
		if gone {
			removed = append(removed, entry.Name())
		}
	}
	return removed, errors.Join(problems...)
}

// isAlive reports whether the builder of a folder still lives.
func isAlive(path string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(path, livenessName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	held, err := tryLock(f)
	return err == nil && !held, errors.Join(err, f.Close())
}

// retire removes the folder of a build, or one that had been a template. That stays while jails may run from it.
func (s *Store) retire(ctx context.Context, path string) (gone bool, err error) {
	// A build lets go of its lock in the moment in which its folder gets the template's name.
	if _, err := os.Lstat(filepath.Join(path, livenessName)); errors.Is(err, fs.ErrNotExist) {
		if s.held(ctx, path) {
			return false, nil
		}
	}
	err = s.discard(path)
	return err == nil, err
}

// held says whether jails may run from a folder that had been a template: one of those is left that there were when this was first
// asked. By then no new one was made of it. While that is not known, it is held.
func (s *Store) held(ctx context.Context, path string) bool {
	if owner, err := os.ReadFile(filepath.Join(path, ownerName)); err == nil && string(owner) != s.owner {
		return true
	}
	_, name, _ := strings.Cut(filepath.Base(path), "-")
	name, _, _ = strings.Cut(name, "-")
	now, err := s.jails(ctx, name)
	if err != nil {
		return true
	}
	file := filepath.Join(path, holdersName)
	holders, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && len(now) > 0 {
		holders = []byte(strings.Join(now, "\n"))
		err = keyfile.Write(file, 0o600, holders, os.Rename)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true // as on a full disk; it is tried again
	}
	return slices.ContainsFunc(strings.Fields(string(holders)), func(jail string) bool { return slices.Contains(now, jail) })
}

// own notes beside a template, which is about to be replaced, who does that. There may be none.
func (s *Store) own(dir string) error {
	err := os.WriteFile(filepath.Join(dir, ownerName), []byte(s.owner), 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// discard removes a folder with a tree in it. It never removes through a mount: what is mounted below is unmounted
// first, and when that does not work nothing is removed.
func (s *Store) discard(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), discardTime) // also when the caller's has ended
	defer cancel()
	if err := s.letGo(ctx, path); err != nil {
		return err
	}
	if err := s.trees.Remove(filepath.Join(path, rootfsName)); err != nil {
		return err
	}
	return os.RemoveAll(path)
}
