package jail

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// OwnStdio makes copies of the files of a program's stdio, for a driver that copies between them and a connection: they outlive the caller's, and a
// close wakes their readers. Instead of a file that is nil there is /dev/null.
func OwnStdio(files [3]*os.File) (out [3]*os.File, err error) {
	defer func() {
		for _, f := range out {
			if err != nil && f != nil {
				_ = f.Close() // it was not used yet
			}
		}
	}()
	for i, f := range files {
		if f == nil {
			mode := os.O_RDONLY
			if i > 0 {
				mode = os.O_WRONLY
			}
			if out[i], err = os.OpenFile(os.DevNull, mode, 0); err != nil {
				return out, err
			}
			continue
		}
		conn, err := f.SyscallConn()
		if err != nil {
			return out, err
		}
		fd, errDup := -1, error(nil)
		err = conn.Control(func(from uintptr) {
			if fd, errDup = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0); errDup == nil {
				errDup = unix.SetNonblock(fd, true) // what makes os.NewFile use the poller
			}
		})
		if err := errors.Join(err, errDup); err != nil {
			return out, err
		}
		out[i] = os.NewFile(uintptr(fd), f.Name())
	}
	return out, nil
}

// Pipes makes the stdio of a program: its own ends, and those of the process that starts it.
func Pipes() (ends [3]*os.File, stdio *Stdio, err error) {
	var ours [3]*os.File
	for n := range ends {
		r, w, err := os.Pipe()
		if err != nil {
			for i := range n {
				_ = errors.Join(ours[i].Close(), ends[i].Close()) // unused
			}
			return [3]*os.File{}, nil, err
		}
		if ours[n], ends[n] = r, w; n == 0 {
			ours[n], ends[n] = w, r
		}
	}
	return ends, &Stdio{In: ours[0], Out: ours[1], Err: ours[2]}, nil
}

// SocketPair is a connection within this process: one end for the caller, and one for the driver, which copies.
func SocketPair() (ours, theirs *os.File, err error) {
	syscall.ForkLock.RLock() // programs that are started meanwhile get neither
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil { // so that reads of it end when it is closed
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}
