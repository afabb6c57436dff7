package cdp

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBrowser is the other end of an in-memory pipe: for what a real browser does not do when asked to.
type fakeBrowser struct {
	t    testing.TB
	conn *Conn
	in   *io.PipeReader // what the connection sent
	out  *io.PipeWriter // what it will read
	task sync.WaitGroup

	mu   sync.Mutex
	seen []*Message
}

// newFake connects to a browser whose answers a function writes: none, one or several frames for each command. A nil
// function reads nothing at all: a browser that hangs.
func newFake(t testing.TB, options Options, answer func(command *Message) []string) *fakeBrowser {
	t.Helper()
	in, theirOut := io.Pipe()
	theirIn, out := io.Pipe()
	conn, err := New(theirIn, theirOut, options)
	if err != nil {
		t.Fatal(err)
	}
	b := &fakeBrowser{t: t, conn: conn, in: in, out: out}
	if answer != nil {
		b.task.Go(func() { b.serve(answer) })
	}
	t.Cleanup(func() {
		conn.Close()
		b.die()
		b.task.Wait()
	})
	return b
}

func (b *fakeBrowser) serve(answer func(*Message) []string) {
	frames := newFrameReader(b.in, MaxCommand, func() Room { return &alone{left: roomOfOne} })
	for {
		frame, _, err := frames.next()
		if err != nil {
			return
		}
		command, err := parse(frame, fromClient)
		if err != nil {
			b.t.Errorf("the browser was sent %q: %v", frame, err)
			return
		}
		b.mu.Lock()
		b.seen = append(b.seen, command)
		b.mu.Unlock()
		for _, text := range answer(command) {
			if !b.say(text) {
				return
			}
		}
	}
}

// say writes one frame and reports whether it was read.
func (b *fakeBrowser) say(frame string) bool {
	_, err := b.out.Write(append([]byte(frame), 0))
	return err == nil
}

func (b *fakeBrowser) die() {
	b.in.Close()
	b.out.Close()
}

func (b *fakeBrowser) commands() []*Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*Message(nil), b.seen...)
}

// ok is the frame of an empty result.
func ok(command *Message) string {
	return string((&Message{Kind: Reply, ID: command.ID, SessionID: command.SessionID, Result: []byte(`{}`)}).encoded())
}

func short(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}
