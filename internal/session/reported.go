package session

import (
	"cmp"
	"slices"
	"time"
)

// maxReported bounds what is remembered of accounts.
const maxReported = 1000

// account names one.
type account struct{ tenant, domain string }

// Reported is an account of which a session has seen that its site asks to log in. It is remembered when the session is
// gone, until clawjail is stopped.
type Reported struct {
	Tenant string
	Domain string
	At     time.Time
	// Opened is when the session was opened that saw it: of an account that was refreshed later nothing is said.
	Opened time.Time
}

// Reported lists them, by tenant and domain; those of all tenants when tenant is empty. Who may know it is for the caller
// to ask, and whether there still is such an account.
func (s *Service) Reported(tenant string) []Reported {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Reported{}
	for _, one := range s.reported {
		if tenant == "" || one.Tenant == tenant {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b Reported) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Domain, b.Domain))
	})
	return out
}

// report remembers that a site asks to log in. The caller holds s.mu.
func (s *Service) report(r *session, domain string, at time.Time) {
	key := account{r.plan.tenant, domain}
	if last, known := s.reported[key]; known && last.Opened.After(r.created) {
		return
	}
	if _, known := s.reported[key]; !known && len(s.reported) >= maxReported {
		oldest := key
		for other, one := range s.reported {
			if oldest == key || one.At.Before(s.reported[oldest].At) {
				oldest = other
			}
		}
		delete(s.reported, oldest)
	}
	s.reported[key] = Reported{Tenant: r.plan.tenant, Domain: domain, At: at, Opened: r.created}
}
