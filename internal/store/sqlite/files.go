package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// lockName is the file that is locked while the schema is looked at and brought up to date.
const lockName = FileName + ".lock"

// prepare makes the folder and the file with their modes, and takes the lock on the schema. SQLite gives the files
// that it adds the mode and the owner of the database.
func prepare(ctx context.Context, dir, path string) (release func() error, err error) {
	if err := folder(dir); err != nil {
		return nil, place(err, dir)
	}
	release, err = lock(ctx, filepath.Join(dir, lockName))
	if err != nil {
		return nil, place(err, dir)
	}
	if err := file(path); err != nil {
		return nil, errors.Join(place(err, dir), release())
	}
	return release, nil
}

// folder makes a folder that its owner alone can enter. One that is there and open to others is closed to them.
func folder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return os.Chmod(dir, 0o700)
	}
	return nil
}

// file makes an empty database. One that is there is not opened, only looked at: when a process closes a file, it
// loses all its locks on it, also those that SQLite has taken.
func file(path string) error {
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			return problem.New(problem.BadConfig, "move it away", "%s is not a file", name)
		case info.Mode().Perm()&0o077 != 0:
			if err := os.Chmod(name, 0o600); err != nil {
				return err
			}
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(likeFolder(f, filepath.Dir(path)), f.Close())
}

// likeFolder gives a new file the owner of its folder: what root makes must stay usable for the control plane.
func likeFolder(f *os.File, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	var at unix.Stat_t
	if err := unix.Stat(dir, &at); err != nil {
		return err
	}
	return f.Chown(int(at.Uid), int(at.Gid))
}

// lock waits for a file lock, which ends with the process at the latest.
func lock(ctx context.Context, path string) (release func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := likeFolder(f, filepath.Dir(path)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another process that opens the database: %w", ctx.Err()), f.Close())
		case <-again.C:
		}
	}
}

// place says what to do about a folder that cannot be used.
func place(err error, dir string) error {
	if _, known := problem.As(err); known {
		return err
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return problem.Wrap(err, problem.BadConfig, "make the folder "+dir+" belong to the user of the control plane, with mode 0700",
			"the folder of the database cannot be used")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return store.Full(err)
	}
	return fmt.Errorf("prepare the folder of the database: %w", err)
}
