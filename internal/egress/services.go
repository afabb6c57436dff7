package egress

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// nearest are the entries of one kind that an agent has: of those with one name, the one of the narrowest scope. One
// that cannot be read takes its name away from the wider ones too, and is among the damaged.
func (v *EffectivePolicy) nearest(of map[string][]*item, now time.Time) (out, damaged []*item) {
	chosen := map[string]*item{}
	for _, tenant := range []string{v.who.Tenant, ""} {
		for _, i := range of[tenant] {
			if i.expired(now) || i.entry.Agent != "" && i.entry.Agent != v.who.Agent {
				continue
			}
			v.upTo(i.entry.ExpiresAt)
			if old := chosen[i.entry.Name]; old == nil || i.width() < old.width() {
				chosen[i.entry.Name] = i
			}
		}
	}
	for _, i := range chosen {
		if i.damaged == nil {
			out = append(out, i)
		} else {
			damaged = append(damaged, i)
		}
	}
	return out, damaged
}

// width is how many an entry is for: an agent, a tenant, all.
func (i *item) width() int {
	switch {
	case i.entry.Agent != "":
		return 0
	case i.entry.Tenant != "":
		return 1
	}
	return 2
}

func (v *EffectivePolicy) findServices(d *decisions, now time.Time) {
	v.services, v.unreadable = map[string]*served{}, map[string]bool{}
	found, damaged := v.nearest(d.services, now)
	for _, i := range damaged {
		v.unreadable[i.entry.Name] = true
	}
	for _, i := range found {
		s := *i.service
		if i.entry.Agent == "" && !v.mayUse(s.Name) {
			continue
		}
		v.services[s.Name] = &served{Service: s, permit: sync.OnceValue(func() *policy.Compiled { return v.permitService(s) })}
		v.names = append(v.names, s.Name)
	}
	slices.Sort(v.names)
}

// mayUse says whether the settings leave a service of the tenant, or of all, to the caller.
func (v *EffectivePolicy) mayUse(service string) bool {
	return v.settings.Services == nil || slices.Contains(v.settings.Services, service)
}

func (v *EffectivePolicy) permitService(s Service) *policy.Compiled {
	base, err := parseBase(s.BaseURL)
	if err != nil {
		return nil // which validation has refused, and denies
	}
	allow := make([]policy.Rule, 0, len(s.Allow))
	for n, a := range s.Allow {
		r, err := base.rule(fmt.Sprintf("service-%s-%d", s.Name, n+1), a, s.Address, s.EncodedSlash == EncodedSlashAllow)
		if err != nil {
			return nil
		}
		allow = append(allow, r)
	}
	return v.allowing(allow)
}

// withoutInside leaves out what the installation's admin decided about the network inside, for others.
func withoutInside(by identity.Principal, tenant string, address *netip.Addr) {
	if by.Tenant != "" && tenant == "" {
		*address = netip.Addr{}
	}
}

// seen says whether an entry is in a list: of a tenant and of all, or everything.
func seen(i *item, tenant string, now time.Time) bool {
	return i.damaged == nil && !i.expired(now) && (tenant == "" || i.entry.Tenant == "" || i.entry.Tenant == tenant)
}

// ListServices lists services: of a tenant and of all tenants, or everybody's when the tenant is empty.
func (b *Book) ListServices(ctx context.Context, by identity.Principal, tenant string) ([]Service, error) {
	tenant = by.Among(tenant)
	if err := b.may(ctx, by, identity.ServiceList, scope{tenant: tenant}); err != nil {
		return nil, err
	}
	d, err := b.current(ctx)
	if err != nil {
		return nil, err
	}
	var out []Service
	for _, i := range d.from {
		if i.entry.Kind == kindService && seen(i, tenant, b.o.Now()) {
			s := *i.service
			withoutInside(by, s.Tenant, &s.Address)
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Service) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Agent, b.Agent))
	})
	return out, nil
}

// PutService makes a service, or replaces the one of the same tenant, agent and name. With a Version it refuses
// (conflict) to replace another one.
func (b *Book) PutService(ctx context.Context, by identity.Principal, s Service) (Service, error) {
	if err := b.mayChange(ctx, by, identity.ServiceChange, s.Tenant, s.Address != (netip.Addr{})); err != nil {
		return Service{}, err
	}
	s.CreatedBy = by.Actor()
	s.Scrub, s.Compressed = cmp.Or(s.Scrub, ScrubRedact), cmp.Or(s.Compressed, CompressedDecode)
	if s.Scrub == ScrubOff && s.Inject.Type != InjectNone {
		s.Scrub = ScrubRedact // an answer must not show an agent the secret that it may only use
	}
	s.EncodedSlash = cmp.Or(s.EncodedSlash, EncodedSlashDeny)
	s.Allow = slices.Clone(s.Allow)
	for i := range s.Allow {
		s.Allow[i].Methods = upperAll(s.Allow[i].Methods)
	}
	f := newFlaws()
	validService(f, s)
	for i, a := range s.Allow {
		f.withoutSecret(fmt.Sprintf("allow.%d", i), a.Path)
	}
	if err := b.sound(ctx, f, s.Meta, &s.Upstream); err != nil {
		return Service{}, err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	err := b.change(ctx, serviceStep(by, s), func() error {
		e, err := b.put(ctx, kindService, s.Name, &s.Meta, "svc_", func() (store.Entry, error) { return s.entry() }, maxServices)
		s.Meta = metaOf(e, s.Meta)
		return err
	})
	if err != nil {
		return Service{}, err
	}
	return s, nil
}

// sound is what services and providers have in common before they are kept: no flaws, an agent of the tenant, and a base
// URL in its canonical form.
func (b *Book) sound(ctx context.Context, f *flaws, m Meta, u *Upstream) error {
	validExpiry(f, m.ExpiresAt, b.o.Now())
	base, err := parseBase(u.BaseURL)
	if err == nil { // else it is reported already
		f.withoutSecret("base_url", u.BaseURL)
	}
	if err := f.err(); err != nil {
		return err
	}
	if err := b.agentOf(ctx, scope{m.Tenant, m.Agent}); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	u.BaseURL = base.String()
	return nil
}

func serviceStep(by identity.Principal, s Service) step {
	return step{by: by, op: identity.ServiceChange, of: scope{s.Tenant, s.Agent}, target: s.Name,
		fields: audit.Fields{"base_url": texts.Clip(s.BaseURL, 500), "allows": len(s.Allow), "inject": string(s.Inject.Type), "scrub": string(s.Scrub)}}
}

// RemoveService removes one.
func (b *Book) RemoveService(ctx context.Context, by identity.Principal, id string) error {
	missing := problem.New(problem.NotFound, "list them: clawjail service ls", "there is no such service")
	return b.remove(ctx, by, identity.ServiceChange, kindService, id, missing)
}

// remove removes what only allows.
func (b *Book) remove(ctx context.Context, by identity.Principal, op identity.Operation, kind, id string, missing error) error {
	if err := b.may(ctx, by, op, scope{tenant: by.TenantOr("")}); err != nil {
		return err
	}
	e, err := b.entry(ctx, kind, id, missing)
	if err != nil {
		return err
	}
	if err := b.mayRemove(ctx, by, op, e, missing); err != nil {
		return err
	}
	return b.change(ctx, step{by: by, op: op, of: scope{e.Tenant, e.Agent}, target: cmp.Or(e.Name, e.ID),
		fields: audit.Fields{"removed": true, "entry_id": e.ID}, ends: true}, func() error { return b.removed(ctx, e.ID, missing) })
}

// mayRemove says whether somebody may remove an entry.
func (b *Book) mayRemove(ctx context.Context, by identity.Principal, op identity.Operation, e store.Entry, missing error) error {
	if err := b.mayWith(ctx, by, op, scope{tenant: e.Tenant}, missing); err != nil {
		return err
	}
	if e.Tenant == "" {
		return b.may(ctx, by, identity.EgressInside, scope{})
	}
	return nil
}

// Origins are where the services and providers that name a secret send it: of an agent's own secret those that the agent
// has, of a tenant's those of all its agents.
func (b *Book) Origins(tenant, agent, secret string) []string {
	d, now := b.state.Load().decisions, b.o.Now()
	var out []string
	for _, of := range []map[string][]*item{d.services, d.provided} {
		for _, whose := range []string{tenant, ""} {
			for _, i := range of[whose] {
				if i.expired(now) || i.damaged != nil || agent != "" && i.entry.Agent != "" && i.entry.Agent != agent {
					continue
				}
				name, u, inject := upstreamOf(i)
				if cmp.Or(u.Secret, name) != secret || inject == InjectNone {
					continue
				}
				if base, err := parseBase(u.BaseURL); err == nil {
					out = append(out, string(base.scheme)+"://"+base.to.String())
				}
			}
		}
	}
	return out
}

func upstreamOf(i *item) (string, Upstream, InjectionType) {
	if i.service != nil {
		return i.service.Name, i.service.Upstream, i.service.Inject.Type
	}
	return i.provider.Name, i.provider.Upstream, i.provider.Inject.Type
}
