package hostd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// socketMode lets the control plane's group connect. The kernel tells the user of each connection, which is checked.
const socketMode = 0o660

// listen makes the socket in a folder that nobody else can write. A file that is there is of a host daemon that was
// killed: the lock of the installation says that no other is running.
func listen(path string, group int) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("look at the folder of the socket: %w", err)
	}
	if err := privateDir(dir, info, 0o022); err != nil {
		return nil, err
	}
	if err := absent(os.Remove(path)); err != nil {
		return nil, fmt.Errorf("remove an old socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		hint := "check run_dir in the configuration"
		if errors.Is(err, unix.EINVAL) {
			hint = "set run_dir to a shorter path: the path of a socket has at most 104 bytes"
		}
		return nil, problem.Wrap(err, problem.BadConfig, hint, "the socket %s cannot be made", path)
	}
	if err := errors.Join(os.Chown(path, -1, group), os.Chmod(path, socketMode)); err != nil {
		return nil, errors.Join(fmt.Errorf("open the socket to its group: %w", err), l.Close())
	}
	return l, nil
}
