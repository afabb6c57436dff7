package cdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Options of a [Conn]. The zero value is good.
type Options struct {
	// MaxFrame bounds one message of the browser, in bytes. Zero is [DefaultMaxBrowserFrame].
	MaxFrame int
	// Room is what large messages, and what waits for clients, are taken from. Nil is one of this connection's own.
	Room Room
}

// Conn is the connection to one browser. It is safe for use by many goroutines. It lives until the browser closes the
// pipe, sends something that is not the protocol, or Close is called; then [Conn.Done] is closed and [Conn.Err] says why.
type Conn struct {
	r     io.ReadCloser
	w     io.WriteCloser
	out   chan []byte // frames with their delimiter, to the one goroutine that writes
	done  chan struct{}
	tasks sync.WaitGroup

	rejected  atomic.Uint64
	unclaimed atomic.Uint64

	mu       sync.Mutex
	cause    error
	closeErr error
	lastID   int32
	wrapped  bool // ids have started again from 1
	pending  map[int32]*call
	sessions map[string]*session
	subs     map[*Subscription]struct{}
	room     Room
}

// call is a command that waits for its reply.
type call struct {
	session string
	// answer is called exactly once, with a reply or with the reason why there is none. It runs in the reader's
	// goroutine and must not wait for anything.
	answer func(*Message, error)
}

// Stats counts what a Conn received and had no use for. Both stay at or near zero with a browser as it should be.
type Stats struct {
	// Rejected are complaints of the browser that name no command.
	Rejected uint64
	// Unclaimed counts replies to calls that were given up, and events of sessions that are gone.
	Unclaimed uint64
}

// New starts a connection. r is what the browser writes, w is what it reads; the Conn owns both and closes them. An
// *os.File must be pollable (a pipe or socket in non-blocking mode), because otherwise nothing could end a read.
func New(r io.ReadCloser, w io.WriteCloser, options Options) (*Conn, error) {
	if err := errors.Join(pollable(r), pollable(w)); err != nil {
		return nil, fmt.Errorf("open the browser's pipe: %w", err)
	}
	widen(w)
	if options.MaxFrame < 0 {
		return nil, fmt.Errorf("open the browser's pipe: largest message of %d bytes", options.MaxFrame)
	}
	if options.MaxFrame == 0 {
		options.MaxFrame = DefaultMaxBrowserFrame
	}
	c := &Conn{
		r: r, w: w,
		out:      make(chan []byte),
		done:     make(chan struct{}),
		pending:  make(map[int32]*call),
		sessions: make(map[string]*session),
		subs:     make(map[*Subscription]struct{}),
	}
	if c.room = options.Room; c.room == nil {
		c.room = &alone{left: roomOfOne}
	}
	c.tasks.Go(func() { c.read(newFrameReader(r, options.MaxFrame, c.shared)) })
	c.tasks.Go(c.write)
	return c, nil
}

func pollable(end any) error {
	file, ok := end.(*os.File)
	if !ok {
		return nil
	}
	if err := file.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("%s cannot be polled: %w", file.Name(), err)
	}
	return nil
}

// UseRoom has the messages that come from now on, and the clients that do, take their memory from a room.
func (c *Conn) UseRoom(room Room) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room = room
}

func (c *Conn) shared() Room {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.room
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the connection ended, nil while it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Stats returns the counters.
func (c *Conn) Stats() Stats {
	return Stats{Rejected: c.rejected.Load(), Unclaimed: c.unclaimed.Load()}
}

// Close ends the connection and waits until its goroutines are gone. Chromium exits when its pipe is closed. Calls that
// wait get [ErrClosed], unless the connection had ended before with another cause.
func (c *Conn) Close() error {
	c.fail(fmt.Errorf("browser connection: %w", ErrClosed))
	c.tasks.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closeErr
}

// fail ends the connection with its first cause and tells everyone.
func (c *Conn) fail(cause error) {
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return
	}
	c.cause = cause
	pending, subs := c.pending, c.subs
	c.pending, c.subs, c.sessions = nil, nil, nil
	close(c.done)
	c.mu.Unlock()

	closeErr := errors.Join(c.w.Close(), c.r.Close())
	c.mu.Lock()
	c.closeErr = closeErr
	c.mu.Unlock()

	for _, call := range pending {
		call.answer(nil, cause)
	}
	for sub := range subs {
		sub.queue.close(cause, false)
	}
}

// write is the one goroutine that writes, so that frames never mix.
func (c *Conn) write() {
	for {
		select {
		case <-c.done:
			return
		case frame := <-c.out:
			if _, err := c.w.Write(frame); err != nil {
				c.fail(fmt.Errorf("write to the browser: %w", goneOr(err)))
				return
			}
		}
	}
}

// read is the one goroutine that reads. It waits for nothing but the browser.
func (c *Conn) read(frames *frameReader) {
	for {
		frame, left, err := frames.next()
		if err != nil {
			c.fail(fmt.Errorf("read from the browser: %w", goneOr(err)))
			return
		}
		var m *Message
		if left != nil {
			err = c.leaveOut(left)
		} else if m, err = parse(frame, fromBrowser); err == nil {
			err = c.dispatch(m)
		}
		if err != nil {
			c.fail(fmt.Errorf("message of the browser: %w", err))
			return
		}
	}
}

// goneOr names the errors that mean that the other end of the pipe was closed.
func goneOr(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("%w (%v)", ErrBrowserGone, err)
	}
	return err
}

func (c *Conn) dispatch(m *Message) error {
	switch m.Kind {
	case Reply:
		call, err := c.answered(m.ID)
		if err != nil {
			return err
		}
		if call == nil {
			c.unclaimed.Add(1)
			return nil
		}
		call.answer(m, nil)
		return nil
	case Event:
		return c.event(m, false)
	default:
		c.rejected.Add(1)
		return nil
	}
}

// leaveOut tells the caller, or the subscribers, of a message that was left out because of its size.
func (c *Conn) leaveOut(left *assembly) error {
	seen := left.skimmed
	id, err := parseID(seen.ID)
	switch {
	case err == nil:
		reply := left.refusal("result")
		reply.ID = id
		return c.dispatch(reply)
	case seen.Method == "" || seen.Method == attachedToTarget || seen.Method == detachedFromTarget:
		return fmt.Errorf("%w: %d bytes", ErrFrameTooLarge, seen.Size)
	}
	return c.event(&Message{Kind: Event, SessionID: seen.Session, Method: seen.Method, Params: jsontext.Value("{}")}, true)
}

// answered takes the call with an id. It is nil when the caller does not wait any more; an id that was never given out is an error.
func (c *Conn) answered(id int32) (*call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id < 1 || id > c.lastID && !c.wrapped {
		return nil, fmt.Errorf("%w: reply to id %d, which was never used", ErrProtocol, id)
	}
	waiting := c.pending[id]
	delete(c.pending, id)
	return waiting, nil
}

// forget takes a call away and reports whether it was still waiting.
func (c *Conn) forget(id int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting := c.pending[id]
	delete(c.pending, id)
	return waiting
}

// submit sends a command. It waits for room in the pipe, but not for the reply. When it returns no error, answer is
// called exactly once; when it returns one, nothing was sent and answer is not called. The id is the connection's own
// and is written into m.
func (c *Conn) submit(ctx context.Context, stop <-chan struct{}, m *Message, answer func(*Message, error)) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := c.register(m, answer); err != nil {
		return err
	}
	frame := append(m.encoded(), 0)
	if len(frame) > MaxCommand {
		return c.withdraw(m.ID, fmt.Errorf("%w: a command of %d bytes", ErrFrameTooLarge, len(frame)))
	}
	// A delimiter inside would make two messages of one. Valid JSON has none; a filter may have made something else.
	if bytes.IndexByte(frame[:len(frame)-1], 0) >= 0 {
		return c.withdraw(m.ID, fmt.Errorf("%w: a command with a NUL byte", ErrProtocol))
	}
	select {
	case c.out <- frame:
		return nil
	case <-c.done:
		return c.withdraw(m.ID, c.Err())
	case <-stop:
		return c.withdraw(m.ID, ErrClosed)
	case <-ctx.Done():
		return c.withdraw(m.ID, context.Cause(ctx))
	}
}

// withdraw takes back a command that was not sent. When it was answered already (the end of the connection, or of its
// session, answers everything), that answer stands.
func (c *Conn) withdraw(id int32, err error) error {
	if c.forget(id) {
		return err
	}
	return nil
}

func (c *Conn) register(m *Message, answer func(*Message, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return c.cause
	}
	for {
		if c.lastID == math.MaxInt32 {
			c.lastID, c.wrapped = 0, true
		}
		c.lastID++
		if _, taken := c.pending[c.lastID]; !taken {
			break
		}
	}
	m.ID = c.lastID
	c.pending[m.ID] = &call{session: m.SessionID, answer: answer}
	return nil
}
