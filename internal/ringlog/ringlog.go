// Package ringlog keeps the newest part of a stream of bytes in files, read by offset while it is written.
//
// A log is a folder of segments, each named after the offset of its first byte. Offsets count from the first byte that was
// ever written and never begin anew. When there is more than is to be kept the oldest segment goes. A process that is killed
// loses nothing that a Write or Splice had returned for; what a full disk does not take is counted and its place is left out,
// also at the end: an empty segment has its name from it. Where the disk takes no empty file either, until the process ends, what was
// left out at the end is not counted by the next one.
//
// Nothing is forced to the disk: a host that loses its power may lose what was written in the seconds before.
package ringlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// Options bound a log.
type Options struct {
	// Keep is how many bytes are kept at least; up to one Segment more are there. Fewer are, where the disk was full more than 200 times
	// in between. Required.
	Keep int64
	// Segment is the size of one file; default Keep/8, at least 64 KiB and Keep/128.
	Segment int64
	// Now is the clock of the marks; default time.Now.
	Now func() time.Time
}

const (
	minSegment = 64 << 10
	// maxSegments bounds the files of a log, also where a full disk made them small. Data alone makes at most half of them.
	maxSegments = 256
	maxKeep     = 1 << 40
	// maxRead bounds one answer, whatever is asked for.
	maxRead = 4 << 20
	// maxMissed is how often a reader is overtaken by the writer before it says so.
	maxMissed = 100
)

// Validate fills in defaults and reports everything that is wrong at once.
func (o *Options) Validate() error {
	var errs []error
	if o.Keep <= 0 || o.Keep > maxKeep {
		errs = append(errs, problem.New(problem.BadRequest, "keep between 1 byte and 1 TiB", "a log cannot keep %d bytes", o.Keep))
	}
	if o.Segment == 0 {
		o.Segment = o.Keep / 8
	}
	if o.Segment < 0 || o.Segment > maxKeep {
		errs = append(errs, problem.New(problem.BadRequest, "leave it out", "the segments of a log cannot have %d bytes", o.Segment))
	}
	o.Segment = max(o.Segment, o.Keep/(maxSegments/2), minSegment)
	if o.Now == nil {
		o.Now = time.Now
	}
	return errors.Join(errs...)
}

// Chunk is a piece of a log.
type Chunk struct {
	Data   []byte
	Offset int64 // of Data[0]
	First  int64 // of the oldest byte that is kept
	End    int64 // behind the newest
}

// Reader reads a log. *Log is one.
type Reader interface {
	// Read returns up to limit bytes from offset on: at once when there are any, else when some come, or wait is over, or the
	// log is closed. A negative offset counts from the end. An offset that is not kept any more is moved to First, and one
	// behind the end to End: the Chunk says.
	Read(ctx context.Context, offset int64, limit int, wait time.Duration) (Chunk, error)
	// Marks are when the bytes of a Chunk were written, oldest first. There are none for bytes whose time is not known.
	Marks(c Chunk) []Mark
}

// Log is an open log. One process has it open at a time, and writes to it from any goroutine; any number of readers read
// meanwhile. After Close what is there can still be read.
type Log struct {
	options Options
	dir     string
	root    *os.Root
	lock    *os.File // the folder itself: held locked while the log is open

	writing sync.Mutex // held while the files are changed; taken before mu
	current *os.File   // the newest segment; nil when the next byte begins one
	room    int64      // left in it
	times   *os.File   // its marks; nil until there is one
	marks   int64      // in it

	mu      sync.Mutex
	pieces  segments
	end     int64
	dropped int64
	closed  bool
	news    chan struct{} // closed when something came; nil when no reader waits
}

var _ Reader = (*Log)(nil)

// Open opens a log, making the folder (0700) where it is missing, and goes on at its end. A second writer gets the code
// conflict.
func Open(dir string, o Options) (_ *Log, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make a log: %w", err)
	}
	l := &Log{options: o, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open log %s: %w", dir, err), l.release())
		}
	}()
	if l.root, err = os.OpenRoot(dir); err != nil {
		return nil, err
	}
	if l.lock, err = l.root.Open("."); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(l.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = problem.Wrap(err, problem.Conflict, "end the other process first", "another process writes the log")
		}
		return nil, err
	}
	if err := sweep(l.root); err != nil {
		return nil, err
	}
	if l.pieces, err = scan(l.root); err != nil {
		return nil, err
	}
	if n := len(l.pieces); n > 0 {
		last := l.pieces[n-1]
		if l.current, err = l.root.OpenFile(last.name(), os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
			return nil, err
		}
		l.end = last.end()
		l.room = max(o.Segment-last.size, 0)
	}
	return l, nil
}

// Close ends the writing and wakes readers that wait. It may be repeated.
func (l *Log) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	was := l.closed
	l.closed = true
	l.announce()
	l.mu.Unlock()
	if was {
		return nil
	}
	if l.Dropped() > 0 {
		_ = l.prepare() // its name is the end for the next Open; there may be room for it now
	}
	return l.release()
}

// release closes what is open; closing the folder unlocks it.
func (l *Log) release() error {
	var errs []error
	if l.current != nil {
		errs = append(errs, l.current.Close())
		l.current = nil
	}
	l.leaveTimes()
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	if l.root != nil {
		errs = append(errs, l.root.Close())
	}
	return errors.Join(errs...)
}

// End is the offset behind the newest byte.
func (l *Log) End() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Dropped is how many bytes the disk did not take since Open.
func (l *Log) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped
}

// announce wakes the readers that wait. l.mu is held.
func (l *Log) announce() {
	if l.news != nil {
		close(l.news)
		l.news = nil
	}
}

// Read implements Reader.
func (l *Log) Read(ctx context.Context, offset int64, limit int, wait time.Duration) (Chunk, error) {
	limit = bounded(limit)
	var patience <-chan time.Time
	for missed := 0; ; {
		if err := ctx.Err(); err != nil {
			return Chunk{}, err
		}
		l.mu.Lock()
		c, piece, size := l.pieces.at(offset, l.end, limit)
		closed := l.closed
		if size == 0 && !closed && wait > 0 && l.news == nil {
			l.news = make(chan struct{})
		}
		news := l.news
		l.mu.Unlock()
		if size > 0 {
			data, err := l.piece(piece, c.Offset, size, closed)
			if missed < maxMissed && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrClosed) && !closed) {
				missed++ // it went meanwhile: look again
				continue
			}
			c.Data = data
			return c, err
		}
		if closed || wait <= 0 {
			return c, nil
		}
		offset = c.Offset // one that counts from the end stays where it is
		if patience == nil {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-news:
		case <-patience:
			wait = 0
		case <-ctx.Done():
			return Chunk{}, ctx.Err()
		}
	}
}

// piece reads a part of one segment.
func (l *Log) piece(s segment, offset int64, size int, closed bool) ([]byte, error) {
	root := l.root
	if closed {
		var err error
		if root, err = os.OpenRoot(l.dir); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("the log was removed: %w", fs.ErrInvalid)
			}
			return nil, err
		}
		defer root.Close() // only read from
	}
	data, err := readPiece(root, s, offset, size)
	if closed && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the log was removed: %w", fs.ErrInvalid)
	}
	return data, err
}

func bounded(limit int) int { return min(max(limit, 1), maxRead) }
