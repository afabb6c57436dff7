package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of schemas and of answers. The checker has none of its own: its work grows with both.
const (
	maxSchema      = 32 << 10 // bytes
	maxSchemaParts = 2000     // values in a schema, after references have been put in place
	maxSchemaDepth = 50
	maxAnswer      = 64 << 10 // bytes of the answer to a goal
)

// answerSchema is what an answer has to be like.
type answerSchema struct {
	text  string
	check *jsonschema.Resolved
}

const schemaHint = "give a JSON Schema (draft 2020-12 or 7) of at most 32 KiB, with references to itself alone (#/$defs/…) and none that lead back to where they are"

// readSchema reads a schema. The code of an error is bad_schema.
func readSchema(data []byte) (*answerSchema, error) {
	bad := func(err error, format string, args ...any) error {
		return problem.Wrap(err, problem.BadSchema, schemaHint, format, args...)
	}
	if len(data) > maxSchema {
		return nil, bad(nil, "the schema has more than %d bytes", maxSchema)
	}
	var root any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&root); err != nil || d.More() {
		return nil, bad(err, "the schema is not JSON")
	}
	switch root.(type) {
	case map[string]any, bool:
	default:
		return nil, bad(nil, "a schema is an object")
	}
	p := placing{root: root}
	placed, err := p.place(root, 0, false, nil)
	if err != nil {
		return nil, bad(err, "the schema cannot be used: %v", err)
	}
	text, err := json.Marshal(placed)
	if err != nil {
		return nil, bad(err, "the schema cannot be used")
	}
	schema := new(jsonschema.Schema)
	if err := json.Unmarshal(text, schema); err != nil {
		return nil, bad(err, "the schema is none: %s", line(err.Error(), maxResult))
	}
	if !slices.Contains(drafts(), schema.Schema) {
		return nil, bad(nil, "the schema is of a draft that is not taken: %s", line(schema.Schema, 80))
	}
	check, err := schema.Resolve(nil)
	if err != nil {
		return nil, bad(err, "the schema is none: %s", line(err.Error(), maxResult))
	}
	if why := impossible(schema); why != "" {
		return nil, problem.New(problem.BadSchema, "correct the schema, so that some value matches it", "no value can match the schema: %s", why)
	}
	return &answerSchema{text: string(text), check: check}, nil
}

// fits says what is wrong with an answer.
func (s *answerSchema) fits(value json.RawMessage) error {
	if len(value) > maxAnswer {
		return problem.New(problem.BadRequest, "", "the answer has more than %d bytes", maxAnswer)
	}
	var v any
	if err := json.Unmarshal(value, &v); err != nil {
		return problem.New(problem.BadRequest, "", "the answer is not JSON")
	}
	if err := s.check.Validate(v); err != nil {
		return problem.New(problem.BadRequest, "", "the answer does not match the schema: %s", line(err.Error(), maxResult))
	}
	return nil
}

// placing puts what references of a schema stand for in their place, so that a schema has no circle.
type placing struct {
	root  any
	parts int
}

// place copies a part of a schema. named says that the keys of the part are names of the caller's, and not keywords. under are
// the references that it is in the place of.
func (p *placing) place(part any, depth int, named bool, under []string) (any, error) {
	if p.parts++; p.parts > maxSchemaParts {
		return nil, fmt.Errorf("it has more than %d parts", maxSchemaParts)
	}
	if depth > maxSchemaDepth {
		return nil, errors.New("it is nested too deeply")
	}
	switch part := part.(type) {
	case []any:
		out := make([]any, len(part))
		for n, v := range part {
			var err error
			if out[n], err = p.place(v, depth+1, false, under); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		if !named {
			return p.object(part, depth, under)
		}
		out := make(map[string]any, len(part))
		for name, v := range part {
			var err error
			if out[name], err = p.place(v, depth+1, false, under); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return part, nil
}

// object copies a schema.
func (p *placing) object(part map[string]any, depth int, under []string) (any, error) {
	out := make(map[string]any, len(part))
	for key, v := range part {
		var err error
		named := false
		switch key {
		case "$defs", "definitions", "$id", "$anchor", "$dynamicAnchor", "$comment":
			continue // what references lead to stands in their place
		case "properties", "patternProperties", "dependentSchemas", "dependencies":
			named = true
		case "$dynamicRef", "$recursiveRef":
			return nil, fmt.Errorf("%s is not taken", key)
		case "const", "enum", "default", "examples":
			p.parts++
			out[key] = v // values, not schemas
			continue
		case "$ref":
			continue
		case "type":
			if err := checkType(v); err != nil {
				return nil, err // the checker takes any name, and nothing is of a type that there is not
			}
		}
		if out[key], err = p.place(v, depth+1, named, under); err != nil {
			return nil, err
		}
	}
	given, ok := part["$ref"]
	if !ok {
		return out, nil
	}
	ref, ok := given.(string)
	if !ok {
		return nil, errors.New("a reference is not a text")
	}
	if slices.Contains(under, ref) {
		return nil, fmt.Errorf("the reference %s leads back to itself", line(ref, 80))
	}
	target, err := p.find(ref)
	if err != nil {
		return nil, err
	}
	placed, err := p.place(target, depth+1, false, append(slices.Clip(under), ref))
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return placed, nil
	}
	all, _ := out["allOf"].([]any)
	out["allOf"] = append(all, placed)
	return out, nil
}

// checkType looks at the type, or the types, that a schema names.
func checkType(v any) error {
	all, several := v.([]any)
	if !several {
		all = []any{v}
	}
	for _, one := range all {
		name, ok := one.(string)
		if !ok || !slices.Contains([]string{"null", "boolean", "object", "array", "number", "string", "integer"}, name) {
			return fmt.Errorf("there is no type %s", line(fmt.Sprint(one), 80))
		}
	}
	return nil
}

// drafts are the values of $schema that are taken.
func drafts() []string {
	return []string{"", "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"}
}

// find is what a reference within the schema leads to (RFC 6901).
func (p *placing) find(ref string) (any, error) {
	path, inside := strings.CutPrefix(ref, "#")
	if !inside || path != "" && path[0] != '/' {
		return nil, fmt.Errorf("the reference %s leads out of it", line(ref, 80))
	}
	at := p.root
	for n, name := range strings.Split(path, "/") {
		if n == 0 {
			continue // before the first slash
		}
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		found := false
		switch in := at.(type) {
		case map[string]any:
			at, found = in[name]
		case []any:
			i, err := strconv.Atoi(name)
			if found = err == nil && i >= 0 && i < len(in); found {
				at = in[i]
			}
		}
		if !found {
			return nil, fmt.Errorf("the reference %s leads nowhere", line(ref, 80))
		}
	}
	return at, nil
}

// impossible says why nothing can be as a schema says, where that can be seen; empty where it cannot. A fault that only shows when an
// answer is checked ends a task after a few answers.
func impossible(s *jsonschema.Schema) string {
	if s == nil {
		return ""
	}
	if s.Not != nil && always(s.Not) {
		return "it takes no value (false)"
	}
	if why := impossibleValues(s); why != "" {
		return why
	}
	for _, part := range s.AllOf {
		if why := impossible(part); why != "" {
			return why
		}
	}
	for _, any := range [][]*jsonschema.Schema{s.AnyOf, s.OneOf} {
		why := ""
		for _, part := range any {
			if why = impossible(part); why == "" {
				break
			}
		}
		if why != "" {
			return why
		}
	}
	switch s.Type {
	case "object":
		for _, name := range s.Required {
			if why := impossible(s.Properties[name]); why != "" {
				return line(name, 80) + ": " + why
			}
		}
		if s.MaxProperties != nil && *s.MaxProperties < len(s.Required) {
			return "more members are required than it may have"
		}
	case "array":
		if s.MinItems != nil && *s.MinItems > 0 {
			if why := impossible(s.Items); why != "" {
				return "items: " + why
			}
		}
	}
	return ""
}

// always says whether a schema takes every value: it is empty.
func always(s *jsonschema.Schema) bool {
	text, err := json.Marshal(s)
	return err == nil && (string(text) == "true" || string(text) == "{}")
}

// impossibleValues looks at values that are listed, and at bounds that cross.
func impossibleValues(s *jsonschema.Schema) string {
	crossed := func(minimum, maximum *int) bool { return minimum != nil && maximum != nil && *minimum > *maximum }
	switch {
	case s.Type == "string" && crossed(s.MinLength, s.MaxLength):
		return "minLength is more than maxLength"
	case s.Type == "array" && crossed(s.MinItems, s.MaxItems):
		return "minItems is more than maxItems"
	case s.Type == "object" && crossed(s.MinProperties, s.MaxProperties):
		return "minProperties is more than maxProperties"
	case (s.Type == "number" || s.Type == "integer") && s.Minimum != nil && s.Maximum != nil && *s.Minimum > *s.Maximum:
		return "minimum is more than maximum"
	}
	values := s.Enum
	if s.Const != nil {
		values = []any{*s.Const}
	}
	if values == nil {
		return ""
	}
	text, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	alone := new(jsonschema.Schema)
	if json.Unmarshal(text, alone) != nil {
		return ""
	}
	check, err := alone.Resolve(nil)
	if err != nil {
		return ""
	}
	for _, v := range values {
		if check.Validate(v) == nil {
			return ""
		}
	}
	return "none of the values that it lists is as the rest of it says"
}
