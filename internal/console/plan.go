package console

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// stepTimeout bounds writing a step to somebody who does not read.
const stepTimeout = 30 * time.Second

// maxPlan bounds a form with a file, which has the text twice at most, each letter as three.
const maxPlan = 8 * clawbots.MaxText

// planStep is a step as a page shows it.
type planStep struct {
	agent.Step
	Loss  string // what is lost when it is done
	Tone  string
	State string // of one that is under way: begun, done or failed
}

// planPage is the page that makes the machine match a file.
type planPage struct {
	Form     *form
	Tenants  []option
	Planned  bool
	Steps    []planStep
	Warnings []string
	Changes  int
	Removes  []string
	Extra    int
	Changed  bool // since the plan that was agreed to
	Mark     string
	Flaws    []planFlaw
	Problem  *said
	Text     []string
}

// planFlaw is a mistake of the file with the line that it is in.
type planFlaw struct {
	problem.Flaw
	Excerpt string
}

const planStart = `clawbots:
  - name: dev-bot
`

func (c *Console) planPage(q *request) error {
	if c.Agents == nil {
		return noAgents()
	}
	if err := c.Identity.Authorize(q.ctx(), q.by, identity.AgentSync, q.by.TenantOr("")); err != nil {
		return err
	}
	return c.showPlan(q, planPage{Form: blank("text", planStart, "tenant", q.by.TenantOr(""))})
}

func (c *Console) showPlan(q *request, data planPage) error {
	var err error
	if data.Tenants, err = c.tenantOptions(q); err != nil {
		return err
	}
	if data.Problem != nil || len(data.Flaws) > 0 {
		return q.again("plan", "Plan of clawbots.yml", data)
	}
	return q.show("plan", "Plan of clawbots.yml", data)
}

// planForm reads the form with a file, which may have been uploaded.
func (q *request) planForm() (*form, error) {
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxPlan)
	if !strings.HasPrefix(q.r.Header.Get("Content-Type"), "multipart/form-data") {
		if err := q.r.ParseForm(); err != nil {
			return nil, problem.Wrap(err, problem.BadRequest, "send less, or send it again", "the form did not arrive")
		}
		return &form{Values: q.r.PostForm}, nil
	}
	if err := q.r.ParseMultipartForm(maxPlan); err != nil {
		return nil, problem.Wrap(err, problem.BadRequest, "send less, or send it again", "the form did not arrive")
	}
	f := &form{Values: q.r.PostForm}
	file, _, err := q.r.FormFile("file")
	if err != nil {
		return f, nil // none was chosen
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, clawbots.MaxText+1))
	if err != nil {
		return nil, problem.Wrap(err, problem.BadRequest, "send it again", "the file did not arrive")
	}
	if len(text) > 0 {
		f.Values.Set("text", string(text))
	}
	return f, nil
}

// syncOf is what a form asks for. The text is that of the form, with the ends of lines of a file.
func syncOf(q *request, f *form) agent.SyncRequest {
	text := strings.ReplaceAll(f.Values.Get("text"), "\r\n", "\n")
	f.Values.Set("text", text)
	tenant := q.by.TenantOr(f.Get("tenant"))
	f.Values.Set("tenant", tenant)
	return agent.SyncRequest{Tenant: tenant, Source: "clawbots.yml", Text: text, Dir: cmp.Or(f.Get("dir"), "/"),
		Prune: f.Has("prune"), KeepState: f.Has("keep_state")}
}

// makePlan says what would be done.
func (c *Console) makePlan(q *request) error {
	if c.Agents == nil {
		return noAgents()
	}
	f, err := q.planForm()
	if err != nil {
		return err
	}
	r := syncOf(q, f)
	data, err := c.planOf(q, f, r)
	if err != nil {
		return err
	}
	return c.showPlan(q, data)
}

// planOf plans. Mistakes in the file are put into the page.
func (c *Console) planOf(q *request, f *form, r agent.SyncRequest) (planPage, error) {
	data := planPage{Form: f}
	if !utf8.ValidString(r.Text) || strings.ContainsRune(r.Text, 0) {
		f.Values.Set("text", "")
		data.Problem = &said{Message: "The file is not text.", Hint: "choose a clawbots.yml"}
		return data, nil
	}
	r.DryRun = true
	plan, err := c.Agents.Sync(q.ctx(), q.by, r, nil)
	if err != nil {
		s := sayProblem(err)
		if s.Status >= http.StatusInternalServerError || s.Code == problem.Forbidden {
			return data, err
		}
		lines := strings.Split(r.Text, "\n")
		for _, flaw := range s.Flaws {
			one := planFlaw{Flaw: flaw}
			if flaw.Line > 0 && flaw.Line <= len(lines) {
				one.Excerpt = short(200, strings.TrimRight(lines[flaw.Line-1], " \t"))
			}
			data.Flaws = append(data.Flaws, one)
		}
		if len(data.Flaws) > 0 {
			s.Message, s.Hint = "The file has mistakes, so nothing is planned.", "each is listed with its place; mend it below, and plan again"
		}
		s.Flaws = nil
		data.Problem = &s
		return data, nil
	}
	data.Planned, data.Warnings, data.Mark, data.Removes = true, plan.Warnings, markOf(plan), plan.Removals()
	for _, s := range plan.Steps {
		step := planStepOf(s, r)
		data.Steps = append(data.Steps, step)
		switch s.Verb {
		case agent.Extra:
			data.Extra++
		case agent.Unchanged:
		default:
			data.Changes++
		}
	}
	return data, nil
}

func planStepOf(s agent.Step, r agent.SyncRequest) planStep {
	out := planStep{Step: s}
	switch s.Verb {
	case agent.Create:
		out.Tone = "good"
	case agent.Change:
		out.Tone = "busy"
	case agent.Restart:
		out.Tone, out.Loss = "warn", "What its programs are doing ends, and what is in /tmp goes. /state and the workspace stay."
	case agent.Remove:
		out.Tone, out.Loss = "bad", "Its jail ends, its tokens are revoked, and what is in /state is deleted for good. The workspace stays."
		if r.KeepState {
			out.Loss = "Its jail ends and its tokens are revoked. /state stays, for an agent of the same name."
		}
	default:
		out.Tone = "quiet"
	}
	return out
}

// markOf is a plan in short, to see later whether it is the same one: what is done with whom, and why.
func markOf(p agent.Plan) string {
	var out strings.Builder
	for _, s := range p.Steps {
		out.WriteString(strings.Join(append([]string{string(s.Verb), s.Name, s.Driver, s.Source}, s.Why...), "\x1f") + "\x1e")
	}
	sum := sha256.Sum256([]byte(out.String()))
	return hex.EncodeToString(sum[:])
}

// applyPlan does what was planned: it plans again, and when that is another plan by now, it is shown instead. The answer comes
// step by step, so that whoever waits sees how far it is.
func (c *Console) applyPlan(q *request) error {
	if c.Agents == nil {
		return noAgents()
	}
	f, err := q.planForm()
	if err != nil {
		return err
	}
	r := syncOf(q, f)
	data, err := c.planOf(q, f, r)
	if err != nil {
		return err
	}
	if !data.Planned || data.Mark != f.Get("mark") {
		data.Changed = data.Planned
		return c.showPlan(q, data)
	}
	r.Removes, r.Prune = data.Removes, len(data.Removes) > 0 // what is declared meanwhile stays
	return c.carryOut(q, r)
}

// applied is the page of a plan that is carried out.
type applied struct {
	Here   string
	Failed int
	Did    int
	Error  *said
}

// carryOut applies, and writes a line when a step begins and when it is done. Where the lines go, the page is cut in two.
func (c *Console) carryOut(q *request, r agent.SyncRequest) error {
	here := "here-" + rand.Text()
	var page bytes.Buffer
	f := q.frame("Applying clawbots.yml", applied{Here: here})
	if err := c.pages.write(&page, "plan_apply", "layout", f); err != nil {
		return err
	}
	head, foot, _ := strings.Cut(page.String(), here)
	q.started = true
	q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	q.w.Header().Set("X-Accel-Buffering", "no")
	control := http.NewResponseController(q.w)
	var lost error // the browser has gone; what was begun is done all the same
	write := func(name string, data any) {
		if lost != nil {
			return
		}
		var out bytes.Buffer
		if name == "" {
			out.WriteString(head)
		} else if lost = c.pages.write(&out, "plan_apply", name, q.frame("", data)); lost != nil {
			return
		}
		// By the system's clock, which is the connection's. Writers of tests have no connection.
		if err := control.SetWriteDeadline(time.Now().Add(stepTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			lost = err
			return
		}
		if _, lost = q.w.Write(out.Bytes()); lost == nil {
			_ = control.Flush() // what cannot be sent early is sent at the end
		}
	}
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }() // a connection that is gone has none
	write("", nil)
	end := applied{}
	plan, err := c.Agents.Sync(q.ctx(), q.by, r, func(s agent.Step) {
		step := planStepOf(s, r)
		step.State = "begun"
		if s.Problem != "" {
			step.State = "failed"
		} else if s.Done {
			step.State = "done"
		}
		write("plan-step", step)
	})
	for _, s := range plan.Steps {
		switch {
		case s.Problem != "":
			end.Failed++
		case s.Done && s.Verb != agent.Unchanged && s.Verb != agent.Extra:
			end.Did++
		}
	}
	if err != nil && end.Failed == 0 {
		s := sayProblem(err)
		if s.Status >= http.StatusInternalServerError {
			c.Log.Error("apply a plan", "error", err)
		}
		end.Error = &s
	}
	write("plan-end", end)
	if lost == nil {
		_, lost = io.WriteString(q.w, foot)
	}
	if lost != nil {
		c.Log.Debug("nobody saw a plan to its end", "error", lost)
	}
	return nil
}
