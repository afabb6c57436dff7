package cdp

import "sync"

// Room bounds the memory of messages, for one connection or for several together. It is safe for use by many goroutines, and
// does not wait.
type Room interface {
	// Take asks for n bytes, of which spare more must be left for what cannot be left out.
	Take(n, spare int64) bool
	// Give gives n bytes back.
	Give(n int64)
}

const (
	// roomOfOne is the room of a connection that shares none with others.
	roomOfOne = 512 << 20
	// roomStep is how much is taken of a room at once, so that it is not asked for every message.
	roomStep = 1 << 20
)

// alone is the [Room] of one connection.
type alone struct {
	mu   sync.Mutex
	left int64
}

func (a *alone) Take(n, spare int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n+spare > a.left {
		return false
	}
	a.left -= n
	return true
}

func (a *alone) Give(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left += n
}

// share is what one user has taken of a room, beside the first bytes, which are everybody's own. A share without a room is
// bounded by nothing. It is not safe for concurrent use.
type share struct {
	room       Room
	own, taken int64
}

// fit makes the share as large as what is wanted, and reports whether there was room.
func (s *share) fit(want, spare int64) bool {
	if s.room == nil {
		return true
	}
	short := want - s.own - s.taken
	if short <= 0 {
		if back := min(s.taken, -short) / roomStep * roomStep; back > roomStep {
			s.taken -= back
			s.room.Give(back)
		}
		return true
	}
	n := (short + roomStep - 1) / roomStep * roomStep
	if !s.room.Take(n, spare) {
		return false
	}
	s.taken += n
	return true
}

// end gives everything back. Nothing is asked of the room afterwards.
func (s *share) end() {
	if s.taken > 0 {
		s.room.Give(s.taken)
	}
	s.room, s.taken = nil, 0
}
