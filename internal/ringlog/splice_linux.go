package ringlog

import (
	"errors"

	"golang.org/x/sys/unix"
)

// transfer moves bytes from a pipe to the end of the newest segment.
func (l *Log) transfer(fd, limit int) (int64, error) {
	at := l.at()
	n, err := unix.Splice(fd, nil, int(l.current.Fd()), &at, limit, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	if errors.Is(err, unix.EINVAL) { // a file system without it, or what comes is no pipe
		return l.copyOver(fd, limit)
	}
	return max(n, 0), err
}
