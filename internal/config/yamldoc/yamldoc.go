// Package yamldoc reads YAML files that people write, strictly, and says where each mistake is.
//
// It is the one place that knows the YAML library. A reader walks the document key by key; whatever it did not ask
// for is an unknown key, reported with the nearest known one. All mistakes of a file are reported together, each
// with its line and column. YAML's surprises are left out on purpose: anchors, aliases, merge keys, custom tags,
// several documents in a file, keys that are not words, and numbers in other bases are all refused.
package yamldoc

import (
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
	flaws     problem.Many
	positions map[string]position
	flawed    map[string]bool // fields that could not be read
}

type position struct{ line, column int }

// Read parses data and lets read take its values out. Source is the file's name in messages. An empty file is an
// empty map. When the syntax is wrong, read is called with an empty map.
func Read(source string, data []byte, read func(*Map)) *Document {
	d := &Document{
		flaws:     problem.Many{Code: problem.BadConfig, Source: source},
		positions: map[string]position{},
		flawed:    map[string]bool{},
	}
	d.openMap("", d.parse(data), read)
	return d
}

// Err is nil, or a *problem.Many with every flaw in the order of the file.
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
	loader, err := yaml.NewLoader(strings.NewReader(string(data)))
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
	return document.Content[0]
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
