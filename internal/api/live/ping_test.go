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

	"github.com/clawjail/clawjail/internal/testenv"
)

// A client that is gone without a word is found out within a minute, and one that answers stays.
func TestADeadClientIsFoundOutWithinAMinute(t *testing.T) {
	for name, dead := range map[string]bool{"dead": true, "alive": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				near := testenv.OverPipe(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ended <- Serve(ctx, w, r, newViewer(), slog.New(slog.DiscardHandler))
				}))
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
				transport.CloseIdleConnections()
				if !dead {
					<-ended
				}
			})
		})
	}
}
