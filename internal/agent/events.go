package agent

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
)

const (
	// chunkSize is how much of a stream is read at once. Three pieces of each stream are in memory for a reader: one that is
	// being made events of, one that waits, and one that is being read.
	chunkSize = 256 << 10
	// pollWait is how long one question waits for an answer.
	pollWait = 30 * time.Second
	// awayPause and maxAway are between questions to a host daemon that is not there.
	awayPause, maxAway = 100 * time.Millisecond, 5 * time.Second
)

// source is where events come from: the two streams of something, and its life.
type source interface {
	// read is that of a ringlog.Reader, for one of the streams, with the times.
	read(ctx context.Context, stream jail.Stream, offset int64, limit int, wait time.Duration) (jail.LogChunk, error)
	// life says how it is, when that is of another version than after; else it waits for a change.
	life(ctx context.Context, after uint64) (life, error)
}

// life is how something is.
type life struct {
	version uint64
	running bool
	began   time.Time // of the run that is under way
	exit    *jail.Exit
	// over says that nothing will follow.
	over bool
}

// Events implements Agents.
func (s *Service) Events(ctx context.Context, by identity.Principal, tenant, name, of, after string, follow bool, emit func(Event) error) error {
	tenant = by.TenantOr(tenant)
	src, err := s.source(ctx, by, tenant, name, of)
	if err != nil {
		return err
	}
	return tell(ctx, src, after, follow, s.processes.with.Now, emit)
}

// tell calls emit with the events of a source. It has the memory of one reader, and the source does not wait for it: what it
// is too slow for goes, and it is told how much that was.
func tell(ctx context.Context, src source, after string, follow bool, now func() time.Time, emit func(Event) error) error {
	t := &telling{source: src, now: now, emit: emit}
	if err := t.begin(ctx, after); err != nil {
		return err
	}
	if follow {
		return t.follow(ctx)
	}
	return t.catchUp(ctx)
}

// telling is one reader of events.
type telling struct {
	source source
	now    func() time.Time
	emit   func(Event) error

	streams [2]cutter // stdout, stderr
	mark    int64
	lines   reader
	printed time.Time // when the output of the current event was printed; zero: unknown
}

func streamOf(n int) jail.Stream { return [...]jail.Stream{jail.Stdout, jail.Stderr}[n] }

// begin goes to where the reader wants to go on.
func (t *telling) begin(ctx context.Context, after string) error {
	switch after {
	case "":
		for n := range t.streams {
			c, err := t.read(ctx, n, 0, 1, 0)
			if err != nil {
				return err
			}
			t.streams[n].at(c.First, false, c.First > 0)
		}
	case Newest:
		for n := range t.streams {
			c, err := t.read(ctx, n, math.MaxInt64, 1, 0)
			if err != nil {
				return err
			}
			t.streams[n].at(c.End, false, false)
		}
		t.mark = t.now().UnixNano()
	default:
		p, err := parsePosition(after)
		if err != nil {
			return err
		}
		t.streams[0].at(p.out.offset, p.out.skipping, false)
		t.streams[1].at(p.err.offset, p.err.skipping, false)
		t.mark = p.mark
	}
	return nil
}

// catchUp tells what there is.
func (t *telling) catchUp(ctx context.Context) error {
	l, err := t.lives(ctx, 0)
	if err != nil {
		return err
	}
	if err := t.began(l); err != nil {
		return err
	}
	if err := t.old(ctx); err != nil {
		return err
	}
	return t.ended(l)
}

// old tells what both streams have, in the order in which it was printed. Output that comes meanwhile is left for the next reading: a
// flood has no end.
func (t *telling) old(ctx context.Context) error {
	var waiting [2][]jail.LogRun
	var asked [2]bool
	var ends [2]int64
	for {
		next := -1
		for n := range t.streams {
			if len(waiting[n]) == 0 && (!asked[n] || t.streams[n].next() < ends[n]) {
				c, err := t.read(ctx, n, t.streams[n].next(), chunkSize, 0)
				if err != nil {
					return err
				}
				if !asked[n] {
					asked[n], ends[n] = true, c.End
				}
				if waiting[n] = c.Runs(); len(c.Data) == 0 {
					ends[n] = 0
				}
			}
			if len(waiting[n]) > 0 && (next < 0 || waiting[n][0].At.Before(waiting[next][0].At)) {
				next = n
			}
		}
		if next < 0 {
			return nil
		}
		if err := t.take(next, waiting[next][0]); err != nil {
			return err
		}
		waiting[next] = waiting[next][1:]
	}
}

// piece is what was read of one stream.
type piece struct {
	stream int
	chunk  jail.LogChunk
	err    error
}

// follow tells what there is and what comes.
func (t *telling) follow(ctx context.Context) error {
	// The running program began before it printed anything.
	first, err := t.lives(ctx, 0)
	if err != nil {
		return err
	}
	if err := t.began(first); err != nil {
		return err
	}
	if err := t.old(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	pieces, lives := make(chan piece), make(chan life)
	broken := make(chan error, 1)
	for n := range t.streams {
		offset := t.streams[n].next()
		readers.Go(func() { t.watch(ctx, n, offset, pieces) })
	}
	readers.Go(func() { broken <- t.live(ctx, first, lives) })

	lifes := lives
	var last *life // has ended, and not everything that it printed was told
	var ends [2]int64
	for {
		if last != nil && t.streams[0].next() >= ends[0] && t.streams[1].next() >= ends[1] {
			if err := t.ended(*last); err != nil || last.over {
				return err
			}
			last, lifes = nil, lives
		}
		select {
		case p := <-pieces:
			if p.err != nil {
				return p.err
			}
			for _, r := range p.chunk.Runs() {
				if err := t.take(p.stream, r); err != nil {
					return err
				}
			}
		case l := <-lifes:
			if err := t.began(l); err != nil {
				return err
			}
			if l.running || l.exit == nil && !l.over {
				continue
			}
			for n := range t.streams {
				c, err := t.read(ctx, n, math.MaxInt64, 1, 0)
				if err != nil {
					return err
				}
				ends[n] = c.End
			}
			last, lifes = &l, nil
		case err := <-broken:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// watch reads one stream for as long as somebody takes it.
func (t *telling) watch(ctx context.Context, n int, offset int64, to chan<- piece) {
	for {
		c, err := t.read(ctx, n, offset, chunkSize, pollWait)
		if err == nil && len(c.Data) == 0 && c.Offset == offset {
			if ctx.Err() != nil {
				return
			}
			// Closed logs answer at once that there is nothing. Their source is over, or will be in a moment.
			if !wake.Sleep(ctx, awayPause) {
				return
			}
			continue
		}
		select {
		case to <- piece{n, c, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
		offset = c.Offset + int64(len(c.Data))
	}
}

// live says how the source is: first, and then whenever that changes.
func (t *telling) live(ctx context.Context, l life, to chan<- life) error {
	for {
		select {
		case to <- l:
		case <-ctx.Done():
			return ctx.Err()
		}
		if l.over {
			<-ctx.Done()
			return ctx.Err()
		}
		for last := l.version; l.version == last; { // until something happens
			var err error
			if l, err = t.lives(ctx, last); err != nil {
				return err
			}
		}
	}
}

// lives asks how the source is until the host daemon is there to answer.
func (t *telling) lives(ctx context.Context, after uint64) (l life, err error) {
	err = whileAway(ctx, func() (err error) {
		l, err = t.source.life(ctx, after)
		return err
	})
	return l, err
}

// read asks until the host daemon is there to answer.
func (t *telling) read(ctx context.Context, n int, offset int64, limit int, wait time.Duration) (c jail.LogChunk, err error) {
	err = whileAway(ctx, func() (err error) {
		c, err = t.source.read(ctx, streamOf(n), offset, limit, wait)
		return err
	})
	return c, err
}

// whileAway repeats a call while the host daemon is away.
func whileAway(ctx context.Context, ask func() error) error {
	err := wake.Retry(ctx, awayPause, maxAway, jail.IsAway, ask)
	if jail.IsAway(err) {
		err = errors.Join(context.Cause(ctx), err)
	}
	return err
}

// take makes events of what was read of a stream.
func (t *telling) take(n int, r jail.LogRun) error {
	s := &t.streams[n]
	t.printed = r.At
	defer func() { t.printed = time.Time{} }()
	if missed := r.Offset - s.next(); missed > 0 {
		// The beginning of a line whose end is lost goes with it.
		missed += int64(len(s.rest))
		s.at(r.Offset, false, true)
		if err := t.say(n, Event{Type: EventMissed, Missed: missed}); err != nil {
			return err
		}
	} else if missed < 0 {
		s.at(r.Offset, false, false) // the log is another one: it was removed, and begun anew
	}
	return s.feed(r.Data, func(l line) error { return t.say(n, t.lines.event(l)) })
}

// say tells an event of a stream.
func (t *telling) say(n int, e Event) error {
	e.Stream = streamOf(n)
	e.At = t.printed
	return t.give(e)
}

// give tells an event.
func (t *telling) give(e Event) error {
	e.ID = position{t.streams[0].place(), t.streams[1].place(), t.mark}.String()
	if e.At.IsZero() {
		e.At = t.now()
	}
	e.At = e.At.UTC()
	return t.emit(e)
}

// began tells of a run that was not told of.
func (t *telling) began(l life) error {
	if l.began.IsZero() || l.began.UnixNano() <= t.mark {
		return nil
	}
	// One that has ended meanwhile is told of first: it was before. To a new reader nothing is known of that one.
	if t.mark > 0 && l.running && l.exit != nil && l.exit.At.Before(l.began) {
		if err := t.ended(life{exit: l.exit}); err != nil {
			return err
		}
	}
	t.mark = l.began.UnixNano()
	return t.give(Event{Type: EventStarted, At: l.began})
}

// ended tells of an end that was not told of, and of the line before it that has no end.
func (t *telling) ended(l life) error {
	if l.running || l.exit == nil || l.exit.At.UnixNano() <= t.mark {
		return nil
	}
	t.printed = l.exit.At // about
	defer func() { t.printed = time.Time{} }()
	for n := range t.streams {
		if err := t.streams[n].flush(func(l line) error { return t.say(n, t.lines.event(l)) }); err != nil {
			return err
		}
	}
	t.mark = l.exit.At.UnixNano()
	exit := *l.exit
	return t.give(Event{Type: EventExit, At: exit.At, Exit: &exit})
}
