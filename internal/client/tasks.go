package client

import (
	"context"

	"github.com/clawjail/clawjail/internal/task"
)

// RunTask has a model reach a goal, and returns its answer. progress, which may be nil, is told of steps as they are done. The end
// of ctx stops the task, and its session is closed.
func (c *Client) RunTask(ctx context.Context, r task.Request, progress func(task.Step)) (task.Result, error) {
	return told[task.Step, task.Result](ctx, c, pathOf("tasks"), r, "result", progress)
}
