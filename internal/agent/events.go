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

// source is where events come from: the two streams of a program, and whether it runs.
type source interface {
	// read is that of a ringlog.Reader, for one of the streams, with the times.
	read(ctx context.Context, stream jail.Stream, offset int64, limit int, wait time.Duration) (jail.LogChunk, error)
	// state is how it is. When that still has the version after, it waits for a change first.
	state(ctx context.Context, after uint64) (runState, error)
}

// runState is whether a program runs, or how its last run ended.
type runState struct {
	version uint64
	running bool
	began   time.Time // of the run that is under way
	exit    *jail.Exit
	// over says that there will be no further run.
	over bool
}

// Events implements Agents.
func (s *Service) Events(ctx context.Context, by identity.Principal, tenant, name, of, after string, follow bool, emit func(Event) error) error {
	tenant = by.TenantOr(tenant)
	src, err := s.source(ctx, by, tenant, name, of)
	if err != nil {
		return err
	}
	return readEvents(ctx, src, after, follow, s.processes.with.Now, emit)
}

// readEvents calls emit with the events of a source. It has the memory of one reader, and the source does not wait for it: a
// reader that is too slow misses output, and is told how much.
func readEvents(ctx context.Context, src source, after string, follow bool, now func() time.Time, emit func(Event) error) error {
	er := &eventReader{source: src, now: now, emit: emit}
	if err := er.seek(ctx, after); err != nil {
		return err
	}
	if follow {
		return er.follow(ctx)
	}
	return er.catchUp(ctx)
}

// eventReader is one reader of events.
type eventReader struct {
	source source
	now    func() time.Time
	emit   func(Event) error

	streams [2]cutter // stdout, stderr
	mark    int64
	lines   reader
	printed time.Time // when the output of the current event was printed; zero: unknown
}

func streamOf(n int) jail.Stream { return [...]jail.Stream{jail.Stdout, jail.Stderr}[n] }

// seek goes to where the reader wants to go on: the oldest output, the newest, or behind an event.
func (er *eventReader) seek(ctx context.Context, after string) error {
	switch after {
	case "":
		for n := range er.streams {
			c, err := er.read(ctx, n, 0, 1, 0)
			if err != nil {
				return err
			}
			er.streams[n].at(c.First, false, c.First > 0)
		}
	case Newest:
		for n := range er.streams {
			c, err := er.read(ctx, n, math.MaxInt64, 1, 0)
			if err != nil {
				return err
			}
			er.streams[n].at(c.End, false, false)
		}
		er.mark = er.now().UnixNano()
	default:
		p, err := parsePosition(after)
		if err != nil {
			return err
		}
		er.streams[0].at(p.out.offset, p.out.skipping, false)
		er.streams[1].at(p.err.offset, p.err.skipping, false)
		er.mark = p.mark
	}
	return nil
}

// catchUp emits what there is.
func (er *eventReader) catchUp(ctx context.Context) error {
	l, err := er.stateAfter(ctx, 0)
	if err != nil {
		return err
	}
	if err := er.emitStart(l); err != nil {
		return err
	}
	if err := er.emitKept(ctx); err != nil {
		return err
	}
	return er.emitEnd(l)
}

// emitKept emits the output that both streams have, in the order in which it was printed. Output that comes meanwhile is left for the next reading: a
// flood has no end.
func (er *eventReader) emitKept(ctx context.Context) error {
	var waiting [2][]jail.LogRun
	var asked [2]bool
	var ends [2]int64
	for {
		next := -1
		for n := range er.streams {
			if len(waiting[n]) == 0 && (!asked[n] || er.streams[n].next() < ends[n]) {
				c, err := er.read(ctx, n, er.streams[n].next(), chunkSize, 0)
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
		if err := er.emitRun(next, waiting[next][0]); err != nil {
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

// follow emits what there is and what comes, until the source is over.
func (er *eventReader) follow(ctx context.Context) error {
	// The running program began before it printed anything.
	first, err := er.stateAfter(ctx, 0)
	if err != nil {
		return err
	}
	if err := er.emitStart(first); err != nil {
		return err
	}
	if err := er.emitKept(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	pieces, states := make(chan piece), make(chan runState)
	broken := make(chan error, 1)
	for n := range er.streams {
		offset := er.streams[n].next()
		readers.Go(func() { er.readStream(ctx, n, offset, pieces) })
	}
	readers.Go(func() { broken <- er.readStates(ctx, first, states) })

	next := states
	var last *runState // has ended, and not all of its output was emitted
	var ends [2]int64
	for {
		if last != nil && er.streams[0].next() >= ends[0] && er.streams[1].next() >= ends[1] {
			if err := er.emitEnd(*last); err != nil || last.over {
				return err
			}
			last, next = nil, states
		}
		select {
		case p := <-pieces:
			if p.err != nil {
				return p.err
			}
			for _, r := range p.chunk.Runs() {
				if err := er.emitRun(p.stream, r); err != nil {
					return err
				}
			}
		case l := <-next:
			if err := er.emitStart(l); err != nil {
				return err
			}
			if l.running || l.exit == nil && !l.over {
				continue
			}
			for n := range er.streams {
				c, err := er.read(ctx, n, math.MaxInt64, 1, 0)
				if err != nil {
					return err
				}
				ends[n] = c.End
			}
			last, next = &l, nil
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

// readStream sends what is printed to one stream, until the context ends.
func (er *eventReader) readStream(ctx context.Context, n int, offset int64, to chan<- piece) {
	for {
		c, err := er.read(ctx, n, offset, chunkSize, pollWait)
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

// readStates sends the state of the source: first, and then whenever that changes.
func (er *eventReader) readStates(ctx context.Context, l runState, to chan<- runState) error {
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
			if l, err = er.stateAfter(ctx, last); err != nil {
				return err
			}
		}
	}
}

// stateAfter asks for the state of the source until the host daemon is there to answer.
func (er *eventReader) stateAfter(ctx context.Context, after uint64) (l runState, err error) {
	err = whileAway(ctx, func() (err error) {
		l, err = er.source.state(ctx, after)
		return err
	})
	return l, err
}

// read asks until the host daemon is there to answer.
func (er *eventReader) read(ctx context.Context, n int, offset int64, limit int, wait time.Duration) (c jail.LogChunk, err error) {
	err = whileAway(ctx, func() (err error) {
		c, err = er.source.read(ctx, streamOf(n), offset, limit, wait)
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

// emitRun emits what was printed to a stream at one time, and what was missed before it.
func (er *eventReader) emitRun(n int, r jail.LogRun) error {
	s := &er.streams[n]
	er.printed = r.At
	defer func() { er.printed = time.Time{} }()
	if missed := r.Offset - s.next(); missed > 0 {
		// The beginning of a line whose end is lost goes with it.
		missed += int64(len(s.rest))
		s.at(r.Offset, false, true)
		if err := er.emitOf(n, Event{Type: EventMissed, Missed: missed}); err != nil {
			return err
		}
	} else if missed < 0 {
		s.at(r.Offset, false, false) // the log is another one: it was removed, and begun anew
	}
	return s.feed(r.Data, func(l line) error { return er.emitOf(n, er.lines.event(l)) })
}

// emitOf emits an event of a stream.
func (er *eventReader) emitOf(n int, e Event) error {
	e.Stream = streamOf(n)
	e.At = er.printed
	return er.emitAt(e)
}

// emitAt emits an event with the position behind it as its id.
func (er *eventReader) emitAt(e Event) error {
	e.ID = position{er.streams[0].place(), er.streams[1].place(), er.mark}.String()
	if e.At.IsZero() {
		e.At = er.now()
	}
	e.At = e.At.UTC()
	return er.emit(e)
}

// emitStart emits the start of a run, unless the reader knows of it.
func (er *eventReader) emitStart(l runState) error {
	if l.began.IsZero() || l.began.UnixNano() <= er.mark {
		return nil
	}
	// The end of the run before comes first. A reader that begins here has not heard of that run.
	if er.mark > 0 && l.running && l.exit != nil && l.exit.At.Before(l.began) {
		if err := er.emitEnd(runState{exit: l.exit}); err != nil {
			return err
		}
	}
	er.mark = l.began.UnixNano()
	return er.emitAt(Event{Type: EventStarted, At: l.began})
}

// emitEnd emits the end of a run, unless the reader knows of it, and before it the last line, if that is not terminated.
func (er *eventReader) emitEnd(l runState) error {
	if l.running || l.exit == nil || l.exit.At.UnixNano() <= er.mark {
		return nil
	}
	er.printed = l.exit.At // about
	defer func() { er.printed = time.Time{} }()
	for n := range er.streams {
		if err := er.streams[n].flush(func(l line) error { return er.emitOf(n, er.lines.event(l)) }); err != nil {
			return err
		}
	}
	er.mark = l.exit.At.UnixNano()
	exit := *l.exit
	return er.emitAt(Event{Type: EventExit, At: exit.At, Exit: &exit})
}
