package op

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"time"
)

// Field is a field of what goes into an operation.
type Field struct {
	// Name is that in the address or in the body.
	Name  string
	Place Place
	Type  reflect.Type
	Tag   reflect.StructTag
	// Index leads to it; see [reflect.Value.FieldByIndex].
	Index []int
}

// Place is where a field is sent.
type Place int

// The places of a field.
const (
	InBody Place = iota
	InPath
	InQuery
)

// FieldsOf are the fields of a type, also those of what is embedded in it and of its body.
func FieldsOf(t reflect.Type) (out []Field) {
	for n := range t.NumField() {
		f := t.Field(n)
		if f.Anonymous || f.Name == "Of" && strings.HasPrefix(t.Name(), "Body[") {
			for _, inner := range FieldsOf(f.Type) {
				inner.Index = append([]int{n}, inner.Index...)
				out = append(out, inner)
			}
			continue
		}
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		field := Field{Name: name, Type: f.Type, Tag: f.Tag, Index: []int{n}}
		if path := f.Tag.Get("path"); path != "" {
			field.Name, field.Place = path, InPath
		} else if query := f.Tag.Get("query"); query != "" {
			field.Name, field.Place = query, InQuery
		}
		out = append(out, field)
	}
	return out
}

// Request is what a client sends: the path, the query, and what the body is made of, nil for none. A name of a caller's
// is one segment of the path, whatever is in it. A query has what is not zero, and what is false where true is the default.
func (o Op[In, Out]) Request(in In) (path string, query url.Values, body any) {
	path, query = o.Path, url.Values{}
	at := reflect.ValueOf(in)
	for _, f := range FieldsOf(at.Type()) {
		switch value := at.FieldByIndex(f.Index); {
		case f.Place == InPath:
			path = strings.Replace(path, "{"+f.Name+"}", url.PathEscape(value.String()), 1)
		case f.Place == InQuery && value.IsZero() == (f.Tag.Get("default") == "true"):
			text := fmt.Sprint(value.Interface())
			if t, ok := value.Interface().(time.Time); ok {
				text = t.UTC().Format(time.RFC3339Nano)
			}
			query.Set(f.Name, text)
		}
	}
	return path, query, Content(in)
}

// Content is what the body of something that goes in is made of, nil where it has none.
func Content(in any) any {
	if b, ok := in.(interface{ Content() any }); ok {
		return b.Content()
	}
	return nil
}
