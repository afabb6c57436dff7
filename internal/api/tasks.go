package api

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/task"
)

// Tasks reaches goals that are given in words. *task.Service is one.
type Tasks interface {
	Run(ctx context.Context, by identity.Principal, r task.Request, tell func(task.Step)) (task.Result, error)
}

// TaskRequest is the body of a task: a goal, and what is said of the session that it is done in.
type TaskRequest struct {
	Goal    string       `json:"goal" doc:"the goal of the task, in words"`
	Agent   string       `json:"agent,omitempty" doc:"the name of the agent as which it is done, with its models, budget, rules and accounts; an agent leaves it out"`
	Model   string       `json:"model,omitempty" doc:"one that the agent may use; the only one, or the first that an operator named, when it is left out"`
	Dialect task.Dialect `json:"dialect,omitempty" enum:"anthropic,openai-chat,openai-responses" doc:"how the model is asked; anthropic or openai-chat, as its provider has it, when it is left out"`
	URL     string       `json:"url,omitempty" doc:"the page to begin with"`
	// Schema is looked through by package task.
	Schema    json.RawMessage `json:"schema,omitempty" doc:"a JSON Schema of the answer; any text when it is left out"`
	Pictures  bool            `json:"pictures,omitzero" doc:"show the model a picture of each page as well"`
	MaxSteps  int             `json:"max_steps,omitzero" doc:"answers of the model, 1 to 200; 25 when it is left out"`
	MaxTokens int64           `json:"max_tokens,omitzero" doc:"tokens of the model, in and out; 200000 when it is left out"`
	Timeout   string          `json:"timeout,omitempty" doc:"time for the whole task, such as 10m, at most 30m; 5m when it is left out"`
	OpenRequest
}

type (
	// TaskStep is one step of a task, as it is told.
	TaskStep task.Step
	// TaskResult is what a task has come to.
	TaskResult task.Result
)

// TaskLine is one line of an answer that tells of a task as it goes on: a step when it is done, and at the end the result,
// or why there is none.
type TaskLine struct {
	Step    *TaskStep   `json:"step,omitempty"`
	Result  *TaskResult `json:"result,omitempty"`
	Problem *Problem    `json:"problem,omitempty"`
}

func (a *API) taskRoutes() {
	a.plain(route{method: http.MethodPost, path: "/v1/tasks", id: "run-task", summary: "Reach a goal that is given in words, in a session of its own",
		status: http.StatusOK, body: reflect.TypeFor[TaskRequest]()}, []*huma.Param{progressParam()},
		map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[TaskResult]()), linesType: a.schema(reflect.TypeFor[TaskLine]())}, a.runTask)
}

// Read reads the texts. Whether their values are allowed is the service's to say.
func (r TaskRequest) Read() (task.Request, error) {
	opening, err := r.request()
	if err != nil {
		return task.Request{}, err
	}
	out := task.Request{Goal: r.Goal, Agent: r.Agent, Model: r.Model, Dialect: r.Dialect, URL: r.URL, Schema: r.Schema, Pictures: r.Pictures,
		MaxSteps: r.MaxSteps, MaxTokens: r.MaxTokens, Session: opening}
	if r.Timeout != "" {
		if out.Timeout, err = texts.Duration(r.Timeout); err != nil || out.Timeout <= 0 {
			return task.Request{}, problem.New(problem.BadRequest, "write a number with s, m, h or d, such as 10m", "timeout: %s is not a duration", quote(r.Timeout))
		}
	}
	return out, nil
}

// runTask answers with what a task has come to, and with its steps as they are done when lines are wanted. A caller who leaves,
// or takes nothing for a while, stops it.
func (a *API) runTask(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	body, lined, err := planBody[TaskRequest](req)
	if err != nil {
		return err
	}
	request, err := body.Read()
	if err != nil {
		return err
	}
	if !lined {
		ctx, release := untilTheEnd(req.Context())
		defer release()
		out, err := a.Tasks.Run(ctx, by, request, nil)
		if err != nil {
			return err
		}
		return control.Write(w, req, TaskResult(out), nil)
	}
	const doing = "Do a task"
	a.pour(req.Context(), w, req, doing, http.Header{"Content-Type": {linesType}}, func(ctx context.Context, out *lines) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var lost error // nobody reads any more
		say := func(line TaskLine) {
			if lost == nil {
				lost = out.line(line)
			}
			if lost != nil {
				stop()
			}
		}
		result, err := a.Tasks.Run(ctx, by, request, func(s task.Step) { say(TaskLine{Step: (*TaskStep)(&s)}) })
		switch {
		case err == nil:
			say(TaskLine{Result: (*TaskResult)(&result)})
		case !out.begun:
			return err
		default:
			p, _ := a.failed(ctx, doing, err).(*Problem) // it is always one
			say(TaskLine{Problem: p})
		}
		return lost
	})
	return nil
}
