package task

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	maxAnswerBytes = 4 << 20 // of one answer of a model
	maxOutput      = 8192    // tokens of one answer, what a model thinks included
	maxTries       = 3       // of one question
	longestPause   = 30 * time.Second
	maxNamed       = 10 // models that a hint names
	pictureType    = "image/jpeg"
	anthropicAPI   = "2023-06-01"
)

// Dialect is how a model is asked.
type Dialect string

// The dialects.
const (
	Anthropic Dialect = "anthropic"
	Chat      Dialect = "openai-chat"
	Responses Dialect = "openai-responses"
)

// wire is the gateway's word for the providers that speak a dialect.
func (d Dialect) wire() egress.Wire {
	if d == Anthropic {
		return egress.WireAnthropic
	}
	return egress.WireOpenAI
}

// dialect makes the body of a question, and reads the answer.
type dialect interface {
	path() string
	body(q question) any
	read(answer []byte) (reply, error)
}

func newDialect(d Dialect) dialect {
	switch d {
	case Anthropic:
		return messages{}
	case Chat:
		return chat{}
	case Responses:
		return responses{}
	}
	return nil
}

// question is everything that a model is told. Each stands by itself: no conversation is kept.
type question struct {
	model, system, user string
	picture             []byte // a JPEG, or nil
	limit               int64  // tokens of the answer
}

// reply is what a model has answered: its first call of a tool.
type reply struct {
	calls         int
	name          string
	arguments     json.RawMessage
	input, output int64
}

func (r *reply) call(name string, arguments json.RawMessage) {
	if r.calls++; r.calls == 1 {
		r.name, r.arguments = name, arguments
	}
}

// model is the model that is asked, and the caller that it is asked for.
type model struct {
	name    string
	dialect Dialect
	caller  gateway.Caller
}

// choose finds the model of a task among those that its agent may use.
func (s *Service) choose(ctx context.Context, who identity.Principal, p plan) (model, error) {
	m := model{name: p.model, caller: gateway.Caller{Tenant: who.Tenant, Agent: who.ID, Actor: who.Actor()}}
	dialects := []Dialect{Anthropic, Chat}
	if p.dialect != "" {
		dialects = []Dialect{p.dialect}
	}
	view := s.Views(m.caller)
	if view == nil {
		return model{}, problem.New(problem.Forbidden, "an operator decides what this agent may use", "this agent may use no models")
	}
	if m.name == "" {
		var err error
		if m.name, err = s.usual(ctx, m.caller, view, dialects); err != nil {
			return model{}, err
		}
	}
	for _, d := range dialects {
		if _, _, ok := view.Provider(d.wire(), m.name); ok {
			m.dialect = d
			return m, nil
		}
	}
	return model{}, problem.New(problem.ModelUnknown, "name one that it may use (GET /v1/models lists them); an operator adds others: clawjail provider add NAME",
		"no provider of this agent has the model %q for a task", clipped(m.name, 80))
}

// usual is the model of a task that names none: the first whose name an operator wrote as it is, else the only one.
func (s *Service) usual(ctx context.Context, c gateway.Caller, view *egress.EffectivePolicy, dialects []Dialect) (string, error) {
	for _, p := range view.Providers() {
		if !slices.ContainsFunc(dialects, func(d Dialect) bool { return d.wire() == p.Wire }) {
			continue
		}
		for _, pattern := range p.Models {
			if !strings.Contains(pattern, "*") {
				return pattern, nil
			}
		}
	}
	var names []string
	for _, d := range dialects {
		answer, err := s.send(ctx, c, http.MethodGet, "/v1/models", d, nil)
		if err != nil {
			return "", err
		}
		var list struct {
			Data []struct {
				ID string `json:"id"`
			} `json:"data"`
		}
		if err := json.Unmarshal(answer, &list); err != nil {
			return "", fmt.Errorf("read the list of models: %w", err)
		}
		for _, one := range list.Data {
			names = append(names, one.ID)
		}
	}
	switch len(names) {
	case 0:
		return "", problem.New(problem.ModelUnknown, "an operator lets it use some: clawjail provider add NAME; tasks use those of OpenAI's and Anthropic's wires",
			"this agent may use no model for a task")
	case 1:
		return names[0], nil
	}
	return "", problem.New(problem.ModelUnknown, "name one of them: "+clipped(strings.Join(names[:min(len(names), maxNamed)], ", "), 400),
		"the task names no model, and this agent may use %d", len(names))
}

// ask asks a model once more until it has answered, or there is no use in it.
func (s *Service) ask(ctx context.Context, m model, q question) (reply, error) {
	d := newDialect(m.dialect)
	body, err := json.Marshal(d.body(q))
	if err != nil {
		return reply{}, fmt.Errorf("write a question: %w", err)
	}
	answer, err := s.send(ctx, m.caller, http.MethodPost, d.path(), m.dialect, body)
	for try := 1; err != nil && try < maxTries; try++ {
		var passing *passingError
		if !errors.As(err, &passing) {
			break
		}
		pause := time.NewTimer(min(max(passing.after, time.Duration(try)*time.Second), longestPause))
		select {
		case <-ctx.Done():
			pause.Stop()
			return reply{}, context.Cause(ctx)
		case <-pause.C:
		}
		answer, err = s.send(ctx, m.caller, http.MethodPost, d.path(), m.dialect, body)
	}
	if err != nil {
		return reply{}, err
	}
	out, err := d.read(answer)
	if err != nil {
		return reply{}, problem.Wrap(err, problem.UpstreamFailed, "choose another dialect: anthropic, openai-chat or openai-responses",
			"the answer of the model %s is not in the dialect %s", clipped(m.name, 80), m.dialect)
	}
	// Tokens that a server does not count are estimated, so that the bound of a task holds.
	if out.input <= 0 {
		out.input = int64(len(body)) / 4
	}
	if out.output <= 0 {
		out.output = int64(len(answer)) / 4
	}
	return out, nil
}

// send asks the gateway's model endpoints, and returns the answer.
func (s *Service) send(ctx context.Context, c gateway.Caller, method, path string, d Dialect, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(gateway.WithCaller(ctx, c), method, "http://gateway"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if d == Anthropic {
		r.Header.Set("Anthropic-Version", anthropicAPI)
	}
	w := &answer{header: http.Header{}}
	if !w.of(s.Models, r) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, problem.New(problem.UpstreamFailed, "try again later", "the answer of the model broke off, or has more than %d MiB", maxAnswerBytes>>20)
	}
	if w.status/100 == 2 {
		return w.body.Bytes(), nil
	}
	return nil, w.problem()
}

// answer is one of the gateway's model endpoints, in memory.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(b) > maxAnswerBytes {
		return 0, errors.New("the answer is longer than it may be")
	}
	return a.body.Write(b)
}

// of has a handler answer a request. It is false when the answer is not whole.
func (a *answer) of(h http.Handler, r *http.Request) (whole bool) {
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler {
				panic(p)
			}
			whole = false
		}
	}()
	h.ServeHTTP(a, r)
	return true
}

// passingError is a refusal after which the same question may be answered.
type passingError struct {
	err   error
	after time.Duration
}

// Error implements error.
func (p *passingError) Error() string { return p.err.Error() }

// Unwrap returns the refusal.
func (p *passingError) Unwrap() error { return p.err }

// problem is why there is no answer: a refusal of the gateway's, with its code, or an error of the provider's.
func (a *answer) problem() error {
	var in struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	// Providers have all kinds of errors; the status says enough.
	_ = json.Unmarshal(a.body.Bytes(), &in)
	message := strings.TrimSuffix(line(in.Error.Message, 800), ".")
	passing := a.status == http.StatusTooManyRequests || a.status >= 500
	p := problem.New(problem.UpstreamFailed, "see whether the model takes tools, and pictures where they are asked for; or name another one",
		"the provider answered with the status %d: %s", a.status, clipped(message, 300))
	if code := a.header.Get(gateway.HeaderRefusal); code != "" {
		// The endpoints put the hint behind the message, which is all that clients of models show.
		said, hint, _ := strings.Cut(message, ". ")
		p = problem.New(code, hint, "%s", said)
		passing = a.header.Get("X-Should-Retry") == "true"
	}
	if !passing {
		return p
	}
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	if err != nil {
		seconds = 0
	}
	return &passingError{p, time.Duration(min(max(seconds, 0), 3600)) * time.Second}
}
