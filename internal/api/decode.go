package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/problem"
)

// decode reads one JSON object, strictly: names match exactly, unknown and doubled ones are errors, the text is UTF-8
// and nothing follows it. Two programs that read it differently cannot exist then. An empty body is an empty object.
func decode[T any](body []byte) (T, error) {
	var out, none T
	if len(bytes.TrimSpace(body)) == 0 {
		return out, nil
	}
	if jsontext.Value(bytes.TrimSpace(body)).Kind() != '{' {
		return none, bad(body, 0, "it is not an object")
	}
	err := json.Unmarshal(body, &out, json.RejectUnknownMembers(true), json.WithUnmarshalers(secrets()))
	if err == nil {
		return out, nil
	}
	var syntax *jsontext.SyntacticError
	var meaning *json.SemanticError
	switch {
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return none, bad(body, syntax.ByteOffset, "the key "+name(syntax.JSONPointer)+" is there twice")
	case errors.As(err, &syntax):
		return none, bad(body, syntax.ByteOffset, "it is not valid JSON")
	case errors.As(err, &meaning) && errors.Is(err, json.ErrUnknownName):
		return none, bad(body, meaning.ByteOffset, "the key "+name(meaning.JSONPointer)+" is not known")
	case errors.As(err, &meaning):
		return none, bad(body, meaning.ByteOffset, "the value of "+name(meaning.JSONPointer)+" has the wrong type")
	}
	return none, bad(body, 0, "it cannot be read")
}

// name is a key as its writer knows it: limits.memory.
func name(p jsontext.Pointer) string {
	var b []byte
	for token := range p.Tokens() {
		if len(b) > 0 {
			b = append(b, '.')
		}
		b = append(b, token...)
	}
	return quote(string(b))
}

func bad(body []byte, offset int64, what string) error {
	before := body[:min(int(offset), len(body))]
	// Leading blanks belong to what comes after them.
	for len(before) < len(body) && bytes.IndexByte([]byte(" \t\r\n,"), body[len(before)]) >= 0 {
		before = body[:len(before)+1]
	}
	line := 1 + bytes.Count(before, []byte("\n"))
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return problem.New(problem.BadJSON, "the fields of every body are in /openapi.json", "the body at line %d, column %d: %s", line, column, what).
		With("line", line).With("column", column)
}

func jsonContent(header string) bool {
	kind, _, err := mime.ParseMediaType(header)
	return err == nil && kind == "application/json"
}

// jsonFormat is how answers are written. Requests are never read by huma.
func jsonFormat() huma.Format {
	return huma.Format{
		Marshal: huma.DefaultJSONFormat.Marshal,
		Unmarshal: func([]byte, any) error {
			return fmt.Errorf("bodies are decoded by their handler: %w", io.ErrUnexpectedEOF)
		},
	}
}
