package problem

import (
	"fmt"
	"strings"
)

// Flaw is one thing that is wrong with an input.
type Flaw struct {
	// Field is where, as the writer of the input names it: "sessions.ttl". It may be empty.
	Field string `json:"field,omitempty"`
	// Line and Column count from 1; zero is "not known".
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Message is what is wrong.
	Message string `json:"message"`
	// Hint is what to write instead. It may be empty.
	Hint string `json:"hint,omitempty"`
}

// ValidationError collects everything that is wrong with one input, so that it is reported at once and not one by one.
// The zero value with a Code is ready; [ValidationError.Err] is nil until something was added. It keeps maxFlaws, and says that there are more.
type ValidationError struct {
	// Code is the code of the whole, for example [BadConfig].
	Code string
	// Source is the name of the input, a file name mostly. It may be empty.
	Source string
	// Hint is what to do about the whole. It may be empty.
	Hint string
	// Flaws are in the order in which they were found.
	Flaws []Flaw
}

// Add reports a flaw of a field.
func (m *ValidationError) Add(field, format string, args ...any) {
	m.AddFlaw(Flaw{Field: field, Message: fmt.Sprintf(format, args...)})
}

// maxFlaws bounds how many mistakes of an input are kept, which is hostile. It is more than a person reads.
const maxFlaws = 1000

// AddFlaw reports a flaw.
func (m *ValidationError) AddFlaw(flaw Flaw) {
	switch n := len(m.Flaws); {
	case n == maxFlaws:
		flaw = Flaw{Message: "there are more mistakes"}
	case n > maxFlaws:
		return
	}
	m.Flaws = append(m.Flaws, flaw)
}

// Full says that no more flaws are kept: the caller can stop looking for more.
func (m *ValidationError) Full() bool { return len(m.Flaws) > maxFlaws }

// Err is nil when nothing was added, else m itself.
func (m *ValidationError) Err() error {
	if m == nil || len(m.Flaws) == 0 {
		return nil
	}
	return m
}

// Error has one line per flaw, in the form that editors understand: file:line:column: field: message (hint).
func (m *ValidationError) Error() string {
	lines := make([]string, len(m.Flaws))
	for i, flaw := range m.Flaws {
		lines[i] = m.line(flaw)
	}
	return strings.Join(lines, "\n")
}

func (m *ValidationError) line(flaw Flaw) string {
	var b strings.Builder
	b.WriteString(m.Source)
	if flaw.Line > 0 {
		if m.Source == "" {
			b.WriteString("line ")
		} else {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%d:%d", flaw.Line, flaw.Column)
	}
	for _, part := range []string{flaw.Field, flaw.Message} {
		if part == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(part)
	}
	if flaw.Hint != "" {
		b.WriteString(" (" + flaw.Hint + ")")
	}
	return b.String()
}

// As makes [As] and errors.As find the list as one [Error], so that a face that knows nothing of lists still answers
// with the right code. The flaws are its detail "errors".
func (m *ValidationError) As(target any) bool {
	out, ok := target.(**Error)
	if !ok || m == nil {
		return false
	}
	*out = &Error{
		Code:    m.Code,
		Message: m.Error(),
		Hint:    m.Hint,
		Details: map[string]any{"errors": append([]Flaw(nil), m.Flaws...)},
	}
	return true
}
