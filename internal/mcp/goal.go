package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/task"
)

// Tasks reaches goals that are given in words. *task.Service is one.
type Tasks interface {
	Run(ctx context.Context, by identity.Principal, r task.Request, tell func(task.Step)) (task.Result, error)
}

// goalArguments are those of a task that has a goal instead of steps.
type goalArguments struct {
	Goal      string          `json:"goal"`
	Agent     string          `json:"agent"`
	Model     string          `json:"model"`
	Dialect   task.Dialect    `json:"dialect"`
	URL       string          `json:"url"`
	Schema    json.RawMessage `json:"schema"`
	Pictures  bool            `json:"pictures"`
	MaxSteps  int             `json:"maxSteps"`
	MaxTokens int64           `json:"maxTokens"`
}

// empty says whether nothing of it is given.
func (g goalArguments) empty() bool {
	return g.Goal+g.Agent+g.Model+string(g.Dialect)+g.URL == "" && len(g.Schema) == 0 && !g.Pictures && g.MaxSteps == 0 && g.MaxTokens == 0
}

// runGoal has a model reach a goal, and answers what was done and what came of it.
func (s *Server) runGoal(ctx context.Context, c *call, a taskArguments) (*sdk.CallToolResult, error) {
	if len(a.Steps) > 0 || a.StopOnError != nil || a.Screenshot != nil || a.MaxChars != 0 {
		return nil, problem.New(problem.BadRequest, "give a goal, or steps", "steps, stopOnError, screenshot and maxChars do not go with a goal")
	}
	if s.Tasks == nil {
		return nil, problem.New(problem.Unsupported, "give steps", "tasks with a goal are not available here")
	}
	r := task.Request{Goal: a.Goal, Agent: a.Agent, Model: a.Model, Dialect: a.Dialect, URL: a.URL, Schema: a.Schema, Pictures: a.Pictures,
		MaxSteps: a.MaxSteps, MaxTokens: a.MaxTokens, OpenRequest: a.OpenRequest}
	if a.TimeoutMS != 0 {
		r.Timeout = (time.Duration(a.TimeoutMS) * time.Millisecond).String()
	}
	var lines []string
	out, err := s.Tasks.Run(ctx, c.by, r, func(step task.Step) {
		c.progress(ctx, float64(step.Number), float64(step.Max), line(step.Do, 200))
		lines = append(lines, goalStep(step))
	})
	if err != nil {
		failed := s.failure("browser_run_task", err)
		if len(lines) > 0 {
			failed.Content = append(failed.Content, &sdk.TextContent{Text: clip(strings.Join(lines, "\n"), defaultChars)})
		}
		return failed, nil
	}
	head := fmt.Sprintf("done in %d steps, %d tokens of %s", out.Steps, out.InputTokens+out.OutputTokens, line(out.Model, 80))
	if out.URL != "" {
		head += "; ended at " + address(out.URL)
	}
	for _, r := range out.NeedsRefresh {
		head += "\nthe login of " + line(r.Domain, 80) + " is gone: " + line(r.Reason, 40)
	}
	result := answer(clip(head+"\n"+strings.Join(lines, "\n"), defaultChars) + "\nanswer: " + clip(answerText(out.Answer), defaultChars))
	result.StructuredContent = map[string]any{"answer": out.Answer, "steps": out.Steps, "input_tokens": out.InputTokens, "output_tokens": out.OutputTokens}
	return result, nil
}

// goalStep is a step in a line.
func goalStep(step task.Step) string {
	text := fmt.Sprintf("%d %s", step.Number, line(step.Do, 200))
	if step.Code != "" {
		text += ": error " + line(step.Code, 40)
	}
	if step.URL != "" {
		text += " at " + address(step.URL)
	}
	return text
}

// answerText is an answer as it is read: a text without quotes, anything else as JSON.
func answerText(answer json.RawMessage) string {
	var text string
	if json.Unmarshal(answer, &text) == nil {
		return text
	}
	return string(answer)
}
