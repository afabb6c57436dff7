package cdp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/go-json-experiment/json"
)

// Client is one user of a shared browser. It speaks the protocol as if it had the browser for itself: frames without
// delimiters, ids of its own choosing, and no session id where it means the browser. Several goroutines may send; one
// receives.
type Client struct {
	mux      *Mux
	conn     *Conn
	options  ClientOptions
	queue    *queue
	acts     chan *Message // commands of its filter, nil when it has none
	done     chan struct{} // closed when the client has ended
	detached chan struct{} // closed when nothing of it is left in the browser

	mu        sync.Mutex
	session   string // its browser session, which it never learns
	pending   int    // commands that wait for a reply
	held      int    // bytes of them that are kept for the filter
	share     share  // of the room, for these
	cause     error
	detachErr error // written before detached is closed

	attached int // sessions, and guarded by the mutex of the connection
}

// spareOfNoise is what events that can be left out leave of a room to everything else.
const spareOfNoise = 128 << 20

func newClient(m *Mux, options ClientOptions) *Client {
	c := &Client{
		mux: m, conn: m.conn, options: options,
		queue: newQueue(queueBounds{noise: load{bytes: options.MaxNoise}, kept: load{bytes: options.MaxKept}, spare: spareOfNoise},
			m.conn.shared()),
		share:    share{room: m.conn.shared(), own: ownOfQueue},
		done:     make(chan struct{}),
		detached: make(chan struct{}),
	}
	if _, acting := options.Filter.(ActingFilter); acting {
		c.acts = make(chan *Message, maxActs)
	}
	return c
}

// Send gives one command of the client to the browser. Refusals (another client's session, a filter's no, too many
// commands at once, a command that is too large) are answered to the client as the browser would, and are not an error
// here. A frame that is not a command ends the client. Send waits while the pipe is full, until ctx ends; then nothing was
// sent.
func (c *Client) Send(ctx context.Context, frame []byte) error {
	if len(frame) > c.options.MaxFrame {
		a := newAssembly(c.options.MaxFrame, nil)
		a.add(frame)
		return c.tooLarge(a)
	}
	return c.send(ctx, frame)
}

// SendFrom is Send for a command that is read here, so that one which is too large is never held. An error of the reader is
// an [ErrUnread].
func (c *Client) SendFrom(ctx context.Context, r io.Reader) error {
	a := newAssembly(c.options.MaxFrame, c.conn.shared())
	err := a.readFrom(r)
	a.share.end() // what is kept of it is counted by send
	switch {
	case errors.Is(err, ErrFrameTooLarge):
		return c.end(err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnread, err)
	case a.skimmed != nil:
		return c.tooLarge(a)
	}
	return c.send(ctx, a.frame())
}

// tooLarge answers a command that was not held.
func (c *Client) tooLarge(a *assembly) error {
	if err := c.Err(); err != nil {
		return err
	}
	seen := a.skimmed
	id, err := parseID(seen.ID)
	if err != nil {
		return c.end(fmt.Errorf("%w: %d bytes, and %d are allowed", ErrFrameTooLarge, seen.Size, c.options.MaxFrame))
	}
	if _, ok := c.own(seen.Session); !ok {
		c.noSession(id)
		return nil
	}
	c.deliver(a.refusal("command"), id, seen.Session)
	return nil
}

// own is the session that the client means, if it has it. Its own browser session is no session of the client's: it would
// be a second name for the same thing.
func (c *Client) own(asked string) (session string, ok bool) {
	own := c.sessionID()
	if asked == "" {
		return own, true
	}
	return asked, asked != own && c.conn.owns(c, asked)
}

// noSession answers as Chromium does, without the session.
func (c *Client) noSession(id int32) {
	c.deliver(ErrorReply(CodeSessionUnknown, "Session with given id not found."), id, "")
}

func (c *Client) send(ctx context.Context, frame []byte) error {
	if err := c.Err(); err != nil {
		return err
	}
	command, err := parse(frame, fromClient)
	if err != nil {
		return c.end(fmt.Errorf("message of the client: %w", err))
	}
	id, asked := command.ID, command.SessionID
	session, ok := c.own(asked)
	if !ok {
		c.noSession(id)
		return nil
	}
	command.SessionID = session
	var held *Message // what a filter sees again with the reply
	if filter := c.options.Filter; filter != nil {
		command.SessionID = asked
		if reply := filter.Command(command); reply != nil {
			c.deliver(reply, id, asked)
			return nil
		}
		command.Kind, command.SessionID = Command, session
		held = &Message{Kind: Command, SessionID: asked, ID: id, Method: command.Method, Params: command.Params}
	}
	weight := 0
	if held != nil {
		weight = held.size()
	}
	if !c.reserve(weight) {
		c.deliver(ErrorReply(CodeServerError, "Too many commands are waiting for a reply."), id, asked)
		return nil
	}
	err = c.conn.submit(ctx, c.done, command, func(reply *Message, err error) {
		c.release(weight)
		if err != nil {
			// The session or the browser is gone. Chromium does not answer then, and the client is told by an event or
			// by its own end.
			return
		}
		if filter := c.options.Filter; filter != nil {
			filter.Reply(held, reply)
		}
		c.deliver(reply, id, asked)
	})
	if err == nil {
		return nil
	}
	c.release(weight)
	if errors.Is(err, ErrFrameTooLarge) {
		// The filter has made it longer, or it is as long as the browser takes and was given the name of a session.
		c.deliver(ErrorReply(CodeServerError, "The command has more than the %d MiB that the browser takes.", MaxCommand>>20), id, asked)
		return nil
	}
	if cause := c.Err(); cause != nil {
		return cause
	}
	return fmt.Errorf("send to the browser: %w", err)
}

// Receive waits for the next message to the client. After the client's end it returns what was still queued, and then
// the cause.
func (c *Client) Receive(ctx context.Context) ([]byte, error) {
	m, left, err := c.queue.pop(ctx)
	if err != nil {
		return nil, err
	}
	if left != nil {
		if m, err = left.event(); err != nil {
			return nil, err
		}
	}
	return m.encoded(), nil
}

// leftOut is the event that tells a client how many events of a session it did not get from this place on. It is clawjail's:
// Chromium has none, and clients pass over events that they do not know.
const leftOut = "Clawjail.eventsLeftOut"

func (g *gap) event() (*Message, error) {
	params, err := json.Marshal(struct {
		Count   int            `json:"count"`
		Methods map[string]int `json:"methods"`
	}{g.count, g.methods}, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("tell a client what was left out: %w", err)
	}
	return &Message{Kind: Event, SessionID: g.session, Method: leftOut, Params: params}, nil
}

// Done is closed when the client has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is why the client ended, nil while it has not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Close ends the client and waits until its sessions are detached. It may be called often. The error says that
// something may still be attached, because the browser did not answer.
func (c *Client) Close() error {
	c.end(fmt.Errorf("client: %w", ErrClosed))
	<-c.detached
	return c.detachErr
}

// end ends the client with its first cause, which it returns. It does not wait, so the reader of the pipe may call it.
func (c *Client) end(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return c.cause
	}
	c.cause = cause
	close(c.done)
	c.share.end()
	c.queue.close(cause, errors.Is(cause, ErrSlowClient))
	return cause
}

// event takes an event of one of the client's sessions, or that one was left out. It runs in the reader of the pipe.
func (c *Client) event(m *Message, left bool) {
	session := m.SessionID
	if session == c.sessionID() {
		session = ""
	}
	m.SessionID = session
	if filter := c.options.Filter; filter != nil && !filter.Event(m) {
		return
	}
	m.Kind, m.SessionID = Event, session
	switch {
	case !left:
		c.enqueue(m)
	case shapes(m.Method):
		c.end(fmt.Errorf("%w: %s, which cannot be left out", ErrFrameTooLarge, m.Method))
	default:
		c.queue.leaveOut(session, m.Method, false)
	}
}

// deliver gives a reply to the client, under the client's own id and session.
func (c *Client) deliver(reply *Message, id int32, session string) {
	reply.Kind, reply.ID, reply.SessionID = Reply, id, session
	c.enqueue(reply)
}

func (c *Client) enqueue(m *Message) {
	if c.queue.push(m) {
		return
	}
	if m.Kind == Reply && m.size() > largeResult {
		refused := ErrorReply(CodeServerError, "There is no room for a result of %d MiB: too many messages wait to be read. "+
			"Read them, or ask for less at once.", megabytes(int64(m.size())))
		refused.ID, refused.SessionID = m.ID, m.SessionID
		if c.queue.push(refused) {
			return
		}
	}
	c.end(fmt.Errorf("%w: there is no room for what waits for it", ErrSlowClient))
}

// largeResult is from when on an error can take the place of a result for which there is no room.
const largeResult = 64 << 10

func (c *Client) sessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// reserve makes room for a command that will wait for its reply, with the bytes that are kept until then.
func (c *Client) reserve(weight int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending >= c.options.MaxPending || c.held > 0 && c.held+weight > c.options.MaxKept ||
		!c.share.fit(int64(c.held+weight), 0) {
		return false
	}
	c.pending++
	c.held += weight
	return true
}

func (c *Client) release(weight int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending--
	c.held -= weight
	c.share.fit(int64(c.held), 0)
}
