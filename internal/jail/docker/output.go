//go:build linux

package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
)

// The output of a kept container is kept by the engine, with a time for each piece, and followed from there into the agent's
// log. So that no line is lost or there twice, however this process ends, a mark says up to where the engine's record was
// read and how long the agent's logs were then: what the logs have beyond that was read after the mark, and is skipped.

// mark is written now and then. It has a position for each stream: in the engine's record those of one stream are in the
// order of their times, but those of both are not, as the engine stamps a piece before it waits for its turn to write it.
type mark [2]position

// position says where in a stream.
type position struct {
	// Since is the time of the newest piece that was read, and Same how many pieces of that time were.
	Since time.Time `json:"since,omitzero"`
	Same  int       `json:"same,omitempty"`
	// End is the length of the stream's log.
	End int64 `json:"end"`
}

// overlap is more than a piece may be stamped before it is written.
const overlap = 10 * time.Second

// since is from when on the engine is asked for pieces: all that were not read, and some that were. It is zero when nothing
// was read.
func (m mark) since() time.Time {
	newest := m[0].Since
	if m[1].Since.After(newest) {
		newest = m[1].Since
	}
	if newest.IsZero() {
		return newest
	}
	return newest.Add(-overlap)
}

const (
	marksFolder = "containers" // below DataDir
	// markEvery is how many bytes are read between two marks. Output that was read since the last mark is skipped byte by byte.
	markEvery = 1 << 20
	// maxPiece is more than an engine makes of one.
	maxPiece = 1 << 20
)

// timeFormat is that of the engine's pieces: always nine digits, so that it has a fixed length.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

func (d *Driver) markPath(name jail.Name) string {
	return filepath.Join(d.o.DataDir, marksFolder, string(name)+".mark")
}

// mark writes the first mark of a container, before it is started.
func (d *Driver) mark(name jail.Name, a jail.Agent) error {
	if err := d.trusted(filepath.Join(d.o.DataDir, marksFolder)); err != nil {
		return err
	}
	outs, err := d.outputs(a)
	if err != nil {
		return err
	}
	return d.writeMark(name, markAt(outs))
}

// markAt is that of a container of which nothing was read.
func markAt(outs [2]Output) mark { return mark{{End: outs[0].End()}, {End: outs[1].End()}} }

func (d *Driver) writeMark(name jail.Name, m mark) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := d.markPath(name)
	if err := os.WriteFile(path+".next", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".next", path)
}

func (d *Driver) readMark(name jail.Name) (m mark, err error) {
	text, err := os.ReadFile(d.markPath(name))
	if err != nil {
		return m, err
	}
	err = json.Unmarshal(text, &m)
	return m, err
}

func (d *Driver) unmark(name jail.Name) error {
	var errs []error
	for _, path := range []string{d.markPath(name), d.markPath(name) + ".next"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (d *Driver) outputs(a jail.Agent) (out [2]Output, err error) {
	for i, s := range []jail.Stream{jail.Stdout, jail.Stderr} {
		if out[i], err = d.o.Output(a, s); err != nil {
			return out, fmt.Errorf("open the log of %s: %w", a.Key(), err)
		}
	}
	return out, nil
}

// follow reads what a kept container prints, until it has ended and everything was read.
func (d *Driver) follow(e *jail.Entry) {
	r := e.Record()
	if r.Spec.Lifetime != jail.LifetimeKeep || r.Spec.Agent == nil || d.o.Output == nil {
		return
	}
	d.mu.Lock()
	drained := make(chan struct{})
	if d.drained[r.Name] == nil {
		d.drained[r.Name] = drained
	}
	began := d.drained[r.Name] != drained
	d.mu.Unlock()
	if began {
		return
	}
	d.watchers.Go(func() {
		defer close(drained)
		if err := d.read(d.background, e, r); err != nil && d.background.Err() == nil {
			d.o.Log.Error("read what a container prints", "jail", r.Name, "error", err)
		}
	})
}

func (d *Driver) read(ctx context.Context, e *jail.Entry, r jail.Record) error {
	outs, err := d.outputs(*r.Spec.Agent)
	if err != nil {
		return err
	}
	m, err := d.readMark(r.Name)
	if err != nil {
		// Without a mark nothing is known to be there already; what was there is there twice rather than lost.
		d.o.Log.Error("the mark of a container's output cannot be read", "jail", r.Name, "error", err)
		m = markAt(outs)
	}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		f := newFollower(outs, m, func(m mark) error { return d.writeMark(r.Name, m) })
		began := m
		err := d.readOnce(ctx, r.Name, f)
		m = f.mark
		if saveErr := d.writeMark(r.Name, m); saveErr != nil {
			err = errors.Join(err, saveErr)
		}
		if ctx.Err() != nil || cerrdefs.IsNotFound(err) {
			return nil
		}
		if wake.Closed(e.Ended()) {
			if err == nil && m == began { // read once more after its end, and there was nothing
				return nil
			}
			pause = time.Millisecond
		}
		if m != began {
			pause = 50 * time.Millisecond
		}
		wake.Sleep(ctx, pause)
	}
}

func (d *Driver) readOnce(ctx context.Context, name jail.Name, f *follower) error {
	since := ""
	if t := f.mark.since(); !t.IsZero() {
		since = strconv.FormatInt(t.Unix(), 10) + fmt.Sprintf(".%09d", t.Nanosecond())
	}
	logs, err := d.engine.ContainerLogs(ctx, string(name), client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: true, Since: since})
	if err != nil {
		return err
	}
	err = f.copy(logs)
	return errors.Join(err, logs.Close())
}

// follower copies the engine's pieces into two logs.
type follower struct {
	outs    [2]Output
	mark    mark
	streams [2]replay
	unsaved int
	save    func(mark) error
}

// replay is what of a stream comes again.
type replay struct {
	from   position // pieces before it, and so many of its time
	done   bool     // nothing comes again any more
	pieces int      // of that time, that came
	bytes  int64    // that were read after the mark
}

func newFollower(outs [2]Output, m mark, save func(mark) error) *follower {
	f := &follower{outs: outs, mark: m, save: save}
	for i := range outs {
		f.streams[i] = replay{from: m[i], bytes: outs[i].End() - m[i].End}
	}
	return f
}

// again says whether a piece was read before the mark.
func (r *replay) again(at time.Time) bool {
	switch {
	case r.done:
		return false
	case at.Before(r.from.Since):
		return true
	case at.Equal(r.from.Since) && r.pieces < r.from.Same:
		r.pieces++
		return true
	}
	r.done = true
	return false
}

// copy reads pieces until the stream ends: eight bytes that say which stream and how many bytes, then a time, a space and
// what was printed.
func (f *follower) copy(from io.Reader) error {
	in := bufio.NewReaderSize(from, 64<<10)
	var header [8]byte
	for {
		if _, err := io.ReadFull(in, header[:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil
			}
			return err
		}
		size := binary.BigEndian.Uint32(header[4:])
		if size > maxPiece {
			return fmt.Errorf("the engine sent a piece of %d bytes", size)
		}
		piece := make([]byte, size)
		if _, err := io.ReadFull(in, piece); err != nil {
			return nil // read again, from the mark
		}
		switch header[0] {
		case 1, 2:
			if err := f.piece(int(header[0])-1, piece); err != nil {
				return err
			}
		case 3:
			return fmt.Errorf("the engine says: %q", piece[:min(len(piece), 200)])
		default:
			return fmt.Errorf("the engine sent a piece of the unknown stream %d", header[0])
		}
	}
}

func (f *follower) piece(stream int, piece []byte) error {
	stamp, data, ok := bytes.Cut(piece, []byte(" "))
	at, err := time.Parse(timeFormat, string(stamp))
	if !ok || err != nil {
		return errors.New("the engine sent a piece without a time")
	}
	r, m := &f.streams[stream], &f.mark[stream]
	if r.again(at) {
		return nil
	}
	if skip := min(r.bytes, int64(len(data))); skip > 0 {
		r.bytes -= skip
		data = data[skip:]
	}
	if len(data) > 0 {
		if _, err := f.outs[stream].Write(data); err != nil {
			return err
		}
	}
	if at.Equal(m.Since) {
		m.Same++
	} else {
		m.Since, m.Same = at, 1
	}
	m.End = f.outs[stream].End() - r.bytes
	if f.unsaved += len(piece); f.unsaved < markEvery {
		return nil
	}
	f.unsaved = 0
	return f.save(f.mark)
}
