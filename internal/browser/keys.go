package browser

import (
	"runtime"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/problem"
)

// The bits of modifier keys, as the Input domain of the DevTools protocol has them.
const (
	modifierAlt     = 1
	modifierControl = 2
	modifierMeta    = 4
	modifierShift   = 8
)

// The sides of the keyboard, as KeyboardEvent.location has them.
const (
	locationLeft = 1
	keypad       = 3
)

// maxChord is how many keys are pressed at once.
const maxChord = 6

// key is one key of a keyboard with the US layout, and what it means at the moment.
type key struct {
	code     string // KeyboardEvent.code: the place on the keyboard
	value    string // KeyboardEvent.key: what it means
	virtual  int64  // the Windows code, which is KeyboardEvent.keyCode
	location int64
	text     string // what it writes, if anything
	modifier int64  // the bit that holding it sets
	shifted  bool   // a keyboard would have Shift down for this
}

// parseChord reads "Enter", "a", "ControlOrMeta+Shift+z", "Control++". The last key is the one that is pressed; those
// before it are held meanwhile. Names are those of KeyboardEvent.key and KeyboardEvent.code, with the usual short forms.
func parseChord(text string) ([]key, error) {
	names := splitChord(text)
	if len(names) > maxChord {
		return nil, invalidAct("", "a chord has at most %d keys", maxChord)
	}
	chord := make([]key, 0, len(names))
	var held int64
	for _, name := range names {
		pressed, ok := keyNamed(name)
		if !ok {
			return nil, problem.New(problem.ActInvalidRequest, "such as Enter, Tab, ArrowDown, a, or ControlOrMeta+a",
				"no key is called %q", bounded(name, 40))
		}
		held |= pressed.modifier
		chord = append(chord, pressed)
	}
	// The text of a chord's last key depends on the keys held before it.
	last := &chord[len(chord)-1]
	if held&modifierShift != 0 && last.modifier == 0 {
		*last = last.withShift()
	}
	if held&(modifierControl|modifierMeta|modifierAlt) != 0 {
		last.text = ""
	}
	return chord, nil
}

// splitChord splits at '+', where an empty part is the key '+' itself.
func splitChord(text string) []string {
	if text == "+" {
		return []string{"+"}
	}
	if rest, ok := strings.CutSuffix(text, "++"); ok {
		return append(strings.Split(rest, "+"), "+")
	}
	return strings.Split(text, "+")
}

// keyNamed finds a key by its name, its short form, its place (KeyA, Digit1) or what it writes.
func keyNamed(name string) (key, bool) {
	if utf8.RuneCountInString(name) == 1 {
		r, _ := utf8.DecodeRuneInString(name)
		if r == utf8.RuneError {
			return key{}, false
		}
		return keyOf(r), true
	}
	lower := strings.ToLower(name)
	if alias, ok := keyAlias(lower); ok {
		lower = alias
	}
	if number, ok := strings.CutPrefix(lower, "f"); ok {
		if n, err := strconv.Atoi(number); err == nil && n >= 1 && n <= 24 && number[0] != '0' && number[0] != '+' {
			return key{code: "F" + number, value: "F" + number, virtual: 111 + int64(n)}, true
		}
	}
	if letter, ok := strings.CutPrefix(lower, "key"); ok && len(letter) == 1 && letter[0] >= 'a' && letter[0] <= 'z' {
		return keyOf(rune(letter[0])), true
	}
	if digit, ok := strings.CutPrefix(lower, "digit"); ok && len(digit) == 1 && digit[0] >= '0' && digit[0] <= '9' {
		return keyOf(rune(digit[0])), true
	}
	if on, ok := strings.CutPrefix(lower, "numpad"); ok {
		return keypadKey(on)
	}
	for _, k := range namedKeys() {
		if strings.ToLower(k.value) == lower || strings.ToLower(k.code) == lower {
			return k, true
		}
	}
	for _, k := range punctuation() {
		if strings.ToLower(k.code) == lower {
			return key{code: k.code, value: string(k.plain), virtual: k.virtual, text: string(k.plain)}, true
		}
	}
	return key{}, false
}

func keyAlias(lower string) (string, bool) {
	switch lower {
	case "esc":
		return "escape", true
	case "return":
		return "enter", true
	case "del":
		return "delete", true
	case "ins":
		return "insert", true
	case "ctrl":
		return "control", true
	case "controlormeta", "commandorcontrol", "cmdorctrl":
		if runtime.GOOS == "darwin" { // the browser runs on the same system as this program
			return "meta", true
		}
		return "control", true
	case "cmd", "command", "win", "windows", "super":
		return "meta", true
	case "option", "opt":
		return "alt", true
	case "up", "down", "left", "right":
		return "arrow" + lower, true
	case "pgup":
		return "pageup", true
	case "pgdn", "pgdown":
		return "pagedown", true
	case "spacebar":
		return "space", true
	case "plus":
		return "numpadadd", true
	}
	return "", false
}

// namedKeys are the keys that write nothing, or whose name is not what they write.
func namedKeys() []key {
	return []key{
		{code: "Enter", value: "Enter", virtual: 13, text: "\r"},
		{code: "Tab", value: "Tab", virtual: 9},
		{code: "Space", value: " ", virtual: 32, text: " "},
		{code: "Backspace", value: "Backspace", virtual: 8},
		{code: "Delete", value: "Delete", virtual: 46},
		{code: "Escape", value: "Escape", virtual: 27},
		{code: "Insert", value: "Insert", virtual: 45},
		{code: "Home", value: "Home", virtual: 36},
		{code: "End", value: "End", virtual: 35},
		{code: "PageUp", value: "PageUp", virtual: 33},
		{code: "PageDown", value: "PageDown", virtual: 34},
		{code: "ArrowLeft", value: "ArrowLeft", virtual: 37},
		{code: "ArrowUp", value: "ArrowUp", virtual: 38},
		{code: "ArrowRight", value: "ArrowRight", virtual: 39},
		{code: "ArrowDown", value: "ArrowDown", virtual: 40},
		{code: "ShiftLeft", value: "Shift", virtual: 16, location: locationLeft, modifier: modifierShift},
		{code: "ShiftRight", value: "Shift", virtual: 16, location: 2, modifier: modifierShift},
		{code: "ControlLeft", value: "Control", virtual: 17, location: locationLeft, modifier: modifierControl},
		{code: "ControlRight", value: "Control", virtual: 17, location: 2, modifier: modifierControl},
		{code: "AltLeft", value: "Alt", virtual: 18, location: locationLeft, modifier: modifierAlt},
		{code: "AltRight", value: "Alt", virtual: 18, location: 2, modifier: modifierAlt},
		{code: "MetaLeft", value: "Meta", virtual: 91, location: locationLeft, modifier: modifierMeta},
		{code: "MetaRight", value: "Meta", virtual: 92, location: 2, modifier: modifierMeta},
		{code: "CapsLock", value: "CapsLock", virtual: 20},
		{code: "NumLock", value: "NumLock", virtual: 144},
		{code: "ScrollLock", value: "ScrollLock", virtual: 145},
		{code: "Pause", value: "Pause", virtual: 19},
		{code: "PrintScreen", value: "PrintScreen", virtual: 44},
		{code: "ContextMenu", value: "ContextMenu", virtual: 93},
	}
}

// mark is a key with a sign on it, and the sign above that.
type mark struct {
	code           string
	plain, shifted rune
	virtual        int64
}

func punctuation() []mark {
	return []mark{
		{"Backquote", '`', '~', 192}, {"Minus", '-', '_', 189}, {"Equal", '=', '+', 187},
		{"BracketLeft", '[', '{', 219}, {"BracketRight", ']', '}', 221}, {"Backslash", '\\', '|', 220},
		{"Semicolon", ';', ':', 186}, {"Quote", '\'', '"', 222}, {"Comma", ',', '<', 188},
		{"Period", '.', '>', 190}, {"Slash", '/', '?', 191},
	}
}

// aboveDigits are the signs above the digits 0 to 9.
const aboveDigits = ")!@#$%^&*("

// keyOf is the key that writes a character. A character that no key of this layout has is written all the same, by a
// key without a place.
func keyOf(r rune) key {
	out := key{value: string(r), text: string(r)}
	switch {
	case r == '\n' || r == '\r':
		return namedKeys()[0]
	case r == '\t':
		return key{code: "Tab", value: "Tab", virtual: 9}
	case r == ' ':
		return key{code: "Space", value: " ", virtual: 32, text: " "}
	case r >= 'a' && r <= 'z':
		out.code, out.virtual = "Key"+string(r-'a'+'A'), int64(r-'a'+'A')
	case r >= 'A' && r <= 'Z':
		out.code, out.virtual, out.shifted = "Key"+string(r), int64(r), true
	case r >= '0' && r <= '9':
		out.code, out.virtual = "Digit"+string(r), int64(r)
	default:
		if i := strings.IndexRune(aboveDigits, r); i >= 0 {
			out.code, out.virtual, out.shifted = "Digit"+strconv.Itoa(i), int64('0'+i), true
			return out
		}
		for _, m := range punctuation() {
			if r == m.plain || r == m.shifted {
				out.code, out.virtual, out.shifted = m.code, m.virtual, r == m.shifted
				return out
			}
		}
	}
	return out
}

// withShift is what the key means while Shift is held.
func (k key) withShift() key {
	if utf8.RuneCountInString(k.value) != 1 {
		return k
	}
	r, _ := utf8.DecodeRuneInString(k.value)
	switch {
	case k.location == keypad:
	case r >= 'a' && r <= 'z':
		return keyOf(r - 'a' + 'A')
	case r >= '0' && r <= '9':
		return keyOf(rune(aboveDigits[r-'0']))
	default:
		for _, m := range punctuation() {
			if r == m.plain {
				return keyOf(m.shifted)
			}
		}
	}
	return k
}

// keypadKey is a key of the number block, by the part of its code behind "Numpad", in lower case.
func keypadKey(name string) (key, bool) {
	if len(name) == 1 && name[0] >= '0' && name[0] <= '9' {
		return key{code: "Numpad" + name, value: name, text: name, virtual: 96 + int64(name[0]-'0'), location: keypad}, true
	}
	for _, k := range []key{
		{code: "NumpadMultiply", value: "*", text: "*", virtual: 106},
		{code: "NumpadAdd", value: "+", text: "+", virtual: 107},
		{code: "NumpadSubtract", value: "-", text: "-", virtual: 109},
		{code: "NumpadDecimal", value: ".", text: ".", virtual: 110},
		{code: "NumpadDivide", value: "/", text: "/", virtual: 111},
		{code: "NumpadEnter", value: "Enter", text: "\r", virtual: 13},
	} {
		if strings.ToLower(k.code) == "numpad"+name {
			k.location = keypad
			return k, true
		}
	}
	return key{}, false
}

// formatNumber writes a number of JSON as a person would.
func formatNumber(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }
