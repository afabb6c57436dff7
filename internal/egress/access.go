package egress

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	maxPending = 20 // questions of one agent
	// askFor is how long a question waits for its answer, and keepAnswer how long both can be read.
	askFor     = 7 * 24 * time.Hour
	keepAnswer = 30 * 24 * time.Hour
	// askAgain is for how long an answer is also the answer to the same question.
	askAgain = 24 * time.Hour
	maxWait  = 5 * time.Minute
)

// heldReason is the reason of a question that a refused request makes.
const heldReason = "a request was refused"

func noRequest() error {
	return problem.New(problem.NotFound, "list them: clawjail access ls", "there is no such request for access")
}

// pendingName is the name of an open question: the database keeps one of each for an agent.
func pendingName(kind AccessKind, target string) string {
	sum := sha256.Sum256([]byte(string(kind) + "\x00" + target))
	return "pending-" + hex.EncodeToString(sum[:16])
}

// validAccess is about a request for access as it is kept.
func validAccess(f *flaws, a AccessRequest) {
	validMeta(f, a.Meta)
	f.check(a.Tenant != "" && a.Agent != "", "agent", "is missing")
	target, err := readTarget(a.Kind, a.Target)
	f.check(err == nil && target == a.Target, "target", "is not one of the kind %q", clip(string(a.Kind)))
	f.check(clean(a.Reason, maxText) && clean(a.Answer, maxText), "reason", "has more than %d bytes or control characters", maxText)
	f.check(clean(a.AgentName, 128) && clean(a.AnsweredBy, 200) && clean(a.Made, 128), "agent_name", "is no name")
	f.check(slices.Contains([]AccessState{AccessPending, AccessApproved, AccessRefused}, a.State), "state", "%q is none", clip(string(a.State)))
}

// readTarget returns the one form of what is asked for. A second reading gives the same.
func readTarget(kind AccessKind, target string) (string, error) {
	tooLong := errors.New("it has more than 1000 bytes or control characters")
	if !clean(target, maxText) {
		return "", tooLong
	}
	out, err := oneForm(kind, target)
	if err == nil && len(out) > maxText { // what is not ASCII is longer there
		return "", tooLong
	}
	return out, err
}

func oneForm(kind AccessKind, target string) (string, error) {
	switch kind {
	case AccessHost:
		r, err := hostRule(target)
		if err != nil {
			return "", err
		}
		if slices.Equal(r.Ports, policy.Ports(80, 443)) {
			return r.Host.String(), nil
		}
		return r.Host.String() + ":" + r.Ports[0].String(), nil
	case AccessTool:
		t, err := askedTool(target)
		if err != nil {
			return "", err
		}
		return strings.Join(append([]string{t.Methods[0], t.URL}, t.Services...), " "), nil
	case AccessService:
		if !validName(target) {
			return "", errors.New("it is not the name of a service")
		}
		return target, nil
	case AccessAccount:
		domain, access, err := askedAccount(target)
		return accountTarget(domain, access), err
	}
	return "", errors.New("the kind is none of host, tool, service and account")
}

// hostRule is a rule that allows a host that was asked for: one host, one port or the usual two, whatever the path.
func hostRule(target string) (policy.Rule, error) {
	r, err := policy.ParseURL(target)
	switch {
	case err != nil:
		return policy.Rule{}, err
	case strings.HasPrefix(r.Host.String(), "*"), slices.ContainsFunc(r.Ports, func(p policy.PortRange) bool { return p.First != p.Last }):
		return policy.Rule{}, errors.New("ask for one host, and for one port")
	}
	// In a tunnel the path is not visible, and the scheme is that of the port.
	return policy.Rule{Action: policy.Allow, Host: r.Host, Ports: r.Ports}, nil
}

// askedTool reads METHOD URL SERVICE; the service may be left out, see [EffectivePolicy.livesAt].
func askedTool(target string) (Tool, error) {
	method, url, found := strings.Cut(target, " ")
	url, service, named := strings.Cut(url, " ")
	t := Tool{URL: url, Methods: []string{strings.ToUpper(method)}}
	if !found || !made(t.Methods[0], 32, upper) || t.Methods[0] == policy.Connect || named && !validName(service) {
		return Tool{}, errors.New("write it as a method, a URL and the service whose credential is used: GET https://api.example.com/v1/** example")
	}
	if named {
		t.Services = []string{service}
	}
	r, err := t.rule("it")
	if err != nil {
		return Tool{}, err
	}
	if strings.HasPrefix(r.Host.String(), "*") || len(r.Ports) != 1 || r.Ports[0].First != r.Ports[0].Last {
		return Tool{}, errors.New("ask for one host, and for one port")
	}
	t.URL = string(r.Scheme) + "://" + r.Host.String()
	if port := r.Ports[0].String(); port != map[policy.Scheme]string{policy.HTTP: "80", policy.WS: "80", policy.HTTPS: "443"}[r.Scheme] {
		t.URL += ":" + port
	}
	t.URL += r.Path.String()
	return t, nil
}

// hasServiceFor says why a tool that was asked for would be of no use.
func (v *EffectivePolicy) hasServiceFor(target string) error {
	t, err := askedTool(target)
	if err != nil || len(t.Services) > 0 {
		return err
	}
	if r, err := t.rule("it"); err != nil || len(v.livesAt(r)) == 0 {
		return errors.New("name the service whose credential is used, behind the URL: " + clip(target) + " SERVICE")
	}
	return nil
}

// Ask is an agent's request for access. The same question again is the same request until it is answered. Within
// a day of its answer it still is, after an approval for as long as that gives something. With wait it returns when it is
// answered, or wait (at most 5 minutes) is over.
func (b *Book) Ask(ctx context.Context, by identity.Principal, kind AccessKind, target, reason string, wait time.Duration) (AccessRequest, error) {
	of := scope{by.Tenant, by.ID}
	if err := b.may(ctx, by, identity.AccessAsk, of); err != nil {
		return AccessRequest{}, err
	}
	if by.Kind != identity.KindAgent {
		return AccessRequest{}, problem.New(problem.Forbidden, "allow it yourself: clawjail rules add allow HOST --agent NAME",
			"only an agent can ask for access, and only for itself")
	}
	f := newFlaws()
	canonical, err := readTarget(kind, target)
	if err == nil && kind == AccessTool {
		err = b.View(Who{Tenant: by.Tenant, Agent: by.ID}).hasServiceFor(canonical)
	}
	f.check(err == nil, "target", "%q cannot be asked for: %v", clip(target), err)
	f.check(strings.TrimSpace(reason) != "", "reason", "is missing; say what the task needs it for")
	f.check(clean(reason, maxText), "reason", "has more than %d bytes or control characters", maxText)
	f.check(wait >= 0 && wait <= maxWait, "wait", "is %s; at most %s", wait, maxWait)
	if err := f.err(); err != nil {
		return AccessRequest{}, err
	}
	has := false
	if kind == AccessAccount {
		if has, err = b.permits(ctx, of, canonical); err != nil {
			return AccessRequest{}, err
		}
	}
	out, err := b.ask(ctx, by, kind, canonical, reason, has)
	if err != nil {
		return AccessRequest{}, err
	}
	return b.answered(ctx, by.Actor(), out, wait)
}

// ask finds the open question, or the last answer to it, or makes it. An agent that has the account that it asks for is
// told so, and an approval of one that it has no more is no answer.
func (b *Book) ask(ctx context.Context, by identity.Principal, kind AccessKind, target, reason string, has bool) (AccessRequest, error) {
	b.changing.Lock()
	defer b.changing.Unlock()
	now := b.now()
	pending := 0
	for _, i := range b.state.Load().asked {
		if i.access.Agent != by.ID || i.access.state(now) != AccessPending {
			continue
		}
		if i.access.Kind == kind && i.access.Target == target {
			return *i.access, nil
		}
		pending++
	}
	if a := b.lately(scope{by.Tenant, by.ID}, kind, target); a != nil && (kind != AccessAccount || has || a.State == AccessRefused) {
		return *a, nil
	}
	if has {
		return AccessRequest{}, problem.New(problem.Conflict, "open a session with it, without a grant", "you may use the account already")
	}
	if pending >= maxPending {
		return AccessRequest{}, problem.New(problem.RateLimited, "Wait until the operator has answered some of them; asking again changes nothing.",
			"%d requests for access are waiting for an answer, the most there may be", pending)
	}
	a := AccessRequest{
		Meta: Meta{ID: newID("ask_"), Tenant: by.Tenant, Agent: by.ID, CreatedBy: by.Actor(), CreatedAt: now, UpdatedAt: now,
			ExpiresAt: now.Add(askFor), Version: 1},
		AgentName: by.Name, Kind: kind, Target: target, Reason: reason, State: AccessPending,
	}
	s := step{by: by, op: identity.AccessAsk, of: scope{by.Tenant, by.ID}, target: target,
		fields: audit.Fields{"kind": string(kind), "target": target, "reason": texts.Clip(reason, maxText), "request_id": a.ID, "agent_name": by.Name}}
	err := b.change(ctx, s, func() error { return b.createAccess(ctx, &a, now) })
	if err != nil {
		return AccessRequest{}, err
	}
	return a, nil
}

// createAccess keeps a question, or finds the one that another process has just made.
func (b *Book) createAccess(ctx context.Context, a *AccessRequest, now time.Time) error {
	e, err := a.entry()
	if err != nil {
		return err
	}
	err = b.create(ctx, e, now)
	if !errors.Is(err, store.ErrExists) {
		return err
	}
	old, _, findErr := b.find(ctx, kindAccess, e.Name, scope{a.Tenant, a.Agent})
	if i := read(old, b.reader.seed); findErr == nil && i.access != nil {
		*a = *i.access
		return nil
	}
	return errors.Join(err, findErr)
}

// state is how far the request has got by now.
func (a AccessRequest) state(now time.Time) AccessState {
	if a.State == AccessPending && expired(a.ExpiresAt, now) {
		return AccessExpired
	}
	return a.State
}

// shown is the request as it is shown.
func (a AccessRequest) shown(now time.Time) AccessRequest {
	a.State = a.state(now)
	return a
}

// AccessRequests lists them, oldest first: an agent its own, an operator those of the tenant; with all also those that
// are answered or have expired.
func (b *Book) AccessRequests(ctx context.Context, by identity.Principal, tenant string, all bool) ([]AccessRequest, error) {
	of := scope{tenant: by.Among(tenant)}
	if by.Kind == identity.KindAgent {
		of.agent = by.ID
	}
	if err := b.may(ctx, by, identity.AccessList, of); err != nil {
		return nil, err
	}
	s, err := b.current(ctx)
	if err != nil {
		return nil, err
	}
	now := b.o.Now()
	var out []AccessRequest
	for _, i := range s.asked {
		a := i.access
		if of.tenant != "" && a.Tenant != of.tenant || of.agent != "" && a.Agent != of.agent {
			continue
		}
		if all || a.state(now) == AccessPending {
			out = append(out, a.shown(now))
		}
	}
	slices.SortFunc(out, func(a, b AccessRequest) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out, nil
}

// AccessRequest returns one, and waits for its answer if wait is not 0.
func (b *Book) AccessRequest(ctx context.Context, by identity.Principal, id string, wait time.Duration) (AccessRequest, error) {
	e, err := b.entry(ctx, kindAccess, id, noRequest())
	if err != nil {
		return AccessRequest{}, b.hidden(ctx, by, identity.AccessList, err)
	}
	if err := b.mayWith(ctx, by, identity.AccessList, scope{e.Tenant, e.Agent}, noRequest()); err != nil {
		return AccessRequest{}, err
	}
	if wait < 0 || wait > maxWait {
		return AccessRequest{}, problem.New(problem.BadLimit, "wait for at most 5m, and ask again", "it is not possible to wait for %s", wait)
	}
	i := read(e, b.reader.seed)
	if i.access == nil {
		return AccessRequest{}, noRequest()
	}
	if known := b.state.Load().items[id]; known == nil || known.entry.Version != e.Version {
		// Another process made or changed it a moment ago.
		if err := b.load(ctx); err != nil {
			return AccessRequest{}, err
		}
	}
	return b.answered(ctx, by.Actor(), *i.access, wait)
}

// hidden is the error for a thing that does not exist: missing for a caller with the right to do the operation, and the refusal for
// any other caller.
func (b *Book) hidden(ctx context.Context, by identity.Principal, op identity.Operation, missing error) error {
	of := scope{tenant: by.TenantOr("")}
	if by.Kind == identity.KindAgent {
		of.agent = by.ID
	}
	if err := b.may(ctx, by, op, of); err != nil {
		return err
	}
	return missing
}

// Hold asks the operator about a refused request to a host, waits for the answer at most as long as the caller's
// settings say, and reports whether to decide again. It does not ask when the operator has refused the same within a day.
func (b *Book) Hold(ctx context.Context, w Who, target string) (again bool) {
	wait := b.View(w).Hold()
	if wait <= 0 || w.Agent == "" {
		return false
	}
	canonical, err := readTarget(AccessHost, target)
	if err != nil {
		return false
	}
	if last := b.lately(scope{w.Tenant, w.Agent}, AccessHost, canonical); last != nil && last.State == AccessRefused {
		return false
	}
	agent, err := b.o.Store.AgentByID(ctx, w.Agent)
	if err != nil || agent.Tenant != w.Tenant {
		return false
	}
	by := identity.Principal{Kind: identity.KindAgent, ID: agent.ID, Name: agent.Name, Tenant: agent.Tenant}
	if b.may(ctx, by, identity.AccessAsk, scope{by.Tenant, by.ID}) != nil {
		return false
	}
	asked, err := b.ask(ctx, by, AccessHost, canonical, heldReason, false)
	if err != nil {
		if problem.CodeOf(err) != problem.RateLimited {
			b.o.Log.Error("nobody could be asked about a refused request", "agent", agent.ID, "error", err)
		}
		return false
	}
	out, err := b.answered(ctx, by.Actor(), asked, wait)
	return err == nil && out.State == AccessApproved
}

// lately is the last answer to a question, if it is not older than a day and still says how things are.
func (b *Book) lately(of scope, kind AccessKind, target string) *AccessRequest {
	now := b.o.Now()
	s := b.state.Load()
	var last *AccessRequest
	for _, i := range s.asked {
		a := i.access
		if i.scope() == of && a.Kind == kind && a.Target == target && a.AnsweredAt.After(now.Add(-askAgain)) &&
			(last == nil || a.AnsweredAt.After(last.AnsweredAt)) {
			last = a
		}
	}
	if last != nil && (last.State == AccessRefused || s.gives(*last, now)) {
		return last
	}
	// A host that was refused is refused at each of the two ports that it stands for; a held request names one of them.
	for _, port := range []string{":80", ":443"} {
		if host, found := strings.CutSuffix(target, port); found && kind == AccessHost {
			if whole := b.lately(of, kind, host); whole != nil && whole.State == AccessRefused && (last == nil || whole.AnsweredAt.After(last.AnsweredAt)) {
				return whole
			}
		}
	}
	return nil
}

// gives says whether what an approval has made is there and good: it may have been used up, have expired, or have been removed.
func (s *state) gives(a AccessRequest, now time.Time) bool {
	i := s.items[a.Made]
	if a.State != AccessApproved || i == nil || i.expired(now) {
		return false
	}
	if a.Kind == AccessService {
		return s.leaves(scope{a.Tenant, a.Agent}, i, now)
	}
	if a.Kind != AccessTool {
		return true
	}
	// A tool is part of the agent's settings, which stay when it goes.
	want, err := askedTool(a.Target)
	return err == nil && i.settings != nil && slices.ContainsFunc(i.settings.Tools, func(t Tool) bool {
		return t.URL == want.URL && slices.Equal(t.Methods, want.Methods) && slices.Equal(t.Services, want.Services) && !expired(t.ExpiresAt, now)
	})
}

// leaves says whether the settings of an agent leave it a service of its own or of its tenant.
func (s *state) leaves(to scope, service *item, now time.Time) bool {
	list := s.effective(to, now).Services
	return service.entry.Agent == to.agent || list == nil || slices.Contains(list, service.entry.Name)
}

// reachesInside says whether a service leads to an address that only an admin of the installation sets.
func (s Service) reachesInside() bool { return s.Address != (netip.Addr{}) }
