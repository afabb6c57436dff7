package execute

import (
	"errors"
	"io"
	"time"

	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/quota"
)

// Bounds of what requests and answers under way may hold, in bytes: those of all agents, and those of one; a tenant has its share.
// Each byte that was read is there up to copies times at once: it is decoded, and encoded again.
const (
	maxHeld        = 512 << 20
	maxHeldByAgent = 128 << 20
	copies         = 3
	// nameCost is what the name of a member takes while JSON is read: its reader keeps those of an object, and a map keeps them again.
	nameCost = 400

	// bodyTimeout is how long an agent's request may take to arrive. One silence is bounded by the reader; this bounds many short
	// ones.
	bodyTimeout = 2 * time.Minute
)

// share is what one request holds.
type share struct {
	room *quota.Gate
	of   quota.Holder
	n    int64
}

func (s *share) take(n int64) bool {
	if s.room.Take(s.of, n) != nil {
		return false
	}
	s.n += n
	return true
}

// takeNames takes what the names of a JSON text become when it is read.
func (s *share) takeNames(text []byte) bool { return s.take(int64(strict.Names(text)) * nameCost) }

// end gives everything back.
func (s *share) end() {
	s.room.Give(s.of, s.n)
	s.n = 0
}

var (
	errNoRoom  = errors.New("too much is held already")
	errTooLate = errors.New("it took too long to arrive")
)

// read reads to the end, or one byte more than limit. Room is taken as bytes arrive, not as they are announced.
func (s *share) read(from io.Reader, limit int, late func() bool) ([]byte, error) {
	size := min(32<<10, limit+1)
	if !s.take(int64(size) * copies) {
		return nil, errNoRoom
	}
	buf := make([]byte, 0, size)
	for {
		n, err := from.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF) || len(buf) > limit:
			return buf, nil
		case err != nil:
			return nil, err
		case late():
			return nil, errTooLate
		}
		if len(buf) < cap(buf) {
			continue
		}
		more := min(cap(buf), limit+1-cap(buf))
		if !s.take(int64(more) * copies) {
			return nil, errNoRoom
		}
		next := make([]byte, len(buf), cap(buf)+more)
		copy(next, buf)
		buf = next
	}
}
