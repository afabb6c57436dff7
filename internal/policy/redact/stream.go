package redact

import (
	"bytes"
	"errors"
	"io"
)

// ErrFound is what a reader with Block ends with when a value comes by.
var ErrFound = errors.New("a secret value is in the data")

// ErrWiped is what a reader ends with when its values were wiped: what it does not know any more it cannot find.
var ErrWiped = errors.New("the values to look for were wiped")

// StreamOptions say how a stream is read.
type StreamOptions struct {
	// Block ends the stream with [ErrFound] at the first value. Nothing of the value has been passed on then.
	Block bool
}

const (
	// firstBuffer is enough for an event of a stream that mostly waits; largestBuffer is what a stream grows to that
	// does not. Data that is held back comes on top.
	firstBuffer   = 2 << 10
	largestBuffer = 32 << 10
	// maxEmptyReads is how often a source may have nothing to say before it counts as broken.
	maxEmptyReads = 100
)

// NewReader reads src with every value replaced, as [Values.Text] does it to the whole, however src is cut into reads.
//
// The reader holds back the end of the data that could still become a value, whatever stands there: if that depended on the values,
// the sender of the data would learn from the sizes of what arrives whether it begins like one. Nothing waits behind the end
// of a line, so that events of a stream arrive when they were sent. At the end of src the rest is passed on; when src fails it
// is not. Memory is bounded by 32 KiB and twice the longest form of a value.
func (v *Values) NewReader(src io.Reader, o StreamOptions) io.Reader {
	if v == nil {
		return src
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	switch {
	case v.wiped:
		return &reader{err: ErrWiped}
	case v.finder == nil:
		return src
	}
	return &reader{values: v, finder: v.finder, src: src, block: o.Block}
}

// reader has bytes buf[:end] of the source. Those before at are gone, those before safe are decided: every form that starts
// there is complete or is none.
type reader struct {
	values *Values
	finder *finder
	src    io.Reader
	block  bool

	buf           []byte
	at, safe, end int
	hit           int    // where the first form starts at or after at; [nowhere] when none does
	covered       int    // up to here a mark stands for what is there
	mark          string // what of a mark is still to be given
	err           error  // what comes after the rest
}

// nowhere is beyond every index.
const nowhere = int(^uint(0) >> 1)

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := r.give(p)
		if n > 0 || err != nil {
			return n, err
		}
		if r.err == errMore {
			r.rest()
			return 0, errMore
		}
		if r.err != nil {
			r.buf, r.at, r.safe, r.end = nil, 0, 0, 0
			return 0, r.err
		}
		err = r.fill()
		if err := r.decide(err); err != nil {
			return 0, err
		}
	}
}

// rest keeps what is held back and no more, until somebody has the next piece.
func (r *reader) rest() {
	r.buf = bytes.Clone(r.buf[r.at:r.end])
	r.covered = max(0, r.covered-r.at)
	r.at, r.safe, r.end, r.err = 0, 0, len(r.buf), nil
}

// fill gets more from the source, behind what is held back.
func (r *reader) fill() error {
	held := copy(r.buf, r.buf[r.at:r.end])
	r.covered = max(0, r.covered-r.at)
	full := r.end > 0 && r.end == len(r.buf)
	r.at, r.safe, r.end = 0, 0, held
	size := max(len(r.buf), firstBuffer+r.finder.held)
	if full {
		size = min(2*size, largestBuffer+r.finder.held)
	}
	if size > len(r.buf) {
		bigger := make([]byte, size)
		copy(bigger, r.buf[:held])
		r.buf = bigger
	}
	for range maxEmptyReads {
		n, err := r.src.Read(r.buf[held:])
		r.end += n
		if n > 0 || err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// decide looks at what came. failed is what the source said.
func (r *reader) decide(failed error) error {
	r.values.mu.RLock()
	defer r.values.mu.RUnlock()
	if r.values.finder != r.finder {
		return r.fail(ErrWiped)
	}
	r.err = failed
	text := r.buf[:r.end]
	if failed == io.EOF {
		r.safe = r.end
	} else {
		r.safe = r.finder.settled(text, r.at)
	}
	if r.hit = r.finder.next(text, r.at); r.hit < 0 {
		r.hit = nowhere
	} else if r.block {
		r.safe, r.hit, r.err = min(r.safe, r.hit), nowhere, ErrFound
	}
	return nil
}

func (r *reader) fail(err error) error {
	r.err, r.at, r.safe, r.end, r.mark = err, 0, 0, 0, ""
	return err
}

// give copies what is decided to p.
func (r *reader) give(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if r.mark != "" {
			some := copy(p[n:], r.mark)
			r.mark = r.mark[some:]
			n += some
			continue
		}
		limit := min(r.hit, r.safe)
		switch {
		case r.at < min(limit, r.covered):
			r.at = min(limit, r.covered)
		case r.at < limit:
			some := copy(p[n:], r.buf[r.at:limit])
			r.at += some
			n += some
		case r.at == r.safe:
			return n, nil
		default:
			if err := r.replace(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// replace puts a mark where a form starts, unless one stands there already, and looks for the next.
func (r *reader) replace() error {
	r.values.mu.RLock()
	defer r.values.mu.RUnlock()
	if r.values.finder != r.finder {
		return r.fail(ErrWiped)
	}
	if r.hit >= r.covered {
		r.mark = Mark
	}
	text := r.buf[:r.end]
	r.covered = max(r.covered, r.finder.endOf(text, r.hit))
	r.at = r.hit + 1
	if r.hit = r.finder.next(text, r.at); r.hit < 0 {
		r.hit = nowhere
	}
	return nil
}
