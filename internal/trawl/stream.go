package trawl

import (
	"errors"
	"io"
)

// chunk is how much is searched at a time, beside what is kept of the chunk before.
const chunk = 256 << 10

// mostIdle is how many times in a row a reader may give nothing.
const mostIdle = 100

// stream searches data that comes in pieces. It keeps as many of the last bytes as one value can take, so that a value
// across pieces is found, and nothing is found twice.
type stream struct {
	set    *Set
	where  string
	buffer []byte
	base   int64 // offset of the buffer's first byte
	seen   map[[2]int]bool
	hits   []Hit
}

// Write never fails.
func (st *stream) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		take := min(len(p), st.full()-len(st.buffer))
		st.buffer = append(st.buffer, p[:take]...)
		p = p[take:]
		st.drain()
	}
	return n, nil
}

// full is the most that the buffer holds.
func (st *stream) full() int { return chunk + st.set.longest }

// readFrom reads to the end of r, or at most so many bytes.
func (st *stream) readFrom(r io.Reader, most int64) error {
	if cap(st.buffer) < st.full() {
		st.buffer = append(make([]byte, 0, st.full()), st.buffer...)
	}
	idle := 0
	for most > 0 {
		n, err := r.Read(st.buffer[len(st.buffer):min(int64(st.full()), int64(len(st.buffer))+most)])
		st.buffer = st.buffer[:len(st.buffer)+n]
		most -= int64(n)
		st.drain()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if idle++; n > 0 {
			idle = 0
		} else if idle == mostIdle {
			return io.ErrNoProgress
		}
	}
	return nil
}

// drain searches a full buffer for what starts in it and cannot reach beyond it, and forgets that.
func (st *stream) drain() {
	if len(st.buffer) < st.full() {
		return
	}
	limit := len(st.buffer) - (st.set.longest - 1)
	st.hits = append(st.hits, st.search(limit)...)
	st.buffer = st.buffer[:copy(st.buffer, st.buffer[limit:])]
	st.base += int64(limit)
}

// search finds what starts below limit, and remembers what was found.
func (st *stream) search(limit int) []Hit {
	var hits []Hit
	st.set.find(st.buffer, limit, func(v *variant, start, _ int) {
		key := [2]int{v.needle, v.form}
		if st.seen[key] {
			return
		}
		if st.seen == nil {
			st.seen = map[[2]int]bool{}
		}
		st.seen[key] = true
		hits = append(hits, Hit{
			Needle: st.set.names[v.needle], Form: st.set.forms[v.form].name,
			Where: st.set.clean(st.where), Offset: st.base + int64(start),
		})
	})
	return hits
}

// found is all that has been found so far. More may come: a value is found as soon as its last byte has come.
func (st *stream) found() []Hit {
	st.hits = append(st.hits, st.search(len(st.buffer))...)
	return st.hits
}

// reset begins another place with the same buffer.
func (st *stream) reset(where string) {
	st.where, st.buffer, st.base, st.hits = where, st.buffer[:0], 0, nil
	clear(st.seen)
}

// skip jumps to an offset further on. Between what was before and what comes are zeros.
func (st *stream) skip(to int64) {
	st.found()
	st.buffer, st.base = st.buffer[:0], to
}
