package hostd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail/docker"
	"github.com/clawjail/clawjail/internal/problem"
)

// runningProgram is this program, also when another version has taken its path since.
const runningProgram = "/proc/self/exe"

// relayOf says how the relay of the containers is run; nil where the gateway is on their bridge.
func relayOf(c config.Config, o ContainerOptions) (*docker.Relay, error) {
	if c.Gateway.Placement != config.PlacementContainer {
		return nil, nil
	}
	if err := makeRelayKey(ControlDir(c), o.UID, o.GID); err != nil {
		return nil, fmt.Errorf("make the key of the relay: %w", err)
	}
	var listen netip.Addr
	if c.Gateway.RelayTo == "" { // else the operator has a way of their own
		listen = c.Gateway.Relay.Addr()
	} else {
		listen = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return &docker.Relay{KeyFile: RelayKeyPath(c), UID: o.UID, GID: o.GID, Binary: runningProgram, Listen: listen,
		To: c.Gateway.RelayTarget()}, nil
}

// makeRelayKey makes the key in the control plane's folder, once, beneath that folder whatever the name stands for there. A file that is
// no key is removed first: only the control plane, or a power cut, can have left it.
func makeRelayKey(folder string, uid, gid int) (err error) {
	dir, err := os.OpenFile(folder, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close() // nothing is written through it
	at := int(dir.Fd())
	var st unix.Stat_t
	err = unix.Fstatat(at, relayKeyName, &st, unix.AT_SYMLINK_NOFOLLOW)
	key := make([]byte, docker.RelayKeySize)
	rand.Read(key) // never fails, see its documentation
	defer clear(key)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == int64(len(key)) && int(st.Uid) == uid && st.Mode&0o077 == 0:
		return nil
	case err == nil:
		if err := unix.Unlinkat(at, relayKeyName, 0); err != nil {
			return problem.Wrap(&fs.PathError{Op: "remove", Path: relayKeyName, Err: err}, problem.BadConfig, "remove it by hand", "what lies at the place of the key is not a key")
		}
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	fd, err := unix.Openat(at, relayKeyName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return &fs.PathError{Op: "open", Path: relayKeyName, Err: err}
	}
	f := os.NewFile(uintptr(fd), relayKeyName)
	_, err = f.Write(key)
	return fullDisk(errors.Join(err, f.Chown(uid, gid), f.Chmod(0o400), f.Close()))
}
