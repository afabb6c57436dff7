package browser

import (
	"context"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/problem"
)

// Viewer is a viewer of a live view. Next is called by one goroutine at a time. Nothing queues up for a viewer who is slow: the
// next frame is whatever is the latest when they have drawn the one before.
type Viewer struct {
	l    *Live
	news wake.Signal // holds a token while there may be something for them

	// Live.mu guards these.
	visible bool
	drawing bool   // a frame was handed out and not drawn yet
	taken   uint64 // number of the last frame that was handed out
	shown   uint64 // number of the last that was drawn
	seen    uint64 // number of the last state that was handed out
	closed  bool
}

// Watch adds a viewer, which is visible. The screencast begins with the first visible one, and ends with the last.
func (l *Live) Watch() *Viewer {
	v := &Viewer{l: l, news: wake.New(), visible: true}
	l.mu.Lock()
	l.viewers[v] = struct{}{}
	v.tell()
	l.mu.Unlock()
	l.begin()
	l.poke()
	return v
}

// Next waits for something new to show: a frame, which is always the latest, or a state; one of them is nil. After a frame
// there is no other before [Viewer.Shown]. The error is why there will be nothing more, or ctx's.
func (v *Viewer) Next(ctx context.Context) (*Frame, *LiveState, error) {
	for {
		if frame, state, err := v.take(); frame != nil || state != nil || err != nil {
			return frame, state, err
		}
		select {
		case <-v.news:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

func (v *Viewer) take() (*Frame, *LiveState, error) {
	l := v.l
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case v.closed:
		return nil, nil, problem.New(problem.Canceled, "", "the viewer was closed")
	case l.ended != nil:
		return nil, nil, l.ended
	case l.state != nil && v.seen < l.states:
		v.seen = l.states
		return nil, l.state, nil
	case l.frame != nil && v.visible && !v.drawing && v.taken < l.frames:
		v.taken, v.drawing = l.frames, true
		return l.frame, nil, nil
	}
	return nil, nil, nil
}

// Shown says that the last frame was drawn, so that the next may come.
func (v *Viewer) Shown() {
	v.l.mu.Lock()
	defer v.l.mu.Unlock()
	if !v.drawing {
		return
	}
	v.drawing, v.shown = false, v.taken
	v.tell()
	v.l.acknowledgeLocked()
}

// Visible says whether the viewer shows the picture. While no viewer does, no picture is made.
func (v *Viewer) Visible(visible bool) {
	v.l.mu.Lock()
	if v.visible != visible && !v.closed {
		v.visible = visible
		v.tell()
		v.l.acknowledgeLocked()
	}
	v.l.mu.Unlock()
	v.l.poke()
}

// Close ends it. It may be called twice.
func (v *Viewer) Close() {
	v.l.mu.Lock()
	v.closed = true
	delete(v.l.viewers, v)
	v.tell()
	v.l.mu.Unlock()
	v.l.poke()
}

// tell wakes who waits in Next.
func (v *Viewer) tell() { v.news.Send() }

// tellLocked wakes all viewers. mu is held.
func (l *Live) tellLocked() {
	for v := range l.viewers {
		v.tell()
	}
}

// lookedAt says how many watch, and whether one of them looks.
func (l *Live) lookedAt() (viewers int, visible bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v := range l.viewers {
		visible = visible || v.visible
	}
	return len(l.viewers), visible
}

// acknowledgeLocked lets the browser make the next frame when one who looks has drawn the last: the quickest sets the
// pace. mu is held.
func (l *Live) acknowledgeLocked() {
	if l.cast == nil {
		return
	}
	for v := range l.viewers {
		if v.visible && v.shown >= l.frames {
			select {
			case l.cast.drawn <- struct{}{}:
			default:
			}
			return
		}
	}
}
