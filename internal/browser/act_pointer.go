package browser

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"

	"github.com/clawjail/clawjail/internal/cdp"
)

const (
	// dragSteps is how many moves a drag is made of, besides those that begin it: pages look at the way as well.
	dragSteps = 10
	// dragStart is how far the pointer goes before it counts as a drag, in pixels; Chromium's own threshold is 3.
	dragStart = 6
	// dragNotice is how long a page's own drag and drop may take to begin after that.
	dragNotice = 150 * time.Millisecond
)

// point is a place in the tab's viewport, in CSS pixels.
type point struct{ x, y float64 }

func (m *acting) click(ctx context.Context, a Act) error {
	at, err := m.readyAt(ctx, Where{Ref: a.Ref, Selector: a.Selector}, needs{Enabled: true, Hit: true})
	if err != nil {
		return err
	}
	return m.clickAt(ctx, at, a)
}

// clickAt moves there, presses and releases, twice for a double click.
func (m *acting) clickAt(ctx context.Context, at point, a Act) error {
	mouse := m.mouse(a.Button, modifierBits(a.Modifiers))
	if err := mouse.move(ctx, at); err != nil {
		return err
	}
	clicks := int64(1)
	if a.Double {
		clicks = 2
	}
	for count := int64(1); count <= clicks; count++ {
		if err := mouse.press(ctx, at, count); err != nil {
			return err
		}
		if !pause(ctx, time.Duration(a.DelayMS)*time.Millisecond) {
			mouse.letGo(ctx, at)
			return context.Cause(ctx)
		}
		if err := mouse.release(ctx, at, count); err != nil {
			return err
		}
	}
	return nil
}

func (m *acting) hover(ctx context.Context, a Act) error {
	at, err := m.readyAt(ctx, Where{Ref: a.Ref, Selector: a.Selector}, needs{Hit: true})
	if err != nil {
		return err
	}
	return m.mouse("", 0).move(ctx, at)
}

// scrollIntoView needs no more than an element that is laid out.
func (m *acting) scrollIntoView(ctx context.Context, a Act) error {
	_, err := m.readyAt(ctx, Where{Ref: a.Ref, Selector: a.Selector}, needs{})
	return err
}

func (m *acting) drag(ctx context.Context, a Act) error {
	from, err := m.readyAt(ctx, Where{Ref: a.StartRef, Selector: a.StartSel}, needs{Enabled: true, Hit: true})
	if err != nil {
		return err
	}
	return m.dragFrom(ctx, from, func(ctx context.Context) (point, error) {
		// Looked for only now: it may have moved when the drag began, and what is dragged may lie above it.
		return m.readyAt(ctx, Where{Ref: a.EndRef, Selector: a.EndSel}, needs{})
	})
}

// dragFrom presses at one point, moves, and releases at another, which is asked for while the button is down. Where
// the page uses the browser's own drag and drop, Chromium hands over what is dragged, and it is dropped by hand.
func (m *acting) dragFrom(ctx context.Context, from point, to func(context.Context) (point, error)) (err error) {
	session := m.page.session
	taken, err := session.Subscribe(input.DragIntercepted.Method)
	if err != nil {
		return err
	}
	defer taken.Close()
	if _, err := cdp.Do(ctx, session, input.SetInterceptDrags, input.SetInterceptDragsParams{Enabled: true}); err != nil {
		return err
	}
	defer func() {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
		defer cancel()
		// When this fails the page hangs or is gone, and the action has said so.
		_, _ = cdp.Do(tidy, session, input.SetInterceptDrags, input.SetInterceptDragsParams{})
	}()

	mouse := m.mouse("left", 0)
	if err := mouse.move(ctx, from); err != nil {
		return err
	}
	if err := mouse.press(ctx, from, 1); err != nil {
		return err
	}
	at := from
	defer func() {
		if err != nil {
			mouse.letGo(ctx, at)
		}
	}()
	for _, by := range []float64{dragStart / 2, dragStart} {
		at = point{from.x + by, from.y + by}
		if err := mouse.move(ctx, at); err != nil {
			return err
		}
	}
	data, err := dragged(ctx, taken)
	if err != nil {
		return err
	}
	end, err := to(ctx)
	if err != nil {
		return err
	}
	if data != nil {
		return m.drop(ctx, mouse, end, data)
	}
	start := at
	for step := 1; step <= dragSteps; step++ {
		part := float64(step) / dragSteps
		at = point{start.x + (end.x-start.x)*part, start.y + (end.y-start.y)*part}
		if err := mouse.move(ctx, at); err != nil {
			return err
		}
	}
	return mouse.release(ctx, end, 1)
}

// dragged is what the page gave to the browser to drag, nil where it follows the pointer itself.
func dragged(ctx context.Context, taken *cdp.Subscription) (*input.DragData, error) {
	soon, cancel := context.WithTimeout(ctx, dragNotice)
	defer cancel()
	event, err := taken.Next(soon)
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var intercepted input.EventDragIntercepted
	if err := cdp.Decode(event.Params, &intercepted); err != nil {
		return nil, err
	}
	return droppable(intercepted.Data), nil
}

// droppable is what of a page's data may be dropped. An address that nobody takes is opened by the browser, and that of a
// file gets here from the shell; files are given by [ChooseFiles] only.
func droppable(data *input.DragData) *input.DragData {
	if data == nil {
		return nil
	}
	out := &input.DragData{Items: []*input.DragDataItem{}, DragOperationsMask: data.DragOperationsMask}
	for _, item := range data.Items {
		if item == nil || strings.HasPrefix(strings.ToLower(item.MimeType), "text/uri-list") && !opens(item.Data) {
			continue
		}
		item.BaseURL = ""
		out.Items = append(out.Items, item)
	}
	return out
}

// opens says whether all addresses of a list may be opened, or are pictures that a page has made itself.
func opens(list string) bool {
	for _, address := range strings.FieldsFunc(list, func(r rune) bool { return r == '\r' || r == '\n' }) {
		_, err := CheckURL(address)
		if err != nil && !strings.HasPrefix(address, "data:image/") {
			return false
		}
	}
	return true
}

func (m *acting) drop(ctx context.Context, mouse *mouse, end point, data *input.DragData) error {
	for _, kind := range []input.DispatchDragEventType{input.DispatchDragEventTypeDragEnter,
		input.DispatchDragEventTypeDragOver, input.DispatchDragEventTypeDrop} {
		if _, err := cdp.Do(ctx, m.page.session, input.DispatchDragEvent,
			input.DispatchDragEventParams{Type: kind, X: end.x, Y: end.y, Data: data}); err != nil {
			return err
		}
	}
	return mouse.release(ctx, end, 1)
}

// resize gives the page another viewport.
func (m *acting) resize(ctx context.Context, a Act) error {
	_, err := cdp.Do(ctx, m.page.session, emulation.SetDeviceMetricsOverride,
		emulation.SetDeviceMetricsOverrideParams{Width: int64(a.Width), Height: int64(a.Height)})
	return err
}

// mouse is the pointer with one of its buttons, and the modifier keys that are held.
type mouse struct {
	session   cdp.Session
	button    input.MouseButton
	bit       int64 // of the button
	modifiers int64
	down      bool
}

func (m *acting) mouse(button string, modifiers int64) *mouse {
	out := &mouse{session: m.page.session, button: input.MouseButtonLeft, bit: 1, modifiers: modifiers}
	switch button {
	case "right":
		out.button, out.bit = input.MouseButtonRight, 2
	case "middle":
		out.button, out.bit = input.MouseButtonMiddle, 4
	}
	return out
}

func (m *mouse) move(ctx context.Context, at point) error {
	return m.send(ctx, input.DispatchMouseEventTypeMouseMoved, at, 0)
}

func (m *mouse) press(ctx context.Context, at point, count int64) error {
	m.down = true
	err := m.send(ctx, input.DispatchMouseEventTypeMousePressed, at, count)
	if err != nil {
		m.letGo(ctx, at)
	}
	return err
}

func (m *mouse) release(ctx context.Context, at point, count int64) error {
	m.down = false
	return m.send(ctx, input.DispatchMouseEventTypeMouseReleased, at, count)
}

// letGo releases the button after an action that did not come to its end.
func (m *mouse) letGo(ctx context.Context, at point) {
	if !m.down {
		return
	}
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	// A page that hangs gets the event when it answers again. The caller has its own error already.
	_ = m.release(tidy, at, 0)
}

func (m *mouse) send(ctx context.Context, kind input.DispatchMouseEventType, at point, count int64) error {
	params := input.DispatchMouseEventParams{Type: kind, X: at.x, Y: at.y, Modifiers: m.modifiers, ClickCount: count,
		Button: m.button}
	if m.down {
		params.Buttons = m.bit
	} else if kind == input.DispatchMouseEventTypeMouseMoved {
		params.Button = input.MouseButtonNone
	}
	_, err := cdp.Do(ctx, m.session, input.DispatchMouseEvent, params)
	return err
}
