package yamldoc

import "slices"

// Keys are the keys of the map in the file's order, for maps whose keys are names that the file chooses. Each has to be
// taken by one of the other methods all the same: what is not is reported.
func (m *Map) Keys() []string { return slices.Clone(m.order) }

// Need reports a map that has none of the keys. One that is there but for a letter has its flaw already, and gets no second one.
func (m *Map) Need(hint, message string, keys ...string) {
	m.needs = append(m.needs, need{keys, hint, message})
}
