package llm

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// ask is what the gateway reads in a request. Everything else is between the agent and the model.
type ask struct {
	model  string
	stream bool
	output int64 // how long an answer may be, in tokens; 0 when the request does not say
	// choices is how many answers are asked for.
	choices int64
	// hidden says that the usage in the stream was asked for by the gateway, and is kept from the agent.
	hidden bool
	added  *added // what the gateway has put into body
	wants  wants
	body   []byte
}

// The keys that are read. A key that only differs in case is refused: some servers read it as the same, and the last one
// would win there.
const (
	keyModel         = "model"
	keyStream        = "stream"
	keyStreamOptions = "stream_options"
	keyIncludeUsage  = "include_usage"
	keyChoices       = "n"
	keyBackground    = "background"
	keyOptions       = "options"
	keyPredict       = "num_predict"
)

// lengthKeys say how long an answer may be, at one endpoint or another.
func lengthKeys() []string {
	return []string{"max_tokens", "max_completion_tokens", "max_output_tokens"}
}

// otherModelKeys name further models in dialects of some providers; what is asked for must be one that was checked.
func otherModelKeys() []string { return []string{"models", "fallbacks", "fallback_models"} }

func readKeys() []string {
	keys := []string{keyModel, keyStream, keyStreamOptions, keyChoices, keyBackground, keyOptions}
	return append(append(keys, lengthKeys()...), otherModelKeys()...)
}

// maxNames bounds what an object becomes when it is read, and maxItems what a list does: of a few bytes each takes many.
const (
	maxNames = 10_000
	maxItems = 10_000
)

// isObject says whether a text of a provider is an object that can be read.
func isObject(text jsontext.Value) bool {
	return strict.Names(text) <= maxNames && text.IsValid() && text.Kind() == '{'
}

// maxTokens bounds numbers of tokens wherever they come from.
const maxTokens = 100_000_000_000

func badBody(format string, args ...any) *problem.Error {
	return problem.New(problem.BadJSON, "send one JSON object, as the SDKs do", "the body of the request: "+format, args...)
}

// readAsk reads a body. It is strict about what the gateway and the provider could understand in two ways.
func readAsk(body []byte, e endpoint) (ask, *problem.Error) {
	a := ask{stream: e.streams, choices: 1, body: body}
	// A decoder reads a bytes.Buffer in place, and does not write to it.
	d := jsontext.NewDecoder(bytes.NewBuffer(body))
	if d.PeekKind() != '{' {
		return a, badBody("it is not a JSON object")
	}
	if strict.Names(body) > maxNames {
		return a, problem.New(problem.TooLarge, "Send large data as a text", "an object in the body of the request has more than %d members", maxNames)
	}
	if _, err := d.ReadToken(); err != nil {
		return a, badSyntax(err)
	}
	inside := int(d.InputOffset())
	var options jsontext.Value // stream_options
	var optionsEnd int
	found := false
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return a, badSyntax(err)
		}
		key := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return a, badSyntax(err)
		}
		if p := checkKey(key); p != nil {
			return a, p
		}
		if key == keyModel {
			found = true
		}
		if key == keyStreamOptions {
			optionsEnd = int(d.InputOffset())
			options = body[optionsEnd-len(value) : optionsEnd]
		}
		if p := a.take(key, value, e); p != nil {
			return a, p
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return a, badSyntax(err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return a, badBody("something follows the object")
	}
	if !found {
		return a, badBody("%q is missing", keyModel)
	}
	if e.path == pathChat && a.stream {
		return a, a.askUsage(inside, options, optionsEnd)
	}
	return a, nil
}

func badSyntax(err error) *problem.Error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return badBody("a key is there twice")
	}
	// The decoder's own error may quote the input, so it is dropped.
	return badBody("it is not valid JSON in UTF-8")
}

// checkKey refuses second spellings of the keys that are read.
func checkKey(key string) *problem.Error {
	if len(key) > 64 {
		return nil
	}
	for _, known := range readKeys() {
		if key != known && strings.EqualFold(key, known) {
			return badBody("a key is another spelling of %q", known)
		}
	}
	for _, other := range otherModelKeys() {
		if key == other {
			return problem.New(problem.BadRequest, "name one model, in \"model\"", "the body of the request: %q names further models", other)
		}
	}
	return nil
}

// checkMerged refuses the keys that are read, in every spelling, in an object that servers merge into the request, such as extra_body.
func checkMerged(key string) *problem.Error {
	for _, known := range readKeys() {
		if strings.EqualFold(key, known) {
			return problem.New(problem.BadRequest, "write it beside \"model\"", "the body of the request: %q is in an object within it, which some servers merge", known)
		}
	}
	return nil
}

// take notes one member of the object.
func (a *ask) take(key string, value jsontext.Value, e endpoint) *problem.Error {
	switch key {
	case keyModel:
		if value.Kind() != '"' {
			return badBody("%q is not a text", key)
		}
		text, err := jsontext.AppendUnquote(nil, value)
		if err != nil {
			return badSyntax(err)
		}
		a.model = string(text)
		return checkModel(a.model)
	case keyStream, keyBackground:
		on, p := boolOf(key, value, key == keyStream && e.streams)
		if p != nil {
			return p
		}
		if key == keyStream {
			a.stream = on
		} else if on {
			return problem.New(problem.BadRequest, "ask for the answer itself, as a stream if it takes long",
				"background responses are not supported: their use could not be counted")
		}
	case keyChoices:
		n, p := numberOf(key, value)
		if p != nil {
			return p
		}
		a.choices = max(n, 1)
	case keyOptions:
		if e.wire == egress.WireOllama && value.Kind() == '{' {
			return a.takeOptions(value)
		}
	default:
		for _, known := range e.bounds {
			if key != known {
				continue
			}
			n, p := numberOf(key, value)
			if p != nil {
				return p
			}
			a.output = max(a.output, n)
		}
	}
	return nil
}

// takeOptions reads Ollama's options, which have the length of the answer. A negative one means no limit there, and
// nothing here.
func (a *ask) takeOptions(options jsontext.Value) *problem.Error {
	value, _, ok := member(options, keyPredict)
	if !ok {
		return nil
	}
	n, p := numberOf(keyPredict, value)
	if p != nil {
		return p
	}
	a.output = max(a.output, n)
	return nil
}

// member finds a member of an object that has been checked, and where its value ends. The value is a part of the object.
func member(object jsontext.Value, key string) (value jsontext.Value, end int, ok bool) {
	d := jsontext.NewDecoder(bytes.NewBuffer(object))
	if _, err := d.ReadToken(); err != nil {
		return nil, 0, false
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, 0, false
		}
		same := name.String() == key
		value, err := d.ReadValue()
		if err != nil {
			return nil, 0, false
		}
		if same {
			end := int(d.InputOffset())
			return object[end-len(value) : end], end, true
		}
	}
	return nil, 0, false
}

// boolOf reads a boolean; null means that the member is not there.
func boolOf(key string, value jsontext.Value, otherwise bool) (bool, *problem.Error) {
	switch value.Kind() {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	case 'n':
		return otherwise, nil
	}
	return false, badBody("%q is not a boolean", key)
}

// numberOf reads a number of tokens. A negative one is 0.
func numberOf(key string, value jsontext.Value) (int64, *problem.Error) {
	switch value.Kind() {
	case 'n':
		return 0, nil
	case '0':
		f, err := strconv.ParseFloat(string(value), 64)
		if err != nil && !math.IsInf(f, 0) {
			return 0, badBody("%q is not a number", key)
		}
		return int64(min(max(f, 0), maxTokens)), nil
	}
	return 0, badBody("%q is not a number", key)
}

// checkModel bounds the name of a model, which goes into decisions, records and logs.
func checkModel(model string) *problem.Error {
	switch {
	case model == "":
		return badBody("%q is empty", keyModel)
	case len(model) > longestModel:
		return badBody("%q is longer than %d bytes", keyModel, longestModel)
	case !utf8.ValidString(model):
		return badBody("%q is not UTF-8", keyModel)
	case strings.ContainsFunc(model, func(r rune) bool { return unicode.IsControl(r) || !unicode.IsGraphic(r) }):
		return badBody("%q has a character that cannot be seen", keyModel)
	}
	return nil
}

// The memory of bodies that wait for their provider: of all agents, and of one. A tenant has its share.
const (
	maxHeld        = 256 << 20
	maxHeldByAgent = 80 << 20
)

func newHeld(o Options) *quota.Gate {
	return quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: maxHeld, Agent: maxHeldByAgent, Quotas: o.Quotas, Tenants: o.Tenants})
}

func holderOf(c gateway.Caller) quota.Holder { return quota.Holder{Tenant: c.Tenant, Agent: c.Agent} }

func fullHeld() *problem.Error {
	return problem.New(problem.RateLimited, "wait for the requests that are under way", "too many large requests are under way").
		With(problem.RetryAfter, 5)
}

// readBody reads the whole body: the name of the model may be its last word. It returns how much of the memory for bodies
// it holds, which the caller gives back, also with an error.
func (h *Handler) readBody(r *http.Request, by quota.Holder) (body []byte, taken int64, p *problem.Error) {
	tooLarge := problem.New(problem.TooLarge, "send less at once", "the body of the request has more than %d MiB", longestBody>>20)
	if r.ContentLength > longestBody {
		return nil, 0, tooLarge
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return nil, 0, problem.New(problem.BadRequest, "send it as it is", "the body of the request is compressed")
	}
	until := h.Now().Add(bodyTimeout)
	// Memory is taken as bytes arrive, not as they are announced. One more byte than there should be shows the end.
	size := int64(16 << 10)
	if r.ContentLength >= 0 {
		size = min(size, r.ContentLength+1)
	}
	grow := func(n int64) bool {
		if h.held.Take(by, n) != nil {
			return false
		}
		taken += n
		return true
	}
	if !grow(size) {
		return nil, taken, fullHeld()
	}
	buf := make([]byte, 0, size)
	for {
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case len(buf) > longestBody:
			return nil, taken, tooLarge
		case h.Now().After(until):
			// One silence is bounded by the reader; this bounds many short ones.
			return nil, taken, problem.New(problem.BadRequest, "send it faster", "the body of the request did not arrive within %s", bodyTimeout)
		case errors.Is(err, io.EOF):
			return buf, taken, nil
		case err != nil:
			return nil, taken, problem.Wrap(err, problem.BadRequest, "send all of it", "the body of the request did not arrive")
		}
		if len(buf) == cap(buf) {
			more := min(int64(cap(buf)), longestBody+1-int64(cap(buf)))
			if !grow(more) {
				return nil, taken, fullHeld()
			}
			next := make([]byte, len(buf), int64(cap(buf))+more)
			copy(next, buf)
			buf = next
		}
	}
}
