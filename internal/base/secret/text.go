package secret

import (
	"crypto/sha256"
	"crypto/subtle"
)

// Text is a secret text. The zero Text is the empty one. Nothing keeps it out of the memory of the process: Go copies strings as
// it likes.
type Text struct {
	Hidden
	text func() string // a function, as in Value
}

// NewText keeps a text.
func NewText(text string) Text { return Text{text: func() string { return text }} }

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
