//go:build freebsd || darwin

package hostd

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// solLocal is SOL_LOCAL, the level of options of unix sockets (unix(4)).
const solLocal = 0

// peerOf asks the kernel who made a connection.
func peerOf(conn *net.UnixConn) (peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{}, err
	}
	var cred *unix.Xucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptXucred(int(fd), solLocal, unix.LOCAL_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return peer{}, fmt.Errorf("read the peer's credentials: %w", err)
	}
	return peer{uid: cred.Uid}, nil
}

// untilPeerDies has no equivalent here: the end of the connection has to do.
func untilPeerDies(context.Context, *net.UnixConn) error {
	return errors.ErrUnsupported
}
