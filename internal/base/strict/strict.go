// Package strict reads JSON in the one way in which it can be read.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"mime"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxNames bounds what a body of many megabytes becomes when it is read: see [Names].
const maxNames = 100_000

// Object reads one JSON object: names match exactly, unknown and doubled ones are errors, the text is UTF-8 and nothing
// follows it, and no object in it is so large that nobody means it. Two programs that read it differently cannot exist then. An empty body is an empty object. The code of an
// error is bad_json, with the hint; it says where, and nothing of what the body holds but keys.
func Object(body []byte, into any, hint string, options ...json.Options) error {
	bad := func(offset int64, what string) error {
		line, column := place(body, offset)
		return problem.New(problem.BadJSON, hint, "the body at line %d, column %d: %s", line, column, what).With("line", line).With("column", column)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if jsontext.Value(bytes.TrimSpace(body)).Kind() != '{' {
		return bad(0, "it is not an object")
	}
	if Names(body) > maxNames {
		return bad(0, fmt.Sprintf("an object in it has more than %d members", maxNames))
	}
	err := json.Unmarshal(body, into, append(options, json.RejectUnknownMembers(true))...)
	if err == nil {
		return nil
	}
	var syntax *jsontext.SyntacticError
	var meaning *json.SemanticError
	switch {
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return bad(syntax.ByteOffset, "the key "+keyOf(syntax.JSONPointer)+" is there twice")
	case errors.As(err, &syntax):
		return bad(syntax.ByteOffset, "it is not valid JSON")
	case errors.As(err, &meaning) && errors.Is(err, json.ErrUnknownName):
		return bad(meaning.ByteOffset, "the key "+keyOf(meaning.JSONPointer)+" is not known")
	case errors.As(err, &meaning):
		return bad(meaning.ByteOffset, "the value of "+keyOf(meaning.JSONPointer)+" has the wrong type")
	}
	return bad(0, "it cannot be read")
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

// place is where a fault is, counted from 1.
func place(body []byte, offset int64) (line, column int) {
	before := body[:min(int(offset), len(body))]
	// Leading blanks belong to what comes after them.
	for len(before) < len(body) && bytes.IndexByte([]byte(" \t\r\n,"), body[len(before)]) >= 0 {
		before = body[:len(before)+1]
	}
	return 1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')
}

// deepest is how deep a reader of JSON goes. It reads nothing behind that.
const deepest = 10_000

// Names is how many names of members a reader of a JSON text has in memory at the same time, so that it finds doubled ones: those of
// an object, and of all in which it stands. A name takes many times its bytes there. For a text that is no JSON the answer is
// that of its readable part, or more.
func Names(text []byte) int {
	var last []int // of the last object at each depth, which is forgotten when the next one begins
	depth, now, largest := 0, 0, 0
	for i := 0; i < len(text) && depth <= deepest; i++ {
		switch text[i] {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '{':
			if depth == len(last) {
				last = append(last, 0)
			}
			now -= last[depth]
			last[depth] = 0
			depth++
		case '}':
			depth = max(depth-1, 0)
		case ':':
			if depth > 0 {
				last[depth-1]++
				now++
				largest = max(largest, now)
			}
		}
	}
	return largest
}

// Content says whether a Content-Type is JSON.
func Content(header string) bool {
	kind, _, err := mime.ParseMediaType(header)
	return err == nil && kind == "application/json"
}
