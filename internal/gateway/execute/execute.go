// Package execute makes one HTTP request for an agent, with a credential that the agent never sees: POST /v1/execute.
//
// An agent may ask for what its tools allow: without a tool that allows the method, the host and the path, with the
// credential of that service, nothing is looked up, resolved or dialled. Redirects are followed hop by hop, each under
// the same rules, and the credential stays with the origin that it is for.
//
// Any answer of the upstream becomes an answer of the gateway with the status 200, and the upstream's status in it. Every
// other status is the gateway's own refusal, a problem with the header Clawjail-Refusal.
//
// The names statusCode, authType and authParamName are those of programs written for HermitClaw.
package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// Limits of one request.
const (
	// longestTime is how long it may take, from the end of the agent's request to the end of the answer.
	longestTime = 30 * time.Second
	// largestRequest and largestAnswer bound bodies in bytes; the answer's after it was decompressed.
	largestRequest = 10 << 20
	largestAnswer  = 10 << 20
	// largestStream bounds an answer that is passed on as it comes, and not held.
	largestStream = 100 << 20
	// maxRedirects is how many are followed.
	maxRedirects = 5
	// atOnce is how many requests of one agent may be under way.
	atOnce = 16
)

// Options of a Handler. All are required, except Used.
type Options = access.Options

// Handler answers POST /v1/execute.
type Handler struct {
	Options
	views  func(gateway.Caller) access.View
	limit  time.Duration // longestTime, but in tests
	stream int           // largestStream, but in tests

	room *quota.Gate

	mu    sync.Mutex // guards what follows
	under map[string]int
}

// New makes a Handler.
func New(o Options) (*Handler, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("configure execute: %w", err)
	}
	return &Handler{
		Options: o, limit: longestTime, stream: largestStream, under: make(map[string]int),
		room:  quota.NewGate(quota.GateOptions{Kind: quota.Bodies(), Whole: maxHeld, Agent: maxHeldByAgent, Quotas: o.Quotas, Tenants: o.Tenants}),
		views: func(c gateway.Caller) access.View { return o.Views(c) },
	}, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := access.Patient(w, r, h.Now)
	defer done()
	if refusal := h.serve(w, r); refusal != nil {
		gateway.Refuse(w, r, refusal)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) *problem.Error {
	caller, refusal := access.Admit(r)
	if refusal != nil {
		return refusal
	}
	if r.Method != http.MethodPost {
		return problem.New(problem.BadRequest, "Send POST with a JSON object.", "execute takes POST only")
	}
	if refusal := h.Gateway.Take(caller, gateway.SurfaceExecute); refusal != nil {
		return refusal
	}
	if !h.begin(caller.Agent) {
		return problem.New(problem.RateLimited, "Wait until one of them has ended.",
			"%d requests of this agent are under way", atOnce).With(problem.RetryAfter, 1)
	}
	defer h.end(caller.Agent)
	held := &share{room: h.room, of: quota.Holder{Tenant: caller.Tenant, Agent: caller.Agent}}
	defer held.end()
	until := h.Now().Add(bodyTimeout)
	late := func() bool { return h.Now().After(until) }
	asked, refusal := read(r, held, late)
	if refusal != nil {
		return refusal
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(h.limit, asked.timeout))
	defer cancel()
	e, refusal := h.prepare(ctx, caller, asked)
	if refusal != nil {
		return refusal
	}
	resp, refusal := e.follow()
	if refusal != nil {
		return e.inTime(refusal)
	}
	defer resp.Body.Close()
	if asked.Stream {
		stream(w, resp, e.method, h.stream)
		return nil
	}
	body, refusal := whole(resp, held)
	if refusal != nil {
		return e.inTime(refusal)
	}
	until = h.Now().Add(access.Patience)
	return answer(w, e, resp, body, held, late)
}

func (h *Handler) begin(agent string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.under[agent] >= atOnce {
		return false
	}
	h.under[agent]++
	return true
}

func (h *Handler) end(agent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.under[agent]--; h.under[agent] == 0 {
		delete(h.under, agent)
	}
}

// prepare makes the first hop of what was asked for. Nothing leaves yet.
func (h *Handler) prepare(ctx context.Context, caller gateway.Caller, asked *wanted) (*outbound, *problem.Error) {
	view := h.views(caller)
	service, _, known := view.Service(asked.Service)
	how, refusal := asked.injection(service, known)
	if refusal != nil {
		return nil, refusal
	}
	home, refusal := origin(service, how)
	if refusal != nil {
		return nil, refusal
	}
	e := &outbound{
		ctx: ctx, gateway: h.Gateway, caller: caller, service: asked.Service,
		permit: func() *policy.Compiled { return h.views(caller).Tool(asked.Service) }, named: view.ToolNaming(asked.Service), origin: home,
		how: how, credential: access.NewCredential(h.Options, caller, cmp.Or(service.Secret, asked.Service), how), inject: how.Type != egress.InjectNone,
		method: asked.method, url: asked.url, header: asked.header, body: asked.body, followed: asked.Follow == nil || *asked.Follow,
	}
	e.scrub.Scrub, e.scrub.Compressed, e.scrub.MaxDecoded = egress.ScrubRedact, service.Compressed, largestAnswer+1
	if service.Scrub == egress.ScrubBlock {
		e.scrub.Scrub = egress.ScrubBlock
	}
	if asked.Stream {
		e.scrub.MaxDecoded = largestStream + 1
	}
	return e, e.clear()
}

// origin is where the credential of a service may go; nil when there is none to go.
func origin(s egress.Service, how egress.Injection) (*url.URL, *problem.Error) {
	if how.Type == egress.InjectNone {
		return nil, nil
	}
	home, refusal := access.Target(s.BaseURL)
	if refusal != nil {
		return nil, problem.Wrap(refusal, problem.UpstreamFailed, "Do not retry: the operator has to correct the service.", "the service %s is misconfigured", s.Name)
	}
	return home, nil
}

// noRoom is for an agent whose requests hold too much memory, or one among many that do.
func noRoom() *problem.Error {
	return problem.New(problem.RateLimited, "Wait until the large requests that are under way have ended, or ask for less at once.",
		"too many large requests are under way").With(problem.RetryAfter, 5)
}

// whole reads an answer.
func whole(resp *http.Response, held *share) ([]byte, *problem.Error) {
	tooLarge := problem.New(problem.TooLarge, "Ask the service for less at once (a page, a range), or set \"stream\": true.",
		"the answer is larger than %d bytes", largestAnswer)
	if resp.ContentLength > largestAnswer {
		return nil, tooLarge
	}
	// The request's own time bounds how long it takes.
	body, err := held.read(resp.Body, largestAnswer, func() bool { return false })
	if errors.Is(err, errNoRoom) {
		return nil, noRoom()
	}
	if err != nil {
		return nil, broken(err)
	}
	if len(body) > largestAnswer {
		return nil, tooLarge
	}
	return body, nil
}

// broken is an answer that ended in its middle.
func broken(err error) *problem.Error {
	if p, ok := problem.As(err); ok {
		return p
	}
	return problem.Wrap(err, problem.UpstreamFailed, "The gateway allowed the request; the fault is with the service. One later retry is reasonable.",
		"the answer broke off")
}

// stream passes an answer on as it comes.
func stream(w http.ResponseWriter, resp *http.Response, method string, limit int) {
	header := w.Header()
	if kind := resp.Header.Get("Content-Type"); kind != "" {
		header.Set("Content-Type", kind)
	} else {
		header.Set("Content-Type", "application/octet-stream")
	}
	header.Set("Cache-Control", "no-store")
	header.Set("Clawjail-Upstream-Status", strconv.Itoa(resp.StatusCode))
	access.Sandbox(header)
	w.WriteHeader(http.StatusOK)
	if method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	if err := control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		panic(http.ErrAbortHandler)
	}
	buffer := make([]byte, 32<<10)
	for left := limit; ; {
		n, err := resp.Body.Read(buffer)
		if left -= n; left < 0 {
			// The status has been sent: only a broken transfer says that this is not all.
			panic(http.ErrAbortHandler)
		}
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				panic(http.ErrAbortHandler)
			}
			if err := control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
				panic(http.ErrAbortHandler)
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}
