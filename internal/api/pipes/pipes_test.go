package pipes

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

// A user who is stopped, or whose machine sleeps, keeps the program that they have started. One who never comes back does not.
func TestAPeerThatDoesNotAnswerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		ended := make(chan error, 1)
		one := &oneConnection{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
		one.conn <- far
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				ended <- err
				return
			}
			ended <- NewServer(conn).Serve(context.Background())
		})}
		served := make(chan error, 1)
		go func() { served <- server.Serve(one) }()
		ask := "GET / HTTP/1.1\r\nHost: clawjail.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
		go func() {
			_, _ = io.WriteString(near, ask)
			_, _ = io.Copy(io.Discard, near) // what the kernel takes for it
		}()
		select {
		case why := <-ended:
			t.Fatalf("it ended: %v", why)
		case <-time.After(patience - time.Minute):
		}
		select {
		case why := <-ended:
			if !errors.Is(why, ErrLeft) {
				t.Errorf("it ended with %v", why)
			}
		case <-time.After(2 * patience):
			t.Error("it never ends")
		}
		_ = near.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
}

// oneConnection is a listener that has one connection.
type oneConnection struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (l *oneConnection) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConnection) Close() error   { close(l.closed); return nil }
func (l *oneConnection) Addr() net.Addr { return &net.TCPAddr{} }
