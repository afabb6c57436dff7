// Package secretscan looks for secret values in what a test leaves behind: texts, files and processes.
//
// It finds a value as it is, in the encodings that programs give it, and where any of its characters are escaped. The encodings
// are a list of its own: what hides values from users must not be what judges whether it does.
//
// It does not find values that were encrypted, hashed, cut, encoded twice in other ways than JSON in JSON, packed by
// anything but gzip, or split over pages of a database.
//
// A search that looked at nothing finds nothing. A test that relies on an empty result first plants a canary in each place and
// sees it found. Only tests import this package.
package secretscan

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// shortest is the fewest bytes of a value, and of what it is encoded as: shorter ones would be found by chance.
const shortest = 8

// Hit is a value that was found, by its name. Each form of it is a hit once in each place.
type Hit struct{ Name, Form, Where string }

// String is the hit in one line.
func (h Hit) String() string { return fmt.Sprintf("%s as %s in %s", h.Name, h.Form, h.Where) }

// text is one encoding of a value.
type text struct{ name, form, text string }

// Set is what is looked for. It does not change, and may be used from several goroutines.
type Set struct {
	by      map[uint16][]text // by their first two bytes, and by the first and an escape
	starts  [1 << 16]bool     // with which two bytes one of them can begin
	longest int               // most bytes that one of them takes
}

// New prepares a search for values, by their names.
func New(t testing.TB, values map[string]string) *Set {
	t.Helper()
	s, err := newSet(values)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newSet(values map[string]string) (*Set, error) {
	if len(values) == 0 {
		return nil, errors.New("there is no value to look for")
	}
	s := &Set{by: map[uint16][]text{}}
	for _, first := range []byte(escapes) {
		for second := range byte(0x7f) {
			s.starts[pair(first, second)] = second > ' ' || isMark(second)
		}
	}
	for name, value := range values {
		if len(value) < shortest {
			return nil, fmt.Errorf("the value %s is too short to look for", name)
		}
		for _, e := range encodings(value) {
			if len(e.text) >= shortest {
				s.add(text{name, e.form, e.text})
			}
		}
	}
	return s, nil
}

func (s *Set) add(t text) {
	if slices.Contains(s.by[key(t.text[0], t.text[1])], t) {
		return
	}
	s.longest = max(s.longest, maxEscaped*len(t.text))
	for _, second := range []byte(t.text[1:2] + escapes) {
		s.starts[pair(t.text[0], second)] = true
		if k := key(t.text[0], second); !slices.Contains(s.by[k], t) {
			s.by[k] = append(s.by[k], t)
		}
	}
}

func pair(first, second byte) uint16 { return uint16(first)<<8 | uint16(second) }

// key is that of texts in a set. All escapes are the same there.
func key(first, second byte) uint16 {
	if isMark(second) {
		second = escapes[0]
	}
	return pair(first, second)
}

// In searches bytes.
func (s *Set) In(where string, data []byte) []Hit { return s.search(nil, where, data, len(data)) }

// search adds the hits that start in the first limit bytes of data and are not in the list yet.
func (s *Set) search(hits []Hit, where string, data []byte, limit int) []Hit {
	if len(data) < 2 {
		return hits
	}
	two := uint16(data[0])
	for at, next := range data[1:min(limit+1, len(data))] {
		if two = two<<8 | uint16(next); s.starts[two] {
			hits = s.begin(hits, where, data[at:])
		}
	}
	return hits
}

// begin adds what data begins with.
func (s *Set) begin(hits []Hit, where string, data []byte) []Hit {
	readings(data, func(part string, size int) {
		if part == "" || size == len(data) {
			return
		}
		second := data[size]
		if len(part) > 1 {
			second = part[1]
		}
		for _, t := range s.by[key(part[0], second)] {
			hit := Hit{t.name, t.form, where}
			if strings.HasPrefix(t.text, part) && reads(data[size:], t.text[len(part):], nil) && !slices.Contains(hits, hit) {
				hits = append(hits, hit)
			}
		}
	})
	return hits
}

// chunk is how much is searched at a time.
const chunk = 256 << 10

// buffer is what reader reads into.
func (s *Set) buffer() []byte { return make([]byte, chunk+s.longest) }

// reader searches everything that r gives. An end that could start a value is searched again with the bytes that come next. Hits
// from before an error are returned with it.
func (s *Set) reader(buffer []byte, where string, r io.Reader) (hits []Hit, err error) {
	for buffer = buffer[:0]; ; {
		n, err := io.ReadFull(r, buffer[len(buffer):cap(buffer)])
		buffer = buffer[:len(buffer)+n]
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil
			}
			return s.search(hits, where, buffer, len(buffer)), err
		}
		hits = s.search(hits, where, buffer, len(buffer)-s.longest)
		buffer = buffer[:copy(buffer, buffer[len(buffer)-s.longest:])]
	}
}
