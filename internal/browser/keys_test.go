package browser

import (
	"runtime"
	"strings"
	"testing"
)

func TestKeysAreThoseOfAKeyboard(t *testing.T) {
	for _, test := range []struct {
		chord string
		want  key // the last one
		held  int64
	}{
		{"a", key{code: "KeyA", value: "a", virtual: 65, text: "a"}, 0},
		{"A", key{code: "KeyA", value: "A", virtual: 65, text: "A", shifted: true}, 0},
		{"KeyQ", key{code: "KeyQ", value: "q", virtual: 81, text: "q"}, 0},
		{"7", key{code: "Digit7", value: "7", virtual: 55, text: "7"}, 0},
		{"Digit7", key{code: "Digit7", value: "7", virtual: 55, text: "7"}, 0},
		{"&", key{code: "Digit7", value: "&", virtual: 55, text: "&", shifted: true}, 0},
		{"?", key{code: "Slash", value: "?", virtual: 191, text: "?", shifted: true}, 0},
		{"Slash", key{code: "Slash", value: "/", virtual: 191, text: "/"}, 0},
		{"é", key{value: "é", text: "é"}, 0},
		{"+", key{code: "Equal", value: "+", virtual: 187, text: "+", shifted: true}, 0},
		{"Control++", key{code: "Equal", value: "+", virtual: 187, shifted: true}, modifierControl},
		{"esc", key{code: "Escape", value: "Escape", virtual: 27}, 0},
		{"RETURN", key{code: "Enter", value: "Enter", virtual: 13, text: "\r"}, 0},
		{"del", key{code: "Delete", value: "Delete", virtual: 46}, 0},
		{"Space", key{code: "Space", value: " ", virtual: 32, text: " "}, 0},
		{"down", key{code: "ArrowDown", value: "ArrowDown", virtual: 40}, 0},
		{"F5", key{code: "F5", value: "F5", virtual: 116}, 0},
		{"NumpadEnter", key{code: "NumpadEnter", value: "Enter", virtual: 13, text: "\r", location: keypad}, 0},
		{"Numpad4", key{code: "Numpad4", value: "4", virtual: 100, text: "4", location: keypad}, 0},
		{"ctrl+a", key{code: "KeyA", value: "a", virtual: 65}, modifierControl},
		{"ControlOrMeta+a", key{code: "KeyA", value: "a", virtual: 65}, shortcutBit()},
		{"cmd+c", key{code: "KeyC", value: "c", virtual: 67}, modifierMeta},
		{"Shift+a", key{code: "KeyA", value: "A", virtual: 65, text: "A", shifted: true}, modifierShift},
		{"Shift+2", key{code: "Digit2", value: "@", virtual: 50, text: "@", shifted: true}, modifierShift},
		{"Shift+Tab", key{code: "Tab", value: "Tab", virtual: 9}, modifierShift},
		{"Control+Shift+z", key{code: "KeyZ", value: "Z", virtual: 90, shifted: true}, modifierControl | modifierShift},
		{"Shift", key{code: "ShiftLeft", value: "Shift", virtual: 16, location: locationLeft, modifier: modifierShift}, 0},
	} {
		chord, err := parseChord(test.chord)
		if err != nil {
			t.Errorf("%s: %v", test.chord, err)
			continue
		}
		var held int64
		for _, k := range chord[:len(chord)-1] {
			held |= k.modifier
		}
		if last := chord[len(chord)-1]; last != test.want || held != test.held {
			t.Errorf("%s: %+v with %d held, want %+v with %d", test.chord, last, held, test.want, test.held)
		}
	}
	for _, chord := range []string{"", "Control+", "++a", "F0", "F25", "nokey", "Numpad", "NumpadX", "\xff", "a+b+c+d+e+f+g"} {
		if _, err := parseChord(chord); err == nil {
			t.Errorf("%q is taken for a key", chord)
		}
	}
}

// shortcutBit is the key of the system's shortcuts.
func shortcutBit() int64 {
	if runtime.GOOS == "darwin" {
		return modifierMeta
	}
	return modifierControl
}

// FuzzChord: whatever is called a key has a name and, when it writes, writes one character.
func FuzzChord(f *testing.F) {
	for _, seed := range []string{"a", "Control++", "ctrl+shift+F12", "+++", "é", "\x00", "numpad"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		chord, err := parseChord(text)
		if err != nil {
			return
		}
		if len(chord) == 0 || len(chord) > maxChord {
			t.Fatalf("%q has %d keys", text, len(chord))
		}
		for _, k := range chord {
			if k.value == "" || len([]rune(k.text)) > 1 || strings.ContainsRune(k.text, '\uFFFD') {
				t.Fatalf("%q: %+v", text, k)
			}
		}
	})
}
