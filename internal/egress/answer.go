package egress

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// Answer approves or refuses a request for access. An approval makes a rule, adds a tool, gives the agent a service, or permits it an
// account. A tool is added to
// the agent's own list; where it had none, that begins with the wider one as it is now.
func (b *Book) Answer(ctx context.Context, by identity.Principal, id string, a AccessAnswer) (AccessRequest, error) {
	e, err := b.entry(ctx, kindAccess, id, noRequest())
	if err != nil {
		return AccessRequest{}, b.hidden(ctx, by, identity.AccessAnswer, err)
	}
	if err := b.mayWith(ctx, by, identity.AccessAnswer, scope{e.Tenant, e.Agent}, noRequest()); err != nil {
		return AccessRequest{}, err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	// It may have been answered while this waited.
	if e, err = b.entry(ctx, kindAccess, id, noRequest()); err != nil {
		return AccessRequest{}, err
	}
	asked := read(e, b.reader.seed).access
	if asked == nil {
		return AccessRequest{}, noRequest()
	}
	if state := asked.state(b.o.Now()); state != AccessPending {
		return AccessRequest{}, alreadyAnswered(*asked, state)
	}
	lasts, err := readAnswer(*asked, a)
	if err != nil {
		return AccessRequest{}, err
	}
	out := *asked
	out.State, out.AnsweredBy, out.Answer = AccessRefused, by.Actor(), a.Comment
	give := func(context.Context) error { return nil }
	if a.Approve {
		out.State = AccessApproved
		var until time.Time
		if lasts > 0 {
			until = b.now().Add(lasts)
		}
		if out.Made, give, err = b.gift(ctx, by, out, a.Once, until); err != nil {
			return AccessRequest{}, err
		}
	}
	s := step{by: by, op: identity.AccessAnswer, of: scope{out.Tenant, out.Agent}, target: out.Target, fields: audit.Fields{
		"kind": string(out.Kind), "target": out.Target, "reason": texts.Clip(out.Reason, 300), "request_id": out.ID, "agent_name": out.AgentName, "state": string(out.State),
		"once": a.Once, "lasts": a.For, "comment": texts.Clip(a.Comment, 600), "entry_id": out.Made,
	}}
	err = b.change(ctx, s, func() error { return b.settle(ctx, asked, &out, give) })
	if err != nil {
		return AccessRequest{}, err
	}
	return out, nil
}

func alreadyAnswered(a AccessRequest, state AccessState) error {
	if state == AccessExpired {
		return problem.New(problem.Conflict, "let the agent ask again, or make a rule", "the request has expired")
	}
	return problem.New(problem.Conflict, "change the rules instead: clawjail rules ls", "the request has been answered already: it was %s", a.State)
}

// readAnswer checks an answer, and reads how long it is for; 0 for good.
func readAnswer(asked AccessRequest, a AccessAnswer) (lasts time.Duration, err error) {
	f := newFlaws()
	f.check(clean(a.Comment, maxText), "comment", "has more than %d bytes or control characters", maxText)
	f.check(a.Approve || !a.Once && a.For == "", "approve", "a refusal is neither for once nor for a time")
	f.check(!a.Once || asked.Kind != AccessService, "once", "a service is given for a time or for good")
	if lasts, err = grant.ParseFor(a.For); err != nil {
		f.add(problem.BadLimit, "for", "such as 1h or 30d; leave it out for good", "%q is not a time from 1s to 366d", clip(a.For))
	}
	return lasts, f.err()
}

// settle writes the answer down and then gives what was approved: of two answers the database takes one, and nothing is
// given that was not approved. When it cannot be given, the question is open again.
func (b *Book) settle(ctx context.Context, asked, out *AccessRequest, give func(context.Context) error) error {
	now := b.now()
	out.AnsweredAt, out.UpdatedAt, out.ExpiresAt = now, now, now.Add(keepAnswer)
	e, err := out.entry()
	if err != nil {
		return err
	}
	if err := b.o.Store.UpdateEntry(ctx, e); err != nil {
		if errors.Is(err, store.ErrExists) {
			return problem.Wrap(err, problem.Conflict, "look at it: clawjail access show "+out.ID, "somebody else has just answered the request")
		}
		return failure(err)
	}
	out.Version++
	err = give(ctx)
	if err == nil {
		return nil
	}
	open := *asked
	open.Version = out.Version
	e, openErr := open.entry()
	if openErr == nil {
		openErr = b.o.Store.UpdateEntry(context.WithoutCancel(ctx), e)
	}
	return errors.Join(err, openErr)
}

// gift prepares what an approval makes: its id, and how it is made.
func (b *Book) gift(ctx context.Context, by identity.Principal, a AccessRequest, once bool, until time.Time) (id string, give func(context.Context) error, err error) {
	meta := Meta{Tenant: a.Tenant, Agent: a.Agent, Note: "approved: " + a.ID, CreatedBy: by.Actor(), ExpiresAt: until}
	switch a.Kind {
	case AccessHost:
		plain, err := hostRule(a.Target)
		if err != nil {
			return "", nil, err
		}
		r := Rule{Meta: meta, Rule: plain, Priority: defaultPriority, Once: once}
		r.ID = newID("rule_")
		f := newFlaws()
		validRule(f, r)
		return r.ID, func(ctx context.Context) error { return b.createRule(ctx, &r) }, f.err()
	case AccessTool:
		t, err := askedTool(a.Target)
		if err != nil {
			return "", nil, err
		}
		t.ID, t.Once, t.ExpiresAt = newID("tool_"), once, until
		return b.giveTool(ctx, meta, t)
	case AccessService:
		return b.giveService(ctx, by, meta, a.Target)
	case AccessAccount:
		domain, access, err := askedAccount(a.Target)
		if err != nil || b.o.Accounts == nil {
			return "", nil, errors.Join(err, noRequest())
		}
		return b.o.Accounts.Approve(ctx, by, Approval{Tenant: a.Tenant, Agent: a.Agent, Domain: domain, Access: access, Once: once, Until: until})
	}
	return "", nil, noRequest()
}

// giveTool adds a tool to an agent's settings.
func (b *Book) giveTool(ctx context.Context, meta Meta, t Tool) (string, func(context.Context) error, error) {
	of := scope{meta.Tenant, meta.Agent}
	old, _, err := b.find(ctx, kindSettings, theSettings, of)
	if err != nil {
		return "", nil, err
	}
	now := b.now()
	s := Settings{Meta: meta}
	s.ID, s.CreatedAt, s.Version, s.ExpiresAt = newID("set_"), now, 1, time.Time{}
	if old.ID != "" {
		i := read(old, b.reader.seed)
		if i.settings == nil {
			return "", nil, problem.New(problem.Conflict, "save its settings again", "the settings of the agent cannot be read")
		}
		s = *i.settings
	}
	if s.Tools == nil {
		s.Tools = b.state.Load().effective(scope{tenant: of.tenant}, now).Tools
		// A tool for one use is not copied: it would be two uses.
		s.Tools = slices.DeleteFunc(slices.Clone(s.Tools), func(t Tool) bool { return t.Once })
	}
	s.UpdatedAt = now
	s.Tools = append(slices.DeleteFunc(slices.Clone(s.Tools), func(t Tool) bool { return expired(t.ExpiresAt, now) }), t)
	f := newFlaws()
	validSettings(f, s)
	if err := f.err(); err != nil {
		return "", nil, err
	}
	e, err := s.entry()
	if err != nil {
		return "", nil, err
	}
	return s.ID, func(ctx context.Context) error {
		if old.ID == "" {
			return failure(b.o.Store.CreateEntry(ctx, e))
		}
		return failure(b.o.Store.UpdateEntry(ctx, e))
	}, nil
}

// giveService copies a service that others of the tenant have to an agent, and one of the tenant's that the agent's list of
// services leaves out.
func (b *Book) giveService(ctx context.Context, by identity.Principal, meta Meta, name string) (string, func(context.Context) error, error) {
	var from *Service
	now := b.now()
	better := func(s *Service) bool {
		return from == nil || cmp.Or(cmp.Compare(s.distance(meta.Agent), from.distance(meta.Agent)), s.CreatedAt.Compare(from.CreatedAt)) < 0
	}
	state := b.state.Load()
	for _, i := range state.from {
		if s := i.service; s != nil && s.Name == name && !i.expired(now) && (s.Tenant == "" || s.Tenant == meta.Tenant) && better(s) {
			from = s
		}
	}
	switch {
	case from == nil:
		return "", nil, problem.New(problem.NotFound, "make it first: clawjail service add "+name, "no agent of the tenant has a service %q", name)
	case (from.Agent == "" || from.Agent == meta.Agent) && state.leaves(scope{meta.Tenant, meta.Agent}, state.items[from.ID], now):
		return from.ID, func(context.Context) error { return nil }, nil
	case from.reachesInside():
		if err := b.may(ctx, by, identity.EgressInside, scope{}); err != nil {
			return "", nil, err
		}
	}
	s := *from
	s.Meta = meta
	s.ID, s.CreatedAt, s.UpdatedAt, s.Version = newID("svc_"), now, now, 1
	s.Secret = cmp.Or(s.Secret, s.Name)
	if count := len(state.services[meta.Tenant]); count >= maxServices {
		return "", nil, problem.New(problem.BadLimit, "remove some that are not needed", "there are %d services already, the most there may be", count)
	}
	return s.ID, func(ctx context.Context) error {
		e, err := s.entry()
		if err != nil {
			return err
		}
		return b.create(ctx, e, now)
	}, nil
}

// distance is how far a service is from an agent: its own, everybody's, another agent's.
func (s *Service) distance(agent string) int {
	switch s.Agent {
	case agent:
		return 0
	case "":
		return 1
	}
	return 2
}
