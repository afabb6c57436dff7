package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// machine identifies where a process runs: a process id means nothing anywhere else. A part that is not known is empty.
type machine struct {
	Host string `json:"host"`
	// ID is of the installation, Boot of its last start, PIDs of the process table (containers have their own).
	ID   string `json:"id"`
	Boot string `json:"boot"`
	PIDs string `json:"pids"`
}

// owner is what is kept about the last browser that was started here, which made the lock.
type owner struct {
	// Lock is the text of the lock that the browser made.
	Lock    string  `json:"lock"`
	Machine machine `json:"machine"`
}

// lockFile takes a lock for as long as the file is open. It returns nil when somebody else has it.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// startLook is how often a lock that somebody has is tried again.
const startLook = 25 * time.Millisecond

// StartLock is held by the one who starts a server for the browser of a folder. It makes the folder.
func StartLock(ctx context.Context, dir string) (unlock func(), err error) {
	if err := private(dir); err != nil {
		return nil, err
	}
	tick := time.NewTicker(startLook)
	defer tick.Stop()
	for {
		f, err := lockFile(filepath.Join(dir, "start.lock"))
		if err != nil {
			return nil, fmt.Errorf("lock the start of the host browser: %w", err)
		}
		if f != nil {
			return func() { _ = f.Close() }, nil // nothing was written
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another command that starts the host browser: %w", context.Cause(ctx))
		}
	}
}

const (
	// singletonLock is a link to "host-pid" that Chromium keeps while it uses a profile; the other two belong to it.
	singletonLock   = "SingletonLock"
	singletonSocket = "SingletonSocket"
	singletonCookie = "SingletonCookie"
)

// verdict says what a lock means.
type verdict int

const (
	lockFree  verdict = iota // there is none
	lockStale                // its browser is provably gone
	lockInUse                // its browser runs
	lockUnclear
)

// judge decides about a lock. Gone is only who provably is: a process of this very process table that does not exist, or
// one of a boot that is over. A name of another host proves nothing by itself: it may be this machine under its old name,
// which the record says, or another that has the folder too.
func judge(lock string, here machine, last owner, alive func(pid int) bool) verdict {
	if lock == "" {
		return lockFree
	}
	at := strings.LastIndexByte(lock, '-')
	if at < 0 {
		return lockUnclear
	}
	pid, err := strconv.Atoi(lock[at+1:])
	if err != nil || pid <= 0 {
		return lockUnclear
	}
	recorded := last.Lock == lock && last.Machine.ID != ""
	switch {
	case recorded && last.Machine.ID != here.ID:
		return lockUnclear // the same name on another machine
	case recorded && last.Machine.Boot != "" && here.Boot != "" && last.Machine.Boot != here.Boot:
		return lockStale
	case recorded && last.Machine.PIDs != here.PIDs:
		return lockUnclear // another container: its process ids are not ours
	case !recorded && lock[:at] != here.Host:
		return lockUnclear
	case alive(pid):
		return lockInUse
	}
	return lockStale
}

// alive says whether there is a process. One of another user is one too.
func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// clearLock makes the profile usable: it removes a lock whose browser is gone, and refuses when that is not sure.
func (k *Keeper) clearLock() (removed bool, err error) {
	path := filepath.Join(k.Profile(), singletonLock)
	lock, err := os.Readlink(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EINVAL) {
		return false, fmt.Errorf("read the lock of the profile: %w", err)
	}
	if errors.Is(err, syscall.EINVAL) {
		lock = "?" // it is no link: no browser made it
	}
	switch judge(lock, k.machine, k.lastOwner(), alive) {
	case lockFree:
		return false, nil
	case lockStale:
		k.log.Info("the lock of a browser that is gone was removed", "lock", lock)
		for _, name := range []string{singletonLock, singletonSocket, singletonCookie} {
			if err := os.Remove(filepath.Join(k.Profile(), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return false, fmt.Errorf("remove the lock of a browser that is gone: %w", err)
			}
		}
		return true, nil
	case lockInUse:
		return false, problem.New(problem.BrowserFailed, "close that browser, and try again",
			"the profile is in use: the browser with the process id %s has it open", lock[strings.LastIndexByte(lock, '-')+1:])
	}
	return false, problem.New(problem.BrowserFailed, "if no browser uses it, remove it: rm "+path,
		"the profile has the lock of a browser that may run elsewhere (%s), and this is %s", texts.Fit(texts.Printable(lock, ' '), shownColumns), k.machine.Host)
}

func (k *Keeper) ownerPath() string { return filepath.Join(k.dir, "owner.json") }

// lastOwner is what is kept about the last browser. One that cannot be read says nothing.
func (k *Keeper) lastOwner() (o owner) {
	data, err := os.ReadFile(k.ownerPath())
	if err != nil || json.Unmarshal(data, &o) != nil {
		return owner{}
	}
	return o
}

// keepOwner writes down whose the profile's lock is.
func (k *Keeper) keepOwner() error {
	lock, err := os.Readlink(filepath.Join(k.Profile(), singletonLock))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the headless shell makes none
	}
	if err != nil {
		return fmt.Errorf("read the lock of the profile: %w", err)
	}
	data, err := json.Marshal(owner{Lock: lock, Machine: k.machine})
	if err != nil {
		return fmt.Errorf("keep whose the profile is: %w", err)
	}
	return keyfile.Write(k.ownerPath(), 0o600, data, os.Rename)
}
