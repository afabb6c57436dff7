// Package redact replaces secret values in what leaves, wherever they appear literally: as they are, and in the
// encodings that programs use without anybody's intent (URLs, base64, hexadecimal, HTML, JSON within JSON), in any mixture of
// them letter by letter, in small letters and in capitals.
//
// It catches accidents: a page that shows its cookie, a log line with a token. It does not stop somebody who has the
// value and wants it out; cut in two or written in another way it passes.
package redact

import (
	"fmt"
	"io"
	"slices"
	"sync"
)

// Mark is what stands where a value was.
const Mark = "[redacted]"

// Shortest is the length from which values are looked for, in bytes. A shorter one is found in ordinary text.
const Shortest = 8

// Values are secrets to look for. They print as [Mark] in every format, and several goroutines may use them. A nil
// *Values finds nothing.
type Values struct {
	mu      sync.RWMutex
	skipped int
	wiped   bool
	finder  *finder // nil when there is nothing to find
}

// New takes copies of values. Those shorter than [Shortest] are left out.
func New(values ...[]byte) *Values {
	v := new(Values)
	var patterns [][]byte
	for _, value := range values {
		if len(value) < Shortest {
			v.skipped++
			continue
		}
		patterns = append(patterns, forms(value)...)
	}
	v.finder = newFinder(patterns)
	return v
}

// Skipped is how many values were too short to be looked for.
func (v *Values) Skipped() int {
	if v == nil {
		return 0
	}
	return v.skipped
}

// Wipe overwrites the values. Nothing is found from then on.
func (v *Values) Wipe() {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.finder != nil {
		v.finder.wipe()
		v.finder, v.wiped = nil, true
	}
}

// JSON replaces values in the texts, names and numbers of valid JSON, which stays valid: a number that is a value
// becomes a text. JSON without a value in it is returned as it came; nothing is changed in place.
func (v *Values) JSON(raw []byte) []byte {
	if v == nil || len(raw) < Shortest {
		return raw
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.finder == nil || v.finder.next(raw, 0) < 0 {
		return raw
	}
	return replaceJSON(raw, v.finder.all(raw))
}

// Text replaces values in plain text.
func (v *Values) Text(text string) string {
	if v == nil || len(text) < Shortest {
		return text
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	raw := []byte(text)
	if v.finder == nil || v.finder.next(raw, 0) < 0 {
		return text
	}
	return string(marked(raw, v.finder.all(raw)))
}

// Has says whether a value is in a text.
func (v *Values) Has(text string) bool {
	if v == nil || len(text) < Shortest {
		return false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.finder != nil && v.finder.next([]byte(text), 0) >= 0
}

// CutText is [Values.Text] for a text that somebody else has cut: the end in which a value could have begun is left out,
// whatever stands there.
func (v *Values) CutText(text string) string {
	if v.Empty() {
		return text
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.finder == nil {
		return ""
	}
	raw, end := []byte(text), max(0, len(text)-v.finder.held+1)
	var out []byte
	at := 0
	for _, hit := range v.finder.all(raw) {
		if hit.start < end {
			out = append(append(out, raw[at:hit.start]...), Mark...)
			at = hit.end
		}
	}
	return string(append(out, raw[at:max(at, end)]...))
}

// In are the values in a text, as they stand there, each once.
func (v *Values) In(text string) (found []string) {
	if v == nil || len(text) < Shortest {
		return nil
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.finder == nil {
		return nil
	}
	for _, hit := range v.finder.all([]byte(text)) {
		if one := text[hit.start:hit.end]; !slices.Contains(found, one) {
			found = append(found, one)
		}
	}
	return found
}

// Empty says whether there is nothing to look for, so that every text passes. Values that were wiped are not empty.
func (v *Values) Empty() bool {
	if v == nil {
		return true
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.finder == nil && !v.wiped
}

// Wiped says whether there were values to look for, and are no more.
func (v *Values) Wiped() bool {
	if v == nil {
		return false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.wiped
}

// String is [Mark].
func (v *Values) String() string { return Mark }

// GoString is [Mark].
func (v *Values) GoString() string { return Mark }

// Format writes [Mark] for every verb.
func (v *Values) Format(state fmt.State, _ rune) {
	// fmt.Formatter has no way to report an error.
	_, _ = io.WriteString(state, Mark)
}

// MarshalText is [Mark], for encoders and logs.
func (v *Values) MarshalText() ([]byte, error) { return []byte(Mark), nil }

// span is where something was found.
type span struct{ start, end int }

// merged joins spans that overlap, so that no rest of a value is left between two marks.
func merged(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return a.start - b.start })
	out := spans[:0]
	for _, s := range spans {
		if n := len(out); n > 0 && s.start < out[n-1].end {
			out[n-1].end = max(out[n-1].end, s.end)
			continue
		}
		out = append(out, s)
	}
	return out
}
