package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of a task.
const (
	maxSteps = 50
	maxTask  = 5 * time.Minute
	// maxPictures is how many pictures one answer has.
	maxPictures = 4
	// closeLimit bounds closing the session of a task.
	closeLimit = 30 * time.Second
	// finalLimit bounds looking where a task has ended, which also has to work when its time is over.
	finalLimit = 10 * time.Second
)

// prepared is a task of steps that runs.
type prepared struct {
	s     *Server
	c     *call
	t     Target
	steps []step

	lines    []string
	left     int // characters that may still be shown of pages
	pictures []sdk.Content
	failed   int
	done     int
	stopped  bool
	taken    bool // a person has taken the session over
}

// runTask opens a session, runs steps in it and closes it, whatever happens. Everything is checked before anything is
// opened.
func (s *Server) runTask(ctx context.Context, c *call) (out *sdk.CallToolResult, err error) {
	a, err := arguments[taskArguments](c.raw)
	if err != nil {
		return nil, err
	}
	if a.Goal != "" {
		return s.runGoal(ctx, c, a)
	}
	if !a.goalArguments.empty() {
		return nil, problem.New(problem.BadRequest, "give a goal", "agent, model, dialect, url, schema, pictures, maxSteps and maxTokens go with a goal")
	}
	maximum, err := chars(a.MaxChars)
	if err != nil {
		return nil, err
	}
	steps, err := stepsOf(a)
	if err != nil {
		return nil, err
	}
	limit := time.Duration(a.TimeoutMS) * time.Millisecond
	if a.TimeoutMS == 0 {
		limit = maxTask
	} else if a.TimeoutMS < 1000 || limit > maxTask {
		return nil, problem.New(problem.BadRequest, "leave it out for the most",
			"timeoutMs is not between 1000 and %d", maxTask.Milliseconds())
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(whole, limit)
	defer cancel()
	opened, err := s.Backend.Open(ctx, c.by, a.OpenRequest)
	if err != nil {
		return nil, err
	}
	run := &prepared{s: s, c: c, t: Target{Session: opened.ID}, steps: steps, left: maximum}
	defer func() {
		if run.taken {
			return // the person goes on
		}
		// The caller may be gone, and the session must not stay behind.
		closing, cancel := context.WithTimeout(context.WithoutCancel(whole), closeLimit)
		defer cancel()
		if _, closeErr := s.Backend.Close(closing, c.by, opened.ID); closeErr != nil && !gone(closeErr) && problem.CodeOf(closeErr) != problem.NotFound {
			s.Log.Error("mcp: close the session of a task", "session", opened.ID, "error", closeErr)
			if out != nil {
				out.Content = append(out.Content, &sdk.TextContent{Text: "session " + opened.ID + " could not be closed: " + problem.CodeOf(closeErr)})
			}
		}
	}()
	if text := sessionText(opened); strings.Contains(text, "\n") {
		_, refresh, _ := strings.Cut(text, "\n")
		run.lines = append(run.lines, refresh)
	}
	run.all(ctx, a.StopOnError == nil || *a.StopOnError)
	if !run.taken {
		run.end(whole, a.Screenshot == nil || *a.Screenshot)
	}
	if run.taken {
		run.lines = append(run.lines, "session "+opened.ID+" stays open: a person has it in hand")
	}
	return run.result(), nil
}

// stepsOf reads the steps. An error says which one is wrong.
func stepsOf(a taskArguments) ([]step, error) {
	if len(a.Steps) == 0 {
		return nil, problem.New(problem.BadRequest, "give a goal in words, or steps; of a step: "+stepHint, "a task has 1 to %d steps, not 0, unless it has a goal", maxSteps)
	}
	if len(a.Steps) > maxSteps {
		return nil, problem.New(problem.BadRequest, stepHint, "a task has 1 to %d steps, not %d", maxSteps, len(a.Steps))
	}
	out := make([]step, len(a.Steps))
	for n, raw := range a.Steps {
		made, err := stepOf(raw)
		if err == nil {
			err = made.op.Validate()
		}
		if problem.CodeOf(err) == problem.ActKindRequired { // a step is more than an action
			return nil, problem.New(problem.BadRequest, stepHint, "step %d: there is no such step", n+1)
		}
		if p, ok := problem.As(err); ok {
			return nil, problem.New(p.Code, p.Hint, "step %d: %s", n+1, p.Message)
		} else if err != nil {
			return nil, fmt.Errorf("step %d: %w", n+1, err)
		}
		out[n] = made
	}
	return out, nil
}

// all runs the steps, one after the other.
func (k *prepared) all(ctx context.Context, stopOnError bool) {
	for n, next := range k.steps {
		name := next.name()
		k.c.progress(ctx, float64(n), float64(len(k.steps)), name)
		text, failed, err := k.step(ctx, next.op)
		k.done++
		if err != nil {
			text, failed = k.reason(err), true
		}
		if failed {
			k.failed++
			text = "error " + text
		}
		k.say(n, name, text)
		k.taken = problem.CodeOf(err) == problem.TakenOver
		over := ctx.Err() != nil || k.taken || err != nil && gone(err)
		if failed && stopOnError || over && (failed || k.done < len(k.steps)) {
			k.stopped = true
			break
		}
	}
	k.c.progress(ctx, float64(k.done), float64(len(k.steps)), "done")
}

// reason is why a step did not happen, in a line.
func (k *prepared) reason(err error) string {
	said, ok := k.s.failure("browser_run_task", err).StructuredContent.(map[string]string)
	if !ok {
		return problem.Internal
	}
	text := said["code"] + ": " + line(said["message"], 300)
	if said["hint"] != "" {
		text += " (" + line(said["hint"], 200) + ")"
	}
	return text
}

// say adds the line of a step, and what it showed of a page as far as there is room.
func (k *prepared) say(n int, name, text string) {
	first, rest, _ := strings.Cut(text, "\n")
	k.lines = append(k.lines, fmt.Sprintf("%d %s: %s", n+1, name, line(first, 700)))
	if rest == "" {
		return
	}
	if k.left == 0 {
		k.lines = append(k.lines, "[left out: maxChars gives more]")
		return
	}
	rest = clip(rest, k.left)
	k.left = max(0, k.left-utf8.RuneCountInString(rest))
	k.lines = append(k.lines, rest)
}

// name is a step in a few words. It never has what is typed.
func (p step) name() string {
	if act, ok := p.op.(browser.Act); ok {
		for _, on := range []string{act.Ref, act.Selector} {
			if on != "" {
				return line(p.do+" "+on, 80)
			}
		}
	}
	return line(p.do, 40)
}

// step runs one step: what it answers, and whether the page made it fail.
func (k *prepared) step(ctx context.Context, op browser.Operation) (text string, failed bool, err error) {
	s, c, t := k.s, k.c, k.t
	switch op := op.(type) {
	case browser.Navigate:
		p, err := s.visit(ctx, c, t, op)
		return p.text(), false, err
	case browser.OpenTab:
		r, err := drive[browser.OpenTabResult](ctx, s, c, t, op)
		return tabText(r.Tab) + dialogs(r.Dialogs), false, err
	case browser.Act:
		r, err := drive[browser.ActResult](ctx, s, c, t, op)
		if err != nil {
			return "", false, err
		}
		_, after, _ := strings.Cut(actText(op, r, maxStepChars), "\n")
		text = "ok"
		if r.URL != "" {
			text += " at " + address(r.URL)
		}
		if after != "" {
			text += "\n" + after
		}
		return text, failedSteps(r) > 0, nil
	case browser.Snapshot:
		r, err := drive[browser.SnapshotResult](ctx, s, c, t, op)
		return snapshotText(r, k.left+maxAddress), false, err
	case browser.Query:
		r, err := drive[browser.QueryResult](ctx, s, c, t, op)
		return queryText(r, maxStepChars), false, err
	case browser.DOM:
		r, err := drive[browser.DOMResult](ctx, s, c, t, op)
		if r.Truncated {
			r.Text += "\n[truncated: maxChars gives more]"
		}
		return address(r.URL) + "\n" + r.Text, false, err
	case browser.Eval:
		r, err := drive[browser.EvalResult](ctx, s, c, t, op)
		text, threw := evalText(r, maxStepChars)
		return text, threw, err
	case browser.Screenshot:
		text, image, err := s.picture(ctx, c, t, op, defaultWidth)
		if err != nil {
			return "", false, err
		}
		if len(k.pictures) >= maxPictures-1 { // one is for the end
			return text + " left out", false, nil
		}
		k.pictures = append(k.pictures, image)
		return fmt.Sprintf("%s picture %d", text, len(k.pictures)), false, nil
	}
	return "", false, problem.New(problem.BadRequest, stepHint, "there is no such step")
}

// end looks where the task has come to.
func (k *prepared) end(whole context.Context, picture bool) {
	ctx, cancel := context.WithTimeout(whole, finalLimit)
	defer cancel()
	open, err := drive[browser.TabsResult](ctx, k.s, k.c, k.t, browser.Tabs{})
	if k.taken = problem.CodeOf(err) == problem.TakenOver; k.taken {
		return
	}
	if err == nil {
		for _, tab := range open.Tabs {
			if tab.IsActive {
				k.lines = append(k.lines, "ended at "+tabText(tab))
			}
		}
		if len(open.Tabs) > 1 {
			k.lines = append(k.lines, fmt.Sprintf("%d tabs were open", len(open.Tabs)))
		}
	}
	if _, last := k.steps[k.done-1].op.(browser.Screenshot); !picture || last && k.failed == 0 && len(k.pictures) > 0 {
		return
	}
	_, image, err := k.s.picture(ctx, k.c, k.t, small(browser.Screenshot{}), defaultWidth)
	if err != nil {
		k.taken = problem.CodeOf(err) == problem.TakenOver
		k.lines = append(k.lines, "no screenshot: "+problem.CodeOf(err))
		return
	}
	k.pictures = append(k.pictures, image)
}

func (k *prepared) result() *sdk.CallToolResult {
	head := fmt.Sprintf("%d of %d steps done", k.done-k.failed, len(k.steps))
	if k.stopped {
		head += fmt.Sprintf(", stopped at step %d", k.done)
	}
	out := answer(head + "\n" + strings.Join(k.lines, "\n"))
	out.Content = append(out.Content, k.pictures...)
	out.IsError = k.stopped
	return out
}
