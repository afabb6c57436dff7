package testenv

import (
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
)

// OverPipe serves one connection of no network, so that it can be tested with a clock that only passes while everybody waits. It
// returns the client's end. The server ends with the test.
func OverPipe(t *testing.T, h http.Handler) net.Conn {
	near, far := net.Pipe()
	one := &oneConnection{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	one.conn <- far
	server := &http.Server{Handler: h}
	served := make(chan error, 1)
	go func() { served <- server.Serve(one) }()
	t.Cleanup(func() {
		_ = near.Close() // perhaps closed already
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return near
}

// oneConnection is a listener that has one connection.
type oneConnection struct {
	conn   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *oneConnection) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConnection) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *oneConnection) Addr() net.Addr { return &net.TCPAddr{} }
