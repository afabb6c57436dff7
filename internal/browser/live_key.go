package browser

import (
	"context"
	"unicode"
	"unicode/utf8"

	"github.com/chromedp/cdproto/input"
)

// virtualProcess is the code of a key that an input method has taken.
const virtualProcess = 229

// key is the key of a person's keyboard, of whatever layout. Its number is that of what it means, as browsers have it, or else
// that of its place on a US keyboard.
func (in LiveInput) key() key {
	out := key{code: in.Code, value: in.Key, location: int64(in.Location)}
	place, known := keyNamed(in.Code)
	if utf8.RuneCountInString(in.Key) == 1 {
		r, _ := utf8.DecodeRuneInString(in.Key)
		out.virtual = keyOf(unicode.ToLower(r)).virtual
		if known && (out.virtual == 0 || in.Location == keypad) {
			out.virtual = place.virtual
		}
		out.text = in.Key
		return out
	}
	switch in.Key {
	case "Dead", "Process", "Unidentified", "Compose":
		out.virtual = virtualProcess
		return out
	case "AltGraph":
		out.virtual = 18
		return out
	}
	for _, named := range namedKeys() {
		if named.value == in.Key {
			out.virtual, out.text, out.modifier = named.virtual, named.text, named.modifier
			return out
		}
	}
	if named, ok := keyNamed(in.Key); ok && named.value == in.Key {
		out.virtual = named.virtual // F1 to F24
	} else if known {
		out.virtual = place.virtual
	}
	return out
}

// strike presses or releases a key.
func (l *Live) strike(ctx context.Context, p *Page, in LiveInput) error {
	k := in.key()
	if in.Type == "keyup" {
		l.raised(in)
		return l.send(ctx, p, input.DispatchKeyEvent.Method, k.event(input.DispatchKeyEventTypeKeyUp, int64(in.Modifiers), ""))
	}
	if opensSelect(in) {
		if opened, err := l.openFocusedSelect(ctx, p); opened || err != nil {
			return err
		}
	}
	if !in.Repeat {
		l.mu.Lock()
		if len(l.hands.keys) < maxClicks*maxChord {
			l.hands.keys = append(l.hands.keys, held{page: p, key: k})
		}
		l.mu.Unlock()
	}
	text, modifiers := in.typed(k)
	kind := input.DispatchKeyEventTypeKeyDown
	if text == "" {
		kind = input.DispatchKeyEventTypeRawKeyDown
	}
	event := k.event(kind, modifiers, text)
	event.AutoRepeat = &in.Repeat
	if command := in.command(); command != "" {
		event.Commands = []string{command}
	}
	return l.send(ctx, p, input.DispatchKeyEvent.Method, event)
}

// typed is what a key writes, and the modifiers that the page is told of. A sign that is reached with AltGr, or with Option on
// a Mac, is that sign and no shortcut.
func (in LiveInput) typed(k key) (text string, modifiers int64) {
	modifiers = int64(in.Modifiers)
	const chord = modifierControl | modifierMeta
	single := utf8.RuneCountInString(in.Key) == 1
	if single && modifiers&modifierAlt != 0 && modifiers&modifierMeta == 0 && in.third() {
		return k.text, modifiers &^ (modifierAlt | modifierControl)
	}
	if modifiers&chord != 0 || modifiers&modifierAlt != 0 && single {
		return "", modifiers
	}
	return k.text, modifiers
}

// third says whether a key means something that it does not mean on its own, with Shift as it is. A sign above a digit that
// comes without Shift is made by the layout: on a British Mac Option+3 is #, on a Nordic one Option+2 is @.
func (in LiveInput) third() bool {
	r, _ := utf8.DecodeRuneInString(in.Key)
	if r >= utf8.RuneSelf {
		return true
	}
	place, known := keyNamed(in.Code)
	if !known || unicode.IsLetter(r) || unicode.IsDigit(r) {
		// On another layout it may be another letter, but AltGr makes signs.
		return false
	}
	if in.Modifiers&modifierShift != 0 {
		place = place.withShift()
	}
	return place.value != in.Key
}

// command is what a shortcut of a Mac does. Browsers of other systems do not know them.
func (in LiveInput) command() string {
	if in.Modifiers&(modifierMeta|modifierControl|modifierAlt) != modifierMeta {
		return ""
	}
	switch in.Key {
	case "a", "A":
		return "selectAll"
	case "c", "C":
		return "copy"
	case "x", "X":
		return "cut"
	case "v", "V":
		return "paste"
	case "z", "Z": // Caps Lock writes it large, too
		if in.Modifiers&modifierShift != 0 {
			return "redo"
		}
		return "undo"
	}
	return ""
}

// event is what the browser is told about a key.
func (k key) event(kind input.DispatchKeyEventType, modifiers int64, text string) input.DispatchKeyEventParams {
	onKeypad := k.location == keypad
	location := k.location
	if onKeypad {
		location = 0 // the browser takes left and right only
	}
	return input.DispatchKeyEventParams{Type: kind, Modifiers: modifiers, Text: text, UnmodifiedText: text, Code: k.code,
		Key: k.value, WindowsVirtualKeyCode: k.virtual, Location: location, IsKeypad: &onKeypad}
}
