// Package trawl looks for secret values in what a run leaves behind: files, processes, logs, rows and answers.
//
// A [Set] knows values under names. It finds each as it is and in the forms that encoders give it: in URLs, base64,
// JSON, HTML and others, also where an encoder escaped only some of the characters. Names are printed, values never: a
// value in the path of a file or in an error is replaced by its name.
//
// It does not find values that were encrypted, hashed, cut, encoded twice in other ways than JSON in JSON, packed by
// anything but gzip, or split over pages of a database. Rows are therefore searched as rows too, with [Set.Any].
//
// A search that looked at nothing finds nothing. [Stats] says how much was looked at, and a test that relies on an
// empty result first plants a canary in each place and sees it found.
package trawl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

const (
	// MinValue is the fewest bytes of a value: shorter ones would be found by chance.
	MinValue = 8
	// MaxValue is the most bytes of a value: that of a cookie, and more than a private key in PEM has.
	MaxValue = 8 << 10
	// MaxNeedles is the most values of a set.
	MaxNeedles = 256
	// minDistinct is the fewest different bytes of a value: eight zeros are in every program.
	minDistinct = 4
)

// Needle is a value to look for. It prints as its name.
type Needle struct {
	Name  string
	Value []byte
}

// Format writes the name, whatever the verb.
func (n Needle) Format(w fmt.State, _ rune) {
	_, _ = io.WriteString(w, n.Name) // the writers of fmt do not fail
}

// MarshalJSON is the name.
func (n Needle) MarshalJSON() ([]byte, error) { return json.Marshal(n.Name) }

// Hit is a value that was found. One place gives at most one hit for each form of each needle: the first.
type Hit struct {
	Needle string `json:"needle"` // its name
	Form   string `json:"form"`   // how the value is written there, such as raw or base64
	Where  string `json:"where"`  // values in it are replaced by their names
	Offset int64  `json:"offset"` // bytes from the start of the place
}

// String is the hit in one line.
func (h Hit) String() string {
	return fmt.Sprintf("%s as %s in %s at byte %d", h.Needle, h.Form, h.Where, h.Offset)
}

// Set is what is looked for. It does not change, and may be used from several goroutines.
type Set struct {
	names    []string
	forms    []form
	variants []variant
	index    index
	longest  int // most bytes that one value takes in any form
}

// Format writes how much the set holds: what fmt would print of it is values.
func (s Set) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "trawl for %d values", len(s.names)) // the writers of fmt do not fail
}

// NewSet prepares a search. It refuses what it could not search for reliably, and says everything that is wrong.
func NewSet(needles ...Needle) (*Set, error) { return newSet(forms(), needles) }

func newSet(forms []form, needles []Needle) (*Set, error) {
	if err := validate(needles); err != nil {
		return nil, err
	}
	s := &Set{forms: forms}
	for n, needle := range needles {
		s.names = append(s.names, needle.Name)
		value := bytes.Clone(needle.Value)
		for f, form := range forms {
			for _, g := range form.graphs(value) {
				shortest, longest := g.span()
				if shortest < window {
					continue // as short as values that are refused
				}
				s.variants = append(s.variants, variant{needle: n, form: f, graph: g})
				s.longest = max(s.longest, longest)
			}
		}
	}
	var err error
	s.index, err = newIndex(s.variants)
	return s, err
}

func validate(needles []Needle) error {
	var errs []error
	if len(needles) == 0 || len(needles) > MaxNeedles {
		errs = append(errs, fmt.Errorf("%d values are not between 1 and %d", len(needles), MaxNeedles))
	}
	names := map[string]bool{}
	for i, n := range needles {
		if n.Name == "" || names[n.Name] || len(n.Value) >= MinValue && strings.Contains(n.Name, string(n.Value)) {
			// Such a name may be the value.
			errs = append(errs, fmt.Errorf("value %d has no name, that of another one, or its value in its name", i))
			continue
		}
		names[n.Name] = true
		if len(n.Value) < MinValue || len(n.Value) > MaxValue {
			errs = append(errs, fmt.Errorf("value %s has %d bytes, which is not between %d and %d",
				n.Name, len(n.Value), MinValue, MaxValue))
			continue
		}
		sorted := slices.Clone(n.Value)
		slices.Sort(sorted)
		if len(slices.Compact(sorted)) < minDistinct {
			errs = append(errs, fmt.Errorf("value %s has fewer than %d different bytes", n.Name, minDistinct))
		}
	}
	return errors.Join(errs...)
}

// In searches bytes.
func (s *Set) In(where string, data []byte) []Hit {
	st := stream{set: s, where: where, buffer: data}
	return st.found()
}

// Reader searches everything that r gives, in bounded memory. Hits from before an error are returned with it.
func (s *Set) Reader(where string, r io.Reader) ([]Hit, error) {
	st := stream{set: s, where: where}
	err := st.readFrom(r, math.MaxInt64)
	return st.found(), err
}

// Any searches a value as JSON, if it has such a form, and as fmt prints it with its fields. Fields without JSON
// behind a pointer are in neither.
func (s *Set) Any(where string, v any) []Hit {
	hits := s.In(where, fmt.Appendf(nil, "%+v", v))
	// What JSON cannot express has been searched as fmt prints it.
	if encoded, err := json.Marshal(v); err == nil {
		hits = append(hits, s.In(where+" as JSON", encoded)...)
	}
	return hits
}

// clean replaces values by their names in a text that is printed.
func (s *Set) clean(text string) string {
	type span struct {
		start, end int
		name       string
	}
	var spans []span
	s.find([]byte(text), len(text), func(v *variant, start, end int) {
		spans = append(spans, span{start, end, s.names[v.needle]})
	})
	if len(spans) == 0 {
		return text
	}
	var out strings.Builder
	done := 0
	for _, sp := range spans { // in the order of their starts
		if sp.start >= done {
			out.WriteString(text[done:sp.start])
			out.WriteString("[" + sp.name + "]")
		}
		done = max(done, sp.end)
	}
	out.WriteString(text[done:])
	return out.String()
}

// Stats say how much was looked at.
type Stats struct {
	Files      int   `json:"files"`      // regular files read, deleted ones that are open included
	Names      int   `json:"names"`      // names of files, folders and links
	Links      int   `json:"links"`      // targets of symbolic links
	Attributes int   `json:"attributes"` // extended attributes
	Unpacked   int   `json:"unpacked"`   // files that were also searched unpacked
	Processes  int   `json:"processes"`  // processes whose arguments and environment were read
	Logs       int   `json:"logs"`       // writers
	Answers    int   `json:"answers"`    // HTTP answers
	Bytes      int64 `json:"bytes"`      // all of the above, without holes in files

	Vanished    int `json:"vanished"`     // files and processes that went away before they were read
	OtherMounts int `json:"other_mounts"` // folders left out because something is mounted there
	Damaged     int `json:"damaged"`      // packed data that could not be unpacked to its end
}

// Add adds up two searches.
func (a Stats) Add(b Stats) Stats {
	return Stats{
		Files: a.Files + b.Files, Names: a.Names + b.Names, Links: a.Links + b.Links,
		Attributes: a.Attributes + b.Attributes, Unpacked: a.Unpacked + b.Unpacked, Processes: a.Processes + b.Processes,
		Logs: a.Logs + b.Logs, Answers: a.Answers + b.Answers, Bytes: a.Bytes + b.Bytes,
		Vanished: a.Vanished + b.Vanished, OtherMounts: a.OtherMounts + b.OtherMounts, Damaged: a.Damaged + b.Damaged,
	}
}
