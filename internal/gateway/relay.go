package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// bufferSize is what one direction of a busy tunnel holds; an idle one holds
// nothing.
const bufferSize = 64 << 10

// bufferPool lends buffers. It also serves httputil.ReverseProxy.
type bufferPool struct {
	pool sync.Pool
	lent atomic.Int64 // buffers that are in use
}

func newBufferPool() *bufferPool {
	return &bufferPool{pool: sync.Pool{New: func() any { return new([bufferSize]byte) }}}
}

// Get lends a buffer of bufferSize bytes.
func (p *bufferPool) Get() []byte {
	p.lent.Add(1)
	return p.pool.Get().(*[bufferSize]byte)[:]
}

// Put takes it back.
func (p *bufferPool) Put(b []byte) {
	p.lent.Add(-1)
	p.pool.Put((*[bufferSize]byte)(b[:bufferSize]))
}

// relay moves bytes both ways until both directions have ended, then closes both
// connections. The end of one direction is passed on as such (half-close), so
// that a client that has said everything still gets its answer. An error in one
// direction ends both.
func relay(client, upstream net.Conn, m *meter, buffers *bufferPool) error {
	closeBoth := func() {
		_ = client.Close() // nothing more is expected of either
		_ = upstream.Close()
	}
	defer closeBoth()
	var back error
	var wg sync.WaitGroup
	wg.Go(func() {
		if back = pipe(client, upstream, m.received, buffers); back != nil {
			closeBoth()
		}
	})
	forth := pipe(upstream, client, m.sent, buffers)
	if forth != nil {
		closeBoth()
	}
	wg.Wait()
	for _, err := range []error{forth, back} {
		// The direction that was ended by the other one has nothing to tell.
		if err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}

// pipe copies src to dst until src ends, and then ends dst's sending half.
func pipe(dst, src net.Conn, moved func(int), buffers *bufferPool) error {
	read := reader(src, buffers)
	kernel := newBulk(dst, src)
	for {
		buf, n, err := read()
		if n > 0 {
			moved(n) // before the other side knows of it
			_, writeErr := dst.Write(buf[:n])
			buffers.Put(buf)
			if writeErr != nil {
				return fmt.Errorf("write: %w", writeErr)
			}
		} else if buf != nil {
			buffers.Put(buf)
		}
		for slow := false; err == nil && kernel != nil && n == bufferSize && !slow; {
			// The stream is faster than we read: the kernel carries it as long as that is so.
			var m int64
			m, slow, err = kernel.move()
			moved(int(m))
		}
		switch {
		case err == io.EOF:
			// The other side may have gone already; then its reader says so.
			if err := closeWrite(dst); err != nil && !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("end the sending half: %w", err)
			}
			return nil
		case err != nil:
			return fmt.Errorf("read: %w", err)
		}
	}
}

// readBorrowed reads once into a buffer that it borrows; the caller returns it.
type readBorrowed func() (buf []byte, n int, err error)

// reader returns the way to read c that holds a buffer for the shortest time.
func reader(c net.Conn, buffers *bufferPool) readBorrowed {
	c = unwrapped(c)
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			if read := readWhenReady(raw, buffers); read != nil {
				return read
			}
		}
	}
	return func() ([]byte, int, error) {
		buf := buffers.Get()
		n, err := c.Read(buf)
		return buf, n, err
	}
}

// unwrapped is the connection itself, without the books that are kept on it.
func unwrapped(c net.Conn) net.Conn {
	for {
		wrapped, ok := c.(*conn)
		if !ok {
			return c
		}
		c = wrapped.Conn
	}
}

// closeWrite ends the sending half of a connection that has halves.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
