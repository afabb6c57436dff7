package browser

import (
	"context"
	"errors"
	"math"
	"time"
	"unicode/utf8"

	"github.com/chromedp/cdproto/input"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// inputTimeout is how long a page may take for one input. Behind it, the input is the page's when it comes to rest.
	inputTimeout = 3 * time.Second
	// stuckTimeout is how long a page that did not take an input is asked whether it is back.
	stuckTimeout = 200 * time.Millisecond
	// maxLiveText bounds what is typed, pasted or copied at once, in bytes.
	maxLiveText = 1 << 20
	// maxWheel bounds one turn of the wheel, in pixels.
	maxWheel = 100_000
	// maxClicks bounds how often a button was pressed at one place; three select a paragraph.
	maxClicks = 3
)

// errAsked ends the wait for an input whose page has opened a dialog: it answers only when that is answered.
var errAsked = errors.New("the page asks something")

// hands are the person's. Live.mu guards them.
type hands struct {
	keys    []held // that are down, in the order in which they went down
	buttons []held
	x, y    float64 // where the pointer was last

	moving bool       // a goroutine carries moves
	move   *LiveInput // the latest that was not sent yet

	swallow   bool  // the next release belongs to a press that did not reach the page
	stuck     *Page // did not take an input in time
	astray    *Page // did not take a press: what is typed now would go to where the focus was before
	composed  *Page // has a text that an input method has not finished
	at        *Page // is being given an input, which interrupt ends the wait for
	interrupt context.CancelCauseFunc

	resized map[*Page]func() // restores a page's window
	window  [2]int           // the size that a person chose, zero for none
}

// held is something that is down in a page.
type held struct {
	page   *Page
	key    key
	button input.MouseButton
}

// Do does one thing, in the order in which it is called. The answer is text that was copied, of the type copy; otherwise it is empty.
// The code is bad_request for what cannot be done.
func (l *Live) Do(ctx context.Context, in LiveInput) (copied string, err error) {
	if err := in.validate(); err != nil {
		return "", err
	}
	switch in.Type {
	case "move":
		return "", l.point(in)
	case "answer":
		return "", explain(l.answer(ctx, in), "answer")
	}
	release, err := hold(ctx, l.lane)
	if err != nil {
		return "", explain(err, in.Type)
	}
	defer release()
	l.carryMove(ctx)
	copied, err = l.do(ctx, in)
	return copied, explain(err, in.Type)
}

func (l *Live) do(ctx context.Context, in LiveInput) (copied string, err error) {
	switch in.Type {
	case "tab", "open", "close":
		return "", l.doTab(ctx, in)
	}
	p, err := l.page(ctx)
	if err == nil && p == nil {
		err = noTab()
	}
	if err != nil {
		return "", err
	}
	switch in.Type {
	case "go", "back", "forward", "reload", "stop":
		return "", l.leave(ctx, p, in)
	case "size":
		return "", l.resize(ctx, p, in.Width, in.Height)
	}
	if err := l.takes(ctx, p, in); err != nil {
		if in.Type == "down" {
			l.strayed(p, err)
		}
		return "", err
	}
	if err := l.aims(p, in); err != nil {
		return "", err
	}
	switch in.Type {
	case "down":
		err := l.press(ctx, p, in)
		l.strayed(p, err)
		return "", err
	case "up":
		return "", l.press(ctx, p, in)
	case "wheel":
		return "", l.wheel(ctx, p, in)
	case "keydown", "keyup":
		return "", l.strike(ctx, p, in)
	case "text", "commit", "compose":
		return "", l.write(ctx, p, in)
	}
	return l.copy(ctx, p, in.Type == "cut")
}

// write gives the page a text. One that follows a composition is its outcome, and no paste.
func (l *Live) write(ctx context.Context, p *Page, in LiveInput) error {
	l.mu.Lock()
	composed := l.hands.composed == p
	l.hands.composed = nil
	if in.Type == "compose" && in.Text != "" {
		l.hands.composed = p
	}
	l.mu.Unlock()
	switch {
	case in.Type == "compose":
		return l.send(ctx, p, input.ImeSetComposition.Method, input.ImeSetCompositionParams{
			Text: in.Text, SelectionStart: int64(in.Start), SelectionEnd: int64(in.End)})
	case in.Type == "text" && !composed:
		return l.paste(ctx, p, in.Text)
	}
	return l.send(ctx, p, input.InsertText.Method, input.InsertTextParams{Text: in.Text})
}

// strayed remembers whether the last press reached the page.
func (l *Live) strayed(p *Page, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hands.astray = nil
	if err != nil {
		l.hands.astray = p
	}
}

// aims refuses what is typed behind a press that did not reach the page: a password would go into another field.
func (l *Live) aims(p *Page, in LiveInput) error {
	switch in.Type {
	case "text", "commit", "compose", "keydown", "copy", "cut":
	default:
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hands.astray != p {
		return nil
	}
	return problem.New(problem.Conflict, "click once more where this belongs", "the last click did not reach the page, so what is typed is not sent to it")
}

func noTab() error {
	return problem.New(problem.TabNotFound, "open a tab", "the browser has no tab")
}

// takes refuses what a page cannot take: it asks something, or it hangs.
func (l *Live) takes(ctx context.Context, p *Page, in LiveInput) error {
	if asked := l.asks(p); asked != nil {
		switch in.Type {
		case "up", "keyup":
			l.raised(in)
			return nil
		case "wheel":
			return nil
		}
		return problem.New(problem.Conflict, "answer the dialog first", "the page shows a dialog").With("popup", asked.ID)
	}
	l.mu.Lock()
	stuck := l.hands.stuck
	l.mu.Unlock()
	if stuck != p {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stuckTimeout)
	defer cancel()
	if err := p.session.Call(ctx, "Runtime.getIsolateId", nil, nil); errors.Is(err, context.DeadlineExceeded) {
		return hangs(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hands.stuck == p {
		l.hands.stuck = nil
	}
	return nil
}

func hangs(err error) error {
	return problem.Wrap(err, problem.Timeout, "wait, load the page anew, or close the tab", "the page does not react")
}

// send gives a page one input.
func (l *Live) send(ctx context.Context, p *Page, method string, params any) error {
	return l.during(ctx, p, inputTimeout, func(ctx context.Context) error { return p.session.Call(ctx, method, params, nil) })
}

// during waits until a page has taken an input, or opens a dialog instead.
func (l *Live) during(ctx context.Context, p *Page, limit time.Duration, give func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	l.mu.Lock()
	l.hands.at, l.hands.interrupt = p, interrupt
	l.mu.Unlock()
	err := give(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hands.at, l.hands.interrupt = nil, nil
	switch {
	case errors.Is(err, errAsked):
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		l.hands.stuck = p
		return hangs(err)
	}
	var refused *cdp.Error
	if errors.As(err, &refused) {
		return problem.Wrap(err, problem.BadRequest, "", "the browser did not take the input")
	}
	return err
}

// point moves the pointer. It does not wait: while the browser is busy with one move, the next is replaced by those after it.
func (l *Live) point(in LiveInput) error {
	l.mu.Lock()
	l.hands.move = &in
	carried := l.hands.moving
	l.hands.moving = true
	l.mu.Unlock()
	if carried || l.launch(l.carryMoves) {
		return nil
	}
	return l.gone()
}

// carryMoves sends moves until there is none left.
func (l *Live) carryMoves(ctx context.Context) {
	for {
		release, err := hold(ctx, l.lane)
		if err == nil {
			l.carryMove(ctx)
			release()
		}
		l.mu.Lock()
		if err != nil || l.hands.move == nil {
			l.hands.moving = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

// carryMove sends the latest move, if there is one. The caller has the lane. It returns no outcome: the next input
// fails as the move did.
func (l *Live) carryMove(ctx context.Context) {
	l.mu.Lock()
	in := l.hands.move
	l.hands.move = nil
	swallow := l.hands.swallow
	l.mu.Unlock()
	if in == nil {
		return
	}
	p, err := l.page(ctx)
	if err != nil || p == nil || swallow || l.asks(p) != nil || l.takes(ctx, p, *in) != nil {
		return
	}
	l.mu.Lock()
	l.hands.x, l.hands.y = in.X, in.Y
	l.mu.Unlock()
	_ = l.send(ctx, p, input.DispatchMouseEvent.Method, input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseMoved,
		X: in.X, Y: in.Y, Modifiers: int64(in.Modifiers), Button: buttonOf(in.Buttons), Buttons: int64(in.Buttons)})
}

// buttonOf is the button that a move is made with.
func buttonOf(down int) input.MouseButton {
	switch {
	case down&1 != 0:
		return input.MouseButtonLeft
	case down&2 != 0:
		return input.MouseButtonRight
	case down&4 != 0:
		return input.MouseButtonMiddle
	}
	return input.MouseButtonNone
}

// press presses or releases a button of the mouse.
func (l *Live) press(ctx context.Context, p *Page, in LiveInput) error {
	button := input.MouseButton(in.Button)
	if button == "" {
		button = input.MouseButtonLeft
	}
	if in.Type == "up" {
		if l.raised(in) {
			return nil
		}
	} else {
		if button == input.MouseButtonLeft {
			if opened, err := l.openSelectAt(ctx, p, in.X, in.Y); opened || err != nil {
				l.mu.Lock()
				l.hands.swallow = opened
				l.mu.Unlock()
				return err
			}
		}
		l.mu.Lock()
		l.hands.swallow = false
		same := func(down held) bool { return down.page == p && down.button == button } // one is down once, however often it is said
		l.hands.buttons = append(without(l.hands.buttons, same), held{page: p, button: button})
		l.mu.Unlock()
	}
	l.mu.Lock()
	l.hands.x, l.hands.y = in.X, in.Y
	l.mu.Unlock()
	kind := input.DispatchMouseEventTypeMousePressed
	if in.Type == "up" {
		kind = input.DispatchMouseEventTypeMouseReleased
	}
	return l.send(ctx, p, input.DispatchMouseEvent.Method, input.DispatchMouseEventParams{Type: kind, X: in.X, Y: in.Y,
		Modifiers: int64(in.Modifiers), Button: button, Buttons: int64(in.Buttons), ClickCount: int64(max(in.Clicks, 1))})
}

// raised forgets a key or a button that goes up. It is true for the end of a press that did not reach the page.
func (l *Live) raised(in LiveInput) (swallowed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &l.hands
	if in.Type == "keyup" {
		k := in.key()
		h.keys = without(h.keys, func(down held) bool {
			return down.key.code == k.code && down.key.value == k.value || k.code != "" && down.key.code == k.code
		})
		return false
	}
	swallowed, h.swallow = h.swallow, false
	button := input.MouseButton(in.Button)
	if button == "" {
		button = input.MouseButtonLeft
	}
	h.buttons = without(h.buttons, func(down held) bool { return down.button == button })
	return swallowed
}

func without(all []held, which func(held) bool) []held {
	var kept []held
	for _, one := range all {
		if !which(one) {
			kept = append(kept, one)
		}
	}
	return kept
}

func (l *Live) wheel(ctx context.Context, p *Page, in LiveInput) error {
	// The protocol's own type leaves a zero out, and the browser wants both.
	return l.send(ctx, p, input.DispatchMouseEvent.Method, map[string]any{"type": input.DispatchMouseEventTypeMouseWheel,
		"x": in.X, "y": in.Y, "deltaX": in.DX, "deltaY": in.DY, "modifiers": in.Modifiers, "buttons": in.Buttons})
}

// lower lets everything go up that is down, and gives pages their windows back. The caller is the only one left.
func (l *Live) lower(ctx context.Context) {
	release, err := hold(ctx, l.lane)
	if err != nil {
		return
	}
	defer release()
	l.mu.Lock()
	h := l.hands
	l.hands = hands{moving: h.moving}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, liveCommand)
	defer cancel()
	// A page that is gone has no keys, and one that hangs gets the events when it is back.
	for i := len(h.keys) - 1; i >= 0; i-- {
		down := h.keys[i]
		_ = down.page.session.Call(ctx, input.DispatchKeyEvent.Method, down.key.event(input.DispatchKeyEventTypeKeyUp, 0, ""), nil)
	}
	for _, down := range h.buttons {
		_ = down.page.session.Call(ctx, input.DispatchMouseEvent.Method, input.DispatchMouseEventParams{
			Type: input.DispatchMouseEventTypeMouseReleased, X: h.x, Y: h.y, Button: down.button, Buttons: int64(0), ClickCount: 1}, nil)
	}
	for p, restore := range h.resized {
		if p.open() {
			restore()
		}
	}
}

// validate reports everything that is wrong, and repeats nothing of what was typed.
func (in LiveInput) validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	if in.named() != in.Type {
		flaws.Add("type", "it is none of the types of input")
	}
	for _, number := range []struct {
		name  string
		value float64
	}{{"x", in.X}, {"y", in.Y}, {"dx", in.DX}, {"dy", in.DY}} {
		if math.IsNaN(number.value) || math.Abs(number.value) > maxWheel {
			flaws.Add(number.name, "it is not between %d and %d", -maxWheel, maxWheel)
		}
	}
	switch in.Button {
	case "", "none", "left", "middle", "right", "back", "forward":
	default:
		flaws.Add("button", "it is none of left, middle, right, back and forward")
	}
	for _, number := range []struct {
		name             string
		value, low, high int
	}{{"buttons", in.Buttons, 0, 31}, {"clicks", in.Clicks, 0, maxClicks}, {"modifiers", in.Modifiers, 0, 15},
		{"location", in.Location, 0, 3}, {"start", in.Start, 0, maxLiveText}, {"end", in.End, 0, maxLiveText}} {
		if number.value < number.low || number.value > number.high {
			flaws.Add(number.name, "it is not between %d and %d", number.low, number.high)
		}
	}
	for _, text := range []struct {
		name, value string
		limit       int
	}{{"text", in.Text, maxLiveText}, {"key", in.Key, 40}, {"code", in.Code, 40}, {"url", in.URL, maxURL},
		{"tab", in.Tab, maxReference}, {"popup", in.Popup, 40}, {"user", in.User, maxSecret}, {"password", in.Password, maxSecret}} {
		if len(text.value) > text.limit || !utf8.ValidString(text.value) {
			flaws.Add(text.name, "it has more than %d bytes, or is no text", text.limit)
		}
	}
	if in.Type == "size" && (in.Width < 320 || in.Width > maxLiveWidth || in.Height < 240 || in.Height > maxLiveHeight) {
		flaws.Add("size", "a window has 320 by 240 pixels to %d by %d", maxLiveWidth, maxLiveHeight)
	}
	if (in.Type == "keydown" || in.Type == "keyup") && in.Key == "" {
		flaws.Add("key", "it is required")
	}
	return flaws.Err()
}
