package llm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/problem"
)

// exchange is one request to a model, from its reservation to what it used.
type exchange struct {
	endpoint endpoint
	ask      ask
	caller   gateway.Caller
	provider egress.Provider
	reserved egress.Tokens
	started  time.Time
	status   int
	counter  *counter
	turn     *turn // of a response that the provider does not keep
}

// serveModel answers a request that goes to a provider.
func (h *Handler) serveModel(w http.ResponseWriter, r *http.Request, e endpoint, c gateway.Caller, v view) {
	body, taken, p := h.readBody(r, holderOf(c))
	returned := false
	giveBack := func() {
		if !returned {
			returned = true
			h.held.Give(holderOf(c), taken)
		}
	}
	defer giveBack()
	hold := func(n int64) *problem.Error {
		if h.held.Take(holderOf(c), n) != nil {
			return fullHeld()
		}
		taken += n
		return nil
	}
	if p != nil {
		h.refuse(w, r, e.wire, p)
		return
	}
	a, p := readAsk(body, e)
	if p != nil {
		h.refuse(w, r, e.wire, p)
		return
	}
	provider, _, ok := v.Provider(e.wire, a.model)
	if !ok {
		h.refuse(w, r, e.wire, unknownModel(e, a.model, v))
		return
	}
	var turn *turn
	if e.path == pathResponses && !slices.Contains(provider.Hosted, hostedStored) {
		turn = h.recall.turn(holderOf(c), provider)
		defer turn.close()
		before := taken
		if a.body, p = turn.resolve(a.body, hold); p != nil {
			h.refuse(w, r, e.wire, p)
			return
		}
		if taken > before { // for another body, in place of this one
			h.held.Give(holderOf(c), before)
			taken -= before
		}
	}
	if a.wants, p = checkHosted(h.known, a, e, provider.Hosted); p != nil {
		h.note(p, c, provider, nil)
		h.refuse(w, r, e.wire, p)
		return
	}
	if turn != nil {
		a.keepNothing()
	}
	unwanted := unwantedKey{c.Tenant, c.Agent, provider.ID, provider.Version, e.path, a.model}
	if h.unwanted.has(unwanted) {
		a.takeBack()
	}
	key, p := h.key(r.Context(), c, provider)
	if p != nil {
		h.note(p, c, provider, nil)
		h.refuse(w, r, e.wire, p)
		return
	}
	defer func() { key.values.Wipe() }() // they are those of the last attempt
	x := &exchange{endpoint: e, ask: a, caller: c, provider: provider, started: h.Now(), reserved: reservation(e, a, provider)}
	if p := h.reserve(r.Context(), x); p != nil {
		h.refuse(w, r, e.wire, p)
		return
	}
	// From here on every way out settles what was reserved, also one through a panic of a writer.
	settled := false
	done := func(used egress.Tokens, estimated bool) {
		if !settled {
			settled = true
			h.settle(x, used, estimated)
		}
	}
	defer func() { done(x.reserved, true) }()

	errand := call{
		provider: provider, model: a.model, caller: c, key: key, method: e.method, path: e.path, query: passedQuery(r.URL.Query()),
		header: requestHeaders(r.Header), body: a.body,
	}
	resp, sent, p := h.send(r.Context(), errand)
	if p == nil && a.added.refused(resp) {
		// The server does not take what the gateway has added, and gets the request without it.
		_ = resp.Body.Close()
		a.takeBack()
		errand.body, errand.header = a.body, requestHeaders(r.Header)
		if resp, sent, p = h.send(r.Context(), errand); p == nil && resp.StatusCode < 300 {
			h.unwanted.note(unwanted)
		}
	}
	a.body, errand.body = nil, nil
	x.ask, x.turn = a, turn
	giveBack()
	if p != nil {
		h.note(p, c, provider, key)
		if !sent {
			done(egress.Tokens{}, false)
		}
		h.refuse(w, r, e.wire, p)
		return
	}
	x.status = resp.StatusCode
	err := h.pass(w, r, resp, x, key)
	switch {
	case resp.StatusCode >= 300:
		done(egress.Tokens{}, false)
	case x.counter == nil:
		// Nothing of the answer was looked at: the reservation stays.
		done(x.reserved, true)
	default:
		done(settle(e, x.counter, provider, a, x.reserved, x.counter.complete(err)))
	}
	if err != nil {
		// The part that has been sent cannot be taken back, but it must not look whole.
		panic(http.ErrAbortHandler)
	}
}

func unknownModel(e endpoint, model string, v view) *problem.Error {
	for _, other := range endpoints() {
		if other.wire == e.wire || !other.answers {
			continue
		}
		if _, _, ok := v.Provider(other.wire, model); ok {
			return problem.New(problem.ModelUnknown, "use POST "+other.path+" for it", "the model %q is served at another endpoint", model)
		}
	}
	list := pathModels
	if e.wire == egress.WireOllama {
		list = pathTags
	}
	return problem.New(problem.ModelUnknown,
		"do not retry: GET "+list+" lists the models of this agent, and an operator adds others with clawjail provider add",
		"no provider of this agent has the model %q", model)
}

// reserve debits the most that a request may use.
func (h *Handler) reserve(ctx context.Context, x *exchange) *problem.Error {
	if x.endpoint.free {
		x.reserved = egress.Tokens{}
		return nil
	}
	day := h.Book.Day()
	err := h.Book.Charge(ctx, access.Who(x.caller), x.provider.Name, x.ask.model, 1, x.reserved)
	if err == nil {
		x.reserved.Day = day
		return nil
	}
	if p, ok := problem.As(err); ok {
		return p
	}
	return problem.Wrap(err, problem.DatabaseUnavailable, "try again later", "the budget of this agent cannot be looked up at the moment")
}

// settle debits the difference between the reservation and what was used, and writes the line of the log.
func (h *Handler) settle(x *exchange, used egress.Tokens, estimated bool) {
	if !x.endpoint.free {
		// The agent may be gone; what it used is debited all the same.
		ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
		defer cancel()
		if rest := difference(used, x.reserved); rest.Input != 0 || rest.Output != 0 || rest.MicroCost != 0 {
			if err := h.Book.Charge(ctx, access.Who(x.caller), x.provider.Name, x.ask.model, 0, rest); err != nil {
				h.Log.Error("use of a model could not be debited", "agent", x.caller.Agent, "provider", x.provider.Name, "error", err)
			}
		}
	}
	h.Log.LogAttrs(context.Background(), slog.LevelInfo, "model", slog.String("jail", x.caller.Jail), slog.String("tenant", x.caller.Tenant),
		slog.String("agent", x.caller.Agent), slog.String("provider", x.provider.Name), slog.String("model", x.ask.model),
		slog.String("endpoint", x.endpoint.path), slog.Int("status", x.status), slog.Int64("input_tokens", used.Input),
		slog.Int64("output_tokens", used.Output), slog.Int64("micro_cost", used.MicroCost), slog.Bool("estimated", estimated),
		slog.Duration("took", h.Now().Sub(x.started)))
}

// note writes the private half of a refusal for the operator, without the key, wherever the text comes from.
func (h *Handler) note(p *problem.Error, c gateway.Caller, provider egress.Provider, key *keyUse) {
	text := p.Error()
	if key != nil {
		text = key.values.Text(text)
	}
	h.Log.Warn("request to a model was not answered",
		"jail", c.Jail, "agent", c.Agent, "provider", provider.Name, "code", p.Code, "error", text)
}

// pass passes an answer on. An error means that one of the sides left before its end.
func (h *Handler) pass(w http.ResponseWriter, r *http.Request, resp *http.Response, x *exchange, key *keyUse) error {
	defer func() {
		// Closing ends the record; nothing more is read.
		_ = resp.Body.Close()
	}()
	if p := h.unusable(resp, x.provider); p != nil {
		h.note(p, x.caller, x.provider, key)
		h.refuse(w, r, x.endpoint.wire, p)
		return nil
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	events := kind == "text/event-stream"
	streams := events || kind == "application/x-ndjson" || x.ask.stream
	x.counter = newCounter(x.endpoint.wire, events)
	var between filter
	switch {
	case events && x.ask.hidden:
		between = &usageFilter{}
	case x.turn != nil && resp.StatusCode < 300:
		between = &itemReader{turn: x.turn, events: events}
	}
	head := w.Header()
	for name, values := range answerHeaders(resp.Header) {
		head[name] = values
	}
	if _, hides := between.(*usageFilter); !hides && resp.ContentLength >= 0 && !events {
		head.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	access.Sandbox(head)
	// Every write and every flush has a time of its own; see access.Patient.
	client := http.NewResponseController(w)
	w.WriteHeader(resp.StatusCode)
	if streams {
		if err := client.Flush(); err != nil {
			return fmt.Errorf("%w: %w", errClient, err)
		}
	}
	err := copyAnswer(w, &bounded{Reader: resp.Body, left: longestAnswer}, x.counter, between, func() error {
		if !streams {
			return nil
		}
		return client.Flush()
	})
	if err != nil {
		h.Log.Warn("answer of a model was cut", "agent", x.caller.Agent, "provider", x.provider.Name, "error", key.values.Text(err.Error()))
	}
	return err
}

// unusable says why an answer is not for the agent: one about the operator's key, or one that leads elsewhere.
func (h *Handler) unusable(resp *http.Response, p egress.Provider) *problem.Error {
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		// The provider's own words may have parts of the key in them, masked in a way that no filter knows.
		return problem.New(problem.CredentialMissing, "do not retry: an operator has to store a key that the provider takes",
			"the provider %s did not take the key that the gateway has for it", p.Name)
	case resp.StatusCode >= 300 && resp.StatusCode < 400, resp.StatusCode < 200:
		return problem.New(problem.UpstreamFailed, "an operator has to correct the base URL of the provider",
			"the provider %s answered with the status %d instead of an answer", p.Name, resp.StatusCode).With(detailRetry, false)
	case resp.ContentLength > longestAnswer:
		return problem.New(problem.UpstreamFailed, "ask for less at once", "the answer of the provider %s has more than %d MiB", p.Name, longestAnswer>>20)
	}
	return nil
}

// errClient is a client that does not take the answer any more.
var errClient = errors.New("the client left")

// copyAnswer passes an answer on as it comes: every read is written, counted and flushed at once.
func copyAnswer(w io.Writer, from io.Reader, c *counter, between filter, flush func() error) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			piece := buf[:n]
			// A counter takes everything.
			_, _ = c.Write(piece)
			if between != nil {
				piece = between.pass(piece)
			}
			if werr := writeOut(w, piece, flush); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			if between != nil {
				return writeOut(w, between.rest(), flush)
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func writeOut(w io.Writer, piece []byte, flush func() error) error {
	if len(piece) == 0 {
		return nil
	}
	if _, err := w.Write(piece); err != nil {
		return fmt.Errorf("%w: %w", errClient, err)
	}
	if err := flush(); err != nil {
		return fmt.Errorf("%w: %w", errClient, err)
	}
	return nil
}
