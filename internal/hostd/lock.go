package hostd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// lock takes the lock file of a run directory. It is given up by closing the file, and by the death of the
// process; the file stays. It names its holder.
func lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := flock(f); err != nil {
		var line [20]byte
		n, _ := io.ReadFull(f, line[:]) // without the number the message is still true
		if pid := bytes.TrimSpace(line[:n]); len(pid) > 0 {
			err = fmt.Errorf("process %s has the lock %s: %w", pid, path, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fullDisk(fmt.Errorf("write the lock: %w", err)), f.Close())
	}
	return f, nil
}

// flock locks an open file or folder, or says that another host daemon has it.
func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return problem.New(problem.Conflict, "stop it first, or give this one its own data_dir and run_dir",
				"another host daemon of this installation is running")
		default:
			return err
		}
	}
}

// Lock keeps host daemons of an installation from starting until the file is closed, so that its files can be changed. The
// code is conflict while one runs.
func Lock(c config.Config) (*os.File, error) {
	if err := os.MkdirAll(c.RunDir, 0o750); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	return lock(lockPath(c))
}

// Journals are the folders with a record of every jail that has not ended.
func Journals(c config.Config) []string { return []string{journalPath(c), containerJournalPath(c)} }
