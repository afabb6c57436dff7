package egress

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// byConfiguration is the creator of the rules of the configuration.
const byConfiguration = "configuration"

// Rules lists rules in their order: of a tenant, with those of all tenants, or everybody's when the tenant is empty.
// Those of the configuration are among them and have no ID. A rule that stands for an entry that cannot be read is there too,
// so that it can be removed.
func (b *Book) Rules(ctx context.Context, by identity.Principal, tenant string) ([]Rule, error) {
	tenant = by.Among(tenant)
	if err := b.may(ctx, by, identity.RuleList, scope{tenant: tenant}); err != nil {
		return nil, err
	}
	s, err := b.current(ctx)
	if err != nil {
		return nil, err
	}
	var all []ranked
	for i := range b.o.Fixed {
		if r := &b.o.Fixed[i]; tenant == "" || r.Tenant == "" || r.Tenant == tenant {
			all = append(all, ranked{Rule: r, fixed: true})
		}
	}
	now := b.o.Now()
	for _, i := range s.from {
		if i.rule == nil || i.expired(now) || tenant != "" && i.entry.Tenant != "" && i.entry.Tenant != tenant {
			continue
		}
		all = append(all, ranked{Rule: i.rule, damaged: i.damaged != nil})
	}
	slices.SortStableFunc(all, compare)
	out := make([]Rule, len(all))
	for n, r := range all {
		out[n] = *r.Rule
		if r.fixed {
			out[n].CreatedBy = byConfiguration
		}
		withoutInside(by, out[n].Tenant, &out[n].Address)
	}
	return out, nil
}

// AddRule makes a rule; its ID, version and times are set. Tenant "" needs a principal of all tenants, and so does
// Address. The same rule for good is made once: removing it would leave a second one.
func (b *Book) AddRule(ctx context.Context, by identity.Principal, r Rule) (Rule, error) {
	if err := b.mayChange(ctx, by, identity.RuleChange, r.Tenant, r.Address != (netip.Addr{})); err != nil {
		return Rule{}, err
	}
	r.CreatedBy = by.Actor()
	r.Priority = cmp.Or(r.Priority, defaultPriority)
	r.Methods = upperAll(r.Methods)
	f := newFlaws()
	validRule(f, r)
	validExpiry(f, r.ExpiresAt, b.o.Now())
	if err := f.err(); err != nil {
		return Rule{}, err
	}
	if err := b.agentOf(ctx, scope{r.Tenant, r.Agent}); err != nil {
		return Rule{}, err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	if same := b.sameRule(r); same != nil {
		return *same, nil
	}
	r.ID = newID("rule_")
	err := b.change(ctx, step{by: by, op: identity.RuleChange, of: scope{r.Tenant, r.Agent}, target: r.Host.String(), fields: ruleFields(r)},
		func() error { return b.createRule(ctx, &r) })
	if err != nil {
		return Rule{}, err
	}
	return r, nil
}

// sameRule is a rule that says what r does, for as long.
func (b *Book) sameRule(r Rule) *Rule {
	if !r.ExpiresAt.IsZero() || r.Once {
		return nil
	}
	what := func(r Rule) []byte {
		r.Meta, r.Address = Meta{Tenant: r.Tenant, Agent: r.Agent, Note: r.Note}, r.Address.Unmap()
		e, err := r.entry()
		if err != nil {
			return nil // it is refused when it is made
		}
		return e.Body
	}
	wanted := what(r)
	for _, i := range b.state.Load().from {
		if old := i.rule; old != nil && i.damaged == nil && old.ExpiresAt.IsZero() && old.Tenant == r.Tenant && old.Agent == r.Agent && old.Action == r.Action &&
			wanted != nil && bytes.Equal(what(*old), wanted) {
			return old
		}
	}
	return nil
}

func ruleFields(r Rule) audit.Fields {
	fields := audit.Fields{"entry_id": r.ID, "action": string(r.Action), "priority": r.Priority, "once": r.Once}
	var ports []string
	for _, p := range r.Ports {
		ports = append(ports, p.String())
	}
	fields["ports"] = append([]string{}, ports...)
	for name, text := range map[string]string{
		"rule": r.Name, "scheme": string(r.Scheme), "path": r.Path.String(), "session": r.Session, "methods": strings.Join(r.Methods, " "),
	} {
		if text != "" {
			fields[name] = texts.Clip(text, 500)
		}
	}
	if r.Address.IsValid() {
		fields["address"] = r.Address.String()
	}
	return fields
}

// createRule keeps a rule that has an ID, if there is room for it.
func (b *Book) createRule(ctx context.Context, r *Rule) error {
	count, over, now := 0, 0, b.now()
	for _, i := range b.state.Load().from {
		switch {
		case i.entry.Kind != kindRule || i.entry.Tenant != r.Tenant:
		case i.expired(now):
			over++
		default:
			count++
		}
	}
	if over > 0 && count+over >= maxRules {
		if _, err := b.o.Store.DeleteEntriesBefore(ctx, kindRule, now); err != nil {
			return err
		}
	}
	if count >= maxRules {
		return problem.New(problem.BadLimit, "remove some that are not needed", "there are %d rules already, the most there may be", count)
	}
	r.CreatedAt = now
	r.UpdatedAt, r.Version = r.CreatedAt, 1
	r.ExpiresAt = store.Microsecond(r.ExpiresAt)
	if r.Rule.Address.IsValid() {
		r.Address = r.Address.Unmap()
	}
	e, err := r.entry()
	if err != nil {
		return err
	}
	return b.create(ctx, e, r.CreatedAt)
}

// RemoveRule removes a rule.
func (b *Book) RemoveRule(ctx context.Context, by identity.Principal, id string) error {
	missing := problem.New(problem.NotFound, "list them: clawjail rules ls; those of the configuration file are changed there", "there is no such rule")
	kind := kindRule
	if i := b.state.Load().items[id]; i != nil && i.damaged != nil && i.entry.Kind == kindSettings {
		kind = kindSettings // what stands for settings that cannot be read is listed as a rule
	}
	// A caller who may remove none is told so before anything is said about this one.
	if err := b.may(ctx, by, identity.RuleChange, scope{tenant: by.TenantOr("")}); err != nil {
		return err
	}
	e, err := b.entry(ctx, kind, id, missing)
	if err != nil {
		return err
	}
	if err := b.mayRemove(ctx, by, identity.RuleChange, e, missing); err != nil {
		return err
	}
	i := read(e, b.reader.seed)
	s := step{by: by, op: identity.RuleChange, of: scope{e.Tenant, e.Agent}, target: e.ID, fields: audit.Fields{"removed": true, "entry_id": e.ID}}
	if i.damaged == nil && i.rule != nil {
		s.target, s.fields = i.rule.Host.String(), ruleFields(*i.rule)
		s.fields["removed"] = true
		s.ends = i.rule.Action == policy.Allow
	}
	return b.change(ctx, s, func() error { return b.removed(ctx, e.ID, missing) })
}

// ForOneUse says whether the rule of that name is one for one use.
func ForOneUse(rule string) bool { return strings.HasPrefix(rule, prefixOnce) }

// Used says that a rule was what let a request pass; one that was for one use goes, and the second of two requests that
// use it at the same time is told false. It only asks the store about rules for one use, which their names tell.
func (b *Book) Used(ctx context.Context, rule string) (ok bool) {
	id, once := strings.CutPrefix(rule, prefixOnce)
	if !once {
		return true
	}
	var err error
	if settings, tool, found := strings.Cut(id, toolMark); found {
		err = b.useTool(ctx, settings, tool)
	} else {
		err = b.useRule(ctx, id)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		b.o.Log.Error("a rule for one use cannot be used", "rule", clip(rule), "error", err)
	}
	b.reload(ctx)
	return err == nil
}

func (b *Book) useRule(ctx context.Context, id string) error {
	i := b.state.Load().items[id]
	if i == nil {
		// Another request was faster.
		return store.ErrNotFound
	}
	if i.rule == nil || !i.rule.Once {
		return errors.New("it is not for one use")
	}
	if err := b.o.Store.DeleteEntry(ctx, id); err != nil {
		return err
	}
	b.noteUsed(i.scope(), i.rule.Host.String(), id)
	return nil
}

// useTool takes a tool for one use out of settings.
func (b *Book) useTool(ctx context.Context, settings, tool string) error {
	for range 4 {
		e, err := b.o.Store.Entry(ctx, settings)
		if err != nil {
			return err
		}
		i := read(e, b.reader.seed)
		if i.settings == nil {
			return errors.New("the settings cannot be read")
		}
		s := *i.settings
		at := slices.IndexFunc(s.Tools, func(t Tool) bool { return t.ID == tool && t.Once })
		if at < 0 {
			return store.ErrNotFound
		}
		target := s.Tools[at].URL
		s.Tools = slices.Delete(slices.Clone(s.Tools), at, at+1)
		s.UpdatedAt = b.now()
		if e, err = s.entry(); err != nil {
			return err
		}
		if err = b.o.Store.UpdateEntry(ctx, e); errors.Is(err, store.ErrExists) {
			continue // somebody else changed the entry meanwhile; the tool may be there still
		}
		if err == nil {
			b.noteUsed(i.scope(), target, settings)
		}
		return err
	}
	return store.ErrExists
}

// noteUsed writes down that something for one use is gone.
func (b *Book) noteUsed(of scope, target, id string) {
	b.o.Audit.Note(audit.Event{Action: string(identity.RuleChange), Tenant: of.tenant, Actor: "system", Target: texts.Clip(target, 900),
		Detail: audit.NewDetail(audit.Fields{"removed": true, "used": true, "entry_id": id, "agent_id": of.agent})})
}
