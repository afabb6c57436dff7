package hostd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel who made a connection.
func peerOf(conn *net.UnixConn) (peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{}, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return peer{}, fmt.Errorf("read the peer's credentials: %w", err)
	}
	return peer{uid: cred.Uid, pid: int(cred.Pid)}, nil
}

// untilPeerDies returns when the process that made the connection is gone, or the context ends. Without it, a
// connection that was inherited by a child would speak for a dead owner. It returns an error at once where the
// kernel has no SO_PEERPIDFD (before Linux 6.5); the end of the connection then has to do.
func untilPeerDies(ctx context.Context, conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	pidfd := -1
	var optErr error
	err = raw.Control(func(fd uintptr) {
		pidfd, optErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	})
	if err = errors.Join(err, optErr); err != nil {
		return fmt.Errorf("get the peer's process: %w", err)
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return errors.Join(fmt.Errorf("make a pidfd pollable: %w", err), unix.Close(pidfd))
	}
	f := os.NewFile(uintptr(pidfd), "pidfd")
	defer f.Close() // only polled
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	poll, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return poll.Read(func(uintptr) bool { return dead(pidfd) }) // a pidfd becomes readable when its process ends
}

// dead asks a pidfd without waiting.
func dead(pidfd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}
