// Package yamldoc reads YAML files that people write, strictly, and says where each mistake is.
//
// It is the one place that knows the YAML library. A reader walks the document key by key; whatever it did not ask
// for is an unknown key, reported with the nearest known one. All mistakes of a file are reported together, each
// with its line and column. YAML's surprises are left out on purpose: anchors, aliases, merge keys, custom tags,
// several documents in a file, keys that are not words, and numbers in other bases are all refused.
package yamldoc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/clawjail/clawjail/internal/problem"
)

// Document is a file that has been read, with everything that is wrong with it.
type Document struct {
	flaws     problem.ValidationError
	positions map[string]position
	flawed    map[string]bool // fields that could not be read
}

type position struct{ line, column int }

// Bounds of what a file becomes when it is read: a value of a byte takes some hundred of them. A megabyte that people have written has
// fewer. maxNodes is how many values and keys it may have; maxFlow, how many characters that begin one between brackets, where the
// library keeps a kilobyte for each until it has found the end.
const (
	maxNodes = 150_000
	maxFlow  = 50_000
)

// Read parses data and lets read take its values out. Source is the file's name in messages. An empty file is an
// empty map. When the syntax is wrong, read is called with an empty map.
func Read(source string, data []byte, read func(*Map)) *Document {
	d := &Document{
		flaws:     problem.ValidationError{Code: problem.BadConfig, Source: source},
		positions: map[string]position{},
		flawed:    map[string]bool{},
	}
	d.openMap("", d.parse(data), read)
	return d
}

// Err is nil, or a *problem.ValidationError with every flaw in the order of the file.
func (d *Document) Err() error {
	slices.SortStableFunc(d.flaws.Flaws, func(a, b problem.Flaw) int {
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line) // without a place: last
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return d.flaws.Err()
}

// Report adds a flaw that was found after reading, at the place of the field or, where the file does not have the
// field, of what encloses it. A field that could not be read has its flaw already and gets no second one.
func (d *Document) Report(flaw problem.Flaw) {
	if d.flawed[flaw.Field] {
		return
	}
	if flaw.Line == 0 {
		flaw.Line, flaw.Column = d.Place(flaw.Field)
	}
	d.flaws.AddFlaw(flaw)
}

// Place is where a field is or, where the file does not have it, what encloses it. Zero is "not known".
func (d *Document) Place(field string) (line, column int) {
	for ; line == 0 && field != ""; field = parent(field) {
		at := d.positions[field]
		line, column = at.line, at.column
	}
	return line, column
}

// parent is the field that encloses a field: "a.b[1]" → "a.b" → "a" → "".
func parent(field string) string {
	return field[:max(0, strings.LastIndexAny(field, ".["))]
}

func (d *Document) flawAt(n *yaml.Node, field, hint, format string, args ...any) {
	if d.flaws.Full() {
		return
	}
	d.flawed[field] = true
	d.flaws.AddFlaw(problem.Flaw{
		Field: field, Line: n.Line, Column: n.Column, Hint: hint, Message: fmt.Sprintf(format, args...),
	})
}

// parse returns the root node of the only document; nil when there is none or the syntax is wrong.
func (d *Document) parse(data []byte) *yaml.Node {
	if !utf8.Valid(data) {
		d.flaws.AddFlaw(problem.Flaw{Message: "is not UTF-8 text"})
		return nil
	}
	if err := Fits(data); err != nil {
		d.flaws.AddFlaw(problem.Flaw{Message: err.Message, Hint: err.Hint})
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		d.syntax(err)
		return nil
	}
	var document yaml.Node
	if err := loader.Load(&document); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		d.syntax(err)
		return nil
	}
	var second yaml.Node
	switch err := loader.Load(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		d.syntax(err)
	default:
		d.flawAt(&second, "", "remove the line ---", "a second document starts here")
	}
	if len(document.Content) != 1 {
		return nil
	}
	if left := maxNodes; !counts(document.Content[0], &left) {
		d.flaws.AddFlaw(problem.Flaw{Message: fmt.Sprintf("has more than %d values", maxNodes), Hint: manyFiles})
		return nil
	}
	return document.Content[0]
}

// Fits says of a text, before anything reads it as YAML or as JSON, why that would take too much memory; nil: it does not.
func Fits(text []byte) *problem.Error {
	if bytes.Count(text, []byte(","))+bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > maxFlow {
		return problem.New(problem.BadRequest, manyFiles, "has more than %d commas and opening brackets", maxFlow)
	}
	return nil
}

// manyFiles is the hint for a file that is too much.
const manyFiles = "make several files of it"

// counts takes the nodes of a document from what is left, and says whether that was enough.
func counts(n *yaml.Node, left *int) bool {
	*left--
	return *left >= 0 && !slices.ContainsFunc(n.Content, func(child *yaml.Node) bool { return !counts(child, left) })
}

// syntax reports the library's error with its place.
func (d *Document) syntax(err error) {
	flaw := problem.Flaw{Message: "is not YAML: " + err.Error()}
	var load *yaml.LoadError
	if errors.As(err, &load) {
		flaw.Message = "is not YAML: " + load.Message
		at := load.Mark
		if at.Line == 0 {
			at = load.ContextMark
		}
		flaw.Line, flaw.Column = at.Line, at.Column
	}
	d.flaws.AddFlaw(flaw)
}

// plain refuses what the document may not use, on a node of any kind.
func (d *Document) plain(field string, n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		d.flawAt(n, field, "write the value out", "an alias is not allowed here")
	case n.Anchor != "":
		d.flawAt(n, field, "remove &"+n.Anchor, "an anchor is not allowed here")
	case n.Style&yaml.TaggedStyle != 0:
		d.flawAt(n, field, "remove "+n.Tag, "a tag is not allowed here")
	default:
		return true
	}
	return false
}
