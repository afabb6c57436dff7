package agent

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxEventLine bounds what is kept of one line, in bytes.
	maxEventLine = 256 << 10
	// maxEventName bounds the name of an event: what is longer is no name.
	maxEventName = 100
)

// cutter cuts one stream of bytes into lines. The zero value begins at offset 0.
type cutter struct {
	// start is the offset of the line that is being read; what of it came in earlier pieces is in rest.
	start int64
	rest  []byte
	// skipping says that the line was given to somebody already, as far as it is kept of one.
	skipping bool
	// torn says that the line's beginning is lost.
	torn bool
}

// at moves the cutter to where a reader begins. torn says that this may be in the middle of a line that is not to be
// taken for a whole one.
func (c *cutter) at(offset int64, skipping, torn bool) {
	c.start, c.rest, c.skipping, c.torn = offset, nil, skipping, torn
}

// next is the offset of the next byte.
func (c *cutter) next() int64 { return c.start + int64(len(c.rest)) }

// place is where somebody begins who has seen every line so far.
func (c *cutter) place() place { return place{c.start, c.skipping} }

// line is one of them, without its end.
type line struct {
	data []byte
	// whole is false when the line was cut, at its beginning or at its end.
	whole bool
}

// feed takes the next bytes, and calls emit with every line that ends in them, or that is longer than what is kept of one. When
// emit is called, place is behind its line, whose bytes are good until emit returns.
func (c *cutter) feed(data []byte, emit func(line) error) error {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		part := data
		if end >= 0 {
			part = data[:end]
		}
		if c.skipping {
			c.start += int64(len(part))
			if end >= 0 {
				c.start, c.skipping = c.start+1, false
			}
			data = data[len(part)+min(1, len(data)-len(part)):]
			continue
		}
		if room := maxEventLine - len(c.rest); len(part) > room {
			// It is given away as soon as it is known to be too long: its end may never come.
			out := append(c.rest, part[:room]...)
			c.start, c.rest, c.skipping, c.torn = c.start+maxEventLine, nil, true, false
			data = data[room:]
			if err := emit(line{data: out}); err != nil {
				return err
			}
			continue
		}
		if end < 0 {
			c.rest = append(c.rest, part...)
			return nil
		}
		out := line{data: part, whole: !c.torn}
		if len(c.rest) > 0 {
			out.data = append(c.rest, part...)
		}
		c.start, c.rest, c.torn = c.start+int64(len(out.data))+1, nil, false
		data = data[end+1:]
		if err := emit(out); err != nil {
			return err
		}
	}
	return nil
}

// flush gives away a line that has no end, because nothing follows.
func (c *cutter) flush(emit func(line) error) error {
	if len(c.rest) == 0 {
		return nil
	}
	out := line{data: c.rest, whole: !c.torn}
	c.start, c.rest, c.torn = c.next(), nil, false
	return emit(out)
}

// reader makes events of lines. It is used by one goroutine at a time.
type reader struct {
	bytes   bytes.Reader
	decoder *jsontext.Decoder
}

// event is a line as an event, which has a copy of its bytes.
func (r *reader) event(l line) Event {
	data := bytes.TrimSuffix(l.data, []byte("\r"))
	if l.whole {
		if name, ok := r.object(data); ok {
			return Event{Type: EventJSON, Name: name, JSON: json.RawMessage(bytes.Clone(data))}
		}
	}
	return Event{Type: EventText, Text: safeText(data), Cut: !l.whole}
}

// object says whether a line is a JSON object, in UTF-8, and what its first member "type" says where that is a text.
func (r *reader) object(data []byte) (name string, ok bool) {
	trimmed := bytes.TrimLeft(data, " \t")
	if len(trimmed) == 0 || trimmed[0] != '{' {
		return "", false
	}
	r.bytes.Reset(trimmed)
	if r.decoder == nil {
		// Doubled names are the program's own business: they do not make the line invalid.
		r.decoder = jsontext.NewDecoder(&r.bytes, jsontext.AllowDuplicateNames(true))
	} else {
		r.decoder.Reset(&r.bytes, jsontext.AllowDuplicateNames(true))
	}
	if _, err := r.decoder.ReadToken(); err != nil {
		return "", false
	}
	named := false
	for r.decoder.PeekKind() == '"' {
		key, err := r.decoder.ReadValue()
		if err != nil {
			return "", false
		}
		if named || !isType(key) || r.decoder.PeekKind() != '"' {
			if err := r.decoder.SkipValue(); err != nil {
				return "", false
			}
			continue
		}
		named = true
		token, err := r.decoder.ReadToken()
		if err != nil {
			return "", false
		}
		if text := token.String(); len(text) <= maxEventName {
			name = text
		}
	}
	if token, err := r.decoder.ReadToken(); err != nil || token.Kind() != '}' {
		return "", false
	}
	return name, len(bytes.TrimLeft(trimmed[r.decoder.InputOffset():], " \t\r")) == 0
}

// isType says whether a key, as it is written, is "type".
func isType(key jsontext.Value) bool {
	if bytes.IndexByte(key, '\\') < 0 {
		return string(key) == `"type"`
	}
	plain, err := jsontext.AppendUnquote(nil, key)
	return err == nil && string(plain) == "type"
}

// safeText makes a text fit for people and for JSON: without NUL, and valid UTF-8. Other control characters stay: the code that
// writes the text to a terminal removes them.
func safeText(data []byte) string {
	if utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 {
		return string(data)
	}
	return strings.ReplaceAll(strings.ToValidUTF8(string(data), "\uFFFD"), "\x00", "\uFFFD")
}

// place is a place in one stream.
type place struct {
	offset int64
	// skipping says that it is in a line that was given away already.
	skipping bool
}

// position is how much of a source somebody has seen: where to go on in both streams, and the time of the last thing that it is
// known to have begun or ended with.
type position struct {
	out, err place
	mark     int64 // nanoseconds of Unix time
}

// String is the id of the event after which it is: <stdout>-<stderr>-<mark>, with a ~ behind an offset within a line that is left
// out. The offsets are those of the log, so an id is good for as long as the log, whatever was restarted.
func (p position) String() string {
	b := make([]byte, 0, 64)
	b = p.out.append(b)
	b = p.err.append(append(b, '-'))
	return string(strconv.AppendInt(append(b, '-'), p.mark, 10))
}

func (p place) append(b []byte) []byte {
	b = strconv.AppendInt(b, p.offset, 10)
	if p.skipping {
		b = append(b, '~')
	}
	return b
}

// Newest in the place of an event's id is behind everything that is there.
const Newest = "newest"

// After is the event id from which a reader gets the events behind these offsets of the two streams, each of which is the
// beginning of a line: output from there on, and no start or end of a program before since.
func After(stdout, stderr int64, since time.Time) string {
	p := position{out: place{offset: max(0, stdout)}, err: place{offset: max(0, stderr)}}
	if !since.IsZero() {
		p.mark = max(0, since.UnixNano())
	}
	return p.String()
}

// parsePosition reads the id of an event.
func parsePosition(id string) (position, error) {
	bad := problem.New(problem.BadRequest, "leave it out to begin with the oldest, or give "+Newest, "%q is not the id of an event", texts.Clip(id, 40))
	if len(id) > 80 {
		return position{}, bad
	}
	parts := strings.Split(id, "-")
	if len(parts) != 3 {
		return position{}, bad
	}
	var p position
	var ok [3]bool
	p.out.offset, ok[0] = number(strings.TrimSuffix(parts[0], "~"))
	p.err.offset, ok[1] = number(strings.TrimSuffix(parts[1], "~"))
	p.mark, ok[2] = number(parts[2])
	p.out.skipping, p.err.skipping = strings.HasSuffix(parts[0], "~"), strings.HasSuffix(parts[1], "~")
	if !ok[0] || !ok[1] || !ok[2] || p.String() != id {
		return position{}, bad
	}
	return p, nil
}

// number reads digits.
func number(text string) (int64, bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return int64(n), err == nil && n <= math.MaxInt64
}
