package browser

import (
	"context"
	"time"

	"github.com/chromedp/cdproto/input"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// typeText types at the end of what a field has. The text appears in no error: it may be a password.
func (m *acting) typeText(ctx context.Context, a Act) error {
	e, _, err := m.ready(ctx, Where{Ref: a.Ref, Selector: a.Selector}, needs{Enabled: true, Editable: true, Hit: true})
	if err != nil {
		return err
	}
	defer e.release()
	if err := m.focus(ctx, e, "end"); err != nil {
		return err
	}
	keys := &keyboard{session: m.page.session}
	if a.Slowly {
		for _, r := range *a.Text {
			if err := keys.tap(ctx, keyOf(r), 0); err != nil {
				return err
			}
			if !pause(ctx, slowKey) {
				return context.Cause(ctx)
			}
		}
	} else if err := m.insert(ctx, *a.Text); err != nil {
		return err
	}
	if a.Submit {
		return keys.tap(ctx, keyOf('\n'), 0)
	}
	return nil
}

// insert writes a text at once where the focus is, as an input method does.
func (m *acting) insert(ctx context.Context, text string) error {
	if text == "" {
		return nil
	}
	_, err := cdp.Do(ctx, m.page.session, input.InsertText, input.InsertTextParams{Text: text})
	return err
}

// focus gives the element the focus, and puts the caret at its "end", or selects "all" that it has.
func (m *acting) focus(ctx context.Context, e *element, caret string) error {
	var got struct {
		Holder string `json:"holder"` // the element that has the focus instead
		EndKey bool   `json:"endKey"` // the caret of this kind of field goes to the end by key only
	}
	if err := e.call(ctx, inPage(formJS, "focusOn"), &got, caret); err != nil {
		return err
	}
	if got.Holder != "" {
		return problem.New(problem.ActOperationFailed, "take a new snapshot: the page may have put something in front",
			"%s does not take the focus; %s has it", e.where, bounded(got.Holder, 300)).With("check", "focus")
	}
	if !got.EndKey {
		return nil
	}
	end, _ := keyNamed("End")
	return (&keyboard{session: m.page.session}).tap(ctx, end, 0)
}

// press presses a key or a chord, where the focus is or on the element of ref.
func (m *acting) press(ctx context.Context, a Act) error {
	chord, err := parseChord(a.Key)
	if err != nil {
		return err
	}
	if a.Ref != "" {
		e, _, err := m.ready(ctx, Where{Ref: a.Ref}, needs{Enabled: true})
		if err != nil {
			return err
		}
		defer e.release()
		if err := m.focus(ctx, e, ""); err != nil {
			return err
		}
	}
	keys := &keyboard{session: m.page.session}
	held := chord[:len(chord)-1]
	for _, k := range held {
		if err := keys.down(ctx, k); err != nil {
			keys.letGo(ctx)
			return err
		}
	}
	if err := keys.tap(ctx, chord[len(chord)-1], time.Duration(a.DelayMS)*time.Millisecond); err != nil {
		keys.letGo(ctx)
		return err
	}
	for i := len(held) - 1; i >= 0; i-- {
		if err := keys.up(ctx, held[i]); err != nil {
			keys.letGo(ctx)
			return err
		}
	}
	return nil
}

// keyboard sends keys, and knows which are down.
type keyboard struct {
	session   cdp.Session
	modifiers int64
	pressed   []key
}

// tap presses and releases a key.
func (k *keyboard) tap(ctx context.Context, key key, delay time.Duration) error {
	if err := k.down(ctx, key); err != nil {
		k.letGo(ctx)
		return err
	}
	if !pause(ctx, delay) {
		k.letGo(ctx)
		return context.Cause(ctx)
	}
	return k.up(ctx, key)
}

func (k *keyboard) down(ctx context.Context, key key) error {
	k.modifiers |= key.modifier
	k.pressed = append(k.pressed, key)
	kind := input.DispatchKeyEventTypeRawKeyDown
	if key.text != "" {
		kind = input.DispatchKeyEventTypeKeyDown
	}
	return k.send(ctx, kind, key, key.text)
}

func (k *keyboard) up(ctx context.Context, key key) error {
	k.modifiers &^= key.modifier
	for i := len(k.pressed) - 1; i >= 0; i-- {
		if k.pressed[i] == key {
			k.pressed = append(k.pressed[:i], k.pressed[i+1:]...)
			break
		}
	}
	return k.send(ctx, input.DispatchKeyEventTypeKeyUp, key, "")
}

// letGo releases what is still down after an action that did not come to its end.
func (k *keyboard) letGo(ctx context.Context) {
	tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	for len(k.pressed) > 0 {
		// A page that hangs gets the events when it is back.
		_ = k.up(tidy, k.pressed[len(k.pressed)-1])
	}
}

func (k *keyboard) send(ctx context.Context, kind input.DispatchKeyEventType, key key, text string) error {
	modifiers := k.modifiers
	if key.shifted {
		modifiers |= modifierShift
	}
	keypadKey := key.location == keypad
	_, err := cdp.Do(ctx, k.session, input.DispatchKeyEvent, input.DispatchKeyEventParams{
		Type: kind, Modifiers: modifiers, Text: text, UnmodifiedText: text, Code: key.code, Key: key.value,
		WindowsVirtualKeyCode: key.virtual, Location: key.location, IsKeypad: &keypadKey,
	})
	return err
}

// modifierBits are the bits of the modifiers of a click.
func modifierBits(names []string) int64 {
	var bits int64
	for _, name := range names {
		k, _ := keyNamed(name) // Validate knows only five, which all are keys
		bits |= k.modifier
	}
	return bits
}
