package llm

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
)

// counter reads the usage in an answer as it passes. It keeps a few bytes, whatever the size of the answer, and does not
// mind how the answer is cut into pieces. Data that it does not understand is not counted.
type counter struct {
	scan   scanner
	events bool // server-sent events; otherwise JSON, one value or many

	// The line of an event stream that is being read.
	field    [len("data:")]byte
	fieldLen int
	inData   bool // behind "data:"
	first    bool // the next byte of data is the first one, and may be a blank
	hasLine  bool // the line is not empty
	cr       bool // the last line ended with CR, whose LF may follow
	head     [len("[DONE]")]byte
	headLen  int

	dataEvents int64 // events that had data
	hasData    bool
	finished   bool // the stream said that it is over
}

func newCounter(wire egress.Wire, events bool) *counter {
	return &counter{scan: scanner{wire: wire}, events: events}
}

// Write reads a piece of the answer. It takes everything and never fails.
func (c *counter) Write(p []byte) (int, error) {
	if !c.events {
		c.scan.write(p)
		return len(p), nil
	}
	c.writeEvents(p)
	return len(p), nil
}

func (c *counter) writeEvents(p []byte) {
	feed := lineFeed(p) // it is looked for once
	for len(p) > 0 {
		if c.cr {
			c.cr = false
			if p[0] == '\n' {
				p = p[1:]
				feed = lineFeed(p)
				continue
			}
		}
		end := bytes.IndexByte(p[:min(feed, len(p))], '\r')
		if c.cr = end >= 0; !c.cr {
			end = feed
		}
		if end >= len(p) {
			c.text(p)
			return
		}
		c.text(p[:end])
		c.endLine()
		p = p[end+1:]
		if feed -= end + 1; feed < 0 {
			feed = lineFeed(p)
		}
	}
}

// lineFeed is where the next one is in p; far behind its end when there is none.
func lineFeed(p []byte) int {
	if i := bytes.IndexByte(p, '\n'); i >= 0 {
		return i
	}
	return math.MaxInt / 2
}

// text reads a part of a line.
func (c *counter) text(p []byte) {
	if len(p) == 0 {
		return
	}
	c.hasLine = true
	for !c.inData && len(p) > 0 && c.fieldLen < len(c.field) {
		c.field[c.fieldLen] = p[0]
		c.fieldLen++
		p = p[1:]
		if string(c.field[:c.fieldLen]) == "data:" {
			c.inData, c.first, c.hasData = true, true, true
		}
	}
	if !c.inData || len(p) == 0 {
		return
	}
	if c.first {
		c.first = false
		if p[0] == ' ' {
			p = p[1:]
		}
	}
	if n := copy(c.head[c.headLen:], p); n > 0 {
		c.headLen += n
	}
	c.scan.write(p)
}

// endLine ends a line; an empty one ends the event.
func (c *counter) endLine() {
	if !c.hasLine {
		c.endEvent()
	} else if c.inData {
		// Lines of data are joined by a line feed.
		c.scan.write([]byte("\n"))
	}
	c.fieldLen, c.inData, c.hasLine = 0, false, false
}

func (c *counter) endEvent() {
	if c.hasData {
		c.dataEvents++
		if c.scan.wire == egress.WireOpenAI && string(c.head[:c.headLen]) == "[DONE]" {
			c.finished = true
		}
	}
	c.scan.restart()
	c.hasData, c.headLen = false, 0
}

// done says that the answer is complete, although it may not have ended.
func (c *counter) done() bool { return c.finished || c.scan.finished }

// complete says whether the answer is all there, after it ended with an error or with none. Anthropic's streams say when
// they are over, and are not otherwise.
func (c *counter) complete(err error) bool {
	if c.done() {
		return true
	}
	return err == nil && !(c.events && c.scan.wire == egress.WireAnthropic)
}

// usage is what the answer said, and whether it said anything.
func (c *counter) usage() (u amounts, said bool) {
	s := &c.scan
	n := &s.numbers
	u = amounts{
		input: n[keyInput], cacheRead: n[keyCacheRead], cacheWrite: n[keyCacheWrite], output: n[keyOutput],
		audioInput: n[keyAudioInput], audioOutput: n[keyAudioOutput], calls: min(max(s.calls, s.items), maxTokens), priority: s.priority,
	}
	if s.wire == egress.WireOpenAI {
		// Some providers leave what a model thought out of the output, but not out of the total.
		u.output = max(u.output, n[keyTotal]-u.input)
		u.cacheRead = n[keyCached]
	}
	// A number with a price of its own is a part of the one that it is named beside.
	u.cacheWriteHour = min(n[keyCacheHour], u.cacheWrite)
	u.cacheWrite -= u.cacheWriteHour
	if s.wire == egress.WireOpenAI {
		u.cacheRead = min(u.cacheRead, u.input)
		u.input -= u.cacheRead
		u.audioInput = min(u.audioInput, u.input)
		u.input -= u.audioInput
		u.audioOutput = min(u.audioOutput, u.output)
		u.output -= u.audioOutput
	}
	return u, s.said
}

// guess is the output when the provider does not say: a token per event, or per four bytes of text.
func (c *counter) guess() int64 { return max(c.dataEvents, (c.scan.textBytes+3)/4) }

// key is a member's name that means something here.
type key uint8

const (
	keyOther key = iota
	keyUsage
	keyMessage  // where Anthropic's message_start has the usage
	keyResponse // where OpenAI's response.completed has it
	keyInput
	keyOutput
	keyTotal
	keyCacheRead
	keyCacheWrite
	keyCacheHour  // what was written to a cache for an hour, in keyWrites
	keyCached     // what was read from one, in keyInputParts
	keyAudio      // in keyInputParts and keyOutputParts
	keyAudioInput // both as numbers
	keyAudioOutput
	keyWrites      // Anthropic's cache_creation
	keyInputParts  // prompt_tokens_details, input_tokens_details
	keyOutputParts // completion_tokens_details, output_tokens_details
	keyCalls       // Anthropic's server_tool_use, in which every number is one of calls
	keyItems       // the list of what OpenAI's response consists of
	keyTier
	keyType
	keyText // text of a model
	keys
)

func keyOf(name []byte, wire egress.Wire) key {
	switch string(name) {
	case "usage":
		return keyUsage
	case "message":
		return keyMessage
	case "response":
		if wire == egress.WireOllama {
			return keyText
		}
		return keyResponse
	case "prompt_tokens":
		return keyInput
	case "input_tokens":
		return keyInput
	case "completion_tokens", "output_tokens":
		return keyOutput
	case "prompt_eval_count":
		if wire == egress.WireOllama {
			return keyInput
		}
	case "eval_count":
		if wire == egress.WireOllama {
			return keyOutput
		}
	case "total_tokens":
		return keyTotal
	case "cache_read_input_tokens":
		return keyCacheRead
	case "cache_creation_input_tokens":
		return keyCacheWrite
	case "ephemeral_1h_input_tokens":
		return keyCacheHour
	case "cached_tokens":
		return keyCached
	case "audio_tokens":
		return keyAudio
	case "cache_creation":
		return keyWrites
	case "prompt_tokens_details", "input_tokens_details":
		return keyInputParts
	case "completion_tokens_details", "output_tokens_details":
		return keyOutputParts
	case "server_tool_use":
		return keyCalls
	case "output":
		if wire == egress.WireOpenAI {
			return keyItems
		}
	case "service_tier":
		return keyTier
	case "type":
		return keyType
	case "content", "text", "delta", "thinking", "partial_json", "arguments", "reasoning_content", "reasoning", "refusal":
		return keyText
	}
	return keyOther
}

// deepest is how many levels of an answer are looked at; deeper ones are only skipped.
const deepest = 12

// scanner walks over JSON without keeping it. It does not check it: what is no JSON gives no usage.
type scanner struct {
	wire  egress.Wire
	depth int
	kinds [deepest]byte // '{' or '['
	keys  [deepest]key  // the member that is being read

	inText  bool
	escaped bool
	isKey   bool
	wantKey bool
	counted bool // text of a model

	buf  [48]byte // the key, type or number that is being read
	n    int
	over bool // it did not fit, or has escapes

	said      bool
	numbers   [keys]int64                  // the greatest of each: where a stream says one more than once it counts up
	calls     int64                        // of tools, as the usage says
	items     int64                        // of tools, as the list of what the answer consists of says
	counting  struct{ calls, items int64 } // of the value that is being read
	priority  bool                         // the answer says that the request used the priority tier
	textBytes int64
	finished  bool
}

// restart forgets where the scanner stands, and keeps what it counted.
func (s *scanner) restart() {
	s.depth, s.n = 0, 0
	s.counting.calls, s.counting.items = 0, 0
	s.inText, s.escaped, s.isKey, s.wantKey, s.counted, s.over = false, false, false, false, false, false
}

func (s *scanner) write(p []byte) {
	for len(p) > 0 {
		if s.inText {
			p = p[s.text(p):]
			continue
		}
		s.structure(p[0])
		p = p[1:]
	}
}

// text reads a part of a text, and says how much of p that was.
func (s *scanner) text(p []byte) int {
	if s.escaped {
		s.escaped = false
		s.keep(p[:1])
		return 1
	}
	i := bytes.IndexByte(p, '"')
	part := p
	if i >= 0 {
		part = p[:i]
	}
	if j := bytes.IndexByte(part, '\\'); j >= 0 {
		s.keep(part[:j])
		s.escaped, s.over = true, true
		return j + 1
	}
	s.keep(part)
	if i < 0 {
		return len(p)
	}
	s.endText()
	return i + 1
}

func (s *scanner) keep(p []byte) {
	if s.counted {
		s.textBytes += int64(len(p))
		return
	}
	if s.over || s.n+len(p) > len(s.buf) {
		s.over = true
		return
	}
	s.n += copy(s.buf[s.n:], p)
}

func (s *scanner) endText() {
	s.inText = false
	word := s.buf[:s.n]
	if s.over {
		word = nil
	}
	switch {
	case s.isKey:
		s.keys[s.depth-1] = keyOf(word, s.wire)
	case s.member() == keyTier && (s.depth == 1 || s.inUsage() || s.depth == 2 && s.keys[0] == keyResponse):
		s.priority = s.priority || string(word) == "priority" || string(word) == "fast"
	case s.member() == keyType && s.inItem():
		if call := string(word); strings.HasSuffix(call, "_call") && !slices.Contains(ownCalls(), call) {
			s.counting.items++
			s.items = max(s.items, s.counting.items)
		}
	case s.depth == 1 && s.kinds[0] == '{' && s.keys[0] == keyType:
		switch string(word) {
		case "message_stop":
			s.finished = s.finished || s.wire == egress.WireAnthropic
		case "response.completed", "response.incomplete", "response.failed":
			s.finished = s.finished || s.wire == egress.WireOpenAI
		}
	}
	s.n, s.over, s.isKey, s.counted = 0, false, false, false
}

func (s *scanner) structure(b byte) {
	switch b {
	case '"':
		s.n, s.over, s.inText = 0, false, true
		s.isKey = s.wantKey
		s.wantKey = false
		s.counted = !s.isKey && s.member() == keyText
	case '{', '[':
		s.depth++
		s.n = 0
		s.wantKey = false
		if s.depth <= deepest {
			s.kinds[s.depth-1] = b
			s.keys[s.depth-1] = keyOther
			if b == '[' && s.depth > 1 && s.keys[s.depth-2] == keyText {
				s.keys[s.depth-1] = keyText // a list of texts
			}
			s.wantKey = b == '{'
		}
	case '}', ']':
		s.endNumber()
		s.depth = max(s.depth-1, 0)
		s.wantKey = false
	case ',':
		s.endNumber()
		s.wantKey = s.depth >= 1 && s.depth <= deepest && s.kinds[s.depth-1] == '{'
	case ' ', '\t', '\r', '\n':
		s.endNumber()
	case ':':
		s.n, s.wantKey = 0, false
	case '-', '+', '.', 'e', 'E', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		if s.n < len(s.buf) {
			s.buf[s.n] = b
			s.n++
		}
	}
}

// member is what is being read at the innermost level.
func (s *scanner) member() key {
	if s.depth < 1 || s.depth > deepest {
		return keyOther
	}
	return s.keys[s.depth-1]
}

// ownCalls are items of calls that the agent makes itself.
func ownCalls() []string {
	return []string{"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call"}
}

// inItem says whether the innermost level is one of what OpenAI's response consists of.
func (s *scanner) inItem() bool {
	at := s.depth - 3 // the level that has the list
	if at == 1 && s.keys[0] != keyResponse || at != 0 && at != 1 {
		return false
	}
	return s.kinds[at] == '{' && s.keys[at] == keyItems && s.kinds[at+1] == '[' && s.kinds[at+2] == '{'
}

// inUsage says whether the innermost level is where the wire has its usage.
func (s *scanner) inUsage() bool { return s.isUsage(s.depth) }

func (s *scanner) isUsage(depth int) bool {
	if depth < 1 || depth > 3 || s.kinds[depth-1] != '{' || s.kinds[0] != '{' {
		return false
	}
	if s.wire == egress.WireOllama {
		return depth == 1
	}
	switch depth {
	case 2:
		return s.keys[0] == keyUsage
	case 3:
		outer := s.keys[0] == keyResponse && s.wire == egress.WireOpenAI || s.keys[0] == keyMessage && s.wire == egress.WireAnthropic
		return outer && s.kinds[1] == '{' && s.keys[1] == keyUsage
	}
	return false
}

// number is which number is being read, if it is one of a usage.
func (s *scanner) number() key {
	k := s.member()
	if s.inUsage() {
		switch k {
		case keyInput, keyOutput, keyTotal, keyCacheRead, keyCacheWrite:
			return k
		}
		return keyOther
	}
	if s.depth < 2 || s.depth > 4 || !s.isUsage(s.depth-1) || s.kinds[s.depth-1] != '{' {
		return keyOther
	}
	switch part := s.keys[s.depth-2]; {
	case part == keyWrites && k == keyCacheHour, part == keyInputParts && k == keyCached:
		return k
	case part == keyInputParts && k == keyAudio:
		return keyAudioInput
	case part == keyOutputParts && k == keyAudio:
		return keyAudioOutput
	case part == keyCalls:
		return keyCalls
	}
	return keyOther
}

func (s *scanner) endNumber() {
	n := s.n
	s.n = 0
	if n == 0 {
		return
	}
	into := s.number()
	if into == keyOther {
		return
	}
	value, err := strconv.ParseFloat(string(s.buf[:n]), 64)
	if err != nil || !(value >= 0) {
		return
	}
	count := int64(min(value, maxTokens))
	if into == keyCalls {
		s.counting.calls = min(s.counting.calls+count, maxTokens)
		s.calls = max(s.calls, s.counting.calls)
		return
	}
	s.numbers[into] = max(s.numbers[into], count)
	s.said = true
	if s.wire == egress.WireOllama && into == keyOutput {
		s.finished = true
	}
}
