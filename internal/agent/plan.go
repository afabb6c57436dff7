package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// atOnce is how many agents are worked on at the same time.
const atOnce = 8

// task is one step of a plan, with all that is to be done.
type task struct {
	step   Step
	tenant string
	want   *wanted // nil for what is removed, extra, or cannot be made
	// flaw says why it cannot be made.
	flaw error

	identity store.Agent // without an ID when there is none
	declared *declaration
	kept     jail.KeptStatus
	isKept   bool

	rules    ruleChanges
	accounts accountChanges
	settings *egress.Settings // nil: they are right
	// rotate makes a new token; deliver gives the jail what is declared; retry tries again what could not be made.
	rotate, deliver, retry bool
	// idle says that no jail is to run: the agent is revoked, or its time is over.
	idle bool
	keep RemoveOptions
}

// changes says whether anything is done.
func (t *task) changes() bool { return t.step.Verb != Unchanged && t.step.Verb != Extra }

// starts says whether a jail is made.
func (t *task) starts() bool {
	return t.want != nil && !t.idle && (t.step.Verb == Create || t.step.Verb == Restart)
}

// plan compares what is wanted with what is.
func (s *Service) plan(ctx context.Context, w *tenantState, agents []clawbots.Agent, driver func(clawbots.Agent) string) ([]*task, error) {
	tasks := make([]*task, 0, len(agents))
	for _, a := range agents {
		t := &task{tenant: w.tenant, identity: w.identities[a.Name], declared: w.declared[a.Name]}
		t.kept, t.isKept = w.kept[a.Name]
		t.step = Step{Tenant: w.tenant, Name: a.Name, Verb: Unchanged, Sharing: a.Sharing, Workspace: a.Workspace, Mode: a.WorkspaceMode, Exposes: clawbots.Exposes(a)}
		tasks = append(tasks, t)
		want, err := s.want(w.tenant, t.identity.ID, a, driver(a), w.surfaces)
		if at := w.elsewhere[a.Name]; at != nil {
			err = errElsewhere(a.Name, at)
		}
		if err != nil {
			// Nothing is made of it, so nothing more needs to be known.
			t.flaw, t.step.Verb, t.step.Driver = err, Create, driverOf(a, driver(a))
			continue
		}
		t.want, t.step.Driver, t.step.Source = want, want.driver, want.source
	}
	missing, err := s.withoutToken(ctx, tasks)
	if err != nil {
		return nil, err
	}
	for _, t := range tasks {
		if t.want != nil {
			s.decide(w, t, missing[t.step.Name])
		}
	}
	return tasks, nil
}

// withoutToken finds the jails that have none.
func (s *Service) withoutToken(ctx context.Context, tasks []*task) (map[string]bool, error) {
	var mu sync.Mutex // guards missing
	missing := map[string]bool{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, t := range tasks {
		if t.want == nil || !t.isKept || t.identity.ID == "" {
			continue
		}
		group.Go(func() error {
			has, err := s.o.Keeper.HasToken(ctx, t.tenant, t.step.Name)
			if err != nil {
				return fmt.Errorf("ask whether %s has its token: %w", t.step.Name, err)
			}
			if !has {
				mu.Lock()
				missing[t.step.Name] = true
				mu.Unlock()
			}
			return nil
		})
	}
	return missing, group.Wait()
}

// decide finds what is to be done with one agent, and why.
func (s *Service) decide(w *tenantState, t *task, tokenMissing bool) {
	a, d := t.want.agent, t.declared
	verb := func(v Verb, format string, args ...any) {
		if t.step.Verb == Unchanged || t.step.Verb == Change && v != Unchanged {
			t.step.Verb = v
		}
		if format != "" {
			t.step.Why = append(t.step.Why, fmt.Sprintf(format, args...))
		}
	}
	note := func(format string, args ...any) { t.step.Why = append(t.step.Why, fmt.Sprintf(format, args...)) }

	revoked, over := !t.identity.RevokedAt.IsZero(), t.want.over(t.identity.CreatedAt, s.o.Now())
	t.idle = t.identity.ID != "" && (revoked || over)
	t.rules = diffRules(w.rules[t.identity.ID], t.want.rules)
	t.accounts = diffAccounts(w.permissions[t.identity.ID], a.Accounts)
	s.decideSettings(w, t)

	said := false // what was declared differs, and the differences are among the reasons
	switch {
	case t.identity.ID == "" && d == nil && !t.isKept:
		verb(Create, "it is new")
	case t.identity.ID == "":
		verb(Create, "its identity is gone")
	case d == nil && !t.isKept:
		verb(Create, "it has an identity and no jail")
	case d == nil:
		verb(Change, "it was not declared before")
	case d.damaged:
		verb(Change, "what was declared last cannot be read")
	case !bytes.Equal(clawbots.Canonical(d.Agent), clawbots.Canonical(a)):
		differences := clawbots.Differences(d.Agent, a)
		said = len(differences) > 0
		verb(Change, "")
		t.step.Why = append(t.step.Why, differences...)
	}
	if d != nil && !d.damaged {
		switch {
		case !d.Done:
			verb(Change, "what was begun before was not finished")
		case d.ID != t.identity.ID && t.identity.ID != "":
			verb(Change, "there is another agent of its name")
		}
	}
	if !said && t.identity.ID != "" && d != nil && d.Done {
		if t.rules.any() {
			verb(Change, "its rules are not those that were declared")
		}
		if t.accounts.any() {
			verb(Change, "the accounts that it may use are not those that were declared")
		}
		if t.settings != nil {
			verb(Change, "its settings are not those that were declared")
		}
	}
	t.rotate = t.identity.ID != "" && !t.idle && (!t.isKept || tokenMissing || d == nil || d.damaged || !d.Done || d.ID != t.identity.ID || d.Agent.TTL != a.TTL)
	s.decideJail(t, said, verb, note)
	if t.rotate && tokenMissing && t.isKept {
		verb(Change, "its token is missing")
	}
	if len(t.accounts.kept) > 0 {
		note("a person has said how it may use the account of %s, which stays", strings.Join(t.accounts.kept, ", "))
	}
	switch {
	case revoked:
		note("it is revoked, and its jail stays stopped: clawjail agent restore %s", t.step.Name)
	case over:
		note("its time of %s is over: %s", a.TTL, MoreTime(t.tenant, t.step.Name))
	case t.step.Verb == Unchanged && t.kept.Phase == jail.PhaseEnded:
		note("its program has ended, and its restart policy is %s", t.kept.Restart)
	}
}

// decideJail compares the jail that is kept with the one that is wanted.
func (s *Service) decideJail(t *task, said bool, verb func(Verb, string, ...any), note func(string, ...any)) {
	fresh := t.want.kept
	switch {
	case t.idle:
		t.deliver = t.isKept && (t.kept.Revision != fresh.Revision || !t.kept.Stopped)
		if t.deliver && t.kept.Revision == fresh.Revision {
			verb(Change, "its jail is stopped")
		} else if t.deliver {
			verb(Change, "")
		}
	case !t.isKept:
		t.deliver = true
		if t.step.Verb != Create {
			verb(Restart, "its jail is gone")
		}
	case t.kept.Revision != fresh.Revision:
		t.deliver = true
		verb(Restart, "")
		if !said {
			for _, why := range shapes(t.kept.Spec, fresh.Spec) {
				note("%s", why)
			}
		}
	case t.kept.Stopped:
		t.deliver = true
		verb(Restart, "its jail was stopped")
	case t.kept.Restart != fresh.Restart:
		t.deliver = true
		if !said {
			verb(Change, "its restart policy is %s, not %s", t.kept.Restart, fresh.Restart)
		}
	case t.kept.Phase == jail.PhaseFailed:
		t.retry = true
		verb(Restart, "its jail could not be made: %s", texts.Clip(t.kept.Problem, 300))
	}
}

// decideSettings finds what the agent's settings should be.
func (s *Service) decideSettings(w *tenantState, t *task) {
	var owned []part
	if t.declared != nil {
		owned = t.declared.Owns
	}
	are := w.settings[t.identity.ID]
	if t.identity.ID == "" {
		are = egress.Settings{}
	}
	if should := settingsOf(are, t.want.agent, owned); !sameSettings(are, should) {
		t.settings = &should
	}
}

// leftovers are the agents that were declared before, or whose jails are kept, and are not wanted any more.
func (w *tenantState) leftovers(wanted []clawbots.Agent, prune bool, keep RemoveOptions) (out []*task) {
	is := map[string]bool{}
	for _, a := range wanted {
		is[a.Name] = true
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(w.declared)), maps.Keys(w.kept))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if is[name] || w.elsewhere[name] != nil {
			continue
		}
		t := &task{tenant: w.tenant, identity: w.identities[name], declared: w.declared[name], keep: keep}
		t.kept, t.isKept = w.kept[name]
		t.step = Step{Tenant: w.tenant, Name: name, Verb: Extra, Why: []string{"it is not declared any more; --prune removes it"}}
		if prune {
			t.step.Verb, t.step.Why = Remove, []string{"it is not declared any more"}
		}
		if t.isKept {
			t.step.Driver, t.step.Source = driverOfKept(t.kept.Kept), t.kept.Spec.Template+t.kept.Spec.Image
		}
		if t.declared != nil {
			t.step.Sharing, t.step.Workspace, t.step.Mode = t.declared.Agent.Sharing, t.declared.Agent.Workspace, t.declared.Agent.WorkspaceMode
		}
		out = append(out, t)
	}
	return out
}

// check says everything that would keep a plan from being done, before anything is changed: each at its place in the file, if it
// is one of a file's.
func (s *Service) check(ctx context.Context, w *tenantState, tasks []*task, file clawbots.File, free func(clawbots.Agent) error) error {
	m := &problem.ValidationError{Code: problem.BadRequest, Source: file.Source}
	add := func(t *task, field string, err error) {
		flaw := problem.Flaw{Field: t.step.Name, Message: err.Error()}
		if field != "" {
			flaw.Field += "." + field
		}
		flaw.Line, flaw.Column = file.Place(t.step.Name, field)
		if p, ok := problem.As(err); ok {
			flaw.Message, flaw.Hint = p.Message, p.Hint
		}
		m.AddFlaw(flaw)
	}
	servers, err := s.knownServers(ctx, w.tenant, tasks)
	if err != nil {
		return err
	}
	var making []*task
	for _, t := range tasks {
		if t.flaw != nil {
			add(t, "", t.flaw)
		}
		if t.want == nil || !t.changes() {
			continue
		}
		s.checkOne(w, t, servers, free, func(field string, err error) { add(t, field, err) })
		s.checkAccounts(ctx, t, func(field string, err error) { add(t, field, err) })
		if t.starts() {
			making = append(making, t)
		}
	}
	if len(making) == 0 {
		return m.Err()
	}
	if err := s.checkQuotas(ctx, w, making); err != nil {
		return errors.Join(m.Err(), err)
	}
	all := make([]jail.Kept, len(making))
	for i, t := range making {
		all[i] = t.want.kept
	}
	found, err := s.o.Keeper.CheckKept(ctx, all)
	if err != nil {
		return errors.Join(m.Err(), fmt.Errorf("ask whether the jails can be made: %w", err))
	}
	templates := map[string]*missing{} // what several agents lack is said once
	for i, err := range found[:min(len(found), len(making))] {
		if err == nil {
			continue
		}
		field := ""
		if slices.Contains([]string{problem.TemplateMissing, problem.TemplateChanged}, problem.CodeOf(err)) {
			if field = "template"; templates[err.Error()] != nil {
				templates[err.Error()].others++
				continue
			}
			templates[err.Error()] = &missing{at: len(m.Flaws)}
		}
		add(making[i], field, err)
		m.Code = cmp.Or(codeOfAll(m, err), m.Code)
	}
	for _, t := range templates {
		switch {
		case t.others == 1:
			m.Flaws[t.at].Message += "; another agent of the file is made of it too"
		case t.others > 1:
			m.Flaws[t.at].Message += fmt.Sprintf("; %d more agents of the file are made of it", t.others)
		}
	}
	return m.Err()
}

// missing is a flaw that is one of several agents.
type missing struct{ at, others int }

// codeOfAll is the code of a list that has one flaw, which says more than that of any list.
func codeOfAll(m *problem.ValidationError, err error) string {
	if len(m.Flaws) == 1 {
		return problem.CodeOf(err)
	}
	return ""
}

func (s *Service) knownServers(ctx context.Context, tenant string, tasks []*task) ([]string, error) {
	for _, t := range tasks {
		if t.want != nil && t.changes() && len(t.want.agent.MCP) > 0 {
			names, err := s.o.Servers(ctx, tenant)
			if err != nil {
				return nil, fmt.Errorf("ask which MCP servers there are: %w", err)
			}
			return names, nil
		}
	}
	return nil, nil
}

// checkOne looks at what one agent needs.
func (s *Service) checkOne(w *tenantState, t *task, servers []string, free func(clawbots.Agent) error, add func(string, error)) {
	a := t.want.agent
	for i, name := range a.Services {
		if !slices.ContainsFunc(w.surfaces.services, func(svc egress.Service) bool {
			return svc.Name == name && (svc.Agent == "" || svc.Agent == t.identity.ID)
		}) {
			add(fmt.Sprintf("services[%d]", i), problem.New(problem.ServiceUnknown, "make it first: clawjail service add "+name, "there is no service %s", name))
		}
	}
	for i, name := range a.MCP {
		if !slices.Contains(servers, name) {
			add(fmt.Sprintf("mcp[%d]", i), problem.New(problem.NotFound, "declare it first: clawjail mcp-server add "+name+" -- PROGRAM", "there is no MCP server %s", name))
		}
	}
	if t.settings != nil {
		if err := egress.CheckSettings(*t.settings); err != nil {
			add("", err)
		}
	}
	if _, err := (&declaration{Agent: a, ID: t.identity.ID, Owns: partsOf(a)}).body(); err != nil {
		add("", err)
	}
	if err := free(a); err != nil && (t.declared == nil || t.declared.damaged || t.declared.Agent.Workspace != a.Workspace || t.declared.Agent.WorkspaceMode != a.WorkspaceMode) {
		add("workspace", err)
	}
	if a.TTL > 0 && t.identity.ID != "" && !t.idle && !s.o.Now().Add(time.Second).Before(t.identity.CreatedAt.Add(a.TTL)) {
		add("ttl", problem.New(problem.BadLimit, "declare a longer ttl", "its ttl of %s is over", a.TTL))
	}
}
