//go:build unix

package gateway

import (
	"io"
	"os"
	"syscall"
)

// readyReader waits for bytes without holding a buffer: it borrows one only when
// the kernel may have something to put in it. Thousands of idle tunnels then cost
// their sockets and goroutines, and no buffers.
type readyReader struct {
	raw     syscall.RawConn
	buffers *bufferPool
	try     func(fd uintptr) bool // attempt, made once

	buf []byte // the result of the last attempt
	n   int
	err error
}

func readWhenReady(raw syscall.RawConn, buffers *bufferPool) readBorrowed {
	r := &readyReader{raw: raw, buffers: buffers}
	r.try = r.attempt
	return r.read
}

// attempt reads once; false means that there is nothing to read yet.
func (r *readyReader) attempt(fd uintptr) bool {
	r.buf = r.buffers.Get()
	for {
		r.n, r.err = syscall.Read(int(fd), r.buf)
		if r.err != syscall.EINTR {
			break
		}
	}
	if r.err == syscall.EAGAIN {
		r.buffers.Put(r.buf)
		r.buf = nil
		return false
	}
	return true
}

func (r *readyReader) read() ([]byte, int, error) {
	r.buf, r.n, r.err = nil, 0, nil
	waitErr := r.raw.Read(r.try)
	switch {
	case waitErr != nil:
		return r.buf, 0, waitErr
	case r.err != nil:
		return r.buf, 0, os.NewSyscallError("read", r.err)
	case r.n == 0:
		return r.buf, 0, io.EOF
	}
	return r.buf, r.n, nil
}
