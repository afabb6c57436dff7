package llm

import (
	"bytes"
	"container/list"
	"crypto/sha256"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// The memory of answers: of all agents, of one, and of one answer. A tenant has its share. The oldest go first.
const (
	maxRecalled        = 256 << 20
	maxRecalledByAgent = 32 << 20
	maxRecalledAtOnce  = 8 << 20
	// entryCost is what an entry costs beside what is in it.
	entryCost = 640
)

// recall keeps what models answered, in memory and for each agent alone. A client may believe that OpenAI has kept a response,
// because it does so by default, and refer to it in the next request. The gateway has told OpenAI not to: everybody who has
// the key could refer to it. So the gateway itself puts in what the agent refers to, if the agent got it.
type recall struct {
	gate *quota.Gate

	mu      sync.Mutex
	entries map[entryKey]*entry
	orders  map[quota.Holder]*list.List // of the entries of an agent, and of a tenant; the one that was used last at the end
}

// entryKey is what one agent finds an entry by: an id that a provider gave, or the sum of a text.
type entryKey struct {
	by           quota.Holder
	provider, id string
	sum          sum
}

type sum [sha256.Size]byte

// entry is a text, or the parts that an item or a response consists of. A client sends a conversation again and again, and it is
// kept once.
type entry struct {
	key    entryKey
	text   []byte
	parts  []sum
	places [2]*list.Element // in the orders
}

// orders are those that an entry stands in.
func (k entryKey) orders() [2]quota.Holder { return [2]quota.Holder{k.by, {Tenant: k.by.Tenant}} }

func (e *entry) size() int64 {
	return int64(len(e.text)+len(e.key.id)+len(e.parts)*sha256.Size) + entryCost
}

func newRecall(o Options) *recall {
	return &recall{
		gate: quota.NewGate(quota.GateOptions{
			Kind: quota.Answers(), Whole: maxRecalled, Agent: maxRecalledByAgent, Quotas: o.Quotas, Tenants: o.Tenants,
		}),
		entries: map[entryKey]*entry{}, orders: map[quota.Holder]*list.List{},
	}
}

// put keeps an entry, if there is room when older ones of the same agent or tenant have gone.
func (r *recall) put(e entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.entries[e.key]; old != nil {
		if e.text != nil {
			r.use(old)
			return
		}
		r.remove(old)
	}
	if !r.take(e.key.by, e.size()) {
		return
	}
	e.text = bytes.Clone(e.text)
	for i, of := range e.key.orders() {
		if r.orders[of] == nil {
			r.orders[of] = list.New()
		}
		e.places[i] = r.orders[of].PushBack(&e)
	}
	r.entries[e.key] = &e
}

// take makes room: the agent's own oldest entries go when it holds as much as one may, otherwise the oldest of its tenant.
func (r *recall) take(by quota.Holder, n int64) bool {
	for r.gate.Take(by, n) != nil {
		of := quota.Holder{Tenant: by.Tenant}
		if r.gate.Alone(by, n) {
			of = by
		}
		if r.orders[of] == nil {
			return false
		}
		r.remove(r.orders[of].Front().Value.(*entry))
	}
	return true
}

func (r *recall) use(e *entry) {
	for i, of := range e.key.orders() {
		r.orders[of].MoveToBack(e.places[i])
	}
}

func (r *recall) remove(e *entry) {
	for i, of := range e.key.orders() {
		if r.orders[of].Remove(e.places[i]); r.orders[of].Len() == 0 {
			delete(r.orders, of)
		}
	}
	delete(r.entries, e.key)
	r.gate.Give(e.key.by, e.size())
}

// get finds an entry, which is then the one that was used last.
func (r *recall) get(key entryKey) (entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[key]
	if e == nil {
		return entry{}, false
	}
	r.use(e)
	return *e, true
}

// turn is one request to the Responses API and its answer.
type turn struct {
	recall   *recall
	by       quota.Holder
	provider string
	input    []sum // what it says
	keeps    bool  // a later request may follow this one by its id
	held     int64 // what is under way takes of the memory
}

func (r *recall) turn(by quota.Holder, p egress.Provider) *turn {
	return &turn{recall: r, by: by, provider: p.ID}
}

// hold takes memory for what is under way, until close.
func (t *turn) hold(n int) bool {
	t.recall.mu.Lock()
	defer t.recall.mu.Unlock()
	if !t.recall.take(t.by, int64(n)) {
		return false
	}
	t.held += int64(n)
	return true
}

func (t *turn) close() {
	t.recall.mu.Lock()
	defer t.recall.mu.Unlock()
	if t.held > 0 {
		t.recall.gate.Give(t.by, t.held)
		t.held = 0
	}
}

// get is what an item or a response consists of, if that is no more than limit parts. ok is false where a part of it is not there.
func (t *turn) get(id string, limit int) (parts []jsontext.Value, ok bool) {
	e, ok := t.recall.get(entryKey{by: t.by, provider: t.provider, id: id})
	if !ok || id == "" || len(e.parts) > limit {
		return nil, false
	}
	for _, s := range e.parts {
		part, ok := t.recall.get(entryKey{by: t.by, sum: s})
		if !ok {
			return nil, false
		}
		parts = append(parts, part.text)
	}
	return parts, true
}

func (t *turn) put(id string, parts []sum) {
	if id != "" {
		t.recall.put(entry{key: entryKey{by: t.by, provider: t.provider, id: id}, parts: parts})
	}
}

// text keeps a text, and returns what it is found by.
func (t *turn) text(text []byte) sum {
	s := sha256.Sum256(text)
	t.recall.put(entry{key: entryKey{by: t.by, sum: s}, text: text})
	return s
}

// resolve replaces references to earlier answers by the items that the agent got, and leaves out reasoning that has no content
// and that the provider has not kept. Any other reference stays as it is, and the next check of the body refuses it. hold takes
// memory for a changed body before it is made.
func (t *turn) resolve(body []byte, hold func(int64) *problem.Error) ([]byte, *problem.Error) {
	var items []jsontext.Value
	input, _, said := member(body, "input")
	follows := false
	if previous, _, ok := member(body, "previous_response_id"); ok && textOf(previous) != "" {
		if items, follows = t.get(textOf(previous), 2*maxItems); !follows {
			return body, nil
		}
	}
	list := input
	switch {
	case input.Kind() == '"':
		list = slices.Concat(jsontext.Value(`[{"role":"user","content":`), input, jsontext.Value(`}]`))
	case said && input.Kind() != '[':
		return body, nil
	}
	if len(items)+lengthOf(list) > maxItems {
		return nil, tooMuch("%d items", maxItems)
	}
	items = slices.AppendSeq(items, elements(list))
	out, read, size, dropped, changed := make([]jsontext.Value, 0, len(items)), 0, 0, false, follows
	for _, item := range items {
		shape := shapeOf(item)
		item, looked, change := t.item(item, &shape)
		if read += max(looked, len(item)) + 1; read > longestBody {
			return nil, tooMuch("%d MiB", longestBody>>20)
		}
		switch {
		case item == nil:
			dropped, changed = true, true
			continue
		case !shape.made():
			dropped = false
		case dropped && shape.loose():
			// OpenAI knows by the id which reasoning belongs to an item, and asks for it.
			item, change = without(item, "id"), true
		}
		changed = changed || change
		size += len(item) + 1
		out = append(out, item)
	}
	if t.keeps = size <= maxRecalledByAgent/2 && t.hold(len(out)*sha256.Size); t.keeps {
		for _, item := range out {
			t.input = append(t.input, t.text(item))
		}
	}
	if !changed {
		return body, nil
	}
	size += len(body) - len(input) + len(`"input":[],`)
	if p := hold(int64(size)); p != nil {
		return nil, p
	}
	return withItems(make([]byte, 0, size), body, out, follows), nil
}

func tooMuch(format string, limit int) *problem.Error {
	return problem.New(problem.TooLarge, "Begin a new conversation, or send the items that matter",
		"the request and the items that it refers to have more than "+format, limit)
}

// withItems appends a body whose input is the items. One that follows a response does not say so any more.
func withItems(out, body []byte, items []jsontext.Value, follows bool) []byte {
	list := func() {
		out = append(out, '[')
		for i, item := range items {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, item...)
		}
		out = append(out, ']')
	}
	said := false
	out = append(out, '{')
	for key, value := range membersOf(body) {
		if follows && key == "previous_response_id" {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out, _ = jsontext.AppendQuote(out, key) // it was read as one
		out = append(out, ':')
		if key == "input" {
			said = true
			list()
			continue
		}
		out = append(out, value...)
	}
	if !said { // there is a model
		out = append(out, `,"input":`...)
		list()
	}
	return append(out, '}')
}

// item returns what is sent for an item: nil for reasoning without content that is not remembered. looked counts remembered bytes.
func (t *turn) item(item jsontext.Value, shape *shape) (out jsontext.Value, looked int, changed bool) {
	refers := shape.refers()
	if !refers && !shape.bare() {
		return item, 0, false
	}
	found, ok := t.get(shape.id, 1)
	if !ok || len(found) != 1 {
		if refers {
			return item, 0, false
		}
		return nil, 0, true
	}
	kept := shapeOf(found[0])
	if kept.bare() || !refers && kept.kind != shape.kind {
		return nil, len(found[0]), true
	}
	*shape = kept
	return found[0], len(found[0]), true
}

// answered keeps a response: its items, and what it answers.
func (t *turn) answered(response jsontext.Value) {
	id, _, _ := member(response, "id")
	output, _, _ := member(response, "output")
	if output.Kind() != '[' || lengthOf(output) > maxItems {
		return
	}
	parts := slices.Clone(t.input)
	for item := range elements(output) {
		parts = append(parts, t.made(item))
	}
	if t.keeps {
		t.put(textOf(id), parts)
	}
}

// made keeps an item of a response.
func (t *turn) made(item jsontext.Value) sum {
	s := t.text(item)
	t.put(shapeOf(item).id, []sum{s})
	return s
}

// shape is what an item says about itself.
type shape struct {
	kind, id, role string
	other          bool // it has more than a type and an id
	readable       bool // the model can read what is in it
}

func shapeOf(item jsontext.Value) (s shape) {
	if item.Kind() != '{' {
		return s
	}
	for key, value := range membersOf(item) {
		switch key {
		case "type":
			s.kind = textOf(value)
		case "id":
			s.id = textOf(value)
		case "role":
			s.role, s.other = textOf(value), true
		case "encrypted_content", "content":
			s.readable = s.readable || value.Kind() != 'n' && !isEmpty(value)
			s.other = true
		default:
			s.other = true
		}
	}
	return s
}

// refers says whether an item stands for another one.
func (s shape) refers() bool {
	return s.id != "" && !s.other && (s.kind == "item_reference" || s.kind == "")
}

// bare says whether an item is reasoning that only the provider could look up.
func (s shape) bare() bool { return s.kind == "reasoning" && !s.readable }

// made says whether the model made the item.
func (s shape) made() bool {
	return s.role == "assistant" || s.kind == "reasoning" || s.kind == "compaction" || strings.HasSuffix(s.kind, "_call")
}

// loose says whether an item of the model's is whole without its id.
func (s shape) loose() bool {
	return s.role == "assistant" || slices.Contains([]string{"function_call", "custom_tool_call", "shell_call", "apply_patch_call"}, s.kind)
}

// textOf is the text of a value, or nothing.
func textOf(value jsontext.Value) string {
	if value.Kind() != '"' {
		return ""
	}
	text, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		return ""
	}
	return string(text)
}

// elements are those of a list that has been checked. They are parts of it.
func elements(list jsontext.Value) iter.Seq[jsontext.Value] {
	return func(yield func(jsontext.Value) bool) {
		d := jsontext.NewDecoder(bytes.NewBuffer(list))
		if _, err := d.ReadToken(); err != nil {
			return
		}
		for d.PeekKind() != ']' {
			value, err := d.ReadValue()
			if err != nil {
				return
			}
			end := int(d.InputOffset())
			if !yield(list[end-len(value) : end]) {
				return
			}
		}
	}
}

// lengthOf is how many elements a list has. It does not count many more than maxItems.
func lengthOf(list jsontext.Value) (n int) {
	for range elements(list) {
		if n++; n > maxItems {
			break
		}
	}
	return n
}

// membersOf are the members of an object that has been checked. Their values are parts of it.
func membersOf(object jsontext.Value) iter.Seq2[string, jsontext.Value] {
	return func(yield func(string, jsontext.Value) bool) {
		d := jsontext.NewDecoder(bytes.NewBuffer(object))
		if _, err := d.ReadToken(); err != nil {
			return
		}
		for d.PeekKind() == '"' {
			name, err := d.ReadToken()
			if err != nil {
				return
			}
			key := name.String()
			value, err := d.ReadValue()
			if err != nil {
				return
			}
			end := int(d.InputOffset())
			if !yield(key, object[end-len(value):end]) {
				return
			}
		}
	}
}

// without is an object without one of its members.
func without(object jsontext.Value, drop string) jsontext.Value {
	out := append(make([]byte, 0, len(object)), '{')
	for key, value := range membersOf(object) {
		if key == drop {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out, _ = jsontext.AppendQuote(out, key) // it was read as one
		out = append(append(out, ':'), value...)
	}
	return append(out, '}')
}

// itemReader keeps the items of a response as it passes. Each is kept before the agent can see that it is complete, and so
// before it can refer to it.
type itemReader struct {
	turn   *turn
	events bool
	buf    []byte // the event that is under way, or the whole answer
	big    bool   // it is too long to be kept
	room   int    // what buf may grow to
	line   int    // the length of the last line of an event
	last   []byte // the last byte of an answer that is no stream: it waits until the answer is kept
}

// pass returns what may go on.
func (i *itemReader) pass(p []byte) []byte {
	if !i.events {
		i.keep(p)
		out := append(i.last, p[:len(p)-1]...)
		i.last = []byte{p[len(p)-1]}
		return out
	}
	for rest := p; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		part := rest[:max(end, 0)]
		if end < 0 {
			part = rest
		}
		i.keep(part)
		i.line += len(bytes.TrimSuffix(part, []byte("\r")))
		if end < 0 {
			break
		}
		i.keep(rest[end : end+1])
		if i.line == 0 {
			i.event()
		}
		i.line, rest = 0, rest[end+1:]
	}
	return p
}

func (i *itemReader) keep(p []byte) {
	if need := len(i.buf) + len(p); !i.big && need > i.room {
		more := max(need, min(2*i.room, maxRecalledAtOnce)) - i.room
		if i.big = need > maxRecalledAtOnce || !i.turn.hold(more); !i.big {
			i.room += more
		}
	}
	if i.big {
		i.buf = i.buf[:0]
		return
	}
	i.buf = append(i.buf, p...)
}

// event looks at an event whose end has come.
func (i *itemReader) event() {
	data := eventData(i.buf)
	i.buf, i.big = i.buf[:0], false
	if !bytes.Contains(data, []byte(`"response.`)) || !isObject(data) {
		return
	}
	kind, _, _ := member(data, "type")
	switch textOf(kind) {
	case "response.output_item.done":
		if item, _, ok := member(data, "item"); ok {
			i.turn.made(item)
		}
	case "response.completed", "response.incomplete":
		if response, _, ok := member(data, "response"); ok && response.Kind() == '{' {
			i.turn.answered(response)
		}
	}
}

// rest is what is left at the end of the answer.
func (i *itemReader) rest() []byte {
	if answer := jsontext.Value(i.buf); !i.events && isObject(answer) {
		i.turn.answered(answer)
	}
	return i.last
}
