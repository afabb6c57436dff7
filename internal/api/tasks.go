package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/task"
)

// Tasks reaches goals that are given in words. *task.Service is one.
type Tasks interface {
	Run(ctx context.Context, by identity.Principal, r task.Request, tell func(task.Step)) (task.Result, error)
}

// Names of the description.
type (
	// TaskRequest is the body of a task: a goal, and what is said of the session that it is done in.
	TaskRequest task.Request
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

// runTask answers with what a task has come to, and with its steps as they are done when lines are wanted. A caller who leaves,
// or takes nothing for a while, stops it.
func (a *API) runTask(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	request, lined, err := planBody[task.Request](req)
	if err != nil {
		return err
	}
	if err := op.CheckTenant(request.Tenant); err != nil {
		return err
	}
	return told(a, w, req, "Do a task", lined, func(ctx context.Context, tell func(task.Step) error) (task.Result, error) {
		ctx, release := untilTheEnd(ctx)
		defer release()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		return a.Tasks.Run(ctx, by, request, func(s task.Step) {
			if tell(s) != nil {
				stop()
			}
		})
	}, func(s *task.Step, r *task.Result, wrong *Problem) any {
		return TaskLine{(*TaskStep)(s), (*TaskResult)(r), wrong}
	})
}
