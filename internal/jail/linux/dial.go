//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
)

// Dial connects to a port of the jail: on its loopback, or else on its own address.
func (r *Runtime) Dial(ctx context.Context, p jail.Placement, proc jail.Process, port uint16) (*os.File, error) {
	if err := errors.Join(r.o.check(p.Name), ctx.Err()); err != nil {
		return nil, err
	}
	return jail.DialEither(ctx, p, port, func(ctx context.Context, to netip.AddrPort) (*os.File, error) { return DialIn(ctx, proc, to) })
}

// DialIn connects to an address in the network of a process. A socket belongs for good to the network that it was made in, so
// only its making needs a thread in there.
func DialIn(ctx context.Context, proc jail.Process, to netip.AddrPort) (*os.File, error) {
	f, err := socketInside(proc)
	if err != nil {
		return nil, err
	}
	err = connect(ctx, f, to)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s in the jail: %w", to, err), f.Close())
	}
	return f, nil
}

// socketInside makes a socket in the network of a process.
func socketInside(proc jail.Process) (f *os.File, err error) {
	err = InNetworkOf(proc, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("make a socket in the jail's network: %w", err)
		}
		f = os.NewFile(uintptr(fd), "jail")
		return nil
	})
	return f, err
}

// connect waits without a thread, as awaitEnd does.
func connect(ctx context.Context, f *os.File, to netip.AddrPort) error {
	err := control(f, func(fd int) error {
		return unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	})
	if !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = f.SetWriteDeadline(time.Unix(1, 0)) // a closed file has woken the writer already
	})
	var failed error
	err = c.Write(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
		if err != nil || n != 1 {
			return false
		}
		if errno, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err != nil {
			failed = err
		} else if errno != 0 {
			failed = unix.Errno(errno)
		}
		return true
	})
	if !stop() {
		<-woken
		return errors.Join(ctx.Err(), failed)
	}
	return errors.Join(err, failed)
}
