package browser

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// walkOptions is what the page is asked for; see inpage/snapshot.js.
type walkOptions struct {
	Selector    string `json:"selector,omitempty"`
	Interactive bool   `json:"interactive"`
	Compact     bool   `json:"compact"`
	URLs        bool   `json:"urls"`
	Depth       int    `json:"depth"`
	Base        int    `json:"base"` // the depth of the first line
	Chars       int    `json:"chars"`
	MS          int64  `json:"ms"`
	Frames      int    `json:"frames"`
	Prefix      string `json:"prefix"` // of the refs
}

// walked is what a page answers.
type walked struct {
	Bad, None   bool // the selector is none, or matches nothing
	Text        string
	Truncated   bool
	Refs        []int
	Interactive int
	Frames      []walkedFrame
	MoreFrames  bool
	Last        int
}

// walkedFrame is an iframe in the text.
type walkedFrame struct {
	Line, Depth, Ref int
}

// walk is one ai snapshot under way.
type walk struct {
	options     walkOptions
	inner       context.Context // what the frames within the page have together
	frames      int             // that may still be looked into
	chars       int
	truncated   bool
	refs        []string
	interactive int
}

// ai takes the snapshot as text.
func (s Snapshot) ai(ctx context.Context, p *Page, result *SnapshotResult) error {
	w := walk{
		options: walkOptions{
			Selector: s.Selector, Interactive: s.Interactive, Compact: s.Compact, URLs: s.URLs,
			Depth: snapshotDepth, MS: s.share(),
		},
		chars: snapshotChars, frames: maxFrames,
	}
	if s.Mode == efficient {
		w.options.Interactive, w.options.Compact, w.options.Depth, w.chars = true, true, efficientDepth, efficientChars
	}
	if s.Depth != 0 {
		w.options.Depth = s.Depth
	}
	if s.MaxChars != 0 {
		w.chars = s.MaxChars
	}
	inner, cancel := context.WithTimeout(ctx, time.Duration(s.share())*time.Millisecond)
	defer cancel()
	w.inner = inner
	// Depth counts lines: the first has 0.
	w.options.Depth--
	lines, err := w.frame(ctx, p.mainFrame(), 0, 0)
	if err != nil {
		return err
	}
	text := strings.Join(lines, "\n")
	result.Stats = SnapshotStats{Lines: len(lines), Refs: len(w.refs), Interactive: w.interactive}
	if result.Truncated = w.truncated; w.truncated {
		text += fmt.Sprintf("\n… truncated: %d characters shown; narrow it with selector, depth or interactive",
			utf8.RuneCountInString(text))
		result.Stats.Lines++
	}
	result.Snapshot = text
	result.Stats.Chars = utf8.RuneCountInString(text)
	p.view.mu.Lock()
	p.view.refs = w.refs
	p.view.mu.Unlock()
	return nil
}

// frame returns the lines of one frame and of those in it, in the order of the page.
func (w *walk) frame(ctx context.Context, f *frame, base, nested int) ([]string, error) {
	options := w.options
	options.Base, options.Chars, options.Frames = base, w.chars, w.frames
	if f.parent != nil {
		options.Selector = ""
		options.Prefix = fmt.Sprintf("f%d", f.number)
	}
	if nested >= maxFrameDepth {
		options.Frames = 0
	}
	var answer walked
	if err := f.ask(ctx, remake, "snapshot", &answer, options); err != nil {
		return nil, err
	}
	if err := f.confirms(ctx, options.Selector); err != nil {
		return nil, err
	}
	switch {
	case answer.Bad:
		return nil, badSelector(options.Selector)
	case answer.None:
		return nil, noMatch(options.Selector)
	}
	f.page.view.mu.Lock()
	f.last = max(f.last, answer.Last)
	f.page.view.mu.Unlock()
	w.truncated = w.truncated || answer.Truncated || answer.MoreFrames
	w.interactive += answer.Interactive
	for _, number := range answer.Refs {
		w.refs = append(w.refs, ref{frame: f.number, number: number}.String())
	}
	if answer.Text == "" {
		return nil, nil
	}
	w.chars -= utf8.RuneCountInString(answer.Text) + 1
	lines := strings.Split(answer.Text, "\n")
	if len(answer.Frames) == 0 {
		return lines, nil
	}
	w.frames -= len(answer.Frames)
	return w.children(ctx, f, lines, answer.Frames, nested)
}

// children puts the lines of the frames in a frame where they belong.
func (w *walk) children(ctx context.Context, f *frame, lines []string, frames []walkedFrame, nested int) ([]string, error) {
	var out []string
	from := 0
	for i, inner := range frames {
		if inner.Line < from || inner.Line >= len(lines) || inner.Depth > w.options.Depth {
			continue
		}
		if w.chars <= 0 {
			w.truncated = true
			break
		}
		below, err := w.child(ctx, f, i, inner, nested)
		if err != nil {
			return nil, err
		}
		out = append(out, lines[from:inner.Line+1]...)
		from = inner.Line + 1
		if len(below) > 0 {
			out[len(out)-1] += ":"
			out = append(out, below...)
		}
	}
	return append(out, lines[from:]...), nil
}

// child returns the lines of one inner frame. One that went away, or that hangs in a process of its own, has none.
func (w *walk) child(ctx context.Context, f *frame, index int, inner walkedFrame, nested int) ([]string, error) {
	// One frame leaves time for the others.
	part, cancel := context.WithTimeout(w.inner, time.Duration(w.options.MS)*time.Millisecond/4)
	defer cancel()
	lines, err := w.look(part, f, index, inner, nested)
	switch {
	case err == nil:
		return lines, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, errDocumentGone):
		return nil, nil
	case part.Err() != nil:
		w.truncated = true
		return nil, nil
	}
	return nil, err
}

func (w *walk) look(ctx context.Context, f *frame, index int, inner walkedFrame, nested int) ([]string, error) {
	handle, err := f.object(ctx, remain, "iframe", index)
	if err != nil || handle.ObjectID == "" {
		return nil, err
	}
	child, err := f.child(ctx, handle.ObjectID, inner.Ref)
	if err != nil {
		return nil, err
	}
	return w.frame(ctx, child, inner.Depth, nested+1)
}

// refs are the refs of the last ai snapshot of the document, in its order.
func (p *Page) refs() []string {
	p.view.mu.Lock()
	defer p.view.mu.Unlock()
	return slices.Clone(p.view.refs)
}

// refBox is a ref of the last ai snapshot and where it is, in CSS pixels of the main frame's viewport.
type refBox struct {
	Ref                 string
	X, Y, Width, Height float64
}

// refBoxes are those refs of the last ai snapshot that are in view, at most max of them: one evaluation in each frame
// that has any. There are none when the document has been replaced since.
func (p *Page) refBoxes(ctx context.Context, maximum int) ([]refBox, error) {
	var numbers []int
	for _, text := range p.refs() {
		r, err := parseRef(text)
		if err == nil && !slices.Contains(numbers, r.frame) {
			numbers = append(numbers, r.frame)
		}
	}
	var out []refBox
	for _, number := range numbers {
		f := p.frameOf(number)
		if f == nil || len(out) >= maximum {
			continue
		}
		boxes, err := f.boxes(ctx, maximum-len(out))
		if err != nil && !errors.Is(err, errDocumentGone) {
			return nil, explain(err, "look for the refs")
		}
		out = append(out, boxes...)
	}
	return out, nil
}

func (f *frame) boxes(ctx context.Context, maximum int) ([]refBox, error) {
	at, err := f.placement(ctx)
	if err != nil {
		return nil, err
	}
	var found []struct {
		Number              int
		X, Y, Width, Height float64
	}
	if err := f.ask(ctx, remain, "boxes", &found, maximum); err != nil {
		return nil, err
	}
	out := make([]refBox, 0, len(found))
	for _, box := range found {
		x, y := at.point(box.X, box.Y)
		out = append(out, refBox{Ref: ref{frame: f.number, number: box.Number}.String(),
			X: x, Y: y, Width: box.Width * at.ScaleX, Height: box.Height * at.ScaleY})
	}
	return out, nil
}
