package llm

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// filter stands between the provider's answer and the agent: it returns what may go on of a piece, and what is left at the
// end.
type filter interface {
	pass(p []byte) []byte
	rest() []byte
}

// usageFilter takes the event that has nothing but the usage out of a chat stream. It is used where the gateway has asked
// for that event and the agent has not. An event is passed on as soon as its end has come.
type usageFilter struct {
	event []byte // the event that is under way, as far as it was not passed
	line  int    // the length of its last line
	cr    bool   // the last byte was CR, and an LF may belong to it
	ended bool   // that CR ended an event
	drop  bool   // which was dropped
	big   bool   // it is too long to be the one, and passes as it comes
}

// longestUsage bounds the event that is looked for. Those with text may be longer, and pass.
const longestUsage = 64 << 10

// pass returns what may go on.
func (f *usageFilter) pass(p []byte) []byte {
	var out []byte
	for _, b := range p {
		cr := f.cr
		f.cr = b == '\r'
		switch {
		case b == '\n' && cr && f.ended:
			if !f.drop {
				out = append(out, b)
			}
			f.ended = false
			continue
		case b == '\n' && cr:
			f.event = append(f.event, b)
			continue
		}
		f.ended = false
		f.event = append(f.event, b)
		if b != '\r' && b != '\n' {
			f.line++
			continue
		}
		if f.line == 0 {
			f.drop = !f.big && len(f.event) <= longestUsage && usageOnly(f.event)
			if !f.drop {
				out = append(out, f.event...)
			}
			f.event, f.big, f.ended = f.event[:0], false, true
		}
		f.line = 0
	}
	if f.big || len(f.event) > longestUsage {
		f.big = true
		out = append(out, f.event...)
		f.event = f.event[:0]
	}
	return out
}

// rest is what stands at the end of the stream without the end of an event.
func (f *usageFilter) rest() []byte { return f.event }

// eventData is the data of an event, without what surrounds it.
func eventData(event []byte) jsontext.Value {
	data := make([]byte, 0, len(event))
	for line := range bytes.FieldsFuncSeq(event, func(r rune) bool { return r == '\r' || r == '\n' }) {
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(append(data, rest...), '\n')
		}
	}
	return bytes.TrimSpace(data)
}

// usageOnly says whether an event is the one that include_usage adds: without choices, and with a usage.
func usageOnly(event []byte) bool {
	if !bytes.Contains(event, []byte(`"usage"`)) {
		return false
	}
	object := eventData(event)
	if !isObject(object) {
		return false
	}
	usage, _, ok := member(object, "usage")
	if !ok || usage.Kind() != '{' {
		return false
	}
	if _, _, failed := member(object, "error"); failed {
		return false
	}
	choices, _, ok := member(object, "choices")
	return !ok || choices.Kind() == 'n' || choices.Kind() == '[' && len(bytes.TrimSpace(choices[1:len(choices)-1])) == 0
}
