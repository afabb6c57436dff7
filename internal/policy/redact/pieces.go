package redact

import (
	"errors"
	"io"
)

// errMore is what a [Stream] has its reader end with until the next piece comes.
var errMore = errors.New("the next piece is not there yet")

// Stream replaces values in data that comes piece after piece, however it is cut: the end that could still become a value is held
// back as by [Values.NewReader], until the next piece, or the last, says what it is. It is for one goroutine.
type Stream struct {
	from io.Reader
	rest piece
}

// piece is what a stream was given and has not read. The last one ends it.
type piece struct {
	data []byte
	last bool
}

// Read implements io.Reader.
func (p *piece) Read(out []byte) (int, error) {
	n := copy(out, p.data)
	p.data = p.data[n:]
	switch {
	case n > 0:
		return n, nil
	case p.last:
		return 0, io.EOF
	}
	return 0, errMore
}

// NewStream makes the stream of one body.
func (v *Values) NewStream() *Stream {
	s := new(Stream)
	s.from = v.NewReader(&s.rest, StreamOptions{})
	return s
}

// Next takes a piece, and returns what is decided by it. The error is [ErrWiped].
func (s *Stream) Next(data []byte, last bool) ([]byte, error) {
	s.rest = piece{data, last}
	out, err := io.ReadAll(s.from)
	if errors.Is(err, errMore) {
		err = nil
	}
	return out, err
}

// Messages replaces values in messages that follow each other and of which none can wait for the next: frames of a
// WebSocket, events. A value that goes over the border of messages is masked where it is known for one: where less than
// [Shortest] bytes of it have been shown. Where that many bytes begin like a value near the end of a message, the rest of its line
// is masked, whether or not it goes on like the value. It is for one goroutine. A nil *Messages changes nothing.
type Messages struct {
	values *Values
	tail   []byte // of what came, what could still become a value
}

// NewMessages makes the beginning of one conversation.
func (v *Values) NewMessages() *Messages { return &Messages{values: v} }

// Next returns a message without the values. With forget nothing is remembered of it: its end is masked, whatever stands there.
func (m *Messages) Next(message []byte, forget bool) []byte {
	v := m.values
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.wiped {
		return []byte(Mark)
	}
	if v.finder == nil || len(message) == 0 {
		return message
	}
	was := len(m.tail)
	text := append(m.tail, message...)
	spans := v.finder.all(text)
	open := v.finder.undecided(text, 0)
	end := v.finder.opens(text, spans)
	if forget {
		end = v.finder.settled(text, 0)
	}
	if end < len(text) {
		spans = append(spans, span{end, len(text)})
	}
	var here []span
	for _, s := range merged(spans) {
		if s.end > was {
			here = append(here, span{max(s.start, was) - was, s.end - was})
		}
	}
	m.tail = nil
	if !forget && open < len(text) {
		m.tail = append(m.tail, text[open:]...)
	}
	if len(here) == 0 {
		return message
	}
	return marked(message, here)
}

// Rests says whether nothing of what came could become a value.
func (m *Messages) Rests() bool { return len(m.tail) == 0 }

// marked puts a mark in the place of each span.
func marked(raw []byte, spans []span) []byte {
	out := make([]byte, 0, len(raw))
	at := 0
	for _, s := range spans {
		out = append(append(out, raw[at:s.start]...), Mark...)
		at = s.end
	}
	return append(out, raw[at:]...)
}
