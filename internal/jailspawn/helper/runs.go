package helper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A running program is a locked file in root's own folder: UID.N holds the id, the jail's name and the helper's process id of the
// caller's run number N. The kernel unlocks it when the helper is gone, however that went.

// errTooMany is a caller who has enough.
var errTooMany = errors.New("too many programs of yours are running")

func openRuns(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return Trusted(dir)
}

// takeRun takes a free number of the caller's. It is free again when the file is closed.
func takeRun(c Config, uid int, r Request) (*os.File, error) {
	if err := openRuns(c.RunDir); err != nil {
		return nil, err
	}
	for n := range c.Runs {
		file, err := os.OpenFile(runFile(c, uid, n), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if err := errors.Join(file.Close()); err != nil {
				return nil, err
			}
			continue
		}
		err = file.Truncate(0)
		if err == nil {
			_, err = fmt.Fprintf(file, "%s %s %d\n", r.ID, r.Name, os.Getpid())
		}
		if err != nil {
			return nil, errors.Join(err, file.Close())
		}
		return file, nil
	}
	return nil, errTooMany
}

func runFile(c Config, uid, n int) string {
	return filepath.Join(c.RunDir, strconv.Itoa(uid)+"."+strconv.Itoa(n))
}

// endRuns tells helpers to end what they hold: the caller's own, of a jail or of an id. It says how many there were.
func endRuns(c Config, uid int, r Request) (found int, err error) {
	if err := openRuns(c.RunDir); err != nil {
		return 0, err
	}
	for n := range c.Runs {
		ended, oneErr := endRun(runFile(c, uid, n), r)
		err = errors.Join(err, oneErr)
		if ended {
			found++
		}
	}
	return found, err
}

func endRun(path string, r Request) (ended bool, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return false, nil // no helper holds the lock: the run that the file names is over
	}
	text, err := io.ReadAll(io.LimitReader(file, 128))
	if err != nil {
		return false, err
	}
	words := strings.Fields(string(text))
	if len(words) != 3 || words[0] != r.ID && words[1] != r.Name {
		return false, nil
	}
	pid, err := strconv.Atoi(words[2])
	if err != nil || pid <= 1 {
		return false, nil
	}
	return true, unix.Kill(pid, unix.SIGTERM)
}
