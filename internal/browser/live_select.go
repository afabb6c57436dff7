package browser

import (
	"context"
	"errors"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// seekTimeout bounds the look at what is under the pointer, which takes a few milliseconds.
const seekTimeout = 2 * time.Second

// choice is a select element whose list a person sees.
type choice struct {
	seeker  *seeker
	found   sighted
	options []PopupOption
}

// opensSelect says whether a key opens the list of a select element.
func opensSelect(in LiveInput) bool {
	switch in.Key {
	case " ", "F4":
		return in.Modifiers&^modifierShift == 0
	case "ArrowDown", "ArrowUp":
		return in.Modifiers&^modifierShift == modifierAlt
	}
	return false
}

// openSelectAt shows a person the list of the select element at a point, if there is one: the browser's own list is not in the
// picture. The page does not see the press.
func (l *Live) openSelectAt(ctx context.Context, p *Page, x, y float64) (opened bool, err error) {
	return l.openSelect(ctx, p, func(ctx context.Context, s *seeker) (sighted, error) { return s.at(ctx, x, y) })
}

// openFocusedSelect does the same for the element that has the focus.
func (l *Live) openFocusedSelect(ctx context.Context, p *Page) (opened bool, err error) {
	return l.openSelect(ctx, p, func(ctx context.Context, s *seeker) (sighted, error) { return s.focused(ctx) })
}

func (l *Live) openSelect(ctx context.Context, p *Page, look func(context.Context, *seeker) (sighted, error)) (opened bool, err error) {
	if !l.held.Load() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, seekTimeout)
	defer cancel()
	s := p.seek()
	kept := false
	defer func() {
		if !kept {
			s.end()
		}
	}()
	found, err := look(ctx, s)
	if errors.Is(err, context.DeadlineExceeded) {
		l.mu.Lock()
		l.hands.stuck = p
		l.mu.Unlock()
		return false, hangs(err)
	}
	if err != nil || found.kind != "select" {
		// A document that went away in between has no list to show either.
		return false, nil
	}
	c := &choice{seeker: s, found: found}
	if err := s.value(ctx, found.session, found.element, "options", &c.options); err != nil {
		return false, nil
	}
	for i := range c.options {
		c.options[i].Label = bounded(c.options[i].Label, maxLiveTitle)
		c.options[i].Group = bounded(c.options[i].Group, maxLiveTitle)
	}
	// A second press on it closes the list that is open.
	l.dropped(func(asked *popup) bool { return asked.page == p && asked.Kind == PopupSelect })
	kept = l.offer(&popup{page: p, session: found.session, choice: c, Popup: Popup{Kind: PopupSelect, Options: c.options}})
	return true, nil
}

// check refuses what cannot be chosen.
func (c *choice) check(options []int) error {
	if len(options) != 1 {
		return problem.New(problem.BadRequest, "choose one of its options", "one option is chosen here")
	}
	if i := options[0]; i < 0 || i >= len(c.options) || c.options[i].Disabled {
		return problem.New(problem.BadRequest, "choose one of its options", "there is no such option to choose")
	}
	return nil
}

// set makes the choice. The element tells its page, as if it had been made there.
func (c *choice) set(ctx context.Context, options []int) error {
	var made bool
	if err := c.seeker.value(ctx, c.found.session, c.found.element, "choose", &made, options[0]); err != nil {
		return err
	}
	if !made {
		return problem.New(problem.Conflict, "open the list again", "the list has changed")
	}
	return nil
}

func (c *choice) release() { c.seeker.end() }

// refusedOrGone says that what was to be answered is not there any more.
func refusedOrGone(err error) bool { return err != nil && errors.Is(gone(err), errDocumentGone) }
