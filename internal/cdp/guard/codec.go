package guard

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// The codec takes one level of JSON apart and puts it together again. Its input is valid JSON: the connection has
// parsed it before. Values that are kept are copied as they stand, which is why a guard costs little.

// object calls each with the members of an object, names decoded, in their order.
func object(raw jsontext.Value, each func(name []byte, value jsontext.Value) error) error {
	return walk(raw, '{', func(i int) (int, error) {
		end := stringEnd(raw, i)
		name, err := unquoted(raw[i:end])
		if err != nil {
			return 0, err
		}
		start := blank(raw, blank(raw, end)+1) // past the colon
		end = valueEnd(raw, start)
		return end, each(name, raw[start:end:end])
	})
}

// array calls each with the elements of an array.
func array(raw jsontext.Value, each func(value jsontext.Value) error) error {
	return walk(raw, '[', func(i int) (int, error) {
		end := valueEnd(raw, i)
		return end, each(raw[i:end:end])
	})
}

// walk goes over what is between the brackets of a value. item reads one item and returns where it ends.
func walk(raw jsontext.Value, open byte, item func(start int) (end int, err error)) error {
	i := blank(raw, 0)
	if i >= len(raw) || raw[i] != open {
		return fmt.Errorf("is not what it should be: %q is expected", open)
	}
	i = blank(raw, i+1)
	for raw[i] != '}' && raw[i] != ']' {
		if raw[i] == ',' {
			i = blank(raw, i+1)
		}
		end, err := item(i)
		if err != nil {
			return err
		}
		i = blank(raw, end)
	}
	return nil
}

// unquoted is the text of a JSON string. Only one with escapes is copied.
func unquoted(raw []byte) ([]byte, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], nil
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil && text == nil {
		return nil, err
	}
	return text, nil // a lone surrogate becomes U+FFFD
}

// blank is the index of the first byte from i on that is no white space.
func blank(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\r' || raw[i] == '\t') {
		i++
	}
	return i
}

// stringEnd is the index after the string that starts at i.
func stringEnd(raw []byte, i int) int {
	quote := -1
	for i++; ; i++ {
		// The next quote is looked up once, however many escapes there are before it.
		if quote < i {
			quote = i + bytes.IndexByte(raw[i:], '"')
		}
		escape := bytes.IndexByte(raw[i:quote], '\\')
		if escape < 0 {
			return quote + 1
		}
		i += escape + 1
	}
}

// valueEnd is the index after the value that starts at i.
func valueEnd(raw []byte, i int) int {
	switch raw[i] {
	case '"':
		return stringEnd(raw, i)
	case '{', '[':
		for depth := 0; ; {
			switch raw[i] {
			case '"':
				i = stringEnd(raw, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
	}
	for i < len(raw) && raw[i] != ',' && raw[i] != '}' && raw[i] != ']' && raw[i] > ' ' {
		i++
	}
	return i
}

// text is the text of a JSON string; null is empty.
func text(raw jsontext.Value) (string, error) {
	switch {
	case len(raw) > 0 && raw[0] == '"':
		out, err := unquoted(raw)
		return string(out), err
	case string(raw) == "null":
		return "", nil
	}
	return "", fmt.Errorf("%.40q is not a text", raw)
}

// isTrue says whether a value is the literal true. Chromium takes nothing else for it.
func isTrue(raw jsontext.Value) bool { return string(raw) == "true" }

// find is the value of one member; nil when it is not there, or null. Of several the last counts, as it does for most
// parsers; commands have no two.
func find(raw jsontext.Value, name string) (value jsontext.Value) {
	if len(raw) == 0 {
		return nil
	}
	// An error means that it is no object, which has no members.
	_ = object(raw, func(key []byte, v jsontext.Value) error {
		if string(key) == name {
			value = v
		}
		return nil
	})
	if string(value) == "null" {
		return nil
	}
	return value
}

// findText is the text of one member, empty when it is not there or is none.
func findText(raw jsontext.Value, name string) string {
	out, err := text(find(raw, name))
	if err != nil {
		return ""
	}
	return out
}

// quoted is a text as JSON.
func quoted(s string) jsontext.Value {
	// The error only says that invalid UTF-8 was replaced.
	out, _ := jsontext.AppendQuote(nil, s)
	return out
}

// builder puts an object together.
type builder []byte

func (b *builder) add(name string, value jsontext.Value) {
	if len(*b) == 0 {
		*b = append(*b, '{')
	} else {
		*b = append(*b, ',')
	}
	*b, _ = jsontext.AppendQuote(*b, name)
	*b = append(append(*b, ':'), value...)
}

func (b *builder) object() jsontext.Value {
	if len(*b) == 0 {
		return jsontext.Value("{}")
	}
	return jsontext.Value(append(*b, '}'))
}

// elements puts an array together, of those that each passes.
func elements(raw jsontext.Value, each func(value jsontext.Value) (jsontext.Value, bool, error)) (jsontext.Value, error) {
	out := make([]byte, 1, len(raw))
	out[0] = '['
	err := array(raw, func(value jsontext.Value) error {
		value, pass, err := each(value)
		if err != nil || !pass {
			return err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, value...)
		return nil
	})
	return append(out, ']'), err
}

// change makes a new value of one, or drops it by returning nil.
type change func(value jsontext.Value) (jsontext.Value, error)

// keep passes a value as it is.
func keep(value jsontext.Value) (jsontext.Value, error) { return value, nil }

// drop leaves a value out.
func drop(jsontext.Value) (jsontext.Value, error) { return nil, nil }

// shape says what becomes of each member of an object. A member that it does not name is unknown.
type shape map[string]change

// members are a shape's members that are kept as they are.
func members(names ...string) shape {
	s := make(shape, len(names))
	for _, name := range names {
		s[name] = keep
	}
	return s
}

// with is a shape with one more member.
func (s shape) with(name string, change change) shape {
	s[name] = change
	return s
}

// command makes new parameters of a command. A parameter that the shape does not name is refused.
func (s shape) command(raw jsontext.Value) (jsontext.Value, error) {
	return s.apply(raw, func(name []byte) error {
		return &refusal{reason: fmt.Sprintf("its parameter %.60q is not known here", name), hint: hintUnknown}
	})
}

// event makes new parameters of an event. A member that the shape does not name is left out.
func (s shape) event(raw jsontext.Value) (jsontext.Value, error) {
	return s.apply(raw, func([]byte) error { return nil })
}

func (s shape) apply(raw jsontext.Value, unknown func(name []byte) error) (jsontext.Value, error) {
	if len(raw) == 0 {
		return jsontext.Value("{}"), nil
	}
	out := make(builder, 0, len(raw)+16)
	err := object(raw, func(name []byte, value jsontext.Value) error {
		change, known := s[string(name)]
		if !known {
			return unknown(name)
		}
		value, err := change(value)
		if err == nil && value != nil {
			out.add(string(name), value)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out.object(), nil
}
