// Package task reaches goals that are given in words: it opens a browser session, shows a model the page as text, does the
// one thing that the model answers, and shows it the page again, until the model says that the goal is reached.
//
// It promises:
//
//   - The model is asked through the gateway's own model endpoints, as the agent of the task. Its provider, budget, rate, rules
//     and records are those that the agent's own requests have, and nothing in a request for a task chooses another payer.
//   - A model steers with one tool, act. It offers a part of the operations of package browser: no JavaScript,
//     no cookies, no files, no tab but the one of the task and those that its own acts have opened. Each operation is done by
//     [Sessions] as the agent, so that the grant, the rules of the gateway, the recording and the audit log hold for it.
//   - The text of a page is data in the question. It is told from the goal by a mark that no page knows, and whatever it makes a
//     model do, it widens nothing of the above.
//   - A task has an end: the answer, steps, tokens, time, ten useless answers of the model, the end of its session, of its
//     caller or of its agent's rights. A request to a model that is under way ends with it, and the session is closed, unless a
//     person has it in hand.
package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// closeLimit bounds closing the session of a task.
const closeLimit = 30 * time.Second

// Sessions opens, steers and closes browsers. *session.Service is one.
type Sessions interface {
	Open(ctx context.Context, by identity.Principal, r session.OpenRequest) (session.Session, error)
	Drive(ctx context.Context, by identity.Principal, id string, op browser.Operation) (any, error)
	Close(ctx context.Context, by identity.Principal, id string) (session.Session, error)
	// Stopping is closed when a session begins to end.
	Stopping(ctx context.Context, by identity.Principal, id string) (<-chan struct{}, error)
}

// Identity checks the rights of principals. *identity.Service is one.
type Identity interface {
	AuthorizeWith(ctx context.Context, p identity.Principal, op identity.Operation, object identity.Object) error
	// AgentFor finds an agent by its name for somebody who may do an operation with it.
	AgentFor(ctx context.Context, by identity.Principal, op identity.Operation, tenant, name string) (identity.Agent, error)
	WatchValidity(ctx context.Context, p identity.Principal, cancel context.CancelCauseFunc) (release func(), err error)
}

// Options are what a Service is made from. All are required.
type Options struct {
	Sessions Sessions
	Identity Identity
	// Models serves the gateway's model endpoints to the caller that [gateway.CallerOf] finds in a request.
	Models http.Handler
	// Left is how long something may still run for an agent, or why nothing may.
	Left func(context.Context, identity.Agent) (time.Duration, error)
	// Views is what a caller of the gateway may.
	Views func(gateway.Caller) *egress.EffectivePolicy
	Audit audit.Records
	Log   *slog.Logger
}

// Validate reports everything that is missing at once.
func (o Options) Validate() error {
	var errs []error
	for _, need := range []struct {
		what    string
		missing bool
	}{{"service of sessions", o.Sessions == nil}, {"identity", o.Identity == nil}, {"handler of models", o.Models == nil},
		{"time of agents", o.Left == nil},
		{"list of what callers may", o.Views == nil}, {"audit log", o.Audit == nil}, {"log", o.Log == nil}} {
		if need.missing {
			errs = append(errs, errors.New("tasks: the "+need.what+" is missing"))
		}
	}
	return errors.Join(errs...)
}

// Service runs tasks. It may be called from several goroutines, and has none of its own.
type Service struct {
	Options

	mu      sync.Mutex
	running map[string]Progress // by session
}

// New makes a Service.
func New(o Options) (*Service, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Service{Options: o, running: map[string]Progress{}}, nil
}

// Opened is what the first step of a task has done.
const Opened = "open a session"

// Step is one thing that was done in a task. It never has what was typed.
type Step struct {
	// Number counts the answers of the model. It is 0 for the opening of the session.
	Number  int    `json:"number"`
	Max     int    `json:"most" doc:"how many steps the task may have"`
	Session string `json:"session" doc:"the session of the task; closing it stops the task"`
	Do      string `json:"do" doc:"the action, such as click e3"`
	URL     string `json:"url,omitempty" doc:"where the page is then"`
	Code    string `json:"code,omitempty" doc:"why it did not work; the model is told, and goes on"`
	Tokens  int64  `json:"tokens" doc:"tokens that the model has used so far, in and out"`
}

// Result is what a task has come to.
type Result struct {
	// Answer is any JSON: a text when no schema was given.
	Answer       json.RawMessage   `json:"answer"`
	Session      string            `json:"session" doc:"the session of the task, which is closed"`
	Agent        string            `json:"agent" doc:"the id of the agent that it was done as"`
	Model        string            `json:"model"`
	URL          string            `json:"url,omitempty" doc:"where the page was at the end"`
	Steps        int               `json:"steps"`
	InputTokens  int64             `json:"input_tokens"`
	OutputTokens int64             `json:"output_tokens"`
	NeedsRefresh []session.Refresh `json:"needs_refresh,omitempty" doc:"accounts whose stored login is no longer complete"`
}

// Run does a task and returns its answer. tell hears of every step at once; it may be nil, and must not wait. Everything
// that can be wrong with a request is found before anything is opened.
func (s *Service) Run(ctx context.Context, by identity.Principal, r Request, tell func(Step)) (out Result, err error) {
	who, left, err := s.principal(ctx, by, r)
	if err != nil {
		return Result{}, err
	}
	p, err := r.plan()
	if err != nil {
		return Result{}, err
	}
	p.timeout = min(p.timeout, left)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	release, err := s.Identity.WatchValidity(ctx, who.Lasting(), cancel)
	if err != nil {
		return Result{}, err
	}
	defer release()
	ctx, stop := context.WithTimeoutCause(ctx, p.timeout, problem.New(problem.Timeout,
		"give it more time (timeout), or a smaller goal", "the task did not end within %s", p.timeout))
	defer stop()
	m, err := s.choose(ctx, who, p)
	if err != nil {
		return Result{}, orWhy(ctx, err)
	}
	pending, err := s.Audit.Begin(ctx, audit.Intent{Action: string(identity.TaskRun), Tenant: who.Tenant, Actor: by.Actor(), Target: who.ID,
		Detail: audit.NewDetail(audit.Fields{"model": m.name, "dialect": string(m.dialect)})})
	if err != nil {
		return Result{}, err
	}
	t := &running{s: s, by: who, plan: p, model: m, tell: tell, out: Result{Agent: who.ID, Model: m.name}}
	defer func() { pending.End(t.outcome(err)) }()
	opened, err := s.Sessions.Open(ctx, who, p.session)
	if err != nil {
		return Result{}, orWhy(ctx, err)
	}
	t.out.Session, t.out.NeedsRefresh = opened.ID, opened.NeedsRefresh
	watched, err := s.watch(ctx, who, opened.ID, cancel)
	defer func() {
		cancel(nil)
		watched()
		if problem.CodeOf(err) != problem.TakenOver { // else a person is using it
			s.close(ctx, who, opened.ID)
		}
	}()
	if err != nil {
		return Result{}, err
	}
	defer s.over(opened.ID)
	t.say(Step{Do: Opened})
	if err := t.all(ctx); err != nil {
		return Result{}, t.explained(orWhy(ctx, err))
	}
	return t.out, nil
}

// principal is the agent as which a task is done, the caller itself or the one that an operator names, and how long it may take: the
// token of a caller ends by itself.
func (s *Service) principal(ctx context.Context, by identity.Principal, r Request) (who identity.Principal, left time.Duration, _ error) {
	tenant := by.TenantOr(r.Tenant)
	if own := by.AgentID(); own != "" {
		if err := s.Identity.AuthorizeWith(ctx, by, identity.TaskRun, identity.Object{Tenant: tenant, Agent: own}); err != nil {
			return who, 0, err
		}
		if r.Agent != "" && r.Agent != by.Name {
			return who, 0, problem.New(problem.Forbidden, "leave agent out", "an agent can run tasks only as itself")
		}
		return by, MaxTimeout, nil
	}
	if r.Agent == "" {
		if err := s.Identity.AuthorizeWith(ctx, by, identity.TaskRun, identity.Object{Tenant: tenant}); err != nil {
			return who, 0, err
		}
		return who, 0, problem.New(problem.BadRequest, "name one (--agent NAME): its models, budget, rules and accounts are used",
			"the task names no agent to run as")
	}
	a, err := s.Identity.AgentFor(ctx, by, identity.TaskRun, tenant, r.Agent)
	if err == nil {
		left, err = s.Left(ctx, a)
	}
	if err != nil {
		return who, 0, err
	}
	who = identity.OfJail(a.ID, a.Tenant)
	who.Name = a.Name
	return who, left, nil
}

// watch ends a task with its session: also while a model is thinking. The returned function waits for the end of the watching,
// which is that of ctx.
func (s *Service) watch(ctx context.Context, who identity.Principal, id string, cancel context.CancelCauseFunc) (wait func(), err error) {
	var watching sync.WaitGroup
	stopping, err := s.Sessions.Stopping(ctx, who, id)
	if err != nil {
		return watching.Wait, err
	}
	watching.Go(func() {
		select {
		case <-stopping:
			// The error of any call is why the session has ended.
			_, why := s.Sessions.Drive(context.WithoutCancel(ctx), who, id, browser.Status{})
			cancel(why)
		case <-ctx.Done():
		}
	})
	return watching.Wait, nil
}

// close closes the session of a task, whose caller may be gone.
func (s *Service) close(ctx context.Context, who identity.Principal, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	if _, err := s.Sessions.Close(ctx, who, id); err != nil && !ended(err) && problem.CodeOf(err) != problem.NotFound {
		s.Log.Error("close the session of a task", "session", id, "error", err)
	}
}

// orWhy is why a task ended: what ended its context, whatever was said of that elsewhere.
func orWhy(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// ended says that an error is of a session that is over, that a person has taken, or that is no longer logged in.
func ended(err error) bool {
	switch problem.CodeOf(err) {
	case problem.SessionClosed, problem.BrowserExited, problem.LimitMemory, problem.LimitWallClock, problem.AccountLost, problem.CookiesLost,
		problem.TakenOver, problem.LoginNeeded, problem.AuditUnavailable, problem.ShuttingDown, problem.Unauthorized, problem.Forbidden:
		return true
	}
	return false
}

// explained adds to an error how far the task had come.
func (t *running) explained(err error) error {
	p, ok := problem.As(err)
	if !ok {
		switch code := problem.CodeOf(err); code {
		case problem.Timeout, problem.Canceled:
			p = problem.Wrap(err, code, "", "the task was stopped")
		default:
			return fmt.Errorf("do a task: %w", err)
		}
	}
	return p.With("session", t.out.Session).With("steps", t.out.Steps).With("input_tokens", t.out.InputTokens).With("output_tokens", t.out.OutputTokens)
}

// outcome is how a task went, for its record.
func (t *running) outcome(err error) audit.Outcome {
	fields := audit.Fields{"steps": t.out.Steps, "input_token_count": t.out.InputTokens, "output_token_count": t.out.OutputTokens}
	o := audit.Outcome{Result: audit.OK, Session: t.out.Session}
	if err != nil {
		o.Result = audit.Failed
		fields["code"] = problem.CodeOf(err)
	}
	o.Detail = audit.NewDetail(fields)
	return o
}
