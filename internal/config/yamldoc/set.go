package yamldoc

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/clawjail/clawjail/internal/problem"
)

// Quote writes a text as a scalar.
func Quote(text string) string { return strconv.Quote(text) }

// Set replaces a scalar of a file, or adds it, and returns the new text. path has the keys that lead to it, and value is
// the scalar as it is to be written. Comments, order and everything else of the file stay as they are. A file that is
// written in a way in which that cannot be done is an error, and so is one that [Read] refuses.
func Set(data []byte, value string, path ...string) ([]byte, error) {
	d := &Document{flaws: problem.ValidationError{Code: problem.BadConfig}, positions: map[string]position{}, flawed: map[string]bool{}}
	root := d.parse(data)
	if err := d.Err(); err != nil {
		return nil, err
	}
	out, ok := splice(data, root, value, path)
	if !ok {
		return nil, cannotSet(path)
	}
	// The meanings of both texts are compared, so that no way of writing YAML leads to another change than the one asked for.
	after := d.parse(out)
	if d.Err() != nil {
		return nil, cannotSet(path)
	}
	var scalar yaml.Node
	if err := yaml.Unmarshal([]byte(value), &scalar); err != nil || len(scalar.Content) != 1 {
		return nil, cannotSet(path)
	}
	want, got := map[string]string{}, map[string]string{}
	flatten(root, "", want)
	flatten(after, "", got)
	flatten(scalar.Content[0], place(path...), want)
	if !maps.Equal(want, got) {
		return nil, cannotSet(path)
	}
	return out, nil
}

func cannotSet(path []string) error {
	return problem.New(problem.BadConfig, "change it in an editor", "%s cannot be changed by a program, as the file is written", strings.Join(path, "."))
}

// flatten lists the scalars of a document, and its empty collections, by their paths.
func flatten(n *yaml.Node, path string, into map[string]string) {
	switch {
	case n == nil || isNull(n) && path == "":
	case n.Kind == yaml.MappingNode && len(n.Content) > 0:
		for i := 0; i+1 < len(n.Content); i += 2 {
			flatten(n.Content[i+1], path+place(n.Content[i].Value), into)
		}
	case n.Kind == yaml.SequenceNode && len(n.Content) > 0:
		for i, item := range n.Content {
			flatten(item, path+"/"+strconv.Itoa(i), into)
		}
	case n.Kind == yaml.MappingNode: // one that is empty is no different from none
	default:
		into[path] = n.ShortTag() + " " + n.Anchor + " " + n.Value
	}
}

// place is the path of keys for flatten, in which no key can look like two.
func place(keys ...string) (out string) {
	for _, key := range keys {
		out += "/" + strconv.Quote(key)
	}
	return out
}

// splice puts the value where it belongs. It does not look whether that has done what it should.
func splice(data []byte, root *yaml.Node, value string, path []string) ([]byte, bool) {
	if root == nil || isNull(root) {
		return addToRoot(data, 0, path, value), true
	}
	at := root
	for n, key := range path {
		if at.Kind != yaml.MappingNode {
			return nil, false
		}
		i := 0
		for i < len(at.Content) && at.Content[i].Value != key {
			i += 2
		}
		if i >= len(at.Content) {
			return add(data, root, at, path[n:], value)
		}
		at = at.Content[i+1]
	}
	start, end, ok := extent(data, at)
	if !ok {
		return nil, false
	}
	return slices.Concat(data[:start], []byte(value), data[end:]), true
}

// add adds a key to a map, with the maps below it that are missing.
func add(data []byte, root, m *yaml.Node, path []string, value string) ([]byte, bool) {
	if m.Style&yaml.FlowStyle != 0 {
		start, ok := offset(data, m.Line, m.Column)
		if !ok || data[start] != '{' {
			return nil, false
		}
		text := flow(path, value)
		if len(m.Content) > 0 {
			text += ", "
		}
		return slices.Concat(data[:start+1], []byte(text), data[start+1:]), true
	}
	if len(m.Content) == 0 {
		return nil, false
	}
	indent := m.Content[0].Column - 1
	if m == root {
		return addToRoot(data, indent, path, value), true
	}
	after, ok := offset(data, lastLine(m)+1, 1)
	if !ok {
		after = len(data)
	}
	return slices.Concat(lineEnd(data[:after]), []byte(strings.Repeat(" ", indent)+flow(path, value)+"\n"), data[after:]), true
}

// addToRoot adds a key at the end of the file.
func addToRoot(data []byte, indent int, path []string, value string) []byte {
	text := strings.Repeat(" ", indent) + path[0] + ": " + value
	if len(path) > 1 {
		text = strings.Repeat(" ", indent) + path[0] + ":\n" + strings.Repeat(" ", indent+2) + flow(path[1:], value)
	}
	return append(lineEnd(data), text+"\n"...)
}

// lineEnd is a copy of a text that ends with a line.
func lineEnd(data []byte) []byte {
	out := slices.Clone(data)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return out
}

// flow writes a value with the keys that lead to it, on one line.
func flow(path []string, value string) string {
	if len(path) == 1 {
		return path[0] + ": " + value
	}
	return path[0] + ": {" + flow(path[1:], value) + "}"
}

func lastLine(n *yaml.Node) int {
	last := n.Line
	for _, child := range n.Content {
		last = max(last, lastLine(child))
	}
	return last
}

// extent is where a scalar of one line begins and ends.
func extent(data []byte, n *yaml.Node) (start, end int, ok bool) {
	start, ok = offset(data, n.Line, n.Column)
	if !ok || n.Kind != yaml.ScalarNode || n.Value == "" && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) == 0 {
		return 0, 0, false
	}
	text := data[start:]
	switch {
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		quote := text[0]
		for i := 1; i < len(text); i++ {
			switch {
			case text[i] == '\\' && quote == '"', text[i] == quote && quote == '\'' && i+1 < len(text) && text[i+1] == quote:
				i++ // the next one is part of the text
			case text[i] == quote:
				return start, start + i + 1, true
			}
		}
		return 0, 0, false
	case bytes.HasPrefix(text, []byte(n.Value)):
		return start, start + len(n.Value), true
	}
	return 0, 0, false
}

// offset is where a place of the file is in its bytes. Columns count characters.
func offset(data []byte, line, column int) (int, bool) {
	at := 0
	for range line - 1 {
		n := bytes.IndexByte(data[at:], '\n')
		if n < 0 {
			return 0, false
		}
		at += n + 1
	}
	rest := string(data[at:])
	for i := range rest {
		if column--; column == 0 {
			return at + i, true
		}
	}
	return 0, false
}
