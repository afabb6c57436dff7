package console

import (
	"context"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// fakeSessions has sessions that are only described.
type fakeSessions struct {
	Sessions  // what a test does not need panics
	authority *identity.Service
	all       []session.Session
}

func (f *fakeSessions) List(_ context.Context, by identity.Principal, tenant string, _ bool) ([]session.Session, error) {
	tenant = by.Among(tenant)
	if err := identity.Can(by, identity.SessionList, tenant); err != nil {
		return nil, err
	}
	out := []session.Session{}
	for _, s := range f.all {
		if tenant == "" || s.Tenant == tenant {
			out = append(out, s)
		}
	}
	return out, nil
}

func (f *fakeSessions) Get(_ context.Context, by identity.Principal, id string) (session.Session, error) {
	for _, s := range f.all {
		if s.ID == id && (by.Tenant == "" || by.Tenant == s.Tenant) {
			return s, nil
		}
	}
	return session.Session{}, problem.New(problem.NotFound, "list them: clawjail session ls", "there is no session %q", id)
}

func (f *fakeSessions) Status() session.Status {
	return session.Status{Sessions: len(f.all), MaxSessions: 20}
}

func (f *fakeSessions) Capture(context.Context, identity.Principal, string, []string, func([]cookies.Cookie) error) error {
	return problem.New(problem.NotFound, "", "there is none")
}
