package cdp

import (
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Kind says which of the protocol's messages one is.
type Kind uint8

const (
	// Command goes to the browser: id, method, params.
	Command Kind = iota + 1
	// Reply answers a command: its id, and a result or an error.
	Reply
	// Event comes from the browser unasked: method, params.
	Event
	// Stray is the browser's complaint about a message that it could not relate to a command: an error, no id.
	Stray
)

// Message is one decoded message. Params and Result are one valid JSON object each, kept as they came; everything
// around them is decoded and encoded anew.
type Message struct {
	Kind Kind
	// ID is set on a Command and a Reply.
	ID int32
	// SessionID is empty for the browser session of the sender or receiver.
	SessionID string
	// Method is set on a Command and an Event.
	Method string
	// Params is a JSON object, or nil.
	Params jsontext.Value
	// Result is a JSON object. It is set on a Reply that has no Error.
	Result jsontext.Value
	// Error is set on a failed Reply and on a Stray.
	Error *Error
}

// Codes of protocol errors, as Chromium uses them (JSON-RPC 2.0, and -32001 for an unknown session).
const (
	CodeServerError    = -32000
	CodeSessionUnknown = -32001
	CodeInvalidRequest = -32600
	CodeMethodUnknown  = -32601
	CodeInvalidParams  = -32602
)

// Error is the error of a reply: what the browser says about one command.
type Error struct {
	Code    int64
	Message string
	// Data is the browser's addition, text mostly. It may be nil.
	Data jsontext.Value
}

// Error has the browser's own words and its code.
func (e *Error) Error() string {
	text := e.Message
	if len(e.Data) > 0 {
		if data, err := jsontext.AppendUnquote(nil, e.Data); err == nil {
			text += ": " + string(data)
		}
	}
	return fmt.Sprintf("%s (%d)", text, e.Code)
}

// ErrorReply makes a failed reply, for a [Filter] that refuses a command.
func ErrorReply(code int64, format string, args ...any) *Message {
	return &Message{Kind: Reply, Error: &Error{Code: code, Message: fmt.Sprintf(format, args...)}}
}

// ResultReply makes a reply that succeeded, for a [Filter] that answers in the browser's place. The result must be a
// JSON object.
func ResultReply(result jsontext.Value) *Message {
	return &Message{Kind: Reply, Result: result}
}

// encode appends the message to dst, with its members in one fixed order and without a delimiter.
func (m *Message) encode(dst []byte) []byte {
	dst = append(dst, '{')
	if m.Kind == Command || m.Kind == Reply {
		dst = append(dst, `"id":`...)
		dst = strconv.AppendInt(dst, int64(m.ID), 10)
	}
	if m.Kind == Command || m.Kind == Event {
		dst = appendString(appendName(dst, "method"), m.Method)
		if m.Params != nil {
			dst = append(appendName(dst, "params"), m.Params...)
		}
	} else if m.Error != nil {
		dst = m.Error.encode(appendName(dst, "error"))
	} else {
		dst = append(appendName(dst, "result"), m.Result...)
	}
	if m.SessionID != "" {
		dst = appendString(appendName(dst, "sessionId"), m.SessionID)
	}
	return append(dst, '}')
}

func (e *Error) encode(dst []byte) []byte {
	dst = append(dst, `{"code":`...)
	dst = strconv.AppendInt(dst, e.Code, 10)
	dst = appendString(appendName(dst, "message"), e.Message)
	if e.Data != nil {
		dst = append(appendName(dst, "data"), e.Data...)
	}
	return append(dst, '}')
}

// encoded is the message in a buffer of its own, with room for a delimiter.
func (m *Message) encoded() []byte {
	return m.encode(make([]byte, 0, m.size()+1))
}

// size is about how many bytes the message takes, encoded or in memory.
func (m *Message) size() int {
	const envelope = 96
	n := envelope + len(m.Method) + len(m.SessionID) + len(m.Params) + len(m.Result)
	if m.Error != nil {
		n += envelope + len(m.Error.Message) + len(m.Error.Data)
	}
	return n
}

// appendName appends a member's name, after a comma unless it is the first.
func appendName(dst []byte, name string) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	return append(append(append(dst, '"'), name...), `":`...)
}

// appendString appends a JSON string. Text that is not UTF-8 is replaced, never passed on: the error only says so.
func appendString(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s)
	return dst
}

// parseID reads an id as Chromium does: an integer of 32 bits, without fraction or exponent.
func parseID(raw string) (int32, error) {
	n, err := strconv.ParseInt(raw, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: id %.40q is not a 32-bit integer", ErrProtocol, raw)
	}
	return int32(n), nil
}
