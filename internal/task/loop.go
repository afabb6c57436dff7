package task

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxUseless is how many answers of a model that cannot be used may follow each other, and maxMisfits how many answers
	// to the goal may not be as the schema says.
	maxUseless = 10
	maxMisfits = 3
	// maxTabs bounds the tabs that are remembered.
	maxTabs        = 20
	maxPicture     = 3 << 20 // bytes
	pictureQuality = 60
)

// running is a task that is being done.
type running struct {
	s     *Service
	by    identity.Principal
	plan  plan
	model model
	tell  func(Step)
	out   Result

	tabs    []string // that of the task, and those that its acts have opened and it has moved to; the last is shown
	visited []string // the pages of the last tab, the one that is shown being the last
	before  []done
	flaw    string // what was wrong with the last answer
	useless int    // answers in a row
	misfits int
}

// say tells of a step.
func (t *running) say(step Step) {
	step.Number, step.Max, step.Session, step.Tokens = t.out.Steps, t.plan.steps, t.out.Session, t.used()
	t.s.note(t, step)
	if t.tell != nil {
		t.tell(step)
	}
}

func (t *running) used() int64 { return t.out.InputTokens + t.out.OutputTokens }

// all does the steps of a task, until it has an answer.
func (t *running) all(ctx context.Context) error {
	if t.plan.url != "" {
		if err := t.do(ctx, act{Do: doNavigate, URL: t.plan.url}, ""); err != nil {
			return err
		}
	}
	for t.out.Steps < t.plan.steps {
		page, picture, err := t.look(ctx)
		if err != nil {
			return err
		}
		a, err := t.ask(ctx, page, picture)
		if err != nil {
			return err
		}
		if t.flaw != "" {
			if t.useless >= maxUseless {
				return problem.New(problem.TaskNonsense, "name a model that uses tools well, or set a simpler goal",
					"the model %s gave %d answers in a row that cannot be used; the last: %s", t.model.name, maxUseless, t.flaw)
			}
			continue
		}
		switch a.Do {
		case doDone:
			if ended, err := t.answer(a); ended || err != nil {
				return err
			}
		case doGiveUp:
			t.say(Step{Do: doGiveUp, Code: problem.TaskGaveUp, URL: t.out.URL})
			return problem.New(problem.TaskGaveUp, "look at the recording of the session; set another goal, or begin at another page",
				"the model gave up: %s", line(a.Reason, 400))
		default:
			if err := t.do(ctx, a, page); err != nil {
				return err
			}
		}
	}
	return problem.New(problem.TaskBound, "allow more with max_steps, or set a smaller goal", "the task used its %d steps without an answer", t.plan.steps)
}

// ask asks the model what to do. When its answer cannot be used, t.flaw says why.
func (t *running) ask(ctx context.Context, page string, picture []byte) (act, error) {
	q := question{model: t.model.name, system: system, user: t.prompt(page, newMark()), picture: picture}
	left := t.plan.tokens - t.used() - int64(len(q.system)+len(q.user))/4
	if left <= 0 {
		return act{}, problem.New(problem.TaskBound, "allow more with max_tokens, or set a smaller goal",
			"the next step would go beyond the %d tokens of the task, of which %d are used", t.plan.tokens, t.used())
	}
	q.limit = min(left, maxOutput)
	r, err := t.s.ask(ctx, t.model, q)
	if err != nil {
		return act{}, err
	}
	t.out.Steps++
	t.out.InputTokens += r.input
	t.out.OutputTokens += r.output
	t.flaw = ""
	a, err := readAct(r)
	if err == nil && a.Do != doDone && a.Do != doGiveUp {
		_, err = a.operation(t.tab(), t.back())
	}
	if err != nil {
		t.wrong(err)
		return act{}, nil
	}
	t.useless = 0
	return a, nil
}

// wrong notes that an answer cannot be used.
func (t *running) wrong(err error) {
	t.useless++
	t.flaw = "it is not valid"
	if p, ok := problem.As(err); ok {
		t.flaw = line(p.Message, maxResult)
	}
	t.say(Step{Do: "an answer that cannot be used", Code: problem.CodeOf(err), URL: t.out.URL})
}

// answer takes the answer to the goal, unless it is not as the schema says.
func (t *running) answer(a act) (ended bool, err error) {
	value := json.RawMessage(a.Answer)
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	var flaw error
	if t.plan.schema != nil {
		flaw = t.plan.schema.fits(value)
	} else if kind := a.Answer.Kind(); kind != '"' {
		// Models put more than a text there now and then, which says as much.
		if kind == 0 || kind == 'n' {
			flaw = problem.New(problem.BadRequest, "", "done has no answer")
		}
	}
	if flaw == nil {
		t.out.Answer = value
		t.say(Step{Do: doDone, URL: t.out.URL})
		return true, nil
	}
	t.wrong(flaw)
	if t.misfits++; t.misfits >= maxMisfits {
		return false, problem.New(problem.TaskNonsense, "check the schema, or name a better model",
			"%d answers of the model %s did not match the schema; the last: %s", maxMisfits, t.model.name, t.flaw)
	}
	return false, nil
}

// do does an act. A failure of it is for the model; an error ends the task.
func (t *running) do(ctx context.Context, a act, page string) error {
	op, err := a.operation(t.tab(), t.back())
	if err != nil {
		return err // it was looked at before
	}
	what, result, code := a.name(page), "ok", ""
	out, err := t.s.Sessions.Drive(ctx, t.by, t.out.Session, op)
	switch {
	case err != nil && (ctx.Err() != nil || ended(err)):
		return err
	case err != nil:
		code = problem.CodeOf(err)
		result = "error " + code
		if p, ok := problem.As(err); ok {
			result += ": " + line(p.Message, maxResult)
		}
	default:
		result, code = t.came(out)
	}
	t.before = append(t.before, done{number: t.out.Steps, what: what, result: result, note: line(a.Note, maxNote)})
	t.say(Step{Do: what, Code: code, URL: t.out.URL})
	return nil
}

// came is what came of an act, in a line, and the code of a refusal of the gateway's.
func (t *running) came(out any) (result, code string) {
	switch r := out.(type) {
	case browser.Result:
		t.out.URL = line(r.URL, maxResult)
		if r.Refused != "" {
			return "refused by the gateway: " + line(r.Refused, 40), line(r.Refused, 40)
		}
		return fmt.Sprintf("status %d", r.Status), ""
	case browser.ActResult:
		if r.URL != "" {
			t.out.URL = line(r.URL, maxResult)
		}
		result = "ok"
		if r.FileChooser {
			result += "; the page wants files, which a task has none of"
		}
		if r.BlockedByDialog {
			result += "; a dialog interrupted it, and was dismissed"
		}
		if n := len(r.Opened); n > 0 && len(t.tabs) < maxTabs {
			t.tabs, t.visited = append(t.tabs, r.Opened[n-1].TabID), nil
			result += "; it opened the page that is shown now"
		}
		return result, ""
	}
	return "ok", ""
}

// tab is the one that is shown: the current one of a new session until its name is known.
func (t *running) tab() string {
	if len(t.tabs) == 0 {
		return ""
	}
	return t.tabs[len(t.tabs)-1]
}

// back is the page before the one that is shown; empty when there is none.
func (t *running) back() string {
	if len(t.visited) < 2 {
		return ""
	}
	return t.visited[len(t.visited)-2]
}

// look is the page as text, and as a picture where one is wanted. The model is told when a page cannot be read.
func (t *running) look(ctx context.Context) (string, []byte, error) {
	shot, err := t.snapshot(ctx)
	switch {
	case err != nil && (ctx.Err() != nil || ended(err) || problem.CodeOf(err) == problem.TabNotFound):
		return "", nil, err
	case err != nil:
		text := "[the page cannot be read: " + problem.CodeOf(err)
		if p, ok := problem.As(err); ok {
			text += ": " + line(p.Message, maxResult)
		}
		return text + "]", nil, nil
	}
	if len(t.tabs) == 0 {
		t.tabs = []string{shot.TargetID}
	}
	t.out.URL = line(shot.URL, maxResult)
	t.visit(shot.URL)
	text := line(shot.URL, maxResult) + " \"" + line(shot.Title, maxName) + "\"\n" + clipped(shot.Snapshot, pageChars)
	if shot.Truncated {
		text += "\n[the page goes on: scroll to an element, or use its search, to see more]"
	}
	for _, d := range shot.Dialogs[:min(len(shot.Dialogs), 5)] {
		text += "\n[a dialog was dismissed: " + line(d.Message, maxResult) + "]"
	}
	picture, err := t.picture(ctx)
	return text, picture, err
}

// snapshot reads the page. A tab that is gone leaves the one that it was opened from.
func (t *running) snapshot(ctx context.Context) (browser.SnapshotResult, error) {
	for {
		out, err := t.s.Sessions.Drive(ctx, t.by, t.out.Session, browser.Snapshot{TargetID: t.tab(), MaxChars: pageChars})
		if problem.CodeOf(err) == problem.TabNotFound && len(t.tabs) > 1 {
			t.tabs, t.visited = t.tabs[:len(t.tabs)-1], nil
			continue
		}
		if err != nil {
			return browser.SnapshotResult{}, err
		}
		shot, ok := out.(browser.SnapshotResult)
		if !ok {
			return browser.SnapshotResult{}, fmt.Errorf("a snapshot is a %T", out)
		}
		return shot, nil
	}
}

// visit remembers the pages that back leads to.
func (t *running) visit(url string) {
	if n := len(t.visited); n > 0 && t.visited[n-1] == url {
		return
	}
	if n := len(t.visited); n > 1 && t.visited[n-2] == url {
		t.visited = t.visited[:n-1]
		return
	}
	t.visited = append(t.visited, url)
	if len(t.visited) > maxBefore {
		t.visited = slices.Delete(t.visited, 0, 1)
	}
}

// picture is a picture of the page. A page of which none can be taken is shown as text alone.
func (t *running) picture(ctx context.Context) ([]byte, error) {
	if !t.plan.pictures {
		return nil, nil
	}
	out, err := t.s.Sessions.Drive(ctx, t.by, t.out.Session, browser.Screenshot{TargetID: t.tab(), Type: browser.JPEG, Quality: pictureQuality})
	if err != nil && (ctx.Err() != nil || ended(err)) {
		return nil, err
	}
	shot, ok := out.(browser.Picture)
	if err != nil || !ok || len(shot.Data) > maxPicture {
		return nil, nil
	}
	return shot.Data, nil
}
