package cdp

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	cause     error
	detachErr error // written before detached is closed
}

func newClient(m *Mux, options ClientOptions) *Client {
	c := &Client{
		mux: m, conn: m.conn, options: options,
		queue:    newQueue(options.MaxQueued, options.MaxQueuedBytes),
		done:     make(chan struct{}),
		detached: make(chan struct{}),
	}
	if _, acting := options.Filter.(ActingFilter); acting {
		c.acts = make(chan *Message, maxActs)
	}
	return c
}

// Send gives one command of the client to the browser. Refusals (another client's session, a filter's no, too many
// commands at once) are answered to the client as the browser would, and are not an error here. A frame that is not a
// command ends the client. Send waits while the pipe is full, until ctx ends; then nothing was sent.
func (c *Client) Send(ctx context.Context, frame []byte) error {
	if err := c.Err(); err != nil {
		return err
	}
	if len(frame) > c.options.MaxFrame {
		return c.end(fmt.Errorf("%w: %d bytes, and %d are allowed", ErrFrameTooLarge, len(frame), c.options.MaxFrame))
	}
	command, err := parse(frame, fromClient)
	if err != nil {
		return c.end(fmt.Errorf("message of the client: %w", err))
	}
	id, asked := command.ID, command.SessionID
	own := c.sessionID()
	if asked == "" {
		command.SessionID = own
	} else if asked == own || !c.conn.owns(c, asked) {
		// Its own browser session is no session of the client's either: it would be a second name for the same thing.
		// Chromium answers this without the session.
		c.deliver(ErrorReply(CodeSessionUnknown, "Session with given id not found."), id, "")
		return nil
	}
	session := command.SessionID
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
	if err != nil {
		c.release(weight)
		if cause := c.Err(); cause != nil {
			return cause
		}
		return fmt.Errorf("send to the browser: %w", err)
	}
	return nil
}

// Receive waits for the next message to the client. After the client's end it returns what was still queued, and then
// the cause.
func (c *Client) Receive(ctx context.Context) ([]byte, error) {
	m, _, err := c.queue.pop(ctx)
	if err != nil {
		return nil, err
	}
	return m.encoded(), nil
}

// Done is closed when the client has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is why the client ended, nil while it has not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// MaxFrame is the largest message the client may send, for the limit of the transport in front of it.
func (c *Client) MaxFrame() int { return c.options.MaxFrame }

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
	c.queue.close(cause, errors.Is(cause, ErrSlowClient))
	return cause
}

// event takes an event of one of the client's sessions. It runs in the reader of the pipe.
func (c *Client) event(m *Message) {
	session := m.SessionID
	if session == c.sessionID() {
		session = ""
	}
	m.SessionID = session
	if filter := c.options.Filter; filter != nil && !filter.Event(m) {
		return
	}
	m.Kind, m.SessionID = Event, session
	c.enqueue(m)
}

// deliver gives a reply to the client, under the client's own id and session.
func (c *Client) deliver(reply *Message, id int32, session string) {
	reply.Kind, reply.ID, reply.SessionID = Reply, id, session
	c.enqueue(reply)
}

func (c *Client) enqueue(m *Message) {
	if !c.queue.push(m) {
		c.end(fmt.Errorf("%w: %d messages or %d bytes are waiting for it", ErrSlowClient,
			c.options.MaxQueued, c.options.MaxQueuedBytes))
	}
}

func (c *Client) sessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// reserve makes room for a command that will wait for its reply, with the bytes that are kept until then.
func (c *Client) reserve(weight int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending >= c.options.MaxPending || c.held > 0 && c.held+weight > c.options.MaxQueuedBytes {
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
}
