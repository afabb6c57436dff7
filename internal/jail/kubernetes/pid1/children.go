//go:build linux

package pid1

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// children are the processes of the pod: those that were started here, and those that others have left behind.
type children struct {
	mu      sync.Mutex // guards what follows
	waiting map[int]chan<- syscall.WaitStatus
	ended   bool // nothing more is started
}

var errEnding = errors.New("the pod ends")

// start starts a program, whose end is received from the channel.
func (c *children) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	c.mu.Lock() // until its end is waited for, the reaper does not collect it
	defer c.mu.Unlock()
	if c.ended {
		return 0, nil, errEnding
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	c.waiting[pid] = ended
	return pid, ended, nil
}

// reap collects all that have ended. left says whether some have not.
func (c *children) reap() (left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return collect(func(pid int, status syscall.WaitStatus) {
		if ended, ours := c.waiting[pid]; ours {
			ended <- status
			delete(c.waiting, pid)
		}
	})
}

// collect collects the children of this process that have ended. left says whether some have not.
func collect(ended func(pid int, status syscall.WaitStatus)) (left bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return false // ECHILD
		case pid == 0:
			return true
		default:
			ended(pid, status)
		}
	}
}

// signal sends a signal to a process whose end has not been received.
func (c *children) signal(pid int, sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[pid] != nil {
		_ = syscall.Kill(pid, sig) // it may have ended
	}
}

// end ends everything in the pod but this process, and returns when nothing is left. Nothing more is started.
func (c *children) end(grace time.Duration) {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	everything := func(sig syscall.Signal) { _ = syscall.Kill(-1, sig) } // that nothing is there is what is wanted
	if grace > 0 {
		everything(syscall.SIGTERM)
	}
	for until := time.Now().Add(grace); c.reap() && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
	}
	for {
		everything(syscall.SIGKILL)
		if !c.reap() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// exitOf is how a process ended, with 128 and its number after a signal.
func exitOf(status syscall.WaitStatus) jail.Exit {
	exit := jail.Exit{Code: status.ExitStatus(), Cause: jail.CauseExited, At: time.Now().UTC()}
	if status.Signaled() {
		exit.Code, exit.Signal = 128+int(status.Signal()), status.Signal().String()
	}
	return exit
}
