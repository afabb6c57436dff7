package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Problem is an error as it is sent.
type Problem = op.Problem

const problemType = op.ProblemType

// document is an error as it may be shown. The private half of it is left out.
func document(err error) *Problem {
	code := problem.CodeOf(err)
	out := &Problem{Type: "about:blank", Code: code, Status: problem.Status(code)}
	out.Title = http.StatusText(out.Status)
	p, ok := problem.As(err)
	switch {
	case ok:
		out.Detail, out.Hint = p.Message, p.Hint
		for key, value := range p.Details {
			if flaws, many := value.([]problem.Flaw); many && key == "errors" {
				out.Errors = flaws
				continue
			}
			if out.Details == nil {
				out.Details = map[string]any{}
			}
			out.Details[key] = value
		}
	case code == problem.Timeout:
		out.Detail = "it took longer than it may"
	case code == problem.Canceled:
		out.Detail = "the caller left before the answer"
	default:
		out.Detail = problem.Unexpected
		out.Hint = "look into the log of the control plane"
	}
	if out.Title == "" {
		out.Title = "Client Closed Request"
	}
	return out
}

func withStatus(p *Problem, status int) *Problem {
	p.Status, p.Title = status, http.StatusText(status)
	return p
}

// failed is what a handler returns for an error. The private half goes to the log, where somebody can do something
// about it: at the service, not at the caller.
func (a *API) failed(ctx context.Context, doing string, err error) error {
	switch cause := context.Cause(ctx); {
	case problem.CodeOf(err) == problem.Canceled && problem.CodeOf(cause) == problem.Unauthorized:
		err = cause // the caller has not left: the key has ended
	case problem.CodeOf(err) == problem.Internal && errors.Is(err, store.ErrInvalid):
		err = problem.Wrap(err, problem.BadRequest, "leave control characters out, and write UTF-8", "the request has a value that cannot be stored")
	}
	out := document(err)
	if out.Status >= http.StatusInternalServerError {
		a.Log.Log(ctx, problem.Level(out.Status), doing, "code", out.Code, "error", err)
	}
	return out
}

// refuse answers before any handler.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error) { a.write(w, r, document(err)) }

func (a *API) write(w http.ResponseWriter, r *http.Request, p *Problem) {
	w.Header().Set("Content-Type", problemType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	if err := json.NewEncoder(w).Encode(forAlias(p, r.URL.Path)); err != nil {
		a.Log.Debug("answer a refused request", "path", r.URL.Path, "error", err) // the caller has gone
	}
}

func retryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(d.Round(time.Second)/time.Second))))
}

// transform turns huma's own errors (a parameter that is no number, say) into ours. Others pass, with what clients of
// the aliases read.
func (a *API) transform(ctx huma.Context, _ string, v any) (any, error) {
	switch v := v.(type) {
	case *huma.ErrorModel:
		return forAlias(a.translated(ctx, v), ctx.Operation().Path), nil
	case *Problem:
		return forAlias(v, ctx.Operation().Path), nil
	}
	return v, nil
}

func (a *API) translated(ctx huma.Context, model *huma.ErrorModel) *Problem {
	if model.Status == http.StatusRequestEntityTooLarge {
		return withStatus(document(tooLarge(ctx.Operation().MaxBodyBytes-1)), model.Status)
	}
	if model.Status >= http.StatusInternalServerError {
		a.Log.Error("answer a request", "error", model.Detail)
		return document(model)
	}
	many := problem.ValidationError{Code: problem.BadRequest, Hint: "the parameters are in /openapi.json"}
	for _, e := range model.Errors {
		many.Add(e.Location, "%s", e.Message)
	}
	err := many.Err()
	if err == nil {
		err = problem.New(problem.BadRequest, many.Hint, "%s", model.Detail)
	}
	return withStatus(document(err), model.Status)
}
