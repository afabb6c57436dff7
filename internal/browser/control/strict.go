package control

import (
	"bytes"
	"errors"
	"mime"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// Strict reads one JSON object: names match exactly, unknown and doubled ones are errors, the text is UTF-8 and nothing
// follows it. Two programs that read it differently cannot exist then. An empty body is an empty object. The code of an
// error is bad_json; it says where, and nothing of what the body holds but keys.
func Strict(body []byte, into any, options ...json.Options) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if jsontext.Value(bytes.TrimSpace(body)).Kind() != '{' {
		return bad(body, 0, "it is not an object")
	}
	err := json.Unmarshal(body, into, append(options, json.RejectUnknownMembers(true))...)
	if err == nil {
		return nil
	}
	var syntax *jsontext.SyntacticError
	var meaning *json.SemanticError
	switch {
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return bad(body, syntax.ByteOffset, "the key "+keyOf(syntax.JSONPointer)+" is there twice")
	case errors.As(err, &syntax):
		return bad(body, syntax.ByteOffset, "it is not valid JSON")
	case errors.As(err, &meaning) && errors.Is(err, json.ErrUnknownName):
		return bad(body, meaning.ByteOffset, "the key "+keyOf(meaning.JSONPointer)+" is not known")
	case errors.As(err, &meaning):
		return bad(body, meaning.ByteOffset, "the value of "+keyOf(meaning.JSONPointer)+" has the wrong type")
	}
	return bad(body, 0, "it cannot be read")
}

// keyOf is a key as its writer knows it: limits.memory.
func keyOf(p jsontext.Pointer) string {
	var b []byte
	for token := range p.Tokens() {
		if len(b) > 0 {
			b = append(b, '.')
		}
		b = append(b, token...)
	}
	return texts.Quote(string(b), 80)
}

func bad(body []byte, offset int64, what string) error {
	before := body[:min(int(offset), len(body))]
	// Leading blanks belong to what comes after them.
	for len(before) < len(body) && bytes.IndexByte([]byte(" \t\r\n,"), body[len(before)]) >= 0 {
		before = body[:len(before)+1]
	}
	line := 1 + bytes.Count(before, []byte("\n"))
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return problem.New(problem.BadJSON, "the fields are in docs/browser.md, and in /openapi.json of a control plane", "the body at line %d, column %d: %s", line, column, what).
		With("line", line).With("column", column)
}

// JSONContent says whether a Content-Type is JSON.
func JSONContent(header string) bool {
	kind, _, err := mime.ParseMediaType(header)
	return err == nil && kind == "application/json"
}
