package pipes

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/testenv"
)

// A user who is stopped, or whose machine sleeps, keeps the program that they have started. One who never comes back does not.
func TestAPeerThatDoesNotAnswerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		near := testenv.OverPipe(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				ended <- err
				return
			}
			ended <- NewServer(conn).Serve(context.Background())
		}))
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
	})
}
