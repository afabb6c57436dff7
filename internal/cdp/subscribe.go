package cdp

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	subscriptionCount = 4096
	subscriptionBytes = 32 << 20
)

// Subscription is a stream of events of one session, in the order in which the browser sent them. It is read by one
// goroutine at a time. It holds at most 4096 events and 32 MB, and as much of [Noise]; beyond that events are lost and the
// reader is told.
type Subscription struct {
	conn    *Conn
	session string
	methods map[string]struct{}
	queue   *queue
}

// EventMessage is one event of a [Subscription].
type EventMessage struct {
	Method string
	Params jsontext.Value
}

// LostError says that events were lost because the reader was too slow. The subscription goes on behind the gap.
type LostError struct {
	Count int
	// Noise says that there was nothing but [Noise] among it.
	Noise bool
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%d events lost: the reader was too slow", e.Count)
}

// Subscribe starts a subscription to some events of a session; an empty session is the browser itself. No event that
// arrives after Subscribe returned is missed. The events of a domain come only once that domain is enabled.
func (c *Conn) Subscribe(session string, methods ...string) (*Subscription, error) {
	limit := load{count: subscriptionCount, bytes: subscriptionBytes}
	sub := &Subscription{
		conn: c, session: session,
		methods: make(map[string]struct{}, len(methods)),
		queue:   newQueue(queueBounds{noise: limit, kept: limit}, nil),
	}
	for _, method := range methods {
		sub.methods[method] = struct{}{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return nil, fmt.Errorf("subscribe: %w", c.cause)
	}
	if owner, known := c.ownerOf(session); !known || owner != nil {
		return nil, fmt.Errorf("subscribe: %w", ErrSessionGone)
	}
	c.subs[sub] = struct{}{}
	return sub, nil
}

// Next waits for an event. A [*LostError] is a gap, after which Next may be called again; every other error is the end,
// or ctx's.
func (s *Subscription) Next(ctx context.Context) (EventMessage, error) {
	m, lost, err := s.queue.pop(ctx)
	if err != nil {
		return EventMessage{}, err
	}
	if lost != nil {
		return EventMessage{}, &LostError{Count: lost.count, Noise: !lost.broken}
	}
	return EventMessage{Method: m.Method, Params: m.Params}, nil
}

// Close ends the subscription and lets its events go.
func (s *Subscription) Close() {
	s.conn.mu.Lock()
	delete(s.conn.subs, s)
	s.conn.mu.Unlock()
	s.queue.close(ErrClosed, true)
}

// subscribers are those who asked for an event of the control plane's. c.mu is held.
func (c *Conn) subscribers(m *Message) []*Subscription {
	var found []*Subscription
	for sub := range c.subs {
		if sub.session != m.SessionID {
			continue
		}
		if _, ok := sub.methods[m.Method]; ok {
			found = append(found, sub)
		}
	}
	return found
}
