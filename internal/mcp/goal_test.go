package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/task"
)

// goals are tasks that a test does.
type goals func(ctx context.Context, r task.Request, tell func(task.Step)) (task.Result, error)

func (g goals) Run(ctx context.Context, _ identity.Principal, r task.Request, tell func(task.Step)) (task.Result, error) {
	return g(ctx, r, tell)
}

func TestAGoalIsReachedWithItsStepsTold(t *testing.T) {
	var got task.Request
	w := newFixtureWith(t, Options{Backend: &backend{}, Tasks: goals(func(_ context.Context, r task.Request, tell func(task.Step)) (task.Result, error) {
		got = r
		tell(task.Step{Max: 3, Do: task.Opened, Session: "s_1"})
		tell(task.Step{Number: 1, Max: 3, Do: "click link \"Tea\"\nerror internal: no", URL: "https://site.test/tea", Code: problem.StaleRef})
		if r.Goal == "fail" {
			return task.Result{}, problem.New(problem.TaskGaveUp, "look at it", "it gave up")
		}
		return task.Result{Answer: json.RawMessage(`{"price":4.2}`), Steps: 2, InputTokens: 30, OutputTokens: 4, Model: "m", URL: "https://site.test/tea",
			NeedsRefresh: []session.Refresh{{Domain: "site.test", Reason: "login_page"}}}, nil
	})})
	params := &sdk.CallToolParams{Name: "browser_run_task", Arguments: args{"goal": "price of tea", "url": "https://site.test/", "model": "m", "dialect": "openai-chat",
		"schema": args{"type": "object"}, "pictures": true, "maxSteps": 3, "maxTokens": 5000, "timeoutMs": 9000, "record": "audit", "agent": "a"}}
	params.SetProgressToken("p")
	out, err := w.CallTool(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	const want = `done in 2 steps, 34 tokens of m; ended at https://site.test/tea
the login of site.test is gone: login_page
0 open a session
1 click link "Tea" error internal: no: error stale_ref at https://site.test/tea
answer: {"price":4.2}`
	if text := out.Content[0].(*sdk.TextContent).Text; text != want || out.IsError {
		t.Errorf("%s", text)
	}
	if answer, err := json.Marshal(out.StructuredContent); err != nil || !strings.Contains(string(answer), `"answer":{"price":4.2}`) {
		t.Errorf("%s, %v", answer, err)
	}
	if fmt.Sprint(got.Goal, got.URL, got.Model, got.Dialect, got.Pictures, got.MaxSteps, got.MaxTokens, got.Timeout, got.Record, got.Agent) !=
		"price of teahttps://site.test/mopenai-chattrue 3 50009saudita" {
		t.Errorf("%+v", got)
	}
	for _, want := range []string{"0/3 open a session", "1/3 click link \"Tea\" error internal: no"} {
		select {
		case got := <-w.said:
			if got != want {
				t.Errorf("%q, not %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("nothing was said of %q", want)
		}
	}
	if text, out := w.tool("browser_run_task", args{"goal": "fail"}); !out.IsError || !strings.HasPrefix(text, "error task_gave_up: it gave up\nhint: look at it\n0 open") {
		t.Error(text)
	}
}

func TestAGoalAndStepsDoNotGoTogether(t *testing.T) {
	w := newFixtureWith(t, Options{Backend: &backend{}})
	steps := []any{args{"do": "snapshot"}}
	for _, test := range []struct {
		a    args
		want string
	}{
		{args{"goal": "x", "steps": steps}, "error bad_request: steps"}, {args{"goal": "x", "screenshot": true}, "error bad_request: steps"},
		{args{"steps": steps, "maxSteps": 3}, "error bad_request: agent"}, {args{"schema": args{}, "steps": steps}, "error bad_request: agent"},
		{args{}, "error bad_request: a task has 1 to 50 steps, not 0, unless it has a goal"}, {args{"goal": "x"}, "error unsupported"},
	} {
		if got, out := w.tool("browser_run_task", test.a); !out.IsError || !strings.HasPrefix(got, test.want) || !strings.Contains(got, "hint:") {
			t.Errorf("%v: %s", test.a, got)
		}
	}
}
