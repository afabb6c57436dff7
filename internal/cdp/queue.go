package cdp

import (
	"context"
	"sync"
)

// queue is the bounded place between the reader of the pipe, which never waits, and someone who may be slow.
type queue struct {
	maxCount, maxBytes int
	ready              chan struct{} // holds one token while there is something to look at

	mu    sync.Mutex
	items []*Message
	bytes int
	lost  int   // messages refused since the last one that was taken
	end   error // why nothing more will come
}

func newQueue(maxCount, maxBytes int) *queue {
	return &queue{maxCount: maxCount, maxBytes: maxBytes, ready: make(chan struct{}, 1)}
}

// push adds a message and reports whether there was room. One message always fits into an empty queue, because its
// size has its own bound.
func (q *queue) push(m *Message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end != nil {
		return true
	}
	size := m.size()
	// After a loss nothing is taken until the reader was told, so that it knows where the gap is.
	if q.lost > 0 || len(q.items) >= q.maxCount || len(q.items) > 0 && q.bytes+size > q.maxBytes {
		q.lost++
		return false
	}
	q.items = append(q.items, m)
	q.bytes += size
	q.signal()
	return true
}

// pop waits for a message. What is queued comes before the cause of an end. lost is how many messages were refused
// between the previous message and now; when it is not zero there is no message.
func (q *queue) pop(ctx context.Context) (m *Message, lost int, err error) {
	for {
		if m, lost, err := q.take(); m != nil || lost > 0 || err != nil {
			return m, lost, err
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

func (q *queue) take() (*Message, int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		if q.lost > 0 {
			lost := q.lost
			q.lost = 0
			q.signal()
			return nil, lost, nil
		}
		if q.end != nil {
			q.signal()
		}
		return nil, 0, q.end
	}
	m := q.items[0]
	q.items[0] = nil
	q.items = q.items[1:]
	q.bytes -= m.size()
	q.signal()
	return m, 0, nil
}

// close sets the cause of the end, once. With drop, what is queued goes too.
func (q *queue) close(cause error, drop bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil {
		q.end = cause
	}
	if drop {
		q.items, q.bytes, q.lost = nil, 0, 0
	}
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
