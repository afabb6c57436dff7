//go:build linux

package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
)

// An engine starts programs at once, and a jail is to be looked at before anything of its program runs. So what an engine
// starts is a shell, which waits and then becomes the program. Its stdio is the program's, and is not touched.
const (
	shellPath = "/bin/sh"
	// startGate is for the first process of a container, which cannot stop itself: signals from within do not reach it. It
	// waits for the other end of a FIFO that the container can only read.
	startGate = `read _ < ` + jail.StageDir + `/` + gateName + `; exec "$@"`
	// execGate is for the others.
	execGate = `kill -STOP $$; exec "$@"`

	gateFolder = "gate"
	gateName   = "go"
	gateLimit  = 20 * time.Second // catches what hangs: an engine under load needs seconds
)

// stageGate makes the FIFO of a container, in a folder of its own.
func (d *Driver) stageGate(name jail.Name, out *folders) error {
	dir := d.stagePath(name, gateFolder)
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
		return err
	}
	at := d.stagePath(name, gateFolder, gateName)
	if err := errors.Join(unix.Mkfifo(at, 0o644), os.Chmod(at, 0o644)); err != nil { // whatever the umask is
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return out.add(d.stagePath(name, mountsFolder), f, jail.StageDir, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOEXEC)
}

// openGate lets the program begin. That the container has ended is no error: how is asked with Wait.
func (d *Driver) openGate(ctx context.Context, name jail.Name, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, gateLimit)
	defer cancel()
	for {
		fd, err := unix.Open(d.stagePath(name, gateFolder, gateName), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = unix.Write(fd, []byte("\n"))
			return errors.Join(err, unix.Close(fd))
		}
		if !errors.Is(err, unix.ENXIO) { // the shell has not come that far
			return fmt.Errorf("open the gate: %w", err)
		}
		if wake.Closed(ended) {
			return nil
		}
		wake.Sleep(ctx, 2*time.Millisecond)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the container does not wait for its program: %w", err)
		}
	}
}
