// Package secret holds values that open an account: cookie values, API credentials, keys, tokens.
//
// A [Value], which is bytes, and a [Text] print as [Redacted] in every format that Go's packages for text, logs and encodings
// know, wherever in a structure they stand, and cannot be compared with ==. They come out through [Value.Use] and
// [Text.Reveal] only, so that every place that sees them is found by looking for its callers. [Hidden] does the same for a
// type of its own, but where it is in an unexported field of somebody else's.
//
// Wiping is a best effort: the runtime may have moved or copied bytes, and what a callback copied stays.
package secret

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"errors"
)

// Redacted is what a value looks like when it is printed.
const Redacted = "[redacted]"

// Value is one secret. Copies of a Value share its bytes: wiping one wipes all. The zero Value is empty.
//
// A Value may be used from several goroutines as long as none of them wipes it.
type Value struct {
	Hidden
	// A function, because fmt prints what is in unexported fields of other people's structs without asking any
	// method, through one pointer even; of a function it prints the address.
	open func() []byte
}

// New copies bytes into a value. The caller wipes its own.
func New(b []byte) Value { return Own(bytes.Clone(b)) }

// Own makes a value of bytes that the caller gives away.
func Own(b []byte) Value { return Value{open: func() []byte { return b }} }

// Use calls f with the bytes. They are valid until f returns, and f does not change or keep them.
func (v Value) Use(f func(b []byte) error) error {
	return f(v.bytes())
}

func (v Value) bytes() []byte {
	if v.open == nil {
		return nil
	}
	return v.open()
}

// Append appends the bytes to b, for encoders.
func (v Value) Append(b []byte) []byte { return append(b, v.bytes()...) }

// Len is the number of bytes.
func (v Value) Len() int { return len(v.bytes()) }

// Equal compares in a time that depends on the lengths only.
func (v Value) Equal(other Value) bool {
	return subtle.ConstantTimeCompare(v.bytes(), other.bytes()) == 1
}

// Wipe overwrites the bytes of the value and of all its copies with zeros. The length stays.
func (v Value) Wipe() { clear(v.bytes()) }

var errRedacted = errors.New("the value was redacted where it was written")

// UnmarshalJSON reads a string. It refuses [Redacted]: what was printed cannot be read back.
func (v *Value) UnmarshalJSON(raw []byte) error {
	var text *string
	if err := json.Unmarshal(raw, &text); err != nil || text == nil {
		// The decoder's own error may quote the input.
		return errors.New("a secret must be a string")
	}
	if *text == Redacted {
		return errRedacted
	}
	*v = Own([]byte(*text))
	return nil
}
