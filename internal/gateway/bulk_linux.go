package gateway

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

const (
	// bulkChunk is how much the kernel moves by itself before it is counted, and bulkWait for how long it may wait for it.
	bulkChunk = 4 << 20
	bulkWait  = time.Second
)

// bulk moves bytes from one TCP connection to another without having them pass through this process (splice(2)). It is for
// streams that fill whole buffers: while it waits, it holds a pipe.
type bulk struct{ dst, src *net.TCPConn }

// newBulk returns nil when one of the two is no TCP connection.
func newBulk(dst, src net.Conn) *bulk {
	d, ok := unwrapped(dst).(*net.TCPConn)
	if !ok {
		return nil
	}
	s, ok := unwrapped(src).(*net.TCPConn)
	if !ok {
		return nil
	}
	return &bulk{d, s}
}

// move moves some bytes. It is done when the stream has become slow; with io.EOF it has ended.
func (b *bulk) move() (n int64, slow bool, err error) {
	if err := b.src.SetReadDeadline(time.Now().Add(bulkWait)); err != nil {
		return 0, false, err
	}
	n, err = b.dst.ReadFrom(&io.LimitedReader{R: b.src, N: bulkChunk})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, true, b.src.SetReadDeadline(time.Time{})
	case err != nil:
		return n, false, err
	case n < bulkChunk:
		return n, false, io.EOF
	}
	return n, false, b.src.SetReadDeadline(time.Time{})
}
