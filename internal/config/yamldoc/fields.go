package yamldoc

import (
	"reflect"
	"slices"
	"strings"
)

// ReadFunc reads one value into what its first argument points at: a field of a struct, or an item of its list. tags are those
// of the field. When it fails, the caller drops the value.
type ReadFunc func(into any, tags reflect.StructTag, v Value) error

// Struct reads the keys of a struct. The tag yaml of a field is its key, or else the name in its tag json; - is none. Options
// follow it: omitempty takes an empty list for none, named makes a map of a list whose items have their key as the first field,
// own leaves it to its reader, and inline has the keys of a struct beside the others. The value that the tag zero has stands for a zero field. A field has the
// tags of the struct around it that it has not itself.
func (m *Map) Struct(into any, read ReadFunc) {
	m.fields(reflect.ValueOf(into).Elem(), "", read)
}

func (m *Map) fields(into reflect.Value, around reflect.StructTag, read ReadFunc) {
	for n := range into.NumField() {
		m.read(into.Field(n), into.Type().Field(n).Tag, around, read)
	}
}

func (m *Map) read(at reflect.Value, own, around reflect.StructTag, read ReadFunc) {
	key, option := keyOf(own)
	tags := own + " " + around
	value := func(at reflect.Value, v Value) error {
		if zero, has := tags.Lookup("zero"); has && v.Text == zero {
			at.SetZero()
			return nil
		}
		got := reflect.New(at.Type())
		err := read(got.Interface(), tags, v)
		if err == nil {
			at.Set(got.Elem())
		}
		return err
	}
	add := func() reflect.Value { // a bad item keeps its place, so that the index of a field is the one of the file
		at.Set(reflect.Append(at, reflect.Zero(at.Type().Elem())))
		return at.Index(at.Len() - 1)
	}
	switch kind := at.Kind(); {
	case option("inline"):
		m.fields(at, tags, read)
	case key == "" || key == "-" || option("own"):
	case kind == reflect.Map:
		m.Map(key, func(m *Map) {
			at.Set(reflect.MakeMap(at.Type()))
			for _, name := range m.Keys() {
				m.Value(name, func(v Value) error {
					at.SetMapIndex(reflect.ValueOf(name), reflect.ValueOf(v.Text))
					return nil
				})
			}
		})
	case hasKeys(at.Type()):
		m.Map(key, func(m *Map) { m.fields(at, tags, read) })
	case option("named"):
		m.Map(key, func(m *Map) {
			for _, name := range m.Keys() {
				item := add()
				item.Field(0).SetString(name)
				m.Map(name, func(m *Map) { m.fields(item, tags, read) })
			}
		})
	case kind == reflect.Slice:
		if m.Has(key) && !option("omitempty") {
			at.Set(reflect.MakeSlice(at.Type(), 0, 0))
		}
		if hasKeys(at.Type().Elem()) {
			m.Maps(key, func(m *Map) { m.fields(add(), tags, read) })
		} else {
			m.Values(key, func(v Value) error { return value(add(), v) })
		}
	default:
		m.Value(key, func(v Value) error { return value(at, v) })
	}
}

// keyOf is the key of a field, and its options. Empty and - are none.
func keyOf(tags reflect.StructTag) (key string, option func(string) bool) {
	text, has := tags.Lookup("yaml")
	if !has {
		text = tags.Get("json")
	}
	parts := strings.Split(text, ",")
	return parts[0], func(name string) bool { return slices.Contains(parts[1:], name) }
}

// hasKeys says whether a type is a struct that is a map in the file, and no value.
func hasKeys(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.NumField() > 0 && t.Field(0).IsExported()
}

// Walk visits the fields of a struct that have keys of their own, in order, and those of structs in it; path is the keys that
// lead to one, such as limits.memory. A list is visited as a whole.
func Walk(of reflect.Value, visit func(path string, at reflect.Value, tags reflect.StructTag)) {
	for n := range of.NumField() {
		at, tags := of.Field(n), of.Type().Field(n).Tag
		switch key, option := keyOf(tags); {
		case option("inline"):
			Walk(at, visit)
		case key == "" || key == "-":
		case hasKeys(at.Type()):
			Walk(at, func(path string, at reflect.Value, tags reflect.StructTag) { visit(key+"."+path, at, tags) })
		default:
			visit(key, at, tags)
		}
	}
}
