package yamldoc

import (
	"slices"

	"go.yaml.in/yaml/v4"
)

// Has says whether the file has the key, whatever its value is. It does not make it known.
func (m *Map) Has(key string) bool {
	_, ok := m.entries[key]
	return ok
}

// IsList says whether the value of a key is a list. It does not make the key known.
func (m *Map) IsList(key string) bool {
	e, ok := m.entries[key]
	return ok && e.value.Kind == yaml.SequenceNode
}

// Line is where the map is in the file; 0 is the root, and what is not there.
func (m *Map) Line() int { return m.doc.positions[m.field].line }

// Length is how many items the list of a key has; 0 when it is no list. It does not make the key known.
func (m *Map) Length(key string) int {
	if !m.IsList(key) {
		return 0
	}
	return len(m.entries[key].value.Content)
}

// Mixed reads a list whose items are scalars or mappings, in order.
func (m *Map) Mixed(key string, scalar func(field string, v Value) error, mapping func(*Map)) {
	m.list(key, func(field string, n *yaml.Node) {
		if n.Kind == yaml.MappingNode {
			m.doc.openMap(field, n, mapping)
			return
		}
		m.doc.readValue(field, n, func(v Value) error { return scalar(field, v) })
	})
}

// Rest reads all keys that were not read yet, as scalars, in order: for maps whose keys the writer chooses.
// When there are more than limit, that is a flaw and none of them is read.
func (m *Map) Rest(limit int, read func(key string, v Value) error) {
	left := slices.DeleteFunc(m.order, func(key string) bool { return slices.Contains(m.known, key) })
	m.order = nil // so that none of them is unknown
	if len(left) > limit {
		m.doc.flawAt(m.entries[left[limit]].key, m.field, "", "has %d keys, more than %d", len(left), limit)
		return
	}
	for _, key := range left {
		e := m.entries[key]
		if m.doc.plain(m.path(key), e.value) {
			m.doc.readValue(m.path(key), e.value, func(v Value) error { return read(key, v) })
		}
	}
}

// Nulls reads the keys that have the word null for a value, in order. One without any value is not among them: it may have been
// forgotten. An error becomes a flaw at the key.
func (m *Map) Nulls(read func(key string) error) {
	for _, key := range m.order {
		e := m.entries[key]
		if slices.Contains(m.known, key) || !isNull(e.value) || e.value.Value == "" {
			continue
		}
		m.known = append(m.known, key)
		if err := read(key); err != nil {
			m.doc.flawOf(e.key, m.path(key), err)
		}
	}
}

// Ignore makes a key known without reading it, for what has a flaw already.
func (m *Map) Ignore(key string) { m.known = append(m.known, key) }

// Skip makes every key known without reading it, for what a reader is not going to look at.
func (m *Map) Skip() { m.order = nil }
