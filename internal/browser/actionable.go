package browser

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

//go:embed inpage/actionable.js
var actionableJS string

// inPage makes one of the functions of a file of inpage/ into what [element.call] takes.
func inPage(file, name string) string {
	return "function(){'use strict';\n" + file + "\nreturn " + name + "(...arguments);}"
}

// needs is what an action wants of an element, besides that it is there, drawn, still and in view.
type needs struct {
	Enabled  bool `json:"enabled"`
	Editable bool `json:"editable"`
	// Hit: a click would reach it, and nothing that lies above.
	Hit bool `json:"hit"`
}

// examined is how the page found the element.
type examined struct {
	// Check is what is missing: attached, visible, enabled, editable, stable, in view, hit. Empty: nothing.
	Check string  `json:"check"`
	Cover string  `json:"cover"`
	X     float64 `json:"x"`
	Y     float64 `json:"y"`
}

// retryPause is how long an element that is not ready is left alone before the next look.
func retryPause(attempt int) time.Duration {
	return min(time.Duration(attempt)*20*time.Millisecond, 200*time.Millisecond)
}

// readyAt is ready for callers that need only the place.
func (m *acting) readyAt(ctx context.Context, where Where, wants needs) (point, error) {
	e, at, err := m.ready(ctx, where, wants)
	if err != nil {
		return point{}, err
	}
	e.release()
	return at, nil
}

// ready waits until an element can be used, scrolls to it, and returns it with the point at which it can be hit, in the
// tab's viewport. When the time is up, the error has the code act_operation_failed and says which check failed last.
// A ref that is stale, and a selector that is none, fail at once.
func (m *acting) ready(ctx context.Context, where Where, wants needs) (*element, point, error) {
	var last error
	for attempt := 0; ; attempt++ {
		e, at, err := m.tryReady(ctx, where, wants, attempt)
		if err == nil {
			return e, at, nil
		}
		if ctx.Err() != nil {
			// The finding of the look before says more than that this one was cut off.
			if last != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, point{}, last
			}
			return nil, point{}, context.Cause(ctx)
		}
		if problem.CodeOf(err) != problem.ActOperationFailed {
			return nil, point{}, err
		}
		if last == nil || !passing(err) {
			last = err
		}
		pause(ctx, retryPause(attempt))
	}
}

// passing tells a look that came while frames were still being scrolled: what a look before found says more.
func passing(err error) bool {
	e, is := problem.As(err)
	return is && e.Details["covered_by"] == nothingToHit
}

// nothingToHit is what actionable.js says of a point outside the document.
const nothingToHit = "nothing that can be hit"

func (m *acting) tryReady(ctx context.Context, where Where, wants needs, attempt int) (*element, point, error) {
	e, err := m.page.find(ctx, where)
	if err != nil {
		return nil, point{}, err
	}
	at, err := e.examine(ctx, wants, attempt)
	if err != nil {
		e.release()
		// A selector may well match in the document that has come meanwhile.
		if where.Ref == "" && problem.CodeOf(err) == problem.StaleRef {
			err = problem.Wrap(err, problem.ActOperationFailed, "take a new snapshot", "the page changed while %s was looked at", where)
		}
		return nil, point{}, err
	}
	return e, at, nil
}

func (e *element) examine(ctx context.Context, wants needs, attempt int) (point, error) {
	var found examined
	if err := e.call(ctx, inPage(actionableJS, "examine"), &found, wants, attempt); err != nil {
		return point{}, err
	}
	if found.Check != "" {
		return point{}, e.unready(found)
	}
	x, y := found.X, found.Y
	// The frames around the element's own may be covered too, or out of view.
	for f := e.frame; f.parent != nil; f = f.parent {
		var inner *placement
		if err := f.parent.ask(ctx, remain, "frameAt", &inner, f.owner); err != nil {
			return point{}, e.explain(err)
		}
		if inner == nil {
			return point{}, e.explain(errDocumentGone)
		}
		x, y = inner.point(x, y)
		if !wants.Hit {
			continue
		}
		owner, err := f.parent.object(ctx, remain, "element", f.owner)
		if err != nil {
			return point{}, e.explain(err)
		}
		if owner.ObjectID == "" {
			return point{}, e.explain(errDocumentGone)
		}
		around := &element{page: e.page, frame: f.parent, session: f.parent.session, object: owner.ObjectID, where: e.where}
		var cover *string
		err = around.call(ctx, inPage(actionableJS, "covering"), &cover, x, y)
		around.release()
		if err != nil {
			return point{}, err
		}
		if cover != nil {
			return point{}, e.unready(examined{Check: "hit", Cover: *cover})
		}
	}
	return point{x, y}, nil
}

// unready says what keeps the element from being used.
func (e *element) unready(found examined) error {
	text, hint := "is not ready", "take a new snapshot, or wait for what is to change"
	switch found.Check {
	case "attached":
		text, hint = "has left the page", "take a new snapshot"
	case "visible":
		text, hint = "is not visible", "wait for it, or open what it is in; a new snapshot shows what is visible"
	case "enabled":
		text, hint = "is disabled", "fill in what the page wants first, or wait"
	case "editable":
		text, hint = "takes no text", "take a new snapshot, and give the ref of a field"
	case "stable":
		text, hint = "does not stop moving", "wait until it rests, or use clickCoords"
	case "in view":
		text, hint = "cannot be scrolled into view", "resize the window, or scroll what it is in"
	case "hit":
		text = "cannot be reached: " + bounded(found.Cover, 300) + " covers it"
		hint = "close what covers it, or wait until it is gone; then take a new snapshot"
	}
	err := problem.New(problem.ActOperationFailed, hint, "%s %s", e.where, text).With("check", bounded(found.Check, 40))
	if found.Cover != "" {
		err = err.With("covered_by", bounded(found.Cover, 300))
	}
	return err
}
