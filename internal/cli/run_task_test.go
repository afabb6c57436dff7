package cli

import (
	"context"
	"encoding/json"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/task"
)

// told are tasks that say what they were asked for. The goal says how they end.
type told struct{}

func (told) Run(_ context.Context, by identity.Principal, r task.Request, tell func(task.Step)) (task.Result, error) {
	if r.Goal == "early" {
		return task.Result{}, problem.New(problem.ModelUnknown, "name one of them: a, b", "the task names no model, and this agent may use 2")
	}
	if tell != nil {
		tell(task.Step{Do: task.Opened, Session: "s_0000000000000001", Max: 25})
		tell(task.Step{Number: 1, Max: 25, Do: "click link \"Tea\x1b[2J\"", URL: "https://example.com/tea"})
		tell(task.Step{Number: 2, Max: 25, Do: `click button "Buy"`, Code: problem.StaleRef})
	}
	if r.Goal == "late" {
		return task.Result{}, problem.New(problem.TaskGaveUp, "set another goal", "the model gave up: sold out").With("session", "s_0000000000000001")
	}
	asked, err := json.Marshal(map[string]any{"by": by.Actor(), "agent": r.Agent, "model": r.Model, "dialect": r.Dialect, "url": r.URL, "schema": r.Schema, "steps": r.MaxSteps,
		"tokens": r.MaxTokens, "timeout": r.Timeout, "pictures": r.Pictures, "mode": r.CredentialMode, "domains": r.Domains,
		"grant": !r.Grant.IsZero(), "tenant": r.Tenant, "record": r.Record})
	if err != nil {
		return task.Result{}, err
	}
	if r.Goal == "text" {
		asked = json.RawMessage(`"4.20\nper\u001b[2J pound\n"`)
	}
	return task.Result{Answer: asked, Session: "s_0000000000000001", Model: "m", Steps: 3, InputTokens: 30, OutputTokens: 4}, nil
}
