package socket

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/testenv"
)

// browser is a client of a browser that says what it is told to.
type browser struct {
	says chan []byte
	said chan string
	done chan struct{}
	once sync.Once
	why  error
}

func (b *browser) SendFrom(_ context.Context, r io.Reader) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return errors.Join(cdp.ErrUnread, err)
	}
	b.said <- string(text)
	return nil
}

func (b *browser) Receive(ctx context.Context) ([]byte, error) {
	select {
	case text := <-b.says:
		return text, nil
	case <-b.done:
		return nil, b.why
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *browser) end(why error) { b.once.Do(func() { b.why = why; close(b.done) }) }

func (b *browser) Done() <-chan struct{} { return b.done }
func (b *browser) Err() error {
	select {
	case <-b.done:
		return b.why
	default:
		return nil
	}
}

// wire is the client's end of a connection on which nothing is read or answered but by hand. Its kernel holds nothing: who
// writes waits until the other end reads.
type wire struct {
	net.Conn
	from  *bufio.Reader
	to    *browser
	ended chan error
}

// connected runs a test with a client. Time passes as soon as everybody waits.
func connected(t *testing.T, test func(t *testing.T, w *wire)) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{ended: make(chan error, 1),
			to: &browser{says: make(chan []byte, 10), said: make(chan string, 10), done: make(chan struct{})}}
		w.Conn = testenv.OverPipe(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.ended <- Serve(t.Context(), rw, r, w.to)
		}))
		w.from = bufio.NewReader(w.Conn)
		ask := "GET / HTTP/1.1\r\nHost: clawjail.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
		if _, err := io.WriteString(w.Conn, ask); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(w.from, nil)
		if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", response, err)
		}
		test(t, w)
	})
}

// write sends a frame that is masked with zeroes.
func (w *wire) write(t *testing.T, first byte, payload string) {
	t.Helper()
	if _, err := w.Write(append([]byte{first, 0x80 | byte(len(payload)), 0, 0, 0, 0}, payload...)); err != nil {
		t.Fatal(err)
	}
}

// read reads a short frame.
func (w *wire) read(t *testing.T) (first byte, payload []byte) {
	t.Helper()
	head := make([]byte, 2)
	if _, err := io.ReadFull(w.from, head); err != nil {
		t.Fatal(err)
	}
	payload = make([]byte, head[1])
	if _, err := io.ReadFull(w.from, payload); err != nil {
		t.Fatal(err)
	}
	return head[0], payload
}

const (
	finalText  = 0x81
	finalClose = 0x88
)

// A client that computes, is stopped or sleeps reads nothing and answers nothing. It gets everything when it is back.
func TestAClientThatIsBusyIsWaitedFor(t *testing.T) {
	connected(t, func(t *testing.T, w *wire) {
		w.to.says <- []byte("one")
		w.to.says <- []byte("two")
		time.Sleep(patience - time.Minute) // of the bubble's time
		var texts []string
		for len(texts) < 2 {
			switch first, payload := w.read(t); first {
			case finalText:
				texts = append(texts, string(payload))
			case finalPing:
				w.write(t, finalPong, string(payload))
			default:
				t.Fatalf("%x %q", first, payload)
			}
		}
		if texts[0] != "one" || texts[1] != "two" {
			t.Errorf("it got %q", texts)
		}
		w.write(t, finalText, "a command")
		if got := <-w.to.said; got != "a command" {
			t.Errorf("the browser got %q", got)
		}
		// It stays for as long as it answers.
		for range 2 * int(patience/pingEvery) {
			first, payload := w.read(t)
			if first != finalPing {
				t.Fatalf("%x %q", first, payload)
			}
			w.write(t, finalPong, string(payload))
		}
		w.to.end(cdp.ErrClosed)
		if first, _ := w.read(t); first != finalClose {
			t.Errorf("the last frame is %x", first)
		}
	})
}

// A client that never comes back is given up, whether something waits for it or not.
func TestAClientThatIsGoneIsFoundOut(t *testing.T) {
	for name, waiting := range map[string]bool{"something waits": true, "nothing waits": false} {
		t.Run(name, func(t *testing.T) {
			connected(t, func(t *testing.T, w *wire) {
				if waiting {
					w.to.says <- []byte("one")
				} else {
					go func() { _, _ = io.Copy(io.Discard, w.from) }() // a proxy takes everything for it
				}
				began := time.Now()
				if why := <-w.ended; !errors.Is(why, errClientLeft) || time.Since(began) > 2*patience {
					t.Errorf("after %s: %v", time.Since(began), why)
				}
			})
		})
	}
}

// A client that asks whether anybody is there while it reads nothing is no reason to end it: the answer comes behind what waits.
func TestAPingIsAnsweredBehindWhatIsNotRead(t *testing.T) {
	connected(t, func(t *testing.T, w *wire) {
		w.to.says <- bytes.Repeat([]byte("x"), 100)
		synctest.Wait()
		for _, payload := range []string{"first", "second"} {
			w.write(t, finalPing, payload)
			time.Sleep(time.Minute)
		}
		var pongs []string
		for len(pongs) == 0 || pongs[len(pongs)-1] != "second" {
			if first, payload := w.read(t); first == finalPong {
				pongs = append(pongs, string(payload))
			}
		}
		select {
		case why := <-w.ended:
			t.Errorf("it ended: %v", why)
		default:
		}
	})
}

// A client for which too much waits is told so behind the message that it is reading.
func TestASlowClientHearsWhyItEnds(t *testing.T) {
	connected(t, func(t *testing.T, w *wire) {
		w.to.says <- []byte("one")
		synctest.Wait()
		w.to.end(cdp.ErrSlowClient)
		time.Sleep(endLimit / 2)
		if first, payload := w.read(t); first != finalText || string(payload) != "one" {
			t.Fatalf("%x %q", first, payload)
		}
		first, payload := w.read(t)
		if first != finalClose || !bytes.Contains(payload, []byte("the client reads too slowly")) {
			t.Errorf("%x %q", first, payload)
		}
		if why := <-w.ended; !errors.Is(why, cdp.ErrSlowClient) {
			t.Errorf("it ended with %v", why)
		}
	})
}
