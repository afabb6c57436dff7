package browser

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"

	protocol "github.com/chromedp/cdproto/cdp"

	"github.com/clawjail/clawjail/internal/cdp"
)

const (
	// maxFrames is the most frames that one snapshot looks into.
	maxFrames = 30
	// keptFrames is the most that are kept for their refs. The oldest go first.
	keptFrames = 2 * maxFrames
	// maxFrameDepth is how deep frames may be in frames.
	maxFrameDepth = 5
)

// view is what is known of a page's documents: their worlds, frames and refs. Its zero value is ready.
type view struct {
	mu        sync.Mutex
	main      *frame
	frames    []*frame // below the main one, as snapshots met them
	lastFrame int      // the highest number that a frame ever had
	refs      []string // of the last ai snapshot
	ax        axRefs
}

// frame is one frame of a page, with a world of its own in its document.
type frame struct {
	page *Page
	// number is in the refs: f1e12. The main frame has 0, which is left out.
	number  int
	id      protocol.FrameID
	parent  *frame
	session cdp.Session
	own     bool // the session was attached for this frame, which is in a process of its own

	// These change under view.mu.
	registry runtime.RemoteObjectID // empty when there is none
	context  runtime.ExecutionContextID
	owner    int // the ref of the iframe element in the parent
	last     int // the highest number that a ref ever had here
}

// mainFrame is the page's own frame.
func (p *Page) mainFrame() *frame {
	p.view.mu.Lock()
	defer p.view.mu.Unlock()
	if p.view.main == nil {
		p.view.main = &frame{page: p, id: protocol.FrameID(p.id), session: p.session}
	}
	return p.view.main
}

// frameOf is the frame with a number, nil when it is not known any more.
func (p *Page) frameOf(number int) *frame {
	if number == 0 {
		return p.mainFrame()
	}
	p.view.mu.Lock()
	defer p.view.mu.Unlock()
	for _, f := range p.view.frames {
		if f.number == number {
			return f
		}
	}
	return nil
}

// documentGone forgets what was known of the main frame's document. The numbers go on. mu is held.
func (v *view) documentGone() {
	// Their sessions end with the frames.
	v.frames, v.refs = nil, nil
	v.ax.clear()
}

// child finds or makes the frame that an iframe element shows. The element is a handle in f's world.
func (f *frame) child(ctx context.Context, element runtime.RemoteObjectID, owner int) (*frame, error) {
	described, err := cdp.Do(ctx, f.session, dom.DescribeNode, dom.DescribeNodeParams{ObjectID: element})
	if err != nil {
		return nil, gone(err)
	}
	if described.Node == nil || described.Node.FrameID == "" {
		return nil, fmt.Errorf("%w: the frame is empty", errDocumentGone)
	}
	id := described.Node.FrameID
	v := &f.page.view
	v.mu.Lock()
	var found *frame
	for _, known := range v.frames {
		if known.id == id && known.parent == f {
			known.owner = owner
			found = known
		}
	}
	v.mu.Unlock()
	if found != nil {
		// A frame that went to another process, or came back, answers over another session.
		if err := found.ask(ctx, remake, "ping", nil, nil); err == nil || !errors.Is(err, errDocumentGone) {
			return found, err
		}
	}
	fresh := &frame{page: f.page, id: id, parent: f, owner: owner, session: f.session}
	if _, err := fresh.createWorld(ctx); err != nil {
		if !errors.Is(err, errDocumentGone) {
			return nil, err
		}
		if err := fresh.attach(ctx); err != nil {
			return nil, err
		}
	}
	v.adopt(fresh, found)
	return fresh, nil
}

// attach opens a session for a frame in a process of its own: its target has the id of the frame. It is attached when
// it is needed and not before, so that a page that makes frames all day fills no table; and below the page's session, so
// that it ends with it.
func (f *frame) attach(ctx context.Context) error {
	attached, err := f.page.session.Attach(ctx, target.ID(f.id))
	if err != nil {
		return gone(err)
	}
	f.session, f.own = attached, true
	return gone(f.page.endWhenCrashed(ctx, f))
}

// detach ends the frame's own session. One that has ended already is what was wanted.
func (f *frame) detach() {
	if !f.own {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	_ = f.page.session.Detach(ctx, f.session)
}

// adopt gives a frame its number, and that of the one which it replaces when there is one.
func (v *view) adopt(fresh, old *frame) {
	v.mu.Lock()
	var dropped []*frame
	if old != nil {
		fresh.last = old.last
		for i, f := range v.frames {
			if f == old {
				v.frames = append(v.frames[:i], v.frames[i+1:]...)
				dropped = append(dropped, f)
				fresh.number = old.number
				break
			}
		}
	}
	if fresh.number == 0 {
		v.lastFrame++
		fresh.number = v.lastFrame
	}
	v.frames = append(v.frames, fresh)
	for len(v.frames) > keptFrames {
		dropped = append(dropped, v.frames[0])
		v.frames = v.frames[1:]
	}
	v.mu.Unlock()
	for _, f := range dropped {
		f.detach()
	}
}

// placement is where a frame's viewport is in that of the main frame: offset and scale, in CSS pixels.
type placement struct{ X, Y, ScaleX, ScaleY float64 }

func (at placement) point(x, y float64) (float64, float64) {
	return at.X + x*at.ScaleX, at.Y + y*at.ScaleY
}

// placement asks the frames above, of whatever process.
func (f *frame) placement(ctx context.Context) (placement, error) {
	at := placement{ScaleX: 1, ScaleY: 1}
	for ; f.parent != nil; f = f.parent {
		f.page.view.mu.Lock()
		owner := f.owner
		f.page.view.mu.Unlock()
		var inner *placement
		if err := f.parent.ask(ctx, remain, "frameAt", &inner, owner); err != nil {
			return placement{}, err
		}
		if inner == nil {
			return placement{}, errDocumentGone
		}
		at.X, at.Y = inner.point(at.X, at.Y)
		at.ScaleX *= inner.ScaleX
		at.ScaleY *= inner.ScaleY
	}
	return at, nil
}
