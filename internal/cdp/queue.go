package cdp

import (
	"context"
	"sync"

	"github.com/clawjail/clawjail/internal/base/wake"
)

const (
	// ownOfQueue is what may wait in a queue without asking the room.
	ownOfQueue = 1 << 20
	// weightOfMessage and weightOfGap are about what each takes beside its text.
	weightOfMessage, weightOfGap = 160, 512
	// maxNames bounds the names that a gap has.
	maxNames = 64
)

// queue is the bounded place between the reader of the pipe, which never waits, and someone who may be slow. [noise] is left
// out when there is too much of it, and a gap takes its place.
type queue struct {
	bounds queueBounds
	ready  wake.Signal // holds one token while there is something to look at

	mu       sync.Mutex
	items    []item
	noise    load
	kept     load
	share    share
	shedding bool            // noise is left out until less of it waits
	gaps     map[string]*gap // by session: where what is left out next is counted
	broken   *gap            // not told yet: more than noise was lost, and nothing is taken until it is
	end      error           // why nothing more will come
}

// queueBounds are the most that may wait, each for noise and for what is kept. A count of zero is no bound.
type queueBounds struct {
	noise, kept load
	// spare is what noise leaves of the room to what is kept.
	spare int64
}

type load struct{ count, bytes int }

// holds says whether there is place for more. One message always fits into nothing, because its size has its own bound.
func (l load) holds(limit load, bytes int) bool {
	return l.count == 0 || (limit.count == 0 || l.count < limit.count) && l.bytes+bytes <= limit.bytes
}

// item is a message, or the gap where some are missing.
type item struct {
	message *Message
	gap     *gap
}

// gap says what was left out of a session's events, from one place on.
type gap struct {
	session string
	count   int
	methods map[string]int
	broken  bool // there was more than noise among it
}

func newQueue(bounds queueBounds, room Room) *queue {
	return &queue{bounds: bounds, ready: wake.New(), share: share{room: room, own: ownOfQueue}}
}

// weight is about how much memory a message takes while it waits.
func (m *Message) weight() int { return m.size() + weightOfMessage }

// push adds a message and reports whether it could; noise it can leave out.
func (q *queue) push(m *Message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end != nil {
		return true
	}
	if q.broken != nil {
		q.broken.add(m.Method)
		return true
	}
	size := m.weight()
	if m.Kind == Event && IsNoise(m.Method) {
		if q.shedding || !q.noise.holds(q.bounds.noise, size) || !q.fits(size, q.bounds.spare) {
			q.shedding = true
			q.miss(m.SessionID, m.Method)
			return true
		}
		delete(q.gaps, m.SessionID) // what is missing behind it is another gap
		q.noise.count, q.noise.bytes = q.noise.count+1, q.noise.bytes+size
	} else {
		if !q.kept.holds(q.bounds.kept, size) || !q.fits(size, 0) {
			return false
		}
		q.kept.count, q.kept.bytes = q.kept.count+1, q.kept.bytes+size
	}
	q.items = append(q.items, item{message: m})
	q.signal()
	return true
}

func (q *queue) fits(more int, spare int64) bool {
	return q.share.fit(int64(q.noise.bytes+q.kept.bytes+more), spare)
}

// miss counts an event that is left out.
func (q *queue) miss(session, method string) *gap {
	g := q.gaps[session]
	if g == nil {
		g = &gap{session: session, methods: make(map[string]int)}
		if q.gaps == nil {
			q.gaps = make(map[string]*gap)
		}
		q.gaps[session] = g
		q.kept.bytes += weightOfGap
		q.items = append(q.items, item{gap: g})
		q.signal()
	}
	g.add(method)
	return g
}

// leaveOut notes an event for which there was no place. When the reader cannot do without it, it gets nothing more before it
// was told.
func (q *queue) leaveOut(session, method string, broken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end != nil {
		return
	}
	if g := q.miss(session, method); broken {
		g.broken, q.broken = true, g
	}
}

func (g *gap) add(method string) {
	g.count++
	if _, there := g.methods[method]; there || len(g.methods) < maxNames {
		g.methods[method]++
	}
}

// pop waits for a message, or for a gap. Queued messages and gaps come before the cause of an end.
func (q *queue) pop(ctx context.Context) (*Message, *gap, error) {
	for {
		if next, err := q.take(); next != (item{}) || err != nil {
			return next.message, next.gap, err
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

func (q *queue) take() (item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		if q.end != nil {
			q.signal()
		}
		return item{}, q.end
	}
	next := q.items[0]
	q.items[0] = item{}
	q.items = q.items[1:]
	switch m := next.message; {
	case m == nil:
		q.kept.bytes -= weightOfGap
		if q.gaps[next.gap.session] == next.gap {
			delete(q.gaps, next.gap.session)
		}
		if q.broken == next.gap {
			q.broken = nil
		}
	case m.Kind == Event && IsNoise(m.Method):
		q.noise.count, q.noise.bytes = q.noise.count-1, q.noise.bytes-m.weight()
	default:
		q.kept.count, q.kept.bytes = q.kept.count-1, q.kept.bytes-m.weight()
	}
	if q.shedding && q.noise.bytes <= q.bounds.noise.bytes/2 && q.noise.count <= q.bounds.noise.count/2 {
		q.shedding = false
	}
	q.fits(0, 0)
	q.signal()
	return next, nil
}

// close sets the cause of the end, once. With drop, what is queued goes too.
func (q *queue) close(cause error, drop bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil {
		q.end = cause
	}
	if drop {
		q.items, q.noise, q.kept, q.gaps, q.broken = nil, load{}, load{}, nil, nil
	}
	q.share.end() // a reader drains the rest in a moment
	q.signal()
}

func (q *queue) signal() { q.ready.Send() }
