package api

import (
	"context"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
)

// fakeViewing sees one state, and then nothing until it is closed.
type fakeViewing struct {
	mu     sync.Mutex
	said   bool
	inputs []browser.LiveInput
	once   sync.Once
	closed chan struct{}
}

func newViewing() *fakeViewing { return &fakeViewing{closed: make(chan struct{})} }

func (f *fakeViewing) Next(ctx context.Context) (session.Sight, error) {
	f.mu.Lock()
	said := f.said
	f.said = true
	f.mu.Unlock()
	if !said {
		return session.Sight{State: &browser.LiveState{URL: "https://example.com/"}}, nil
	}
	select {
	case <-f.closed:
		return session.Sight{}, problem.New(problem.SessionClosed, "open a new one", "it was closed")
	case <-ctx.Done():
		return session.Sight{}, ctx.Err()
	}
}

func (f *fakeViewing) Shown()       {}
func (f *fakeViewing) Visible(bool) {}

func (f *fakeViewing) Input(_ context.Context, in browser.LiveInput) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inputs = append(f.inputs, in)
	return "", nil
}

func (f *fakeViewing) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

// Watch is never asked: the viewers of a testAPI are fakes, see [fakeSessions.watch].
func (f *fakeSessions) Watch(context.Context, identity.Principal, string) (*session.Live, error) {
	panic("there are no browsers here")
}

func (f *fakeSessions) watch(_ context.Context, by identity.Principal, id string) (viewing, error) {
	if err := f.called(by, "watch", id); err != nil {
		return nil, err
	}
	viewer := newViewing()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.viewers = append(f.viewers, viewer)
	return viewer, nil
}

func (f *fakeSessions) TakeOver(_ context.Context, by identity.Principal, id string, force bool) (session.Session, error) {
	f.forced = force
	return session.Session{ID: id, State: session.StateReady}, f.called(by, "take-over", id)
}

func (f *fakeSessions) HandBack(_ context.Context, by identity.Principal, id string, anyway bool) (session.Session, error) {
	f.forced = anyway
	return session.Session{ID: id, State: session.StateReady}, f.called(by, "hand-back", id)
}

func (f *fakeSessions) Thumbnail(_ context.Context, by identity.Principal, id string) ([]byte, time.Time, error) {
	return []byte("small picture"), time.Unix(1_700_000_000, 0), f.called(by, "thumbnail", id)
}

func (f *fakeSessions) OpenRefresh(_ context.Context, by identity.Principal, r session.RefreshRequest) (session.Session, error) {
	f.refresh = r
	return session.Session{ID: someID, State: session.StateReady, CredentialMode: session.ModeRefresh}, f.called(by, "refresh", "")
}

func (f *fakeSessions) Seen(_ context.Context, by identity.Principal, id string) (session.Seen, error) {
	out := session.Seen{Sites: []session.SeenSite{{Domain: "example.com"}}}
	out.Sites[0].Cookies = []vault.CookieInfo{{Secure: true, DeviceBound: true}}
	return out, f.called(by, "seen", id)
}

func (f *fakeSessions) Tokens(_ context.Context, by identity.Principal, id string) ([]session.IssuedToken, error) {
	at := time.Unix(1e9, 0).UTC()
	return []session.IssuedToken{{ID: "st_1", Scope: identity.ScopeView, By: "admin", CreatedAt: at, ExpiresAt: at.Add(time.Hour)}}, f.called(by, "tokens", id)
}

func (f *fakeSessions) RevokeToken(_ context.Context, by identity.Principal, id, token string) error {
	return f.called(by, "revoke "+token, id)
}

func (f *fakeCredentials) FinishRefresh(_ context.Context, _ identity.Principal, r credential.FinishRefresh) ([]vault.CookieSet, error) {
	f.finished = r
	return []vault.CookieSet{{Domain: "example.com", Count: 2}}, f.fail
}

func (f *fakeCredentials) NeedsRefresh(_ context.Context, _ identity.Principal, tenant string) ([]credential.Alert, error) {
	return []credential.Alert{{Tenant: tenant, Domain: "example.com", Reason: credential.AlertLogin}}, f.fail
}

// Watch is never asked, as for [fakeSessions].
func (s *ownedSessions) Watch(context.Context, identity.Principal, string) (*session.Live, error) {
	panic("there are no browsers here")
}

func (s *ownedSessions) watch(ctx context.Context, by identity.Principal, id string) (viewing, error) {
	if err := s.permit(ctx, by, identity.SessionWatch, id); err != nil {
		return nil, err
	}
	return newViewing(), nil
}

func (s *ownedSessions) TakeOver(ctx context.Context, by identity.Principal, id string, _ bool) (session.Session, error) {
	return session.Session{ID: id}, s.permit(ctx, by, identity.SessionControl, id)
}

func (s *ownedSessions) HandBack(ctx context.Context, by identity.Principal, id string, _ bool) (session.Session, error) {
	return session.Session{ID: id}, s.permit(ctx, by, identity.SessionControl, id)
}

func (s *ownedSessions) Thumbnail(ctx context.Context, by identity.Principal, id string) ([]byte, time.Time, error) {
	return []byte("picture"), time.Unix(1e9, 0), s.permit(ctx, by, identity.SessionLook, id)
}

func (s *ownedSessions) OpenRefresh(ctx context.Context, by identity.Principal, r session.RefreshRequest) (session.Session, error) {
	tenant := by.TenantOr(r.Tenant)
	err := s.authority.AuthorizeWith(ctx, by, identity.SessionRefresh, identity.Object{Tenant: tenant, Agent: agentID(by)})
	return session.Session{ID: someID, Tenant: tenant}, err
}

func (s *ownedSessions) EndPermitted(string, grant.Access) int { return 0 }

func (s *ownedSessions) Seen(ctx context.Context, by identity.Principal, id string) (session.Seen, error) {
	return session.Seen{}, s.permit(ctx, by, identity.SessionRefresh, id)
}

func (s *ownedSessions) Tokens(ctx context.Context, by identity.Principal, id string) ([]session.IssuedToken, error) {
	return nil, s.permit(ctx, by, identity.SessionToken, id)
}

func (s *ownedSessions) RevokeToken(ctx context.Context, by identity.Principal, id, _ string) error {
	return s.permit(ctx, by, identity.SessionToken, id)
}
