package cdp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// origin says whose message is parsed. The envelope is equally strict for both: exact member names, each once, no
// others. They differ in what the values may hold.
type origin uint8

const (
	// fromBrowser values are the page's to a large part: a page may log a lone surrogate or return an object whose
	// names differ only in one, and neither may end the connection.
	fromBrowser origin = iota
	// fromClient values must mean the same to every parser: no duplicate names at any depth, and nothing that makes
	// Chromium reject the message without saying whose it was.
	fromClient
)

// maxClientDepth bounds the nesting of a client's message. Chromium gives up a little below 300 and then answers
// without an id, which would leave the client waiting.
const maxClientDepth = 250

// Members of an envelope that were seen.
const (
	seenID = 1 << iota
	seenMethod
	seenParams
	seenResult
	seenError
	seenSession
)

// parse decodes one frame. Params, Result and Error.Data of the message alias the frame. Every error is an
// [ErrProtocol].
func parse(frame []byte, from origin) (*Message, error) {
	if !utf8.Valid(frame) {
		return nil, fmt.Errorf("%w: not UTF-8", ErrProtocol)
	}
	d := &envelope{frame: frame, from: from}
	d.dec = jsontext.NewDecoder(bytes.NewBuffer(frame),
		jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(from == fromBrowser))
	if err := d.object(d.member); err != nil {
		return nil, asProtocol(err)
	}
	if _, err := d.dec.ReadToken(); err != io.EOF {
		return nil, fmt.Errorf("%w: something follows the message", ErrProtocol)
	}
	if err := d.classify(); err != nil {
		return nil, err
	}
	return &d.msg, nil
}

// envelope is the state of one parse.
type envelope struct {
	frame []byte
	from  origin
	dec   *jsontext.Decoder
	msg   Message
	seen  uint8
}

// object reads one object and calls member after each name.
func (d *envelope) object(member func(name string) error) error {
	open, err := d.dec.ReadToken()
	if err != nil {
		return err
	}
	if open.Kind() != '{' {
		return errors.New("not an object")
	}
	for {
		name, err := d.dec.ReadToken()
		if err != nil {
			return err
		}
		if name.Kind() == '}' {
			return nil
		}
		if err := member(name.String()); err != nil {
			return err
		}
	}
}

func (d *envelope) member(name string) error {
	bit := memberBit(name)
	if bit == 0 {
		return fmt.Errorf("unknown member %.60q", name)
	}
	if d.seen&bit != 0 {
		return fmt.Errorf("member %q twice", name)
	}
	d.seen |= bit
	var err error
	switch bit {
	case seenID:
		var raw jsontext.Value
		if raw, err = d.value('0'); err == nil {
			d.msg.ID, err = parseID(string(raw))
		}
	case seenMethod:
		d.msg.Method, err = d.text()
	case seenSession:
		d.msg.SessionID, err = d.text()
	case seenParams:
		// Chromium takes null for absent, and some clients send it.
		if d.dec.PeekKind() == 'n' {
			_, err = d.value('n')
			break
		}
		d.msg.Params, err = d.value('{')
	case seenResult:
		d.msg.Result, err = d.value('{')
	case seenError:
		d.msg.Error = new(Error)
		err = d.object(d.errorMember)
	}
	if err != nil {
		return fmt.Errorf("member %q: %w", name, err)
	}
	return nil
}

// memberBit knows the members of an envelope by their exact names.
func memberBit(name string) uint8 {
	switch name {
	case "id":
		return seenID
	case "method":
		return seenMethod
	case "params":
		return seenParams
	case "result":
		return seenResult
	case "error":
		return seenError
	case "sessionId":
		return seenSession
	}
	return 0
}

// errorMember reads one member of an error object. Members that the protocol adds later are left out, not refused.
func (d *envelope) errorMember(name string) (err error) {
	switch name {
	case "code":
		var raw jsontext.Value
		if raw, err = d.value('0'); err == nil {
			d.msg.Error.Code, err = strconv.ParseInt(string(raw), 10, 64)
		}
	case "message":
		d.msg.Error.Message, err = d.text()
	case "data":
		d.msg.Error.Data, err = d.value(0)
	default:
		_, err = d.value(0)
	}
	return err
}

// value reads one value of a kind (0 for any) and returns it as it stands in the frame.
func (d *envelope) value(kind jsontext.Kind) (jsontext.Value, error) {
	raw, err := d.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	if kind != 0 && raw.Kind() != kind {
		return nil, fmt.Errorf("is %v, not %v", raw.Kind(), kind)
	}
	// The decoder's slice lives until its next read; the frame is ours.
	end := d.dec.InputOffset()
	raw = jsontext.Value(d.frame[end-int64(len(raw)) : end : end])
	if d.from == fromClient {
		if err := acceptable(raw); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

func (d *envelope) text() (string, error) {
	token, err := d.dec.ReadToken()
	if err != nil {
		return "", err
	}
	if token.Kind() != '"' {
		return "", fmt.Errorf("is %v, not a string", token.Kind())
	}
	return token.String(), nil
}

// classify says which kind of message was read, and refuses every other mixture of members.
func (d *envelope) classify() error {
	has := d.seen &^ (seenParams | seenSession)
	params := d.seen&seenParams != 0
	switch {
	case d.from == fromClient && has == seenID|seenMethod:
		d.msg.Kind = Command
	case d.from == fromBrowser && has == seenMethod:
		d.msg.Kind = Event
	case d.from == fromBrowser && !params && (has == seenID|seenResult || has == seenID|seenError):
		d.msg.Kind = Reply
	case d.from == fromBrowser && !params && has == seenError:
		d.msg.Kind = Stray
	default:
		return fmt.Errorf("%w: the members do not make a message", ErrProtocol)
	}
	if has&seenMethod != 0 && d.msg.Method == "" {
		return fmt.Errorf("%w: empty method", ErrProtocol)
	}
	return nil
}

// acceptable refuses valid JSON that Chromium's own parser does not read: it would answer without an id, and nobody
// could tell whose message that was. Measured: nesting near 300, and numbers beyond a 64-bit float.
func acceptable(raw []byte) error {
	depth := 0
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			i = stringEnd(raw, i)
		case c == '{' || c == '[':
			if depth++; depth > maxClientDepth {
				return fmt.Errorf("nested deeper than %d", maxClientDepth)
			}
		case c == '}' || c == ']':
			depth--
		case c == '-' || c >= '0' && c <= '9':
			end := i + 1
			for end < len(raw) && isNumber(raw[end]) {
				end++
			}
			if f, err := strconv.ParseFloat(string(raw[i:end]), 64); err != nil || math.IsInf(f, 0) {
				return fmt.Errorf("number %.40q is out of range", raw[i:end])
			}
			i = end - 1
		}
	}
	return nil
}

// stringEnd is the index of the quote that closes the string opened at start. The JSON is known to be valid.
func stringEnd(raw []byte, start int) int {
	for i := start + 1; ; i++ {
		i += bytes.IndexByte(raw[i:], '"')
		escapes := 0
		for raw[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
	}
}

func isNumber(c byte) bool {
	return c >= '0' && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
}

func asProtocol(err error) error {
	if errors.Is(err, ErrProtocol) {
		return err
	}
	return fmt.Errorf("%w: %v", ErrProtocol, err)
}
