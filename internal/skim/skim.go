// Package skim finds the id, the method and the session of a JSON-RPC message that is too large to be kept, as its pieces arrive.
package skim

import (
	"github.com/go-json-experiment/json/jsontext"
)

// maxSkimmed bounds what is kept of one name or value of a message that is only looked at, in bytes.
const maxSkimmed = 256

// Envelope is what was found of a message. It is used to say that the message was left out, and for nothing else.
type Envelope struct {
	Size    int64
	ID      string // as it is written; empty when there is none, or it is too long
	Method  string
	Session string // of the DevTools protocol

	depth   int
	quoted  bool   // within a string
	escaped bool   // behind a backslash in it
	text    []byte // of a name or value of the envelope, as it is written
	name    string // of the member whose value comes
}

// Look looks at the next piece.
func (s *Envelope) Look(piece []byte) {
	s.Size += int64(len(piece))
	for _, c := range piece {
		switch {
		case s.quoted:
			s.keep(c)
			switch {
			case s.escaped:
				s.escaped = false
			case c == '\\':
				s.escaped = true
			case c == '"':
				s.quoted = false
			}
		case c == '"':
			s.quoted = true
			s.keep(c)
		case c == '{' || c == '[':
			s.depth++
			s.text = s.text[:0]
		case c == '}' || c == ']':
			if s.depth == 1 {
				s.member()
			}
			s.depth--
		case s.depth == 1 && c == ':':
			s.name, _ = s.string()
			s.text = s.text[:0]
		case s.depth == 1 && c == ',':
			s.member()
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		default:
			s.keep(c)
		}
	}
}

func (s *Envelope) keep(c byte) {
	if s.depth == 1 && len(s.text) <= maxSkimmed {
		s.text = append(s.text, c)
	}
}

// member takes the value of one member of the envelope.
func (s *Envelope) member() {
	switch s.name {
	case "id":
		if s.ID = string(s.text); len(s.text) > maxSkimmed {
			s.ID = ""
		}
	case "method":
		s.Method, _ = s.string()
	case "sessionId":
		s.Session, _ = s.string()
	}
	s.name, s.text = "", s.text[:0]
}

// string is the text as a string, if it is a whole one.
func (s *Envelope) string() (string, bool) {
	if len(s.text) > maxSkimmed {
		return "", false
	}
	plain, err := jsontext.AppendUnquote(nil, s.text)
	return string(plain), err == nil
}
