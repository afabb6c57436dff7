package health

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/quota"
)

// quotasShown is how many a status has.
const quotasShown = 20

// Quotas are what tenants hold of what all share, and may.
func (s *Service) Quotas(ctx context.Context, by identity.Principal, tenants ...string) (out []quota.Use, err error) {
	for _, t := range tenants {
		if err := s.Identity.Authorize(ctx, by, identity.TenantRead, t); err != nil {
			return nil, err
		}
	}
	if len(tenants) == 0 {
		return nil, nil
	}
	count, err := s.Identity.CountTenants(ctx, tenants[0])
	if err != nil {
		return nil, err
	}
	for _, look := range s.Held {
		held := look(ctx)
		for _, t := range tenants {
			for _, a := range held(quota.Holder{Tenant: t}) {
				out = append(out, quota.UseOf(s.Divided, a, t, count))
			}
		}
	}
	return out, nil
}

func (l *look) lookQuotas() error {
	tenants, err := l.Identity.Tenants(l.ctx, l.by)
	if err != nil {
		return err
	}
	var ids []string
	for _, t := range tenants {
		ids = append(ids, t.ID)
	}
	all, err := l.Quotas(l.ctx, l.by, ids...)
	if err != nil {
		return err
	}
	for _, u := range all {
		if u.UsedUp() {
			l.add(Attention{Code: QuotaUsedUp, Level: Notice, Sentence: fmt.Sprintf("Tenant %s holds all of its share of %s.", u.Tenant, u.Kind),
				Hint: "Close what is not needed, or raise the quotas in the configuration.", Command: "clawjail tenant show " + u.Tenant}, Subject{Tenant: u.Tenant})
		}
		if u.Held > 0 || l.by.Tenant != "" {
			l.quotas = append(l.quotas, u)
		}
	}
	slices.SortStableFunc(l.quotas, func(a, b quota.Use) int {
		return cmp.Compare(float64(b.Held)/float64(b.Max), float64(a.Held)/float64(a.Max))
	})
	l.quotas = l.quotas[:min(len(l.quotas), quotasShown)]
	return nil
}
