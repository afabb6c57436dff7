package yamldoc

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v4"

	"github.com/clawjail/clawjail/internal/problem"
)

// Map is one mapping of the document. Each of its methods takes one key out, and makes it known; what is left when
// the reader is done is unknown. A key that the file does not have calls nothing.
type Map struct {
	doc     *Document
	field   string
	entries map[string]entry
	order   []string
	known   []string
	needs   []need
}

// need is what a map must have: one of the keys.
type need struct {
	keys          []string
	hint, message string
}

type entry struct{ key, value *yaml.Node }

// Field is the path of the map itself, "" for the root.
func (m *Map) Field() string { return m.field }

// Value reads a scalar. An error becomes a flaw at the value; a *problem.Error also gives its hint.
func (m *Map) Value(key string, read func(Value) error) {
	if e, ok := m.take(key); ok {
		m.doc.readValue(m.path(key), e.value, read)
	}
}

// Map reads a mapping.
func (m *Map) Map(key string, read func(*Map)) {
	e, ok := m.take(key)
	if !ok {
		return
	}
	if e.value.Kind != yaml.MappingNode {
		m.doc.wrongKind(m.path(key), e.value, "a map of keys")
		return
	}
	m.doc.openMap(m.path(key), e.value, read)
}

// Values reads a list of scalars, in order.
func (m *Map) Values(key string, read func(Value) error) {
	m.list(key, func(field string, n *yaml.Node) { m.doc.readValue(field, n, read) })
}

// Maps reads a list of mappings, in order.
func (m *Map) Maps(key string, read func(*Map)) {
	m.list(key, func(field string, n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			m.doc.wrongKind(field, n, "a map of keys")
			return
		}
		m.doc.openMap(field, n, read)
	})
}

func (m *Map) list(key string, each func(field string, n *yaml.Node)) {
	e, ok := m.take(key)
	if !ok {
		return
	}
	if e.value.Kind != yaml.SequenceNode {
		m.doc.wrongKind(m.path(key), e.value, "a list")
		return
	}
	for i, item := range e.value.Content {
		if m.doc.flaws.Full() {
			return
		}
		field := m.path(key) + "[" + strconv.Itoa(i) + "]"
		if m.doc.plain(field, item) {
			m.doc.positions[field] = position{item.Line, item.Column}
			each(field, item)
		}
	}
}

func (m *Map) take(key string) (entry, bool) {
	m.known = append(m.known, key)
	e, ok := m.entries[key]
	return e, ok && m.doc.plain(m.path(key), e.value)
}

func (m *Map) path(key string) string {
	if m.field == "" {
		return key
	}
	return m.field + "." + key
}

// openMap indexes a mapping, lets read take from it and reports what it left.
func (d *Document) openMap(field string, n *yaml.Node, read func(*Map)) {
	m := &Map{doc: d, field: field, entries: map[string]entry{}}
	switch {
	case n == nil || isNull(n): // an empty file, or one of comments only
	case n.Kind != yaml.MappingNode:
		d.wrongKind(field, n, "a map of keys")
	case d.plain(field, n):
		m.index(n)
	}
	before := len(d.flaws.Flaws)
	read(m)
	meant := map[string]bool{} // keys that are there, but for a letter
	for _, key := range m.order {
		if !d.flaws.Full() && !slices.Contains(m.known, key) {
			near := nearest(key, m.known)
			meant[near] = true
			d.flawAt(m.entries[key].key, m.path(key), didYouMean(near), "unknown key")
		}
	}
	if before > 0 && n == nil {
		return // the text could not be read at all
	}
	for _, want := range m.needs {
		if !d.flawed[field] && !slices.ContainsFunc(want.keys, func(key string) bool { return m.Has(key) || meant[key] }) {
			d.Report(problem.Flaw{Field: field, Hint: want.hint, Message: want.message})
		}
	}
}

func (m *Map) index(n *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" || key.Value == "" {
			m.doc.flawAt(key, m.field, "", "a key must be a word")
			continue
		}
		if !m.doc.plain(m.path(key.Value), key) {
			continue
		}
		if first, twice := m.entries[key.Value]; twice {
			m.doc.flawAt(key, m.path(key.Value), "", "is given twice, first on line %d", first.key.Line)
			continue
		}
		m.entries[key.Value] = entry{key, value}
		m.order = append(m.order, key.Value)
		m.doc.positions[m.path(key.Value)] = position{value.Line, value.Column}
	}
}

func (d *Document) readValue(field string, n *yaml.Node, read func(Value) error) {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		d.wrongKind(field, n, "a value")
		return
	}
	if err := read(Value{Text: n.Value, tag: n.ShortTag()}); err != nil {
		d.flawOf(n, field, err)
	}
}

func (d *Document) flawOf(n *yaml.Node, field string, err error) {
	var p *problem.Error
	if errors.As(err, &p) {
		d.flawAt(n, field, p.Hint, "%s", p.Message)
		return
	}
	d.flawAt(n, field, "", "%s", err.Error())
}

func (d *Document) wrongKind(field string, n *yaml.Node, want string) {
	hint := ""
	if isNull(n) {
		hint = "leave the key out for its default"
	}
	d.flawAt(n, field, hint, "must be %s, not %s", want, kindName(n))
}

func kindName(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "empty"
	}
	return fmt.Sprintf("%q", shorten(n.Value))
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
