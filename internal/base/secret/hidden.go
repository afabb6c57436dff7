package secret

import (
	"fmt"
	"io"
	"log/slog"
)

// Hidden is embedded by what prints as [Redacted] and cannot be compared with ==.
type Hidden struct{ _ [0]func() }

// String is [Redacted].
func (Hidden) String() string { return Redacted }

// GoString is [Redacted].
func (Hidden) GoString() string { return Redacted }

// Format writes [Redacted], whatever the verb.
func (Hidden) Format(w fmt.State, _ rune) {
	// The writers of fmt do not fail.
	_, _ = io.WriteString(w, Redacted)
}

// LogValue is [Redacted].
func (Hidden) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalText is [Redacted]; encodings without a method of their own use it.
func (Hidden) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON is [Redacted] as a string. Code that has to encode a value does so by hand.
func (Hidden) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }
