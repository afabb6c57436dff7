package egress

import (
	"cmp"
	"context"
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

func (v *EffectivePolicy) findProviders(d *decisions, now time.Time) {
	found, _ := v.nearest(d.provided, now)
	slices.SortFunc(found, func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.width(), b.width()), comparePriority(*a.provider, *b.provider))
	})
	for _, i := range found {
		p := *i.provider
		v.providers = append(v.providers, &provided{Provider: p, permit: sync.OnceValue(func() *policy.Compiled { return v.permitProvider(p) })})
	}
}

// comparePriority orders providers of one scope.
func comparePriority(a, b Provider) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
}

func (v *EffectivePolicy) permitProvider(p Provider) *policy.Compiled {
	base, err := parseBase(p.BaseURL)
	if err != nil {
		return nil // which validation has refused, and denies
	}
	r, err := base.rule("provider-"+p.Name, Allowance{}, p.Address, false)
	if err != nil {
		return nil
	}
	return v.allowing([]policy.Rule{r})
}

// matchModel says whether a model is one of a pattern's, in which * stands for any text.
func matchModel(pattern, model string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == model
	}
	model, found := strings.CutPrefix(model, first)
	if !found {
		return false
	}
	parts := strings.Split(rest, "*")
	for _, part := range parts[:len(parts)-1] {
		// The first place is the best: it leaves most to the parts that follow.
		if _, model, found = strings.Cut(model, part); !found {
			return false
		}
	}
	return strings.HasSuffix(model, parts[len(parts)-1])
}

// ListProviders lists providers: of a tenant and of all tenants, or everybody's when the tenant is empty.
func (b *Book) ListProviders(ctx context.Context, by identity.Principal, tenant string) ([]Provider, error) {
	tenant = by.Among(tenant)
	if err := b.may(ctx, by, identity.ProviderList, scope{tenant: tenant}); err != nil {
		return nil, err
	}
	s, err := b.current(ctx)
	if err != nil {
		return nil, err
	}
	var out []Provider
	for _, i := range s.from {
		if i.entry.Kind == kindProvider && seen(i, tenant, b.o.Now()) {
			p := *i.provider
			withoutInside(by, p.Tenant, &p.Address)
			out = append(out, p)
		}
	}
	slices.SortFunc(out, comparePriority)
	return out, nil
}

// PutProvider makes a provider, or replaces the one of the same tenant, agent and name. With a Version it refuses
// (conflict) to replace another one.
func (b *Book) PutProvider(ctx context.Context, by identity.Principal, p Provider) (Provider, error) {
	if err := b.mayChange(ctx, by, identity.ProviderChange, p.Tenant, p.Address != (netip.Addr{})); err != nil {
		return Provider{}, err
	}
	p.CreatedBy = by.Actor()
	p.Priority = cmp.Or(p.Priority, defaultPriority)
	f := newFlaws()
	validProvider(f, p)
	if err := b.sound(ctx, f, p.Meta, &p.Upstream); err != nil {
		return Provider{}, err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	s := step{by: by, op: identity.ProviderChange, of: scope{p.Tenant, p.Agent}, target: p.Name,
		fields: audit.Fields{"base_url": texts.Clip(p.BaseURL, 500), "wire": string(p.Wire), "models": audit.Names(p.Models), "model_count": len(p.Models)}}
	err := b.change(ctx, s, func() error {
		e, err := b.put(ctx, kindProvider, p.Name, &p.Meta, "prv_", func() (store.Entry, error) { return p.entry() }, maxProviders)
		p.Meta = metaOf(e, p.Meta)
		return err
	})
	if err != nil {
		return Provider{}, err
	}
	return p, nil
}

// RemoveProvider removes one.
func (b *Book) RemoveProvider(ctx context.Context, by identity.Principal, id string) error {
	missing := problem.New(problem.NotFound, "list them: clawjail provider ls", "there is no such provider")
	return b.remove(ctx, by, identity.ProviderChange, kindProvider, id, missing)
}
