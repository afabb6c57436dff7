package vault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// errLocked says that another process, or another descriptor of this one, has the lock.
var errLocked = errors.New("the lock is taken")

// tryLock takes a lock file that the kernel gives back when the process ends, however it ends. The file stays.
func tryLock(path string) (release func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	folder, err := os.Stat(filepath.Dir(path))
	if err == nil {
		err = giveTo(f, folder)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the lock: %w", err), f.Close())
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(errLocked, f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("take the lock: %w", err), f.Close())
	}
	return f.Close, nil
}

// lock waits for a lock file. Waiting is asking again: a thread that waits in the kernel would not see the caller leave.
func lock(ctx context.Context, path string) (release func() error, err error) {
	const every = 5 * time.Millisecond
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		release, err = tryLock(path)
		if !errors.Is(err, errLocked) {
			return release, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another process that writes to the vault: %w", context.Cause(ctx))
		}
	}
}
