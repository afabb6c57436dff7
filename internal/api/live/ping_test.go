package live

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

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

// A client that is gone without a word is found out within a minute, and one that answers stays.
func TestADeadClientIsFoundOutWithinAMinute(t *testing.T) {
	for name, dead := range map[string]bool{"dead": true, "alive": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				listener := &oneConnection{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
				listener.conn <- far
				ended := make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ended <- Serve(ctx, w, r, newViewer(), slog.New(slog.DiscardHandler))
				})}
				served := make(chan error, 1)
				go func() { served <- server.Serve(listener) }()
				transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }}
				conn, _, err := websocket.Dial(t.Context(), "http://clawjail.test/", &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
				if err != nil {
					t.Fatal(err)
				}
				var reading sync.WaitGroup
				if !dead {
					reading.Go(func() { _, _, _ = conn.Read(context.Background()) }) // answers pings, until it is closed
				}
				began := time.Now()
				if dead {
					if why := <-ended; !errors.Is(why, errLeft) || time.Since(began) > time.Minute {
						t.Errorf("after %s: %v", time.Since(began), why)
					}
				} else {
					select {
					case why := <-ended:
						t.Errorf("it ended after %s: %v", time.Since(began), why)
					case <-time.After(10 * time.Minute):
					}
				}
				cancel()
				_ = conn.CloseNow() // perhaps closed already
				reading.Wait()
				if err := server.Close(); err != nil {
					t.Error(err)
				}
				<-served
				transport.CloseIdleConnections()
				if !dead {
					<-ended
				}
			})
		})
	}
}
