package recording

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// PicturesMost and transientBytes bound the pictures of a transient tape: the last ones.
	PicturesMost   = 50
	transientBytes = 64 << 20
	// transientSteps bounds its steps; older ones stay in the file, which has its own bound.
	transientSteps = 2000
	// auditSteps and auditBytes bound an audit tape.
	auditSteps = 50_000
	auditBytes = 2 << 30
	// maxLine bounds one line of the file, maxText one text in it.
	maxLine = 64 << 10
	maxText = 2000
	// ahead is the room that there has to be when a step of an audit tape begins: its picture comes when it is done.
	ahead = 1 << 20
)

// Step is one thing that was done.
type Step struct {
	Number int       `json:"n"`
	At     time.Time `json:"at"`
	Actor  string    `json:"actor,omitempty"`
	Tool   string    `json:"tool,omitempty"`
	Target string    `json:"target,omitempty"`
	// Done has how it went; nil when that is not known.
	Done *Outcome `json:"done,omitempty"`
}

// Outcome is how a step went.
type Outcome struct {
	OK      bool   `json:"ok"`
	Code    string `json:"code,omitempty"`
	Error   string `json:"error,omitempty"`
	TookMS  int64  `json:"took_ms"`
	URL     string `json:"url,omitempty"`
	Title   string `json:"title,omitempty"`
	Format  string `json:"format,omitempty"` // of its picture: png or jpeg
	Bytes   int    `json:"bytes,omitempty"`
	Picture []byte `json:"-"`
}

// Picture is one picture of a tape. Its number is that of its step.
type Picture struct {
	Number int
	At     time.Time
	Format string
	Bytes  int
}

// Tape is the recording of one session.
type Tape struct {
	shelf *Shelf
	meta  Meta

	mu       sync.Mutex
	steps    int
	bytes    int64
	pictures []Picture
	began    bool // there is a folder
	ended    bool
}

// Start makes a tape. Nothing of a transient one is on the disk before its first step.
func (s *Shelf) Start(m Meta) (*Tape, error) {
	if !tenantName.MatchString(m.Tenant) || !sessionName.MatchString(m.Session) || m.Kind != Transient && m.Kind != Audit {
		return nil, fmt.Errorf("record session %q of tenant %q as %q: not valid names", m.Session, m.Tenant, m.Kind)
	}
	t := &Tape{shelf: s, meta: m}
	s.mu.Lock()
	s.open[m.Session] = t
	s.mu.Unlock()
	if m.Kind == Audit {
		t.mu.Lock()
		defer t.mu.Unlock()
		if err := t.open(); err != nil {
			s.room.remove(t.path())
			s.mu.Lock()
			delete(s.open, m.Session)
			s.mu.Unlock()
			return nil, err
		}
	}
	return t, nil
}

// open makes the folder of an audit tape, if there is room. t.mu is held.
func (t *Tape) open() error {
	err := t.take(newCost, ahead)
	if err != nil && t.shelf.due(lookAgain) { // somebody may have made room
		if err := t.shelf.Tidy(); err != nil {
			return err
		}
		err = t.take(newCost, ahead)
	}
	if err != nil {
		return err
	}
	return t.begin()
}

func (t *Tape) path() string { return t.meta.Tenant + "/" + t.meta.Session }

// begin makes the folder. t.mu is held.
func (t *Tape) begin() error {
	if t.began {
		return nil
	}
	t.shelf.folders.Lock()
	defer t.shelf.folders.Unlock()
	err := os.MkdirAll(t.shelf.Dir, 0o700)
	if err == nil {
		err = t.shelf.in(func(root *os.Root) error {
			if err := root.MkdirAll(t.path(), 0o700); err != nil {
				return err
			}
			return t.writeMeta(root)
		})
	}
	if err != nil {
		return unwritable(err)
	}
	t.began = true
	return nil
}

// writeMeta replaces the description as a whole.
func (t *Tape) writeMeta(root *os.Root) error {
	text, err := json.Marshal(t.meta)
	if err != nil {
		return err
	}
	const fresh = ".new"
	if err := root.WriteFile(t.path()+"/"+metaFile+fresh, text, 0o600); err != nil {
		return err
	}
	return root.Rename(t.path()+"/"+metaFile+fresh, t.path()+"/"+metaFile)
}

func unwritable(err error) error {
	if _, known := problem.As(err); known {
		return err
	}
	return problem.Wrap(err, problem.DiskFull, "make room on the disk, or open the session with another way of recording", "the recording cannot be written")
}

// Begin writes down that a step begins, and gives it a number.
func (t *Tape) Begin(s Step) (int, error) { return t.add(s, false) }

// BeginAlways is Begin for what a recording that is full must not stop: that a person takes the session over.
func (t *Tape) BeginAlways(s Step) (int, error) { return t.add(s, true) }

func (t *Tape) add(s Step, always bool) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	full := t.meta.Kind == Audit && (t.steps >= auditSteps || t.bytes >= auditBytes)
	switch {
	case t.ended:
		return 0, problem.New(problem.SessionClosed, "open a new one", "session %s is ending", t.meta.Session)
	case full && !always:
		return 0, problem.New(problem.DiskFull, "close the session and open another one", "the recording of session %s is full", t.meta.Session)
	case t.meta.Kind == Transient && t.steps >= transientSteps:
		t.steps++
		return t.steps, nil // its pictures are still kept
	}
	if t.meta.Kind == Audit && !always {
		if err := t.take(0, ahead); err != nil {
			return 0, err
		}
	}
	if t.meta.Kind == Transient && !t.began && t.take(newCost, 0) != nil {
		t.steps++
		return t.steps, nil // it keeps less
	}
	if err := t.begin(); err != nil {
		return 0, err
	}
	t.steps++
	s.Number, s.Target, s.Done = t.steps, clip(s.Target, maxText), nil
	if err := t.append(s); err != nil {
		t.steps--
		return 0, err
	}
	return s.Number, nil
}

// End writes down how a step went, with its picture.
func (t *Tape) End(number int, at time.Time, o Outcome) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil // its folder is gone, or complete
	}
	if !t.began {
		return nil // there was no room for a transient one
	}
	var errs []error
	kept := false
	if len(o.Picture) > 0 {
		var err error
		kept, err = t.keep(Picture{Number: number, At: at, Format: o.Format, Bytes: len(o.Picture)}, o.Picture)
		errs = append(errs, err)
	}
	if kept {
		o.Bytes = len(o.Picture)
	} else {
		o.Format = ""
	}
	o.Error, o.URL, o.Title = clip(o.Error, maxText), clip(o.URL, maxText), clip(o.Title, maxText)
	if t.meta.Kind == Audit || number <= transientSteps {
		errs = append(errs, t.append(Step{Number: number, At: at, Done: &o}))
	}
	return errors.Join(errs...)
}

// take is an error when there is no room for n more bytes, and for some more after them.
func (t *Tape) take(n, more int64) error {
	return t.shelf.room.take(t.path(), t.meta.holder(), n, more)
}

// append writes a line. t.mu is held.
func (t *Tape) append(s Step) error {
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	err = t.shelf.in(func(root *os.Root) error {
		f, err := root.OpenFile(t.path()+"/"+stepsFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(append(line, '\n'))
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return unwritable(err)
	}
	t.bytes += int64(len(line))
	t.shelf.room.add(t.path(), t.meta.holder(), int64(len(line)))
	return nil
}

// keep writes a picture, and lets go of older ones of a transient tape, which keeps none when there is no room. t.mu is held.
func (t *Tape) keep(p Picture, data []byte) (kept bool, err error) {
	if p.Format != "png" && p.Format != "jpeg" {
		return false, fmt.Errorf("record a picture in %q: not a format", p.Format)
	}
	transient := t.meta.Kind == Transient
	if transient && len(data) > transientBytes {
		return false, nil
	}
	cost := costOf(int64(len(data)))
	err = t.shelf.in(func(root *os.Root) error {
		var errs []error
		total := int64(len(data))
		for _, old := range t.pictures {
			total += int64(old.Bytes)
		}
		drop := func() {
			old := t.pictures[0]
			errs = append(errs, root.RemoveAll(t.file(old)))
			t.shelf.room.add(t.path(), t.meta.holder(), -costOf(int64(old.Bytes)))
			total -= int64(old.Bytes)
			t.pictures = t.pictures[1:]
		}
		for transient && len(t.pictures) > 0 && (len(t.pictures) >= PicturesMost || total > transientBytes) {
			drop()
		}
		err := t.take(cost, 0)
		if err != nil && transient && len(t.pictures) > 0 {
			drop()
			err = t.take(cost, 0)
		}
		if err != nil && transient {
			return errors.Join(errs...)
		}
		if err == nil {
			if err = root.WriteFile(t.file(p), data, 0o600); err != nil {
				err = errors.Join(err, root.RemoveAll(t.file(p))) // half a picture is none
				t.shelf.room.add(t.path(), t.meta.holder(), -cost)
			}
		}
		kept = err == nil
		return errors.Join(append(errs, err)...)
	})
	if err != nil {
		return false, unwritable(err)
	}
	if kept {
		t.pictures = append(t.pictures, p)
		t.bytes += int64(len(data))
	}
	return kept, nil
}

func (t *Tape) file(p Picture) string {
	return t.path() + "/" + strconv.Itoa(p.Number) + "." + p.Format
}

// Pictures are those that are kept, oldest first.
func (t *Tape) Pictures() []Picture {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Picture(nil), t.pictures...)
}

// Picture reads a picture that is kept. The error is fs.ErrNotExist when it is not, or not any more.
func (t *Tape) Picture(number int) (data []byte, format string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.pictures {
		if p.Number == number && !t.gone() {
			err = t.shelf.in(func(root *os.Root) error {
				data, err = root.ReadFile(t.file(p))
				return err
			})
			return data, p.Format, err
		}
	}
	return nil, "", fs.ErrNotExist
}

func (t *Tape) gone() bool { return t.ended && t.meta.Kind == Transient }

// Close ends the tape: a transient one is removed, an audit one is complete.
func (t *Tape) Close(at time.Time, cause string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil
	}
	t.ended = true
	t.shelf.mu.Lock()
	delete(t.shelf.open, t.meta.Session)
	t.shelf.mu.Unlock()
	if !t.began {
		return nil
	}
	err := t.shelf.in(func(root *os.Root) error {
		if t.meta.Kind == Audit {
			t.meta.Ended, t.meta.Cause = &at, cause
			return t.writeMeta(root)
		}
		err := root.RemoveAll(t.path())
		t.shelf.removeTenant(root, t.meta.Tenant)
		return err
	})
	if t.meta.Kind == Transient {
		t.pictures = nil
		t.shelf.room.remove(t.path())
	}
	if err != nil && !(t.meta.Kind == Transient && errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("end the recording of session %s: %w", t.meta.Session, err)
	}
	return nil
}

// readSteps calls do with every step of a recording, in order, each with how it went.
func readSteps(root *os.Root, path string, do func(Step) error) error {
	f, err := root.Open(path + "/" + stepsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // only read
	// A step's outcome comes a few lines after its beginning: as many as went on at the same time.
	waiting := map[int]*Step{}
	var order []*Step
	flush := func(all bool) error {
		for len(order) > 0 && (all || order[0].Done != nil || len(order) > 256) {
			if err := do(*order[0]); err != nil {
				return err
			}
			delete(waiting, order[0].Number)
			order = order[1:]
		}
		return nil
	}
	lines := bufio.NewReaderSize(f, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			return flush(true) // half a line is a step that was not begun
		}
		if err != nil {
			return fmt.Errorf("read the steps: %w", err)
		}
		var s Step
		if err := json.Unmarshal(line, &s); err != nil {
			return fmt.Errorf("read the steps: %w", err)
		}
		if s.Done == nil {
			waiting[s.Number] = &s
			order = append(order, &s)
		} else if w := waiting[s.Number]; w != nil {
			w.Done = s.Done
		}
		if err := flush(false); err != nil {
			return err
		}
	}
}

// clip shortens a text, at a character's border.
func clip(text string, limit int) string {
	return strings.ToValidUTF8(texts.Clip(text, limit), "\uFFFD")
}
