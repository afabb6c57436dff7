package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session/recording"
)

// driveLimit bounds everything that an operation may take, whatever its own limit is.
const driveLimit = 11 * time.Minute

// settleLimit bounds how long a request that failed with its browser waits to hear why. It is longer than exitLimit.
const settleLimit = exitLimit + time.Second

// Drive does something with the browser of a session. JavaScript of the caller's is not run in sessions whose access is
// tools; the code is act_evaluate_disabled.
func (svc *Service) Drive(ctx context.Context, by identity.Principal, id string, op browser.Operation) (any, error) {
	may := identity.SessionUse
	if op.Effect() == browser.Looks {
		may = identity.SessionLook
	}
	ctx, s, b, done, err := svc.use(ctx, by, may, id)
	if err != nil {
		return nil, err
	}
	defer done()
	if s.plan.mode == ModeRefresh && !ofFiles(op) {
		return nil, svc.refuse(s, by, may, op.Tool(), onlyInConsole(s))
	}
	if err := op.Validate(); err != nil {
		return nil, err
	}
	if op.Effect() >= browser.Evaluates && s.plan.access != grant.AccessCDP {
		return nil, svc.refuse(s, by, may, op.Tool(), problem.New(problem.ActEvaluateDisabled,
			"use snapshot, query and act without JavaScript; a session opened with access cdp runs it",
			"session %s does not run JavaScript of its caller", s.id))
	}
	if op.Effect() >= browser.Evaluates {
		svc.noteScript(s)
	}
	limit := min(op.Limit(), driveLimit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		problem.New(problem.Timeout, "give it more time with timeoutMs, or look at the page with a screenshot", "%s did not end within %s", op.Tool(), limit))
	defer cancel()
	tab := browser.TabOf(op)
	if s.watch.asking.Load() && showsPage(op) && !leaves(op) {
		if asks := svc.look(ctx, s, b, tab); asks != nil {
			return nil, loginNeeded(*asks, nil)
		}
	}
	arrived := s.watch.heads(b, op, s.plan.domains)
	began := svc.Now()
	var out any
	err = svc.record(ctx, s, by, may, op.Target(), audit.Fields{"tool": op.Tool()}, func() error {
		return svc.taped(ctx, s, by, b, op, func() (any, error) {
			var err error
			if out, err = b.Do(ctx, op); err != nil {
				return nil, svc.why(ctx, s, scrubbedError(svc.valuesOf(s), fmt.Errorf("%s: %w", op.Tool(), svc.refused(s, began, svc.crashed(ctx, s, err)))))
			}
			return out, nil
		})
	})
	if !s.over() && !endedByTakeover(ctx) {
		if leaves(op) {
			tab = "" // it may be another one now
		}
		// Also after an error: a page that loads slowly may ask to log in.
		if asks := svc.look(ctx, s, b, tab); asks != nil && showsPage(op) {
			err = loginNeeded(*asks, err)
		}
		if err == nil {
			arrived()
		}
		s.watch.poke()
	}
	if err != nil {
		return nil, err
	}
	return svc.scrubbed(s, op, out)
}

// scrubbed takes the values of injected cookies out of what an operation answers, where a site has shown them on a page
// or a script has printed them. It catches accidents: a script that spells a value backwards is not one. Pictures and
// files stay as they are.
func (svc *Service) scrubbed(s *session, op browser.Operation, out any) (any, error) {
	switch out.(type) {
	case browser.Picture, browser.FileContent:
		return out, nil
	}
	values := svc.valuesOf(s)
	if values == nil {
		return out, nil
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("%s: look for values of cookies: %w", op.Tool(), err)
	}
	clean := values.JSON(raw)
	if bytes.Equal(raw, clean) {
		return out, nil
	}
	result := op.Result()
	if err := json.Unmarshal(clean, result); err != nil {
		return nil, fmt.Errorf("%s: take the values of cookies out: %w", op.Tool(), err)
	}
	return reflect.ValueOf(result).Elem().Interface(), nil
}

// crashed adds to the error of a page whose process ended which limits the kernel says that the jail has run into.
func (svc *Service) crashed(ctx context.Context, s *session, err error) error {
	p, ok := problem.As(err)
	if !ok || p.Code != problem.PageCrashed || s.over() {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), usageLimit)
	defer cancel()
	svc.mu.Lock()
	name := s.jail
	svc.mu.Unlock()
	status, inspectErr := svc.Driver.Inspect(ctx, name)
	if inspectErr != nil || len(status.Usage.Hit) == 0 {
		return err // the page has crashed all the same
	}
	out := *p
	if slices.Contains(status.Usage.Hit, jail.LimitTenantMemory) {
		out.Message += "; its jail had run into its limit of " + jail.LimitTenantMemory.Words()
		out.Hint = "close sessions and end agents of the tenant that are not needed, or open a lighter page"
	} else if slices.Contains(status.Usage.Hit, jail.LimitMemory) {
		out.Message += "; its jail had run into its limit of memory"
		out.Hint = "open a session with more memory (`--memory`), or a lighter page"
	}
	return out.With("limits_hit", status.Usage.Hit)
}

// noteScript notes that a script of somebody's may be in the pages from now on.
func (svc *Service) noteScript(s *session) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	s.scripted = true
}

func (svc *Service) valuesOf(s *session) *redact.Values {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return s.values
}

// scrubbedError does the same for an error: a page may be quoted in one, and errors go to logs and recordings besides. One
// with a value in it keeps its code, and not what it was made of.
func scrubbedError(values *redact.Values, err error) error {
	p, ok := problem.As(err)
	if values == nil {
		return err
	}
	details := []byte(nil)
	if ok && len(p.Details) > 0 {
		var marshalErr error
		if details, marshalErr = json.Marshal(p.Details); marshalErr != nil {
			return fmt.Errorf("look for values of cookies: %w", marshalErr)
		}
	}
	clean := values.JSON(details)
	if values.Text(err.Error()) == err.Error() && bytes.Equal(clean, details) && (!ok || values.Text(p.Hint) == p.Hint) {
		return err
	}
	if !ok {
		return problem.New(problem.CodeOf(err), "", "%s", values.Text(err.Error()))
	}
	out := problem.New(p.Code, values.Text(p.Hint), "%s", values.Text(p.Message))
	if details != nil {
		if unmarshalErr := json.Unmarshal(clean, &out.Details); unmarshalErr != nil {
			return fmt.Errorf("take the values of cookies out: %w", unmarshalErr)
		}
	}
	return out
}

// refuse puts a refusal on record, and returns it.
func (svc *Service) refuse(s *session, by identity.Principal, op identity.Operation, tool string, why error) error {
	i := svc.intent(s, by.Actor(), string(op), "", nil)
	svc.Records.Note(audit.Event{Action: i.Action, Result: audit.Refused, Tenant: i.Tenant, Actor: i.Actor, Session: i.Session, Jail: i.Jail,
		Detail: audit.NewDetail(audit.Fields{"tool": tool, "code": problem.CodeOf(why)})})
	return why
}

// Recorded returns a screenshot that was kept, and its format. The code is not_found when it is not, or not any more.
func (svc *Service) Recorded(ctx context.Context, by identity.Principal, id string, number int) ([]byte, string, error) {
	s, err := svc.permitted(ctx, by, identity.SessionRecording, id)
	if err != nil {
		return nil, "", err
	}
	missing := problem.New(problem.NotFound, "the last "+fmt.Sprint(recording.PicturesMost)+" are kept, until the session ends: clawjail session show "+id,
		"session %s has no screenshot %d", id, number)
	if s.tape == nil {
		return nil, "", missing
	}
	data, format, err := s.tape.Picture(number)
	if err != nil {
		missing.Err = err
		return nil, "", missing
	}
	return data, format, nil
}

// use is the browser of a session that is ready, for somebody who may have it, until done is called. The context ends when
// somebody takes the session over.
func (svc *Service) use(ctx context.Context, by identity.Principal, op identity.Operation, id string) (
	within context.Context, s *session, b Browser, done func(), err error,
) {
	if s, b, err = svc.ready(ctx, by, op, id); err != nil {
		return nil, nil, nil, nil, err
	}
	if err := svc.notRefresh(s, by, op, ""); err != nil {
		return nil, nil, nil, nil, err
	}
	svc.mu.Lock()
	if s.state != StateReady {
		svc.mu.Unlock()
		return nil, nil, nil, nil, svc.endedProblem(s)
	}
	defer svc.mu.Unlock()
	if t := s.takeover; t != nil && (!t.of(by) || !t.settled) {
		return nil, nil, nil, nil, takenOver(s)
	}
	if within, done, err = svc.occupy(ctx, s, by); err != nil {
		return nil, nil, nil, nil, err
	}
	s.touched = s.touched || by.AgentID() != ""
	return within, s, b, done, nil
}

// why turns the failure of a request into what its caller can act on: when the session has ended meanwhile, that is
// the reason, whatever the browser's connection said.
func (svc *Service) why(ctx context.Context, s *session, err error) error {
	// The pipe of a browser that ended is noticed by several at the same moment.
	svc.mu.Lock()
	i := s.instance
	known := s.ended != nil && s.ended.Cause != CauseBrowserExited // of a browser's end, the kernel knows more
	svc.mu.Unlock()
	if known {
		return svc.endedProblem(s)
	}
	if i == nil || s.over() || i.gone() {
		limit := time.NewTimer(settleLimit)
		defer limit.Stop()
		select {
		case <-s.settled:
			return svc.endedProblem(s)
		case <-limit.C:
		case <-ctx.Done():
		}
		ending := endingProblem(s.id)
		ending.Err = err
		return ending
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// over says whether a session has begun to end.
func (s *session) over() bool {
	return wake.Closed(s.stop)
}
