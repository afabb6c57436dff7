// Package llm is the gateway's model endpoints: the paths that the SDKs of OpenAI, Anthropic and Ollama ask, so that
// an agent uses models with a base URL and without a key.
//
// A request names a model; the first provider of the agent that has it serves it. The provider's key comes from the
// vault, goes into the request after everything else has been decided, and is taken out of the answer. The body goes
// on as the agent wrote it, byte for byte, but for what added.go and recall.go say: a chat stream of OpenAI's wire is made to
// say its usage, and the event that this adds is kept from the agent; a response of that wire is not kept by the provider, and
// what the next request refers to is put in by the gateway. Answers pass as they come, event by event.
//
// Anything that a provider would do by itself (search the web, fetch an address, call a server, run code, answer from what it
// keeps) is refused unless its entry allows that by name: no rule of the agent's decides about it.
//
// # Counting
//
// Before a request the most that it may use is debited: a token for every byte of the body and 1024 for what a provider
// adds, and as many as the request allows for the answer (131072 when it does not say, times the number of choices).
// Where the provider may read what is not in the body, a whole context of 1048576 is debited too. Afterwards the
// difference to what the answer says is: its usage, where tokens that were read from or written to a cache count as input.
// An answer that says nothing counts as all of its input, and as a token for every four bytes of text or for every event,
// whichever is more. When either side leaves before the end, the upstream may bill more than was seen: the greater of the
// reservation and the count stays. A request that never left, and one that was answered with an error, costs nothing.
//
// Refusals have the shape of the wire's own errors, with the hint in the message and x-should-retry, so that SDKs show
// them and do not repeat what cannot work. The header Clawjail-Refusal tells them from errors of a provider.
package llm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// Bounds. Local models with long prompts, and those that think, take minutes to their first byte: for how long nothing need move
// is what the gateway says of everything.
const (
	longestBody   = 32 << 20
	longestAnswer = 64 << 20
	longestModel  = 200

	bodyTimeout   = 2 * time.Minute // for the agent's body to arrive
	lifetime      = 2 * time.Hour
	settleTimeout = 10 * time.Second
)

// Book debits budgets. *egress.Book is one.
type Book interface {
	Charge(ctx context.Context, w egress.Who, provider, model string, requests int64, t egress.Tokens) error
	// Day is that on which a charge counts; it is given with the correction, which may come after midnight.
	Day() string
}

// Options of a Handler. All but Used are required.
type Options struct {
	access.Options
	Book Book
}

// Validate reports everything that is missing.
func (o Options) Validate() error {
	err := o.Options.Validate()
	if o.Book == nil {
		err = errors.Join(err, errors.New("book: is missing"))
	}
	return err
}

// view is the part of *egress.EffectivePolicy that is asked here.
type view interface {
	Provider(wire egress.Wire, model string) (egress.Provider, *policy.Compiled, bool)
	Providers() []egress.Provider
}

// Handler answers the model endpoints. It may be called from several goroutines, and has none of its own.
type Handler struct {
	Options
	views    func(gateway.Caller) view
	held     *quota.Gate
	recall   *recall
	unwanted unwanted
	known    fields
	lists    *lists
}

// New makes a handler.
func New(o Options) (*Handler, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("configure models: %w", err)
	}
	views := func(c gateway.Caller) view {
		if v := o.Views(c); v != nil {
			return v
		}
		return nil
	}
	return &Handler{Options: o, views: views, held: newHeld(o), recall: newRecall(o), known: readFields(), lists: newLists()}, nil
}

// endpoint is one path that SDKs ask.
type endpoint struct {
	wire egress.Wire
	path string // below the provider's base URL, as SDKs write it
	// fields is the object of fields.txt that a request is.
	fields string
	method string
	// answers says whether the model answers with text; embeddings do not. free requests are not billed.
	answers, free bool
	// streams is what a request gets that does not say whether it wants a stream.
	streams bool
	// bounds are the members that bound the answer. Those of other endpoints are not read here, by providers neither.
	bounds []string
}

// endpoints are those that go to a provider; lists of models are answered here.
func endpoints() []endpoint {
	return []endpoint{
		{wire: egress.WireOpenAI, path: pathChat, fields: "chat", method: http.MethodPost, answers: true, bounds: []string{"max_tokens", "max_completion_tokens"}},
		{wire: egress.WireOpenAI, path: pathResponses, fields: "responses", method: http.MethodPost, answers: true, bounds: []string{"max_output_tokens"}},
		{wire: egress.WireOpenAI, path: "/v1/embeddings", fields: "embeddings", method: http.MethodPost},
		{wire: egress.WireAnthropic, path: "/v1/messages", fields: "messages", method: http.MethodPost, answers: true, bounds: []string{"max_tokens"}},
		{wire: egress.WireAnthropic, path: "/v1/messages/count_tokens", fields: "messages", method: http.MethodPost, free: true},
		{wire: egress.WireOllama, path: "/api/chat", fields: "ollama_chat", method: http.MethodPost, answers: true, streams: true},
		{wire: egress.WireOllama, path: "/api/generate", fields: "ollama_generate", method: http.MethodPost, answers: true, streams: true},
	}
}

// The paths that are treated in a way of their own.
const (
	pathChat      = "/v1/chat/completions"
	pathResponses = "/v1/responses"
	pathModels    = "/v1/models"
	pathTags      = "/api/tags"
)

// Routes are the paths that a Handler answers, for a mux. One that ends in a slash stands for everything below it.
func Routes() []string {
	var out []string
	for _, e := range endpoints() {
		out = append(out, e.path)
	}
	return append(out, pathModels, pathModels+"/", pathTags)
}

// route finds the endpoint of a request. The wire is right also for paths that are not known, for the shape of errors.
func route(r *http.Request) (e endpoint, list, ok bool) {
	path := r.URL.Path
	for _, e := range endpoints() {
		if path == e.path {
			return e, false, true
		}
	}
	models := endpoint{path: pathModels, method: http.MethodGet, wire: egress.WireOpenAI, free: true}
	if r.Header.Get("Anthropic-Version") != "" {
		models.wire = egress.WireAnthropic
	}
	switch {
	case path == pathTags:
		return endpoint{path: pathTags, method: http.MethodGet, wire: egress.WireOllama, free: true}, true, true
	case path == pathModels, len(path) > len(pathModels)+1 && path[:len(pathModels)+1] == pathModels+"/":
		return models, true, true
	}
	return models, false, false
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := access.Patient(w, r, h.Now)
	defer done()
	e, list, ok := route(r)
	caller, p := access.Admit(r)
	if p == nil {
		p = misdirected(r, e, ok)
	}
	if p != nil {
		if p.Code == problem.Unsupported {
			w.Header().Set("Allow", e.method)
		}
		h.refuse(w, r, e.wire, p)
		return
	}
	if p := h.Gateway.Take(caller, gateway.SurfaceLLM); p != nil {
		h.refuse(w, r, e.wire, p)
		return
	}
	v := h.views(caller)
	if v == nil {
		h.refuse(w, r, e.wire, problem.New(problem.Forbidden, "an operator decides what this agent may use", "this agent may use no models"))
		return
	}
	if list {
		h.serveList(w, r, e, caller, v)
		return
	}
	h.serveModel(w, r, e, caller, v)
}

// misdirected says what is wrong with the method or the path of a request.
func misdirected(r *http.Request, e endpoint, known bool) *problem.Error {
	switch {
	case !known:
		return problem.New(problem.NotFound, "the endpoints are those of OpenAI, Anthropic and Ollama for chats, embeddings and lists of models",
			"the gateway has no model endpoint of that path")
	case r.Method != e.method:
		return problem.New(problem.Unsupported, "use "+e.method, "%s takes %s requests only", e.path, e.method)
	}
	return nil
}
