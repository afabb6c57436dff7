// Package redacted holds a text that must not be seen: a key, a token.
//
// A [Text] prints as [redacted] wherever Go prints values: fmt with every verb, slog, JSON, and also inside a struct
// that is printed whole. There is one way to the text, [Text.Reveal], so that the places where a secret leaves the
// program can be found by searching for one word. Two texts cannot be compared with ==, which would take longer the
// more of them is equal; [Text.Equal] compares in constant time.
//
// What it does not do is keep the text out of the memory of the process: Go copies strings as it likes.
package redacted

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// Placeholder is what is printed instead.
const Placeholder = "[redacted]"

// Text is a secret text. The zero Text is the empty one.
type Text struct {
	// A function is no comparable field, and it is printed as an address by what reaches into unexported fields.
	text func() string
}

// New keeps a text.
func New(text string) Text { return Text{func() string { return text }} }

// Reveal is the text itself.
func (t Text) Reveal() string {
	if t.text == nil {
		return ""
	}
	return t.text()
}

// IsZero reports whether the text is empty.
func (t Text) IsZero() bool { return t.Reveal() == "" }

// Equal compares without telling by its duration how much is equal, or how long the texts are.
func (t Text) Equal(other Text) bool {
	a, b := sha256.Sum256([]byte(t.Reveal())), sha256.Sum256([]byte(other.Reveal()))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// Format implements fmt.Formatter, for every verb.
func (t Text) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, Placeholder) // fmt has no way to hand on an error of its writer here
}

// String implements fmt.Stringer.
func (t Text) String() string { return Placeholder }

// LogValue implements slog.LogValuer.
func (t Text) LogValue() slog.Value { return slog.StringValue(Placeholder) }

// MarshalText implements encoding.TextMarshaler, which JSON and YAML use.
func (t Text) MarshalText() ([]byte, error) { return []byte(Placeholder), nil }
