//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/safepath"
)

// gateLimit bounds how long the jail's first process may take to arrive at the gate.
const gateLimit = 20 * time.Second

// mkgate makes the FIFO that launch.sh waits at: its opening for reading returns when somebody has opened it for
// writing.
func mkgate(f *safepath.Folder, uid int) error {
	err := unix.Mknodat(f.FD(), jail.StageGate, unix.S_IFIFO|0o400, 0)
	if err == nil {
		err = unix.Fchownat(f.FD(), jail.StageGate, uid, uid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		err = unix.Fchmodat(f.FD(), jail.StageGate, 0o400, 0) // whatever the umask is; the FIFO has just been made here
	}
	if err != nil {
		return &os.PathError{Op: "make gate", Path: filepath.Join(f.Path(), jail.StageGate), Err: err}
	}
	return nil
}

// Begin opens the gate. A process that has ended before it came there needs no opening.
func (r *Runtime) Begin(ctx context.Context, p jail.Placement, proc jail.Process) error {
	if err := r.o.check(p.Name); err != nil {
		return err
	}
	stage, err := r.bundles.Folder(filepath.Join(string(p.Name), bundleStage))
	if err != nil {
		return fmt.Errorf("open the gate of jail %s: %w", p.Name, err)
	}
	defer func() { _ = stage.Close() }() // opened for reading
	deadline := time.Now().Add(gateLimit)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		fd, err := stage.Open(jail.StageGate, unix.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			return unix.Close(fd) // the process that waits has been let through
		}
		if !errors.Is(err, unix.ENXIO) { // that says that nobody waits yet
			return fmt.Errorf("open the gate of jail %s: %w", p.Name, err)
		}
		running, err := openProcess(proc)
		if gone(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("open the gate of jail %s: %w", p.Name, err)
		}
		ended := running.ended()
		running.Close()
		if ended {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d of jail %s did not come to the gate", proc.PID, p.Name)
		}
		if !wake.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}
