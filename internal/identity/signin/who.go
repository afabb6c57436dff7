package signin

import (
	"context"
	"crypto/subtle"
	"fmt"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// writtenEvery is how exactly the store knows when a sign-in was used: a write for each request would be too much.
const writtenEvery = time.Minute

// maxListed bounds a list of sign-ins.
const maxListed = 1000

// Who returns the person behind a cookie. The call counts as use. The code is unauthorized for an unknown or expired cookie.
func (s *Service) Who(ctx context.Context, cookie string) (identity.Principal, SignIn, error) {
	sum, ok := hashOf(PrefixCookie, cookie)
	if !ok {
		return identity.Principal{}, SignIn{}, notSignedIn()
	}
	row, operator, err := s.o.Store.SignInByHash(ctx, sum[:])
	switch {
	case notThere(err):
		return identity.Principal{}, SignIn{}, notSignedIn()
	case err != nil:
		return identity.Principal{}, SignIn{}, fmt.Errorf("look up a sign-in: %w", err)
	// The database has found the row by the hash; that it is the row is not left to how the database compares.
	case subtle.ConstantTimeCompare(row.Hash, sum[:]) != 1, s.over(row):
		return identity.Principal{}, SignIn{}, notSignedIn()
	}
	p, err := s.ownerNow(ctx, row.Owner, operator)
	if err != nil {
		return identity.Principal{}, SignIn{}, err
	}
	if err := s.use(ctx, row); err != nil {
		return identity.Principal{}, SignIn{}, err
	}
	return p, s.shown(row, p, true), nil
}

// ownerNow is [Service.standing] with the operator's row, if it is of one.
func (s *Service) ownerNow(ctx context.Context, owner store.Owner, operator store.Operator) (identity.Principal, error) {
	if owner.Operator == "" {
		return s.standing(ctx, owner)
	}
	return s.o.Identity.OperatorStanding(operator)
}

// over says whether a sign-in is not good any more.
func (s *Service) over(row store.SignIn) bool {
	now := s.o.Now()
	return s.uses.ended(row.ID) || !now.Before(s.end(row)) || !now.Before(s.uses.last(row).Add(s.o.Idle))
}

// use counts a use, and writes it down when that was long ago.
func (s *Service) use(ctx context.Context, row store.SignIn) error {
	now := s.now()
	if !s.uses.now(row, now, min(writtenEvery, s.o.Idle/4)) {
		return nil
	}
	if err := s.o.Store.TouchSignIn(ctx, row.ID, now); notThere(err) {
		return notSignedIn() // it was ended at the same moment
	}
	// Any other failure only loses the time of this use after a restart: this process has it in memory.
	return nil
}

// List lists the sign-ins of the caller; of an admin of the installation everybody's, or those of its tenant of an admin
// of one; the newest thousand. in is the caller's own.
func (s *Service) List(ctx context.Context, by identity.Principal, in SignIn) ([]SignIn, error) {
	if err := s.o.Identity.Authorize(ctx, by, identity.SignInList, by.Tenant); err != nil {
		return nil, err
	}
	operators, err := s.o.Store.ListOperators(ctx, by.Tenant)
	if err != nil {
		return nil, fmt.Errorf("list sign-ins: %w", err)
	}
	known := make(map[string]store.Operator, len(operators))
	for _, o := range operators {
		known[o.ID] = o
	}
	which := store.SignInFilter{Tenant: by.Tenant, Limit: maxListed}
	if by.Role != identity.RoleAdmin {
		which.Owner = s.owner(by)
	}
	rows, err := s.o.Store.ListSignIns(ctx, which)
	if err != nil {
		return nil, fmt.Errorf("list sign-ins: %w", err)
	}
	out := []SignIn{}
	for _, row := range rows {
		p, err := s.ownerNow(ctx, row.Owner, known[row.Owner.Operator])
		if err == nil && !s.over(row) && s.sees(by, row.Owner, p.Tenant) {
			out = append(out, s.shown(row, p, row.ID == in.ID))
		}
	}
	return out, nil
}

// sees says whether somebody is shown a sign-in of an owner, who is of a tenant.
func (s *Service) sees(by identity.Principal, owner store.Owner, tenant string) bool {
	return owner == s.owner(by) || by.Role == identity.RoleAdmin && (by.Tenant == "" || by.Tenant == tenant)
}

// End ends one, and what is open with it: one's own, or as an admin any that List shows.
func (s *Service) End(ctx context.Context, by identity.Principal, id string) error {
	ctx, cancel := identity.ToTheEnd(ctx)
	defer cancel()
	if err := s.o.Identity.Authorize(ctx, by, identity.SignInEnd, by.Tenant); err != nil {
		return err
	}
	row, tenant, err := s.find(ctx, id)
	if err != nil && !notThere(err) {
		return fmt.Errorf("look up a sign-in: %w", err)
	}
	if err != nil || !s.sees(by, row.Owner, tenant) {
		return s.o.Identity.Refuse(by, identity.SignInEnd, id,
			problem.New(problem.NotFound, "clawjail operator sign-ins lists them, and so does the console in its settings", "there is no sign-in %q", plain(id, 40)))
	}
	return s.endOne(ctx, by, row, tenant, "")
}

// endOne ends a sign-in of an owner of a tenant, and records who ended it, and why where they did not ask for it.
func (s *Service) endOne(ctx context.Context, by identity.Principal, row store.SignIn, tenant, reason string) error {
	i := audit.Intent{Action: string(identity.SignInEnd), Tenant: tenant, Actor: by.Actor(), Target: row.ID,
		Detail: identity.Detail(map[string]string{"method": row.Method, "owner": ownerName(row.Owner), "reason": reason})}
	// First here, then cut, then written: what cannot be written is over all the same, see identity's WatchValidity.
	s.uses.end(row.ID)
	s.held.cut(row.ID)
	return s.o.Identity.Ending(i, func() error {
		if err := s.o.Store.DeleteSignIn(ctx, row.ID); err != nil && !notThere(err) {
			return fmt.Errorf("end a sign-in: %w", err)
		}
		s.uses.drop(row.ID)
		return nil
	})
}

// find finds a sign-in, and whose it is.
func (s *Service) find(ctx context.Context, id string) (row store.SignIn, tenant string, err error) {
	if row, err = s.o.Store.SignIn(ctx, id); err != nil || row.Owner.Operator == "" {
		return row, "", err
	}
	o, err := s.o.Store.Operator(ctx, row.Owner.Operator)
	return row, o.Tenant, err
}

// ownerName is an owner as records name principals.
func ownerName(o store.Owner) string {
	if o.Operator == "" {
		return string(identity.KindAdmin)
	}
	return string(identity.KindOperator) + ":" + o.Operator
}

// uses are what this process knows of sign-ins and the store does not, or not yet.
type uses struct {
	mu    sync.Mutex
	known map[string]*usage
}

// usage is what is known of one.
type usage struct {
	used, written time.Time
	ended         bool
}

// of is what is known of one. The lock is held.
func (u *uses) of(id string) *usage {
	if u.known == nil {
		u.known = map[string]*usage{}
	}
	if u.known[id] == nil {
		u.known[id] = &usage{}
	}
	return u.known[id]
}

// now counts a use, and says whether it is to be written.
func (u *uses) now(row store.SignIn, at time.Time, every time.Duration) (write bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.of(row.ID)
	if one.used.Before(at) {
		one.used = at
	}
	if one.written.Before(row.UsedAt) {
		one.written = row.UsedAt
	}
	if at.Sub(one.written) < every {
		return false
	}
	one.written = at
	return true
}

// last is when one was used last.
func (u *uses) last(row store.SignIn) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if one := u.known[row.ID]; one != nil && row.UsedAt.Before(one.used) {
		return one.used
	}
	return row.UsedAt
}

// end remembers that one was ended, as long as the store does not say so.
func (u *uses) end(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.of(id).ended = true
}

// drop forgets one that the store has no more.
func (u *uses) drop(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.known, id)
}

// unwritten are those that were ended, and that the store may have.
func (u *uses) unwritten() (all []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, one := range u.known {
		if one.ended {
			all = append(all, id)
		}
	}
	return all
}

func (u *uses) ended(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.known[id] != nil && u.known[id].ended
}

// forget forgets those that were not used since a time. Ended ones are remembered: the store does not know them.
func (u *uses) forget(before time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, one := range u.known {
		if !one.ended && one.used.Before(before) {
			delete(u.known, id)
		}
	}
}
