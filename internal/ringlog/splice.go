package ringlog

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Splice appends what is in a pipe: up to limit bytes, as soon as there are any. It returns io.EOF when nobody has the pipe's
// other end, and what from says when it is closed or past its deadline; from must not block. On Linux the kernel moves the
// bytes (splice(2)), so that one that was taken out of the pipe is in the file, whenever the process is killed; elsewhere
// what was read and not yet written is lost. A full disk is treated as in Write: the bytes are taken and dropped.
func (l *Log) Splice(from *os.File, limit int) (int64, error) {
	raw, err := from.SyscallConn()
	if err != nil {
		return 0, err
	}
	limit = max(limit, 1)
	var n int64
	var moveErr error
	err = raw.Read(func(fd uintptr) bool {
		n, moveErr = l.move(int(fd), limit)
		return !errors.Is(moveErr, unix.EAGAIN)
	})
	if err != nil {
		return 0, err
	}
	if n == 0 && moveErr == nil {
		moveErr = io.EOF
	}
	return n, moveErr
}

// move moves what is there. EAGAIN says that nothing is.
func (l *Log) move(fd, limit int) (int64, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	for {
		if l.isClosed() {
			return 0, fs.ErrClosed
		}
		err := l.prepare()
		if err == nil {
			var n int64
			n, err = l.transfer(fd, int(min(int64(limit), l.room)))
			if err == nil {
				l.grew(n)
				return n, nil
			}
		}
		if errors.Is(err, unix.EAGAIN) {
			return 0, err
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return l.discard(fd, limit)
	}
}

// copyOver is transfer where the kernel does not move bytes from a pipe to a file.
func (l *Log) copyOver(fd, limit int) (int64, error) {
	buffer := make([]byte, min(limit, 64<<10))
	n, err := unix.Read(fd, buffer)
	if n <= 0 || err != nil {
		return 0, err
	}
	written, err := l.current.WriteAt(buffer[:n], l.at())
	if err != nil {
		l.grew(int64(written))
		l.drop(int64(n - written))
		return 0, unix.EINTR // what came is accounted for: look again
	}
	return int64(n), nil
}
