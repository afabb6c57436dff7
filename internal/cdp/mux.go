package cdp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"
)

const (
	// attachTimeout and detachTimeout bound what a browser that hangs can hold up. They take milliseconds otherwise.
	attachTimeout = 10 * time.Second
	detachTimeout = 5 * time.Second
)

// Mux shares one connection between many clients. The control plane goes on using the Conn itself.
type Mux struct {
	conn  *Conn
	tasks sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	clients map[*Client]struct{}
}

// NewMux makes a multiplexer for a connection. Closing the multiplexer leaves the connection open.
func NewMux(conn *Conn) *Mux {
	return &Mux{conn: conn, clients: make(map[*Client]struct{})}
}

// ClientOptions of a [Client]. The zero value is good.
type ClientOptions struct {
	// Filter decides about the client's messages. Nil passes everything.
	Filter Filter
	// MaxFrame bounds one message of the client, in bytes. Zero is [MaxCommand].
	MaxFrame int
	// MaxNoise bounds what waits for the client and can be left out, in bytes. Zero is 128 MB.
	MaxNoise int
	// MaxKept bounds what else waits for the client, in bytes. Zero is 256 MB, as in Chromium. It also bounds what is kept
	// of pending commands for the filter.
	MaxKept int
	// MaxPending bounds the commands of the client that wait for a reply. Zero is 8192.
	MaxPending int
}

func (o *ClientOptions) complete() error {
	var errs []error
	for _, field := range []struct {
		name     string
		value    *int
		fallback int
	}{
		{"MaxFrame", &o.MaxFrame, MaxCommand},
		{"MaxNoise", &o.MaxNoise, 128 << 20},
		{"MaxKept", &o.MaxKept, 256 << 20},
		{"MaxPending", &o.MaxPending, 8192},
	} {
		if *field.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", field.name))
		}
		if *field.value == 0 {
			*field.value = field.fallback
		}
	}
	return errors.Join(errs...)
}

// Attach adds a client, with a browser session of its own. When ctx ends first, what was attached is detached again.
// A browser that does not answer for ten seconds is an error; it hangs, and its Conn should be closed.
func (m *Mux) Attach(ctx context.Context, options ClientOptions) (*Client, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("attach a client: %w", err)
	}
	c := newClient(m, options)
	attached := make(chan error, 1)
	// The attempt has a life of its own: a caller who leaves must not leave a session behind.
	err := m.start(c, func() { attached <- c.attach() })
	if err != nil {
		return nil, fmt.Errorf("attach a client: %w", err)
	}
	select {
	case err = <-attached:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		c.end(err)
		return nil, fmt.Errorf("attach a client: %w", err)
	}
	return c, nil
}

// start adds a client and runs its tasks: attach, watch the connection, detach.
func (m *Mux) start(c *Client, attach func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("multiplexer: %w", ErrClosed)
	}
	m.clients[c] = struct{}{}
	filter, acting := c.options.Filter.(ActingFilter)
	if acting {
		filter.Started(c.act)
		m.tasks.Go(c.sendActs)
	}
	m.tasks.Go(func() {
		attach()
		select {
		case <-c.done:
		case <-m.conn.Done():
			c.end(m.conn.Err())
		}
		c.detach()
		if acting {
			filter.Ended()
		}
		m.mu.Lock()
		delete(m.clients, c)
		m.mu.Unlock()
	})
	return nil
}

// Clients is how many clients there are.
func (m *Mux) Clients() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.clients)
}

// Close ends all clients and waits until they are detached, or until the browser has not answered for a few seconds.
func (m *Mux) Close() error {
	m.mu.Lock()
	m.closed = true
	clients := make([]*Client, 0, len(m.clients))
	for c := range m.clients {
		clients = append(clients, c)
	}
	m.mu.Unlock()
	var errs []error
	for _, c := range clients {
		c.end(fmt.Errorf("multiplexer: %w", ErrClosed))
	}
	for _, c := range clients {
		errs = append(errs, c.Close())
	}
	m.tasks.Wait()
	return errors.Join(errs...)
}

// attach makes the client's browser session.
func (c *Client) attach() error {
	ctx, cancel := context.WithTimeout(context.Background(), attachTimeout)
	defer cancel()
	result, err := Do(ctx, c.conn.Browser(), target.AttachToBrowserTarget, protocol.Empty{})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.session = string(result.SessionID)
	c.mu.Unlock()
	return c.conn.assign(string(result.SessionID), c)
}

// detach takes the client's browser session away, and with it everything attached below.
func (c *Client) detach() {
	defer close(c.detached)
	session := c.sessionID()
	if session == "" || !c.conn.owns(c, session) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), detachTimeout)
	defer cancel()
	err := c.conn.Browser().Detach(ctx, c.conn.Session(session))
	// The browser may have ended it first, or have gone itself: what counts is that it is not there any more.
	if err != nil && c.conn.owns(c, session) {
		c.detachErr = fmt.Errorf("detach a client: %w", err)
	}
}
