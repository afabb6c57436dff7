package console

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// fakeSessions has sessions that are only described. Who may do what is the table's, as of the real ones.
type fakeSessions struct {
	Sessions  // what a test does not need panics
	authority *identity.Service
	all       []session.Session

	mu       sync.Mutex
	opened   []session.OpenRequest
	asked    []string // what was done: "take-over s_1 force"
	tokens   []session.IssuedToken
	files    []browser.File
	data     map[string][]byte
	seen     session.Seen
	jar      []cookies.Cookie // of a refresh session
	password bool             // a password is in a page
	wrong    error            // of the next thing that is asked
	refused  string           // why the gateway refuses pages
	failing  error            // why pages are not loaded
	removed  []string         // recordings
}

func (f *fakeSessions) note(format string, args ...any) {
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
}

// find is a session for somebody who may do an operation with it. The caller holds f.mu.
func (f *fakeSessions) find(by identity.Principal, op identity.Operation, id string) (*session.Session, error) {
	if err := f.wrong; err != nil {
		f.wrong = nil
		return nil, err
	}
	for n := range f.all {
		s := &f.all[n]
		if s.ID != id {
			continue
		}
		err := identity.CanWith(by, op, identity.Object{Tenant: s.Tenant})
		if problem.CodeOf(err) == problem.NotFound {
			break
		}
		return s, err
	}
	return nil, problem.New(problem.NotFound, "list them: clawjail session ls", "there is no session %q", id)
}

func (f *fakeSessions) List(_ context.Context, by identity.Principal, tenant string, all bool) ([]session.Session, error) {
	tenant = by.Among(tenant)
	if err := identity.Can(by, identity.SessionList, tenant); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []session.Session{}
	for _, s := range f.all {
		if (tenant == "" || s.Tenant == tenant) && (all || s.Ended == nil) {
			out = append(out, s)
		}
	}
	return out, nil
}

func (f *fakeSessions) Get(_ context.Context, by identity.Principal, id string) (session.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(by, identity.SessionRead, id)
	if err != nil {
		return session.Session{}, err
	}
	return *s, nil
}

func (f *fakeSessions) Status() session.Status {
	return session.Status{Sessions: len(f.all), MaxSessions: 20}
}

func (*fakeSessions) Held(asks quota.Holder) []quota.Amount {
	return []quota.Amount{{Kind: quota.Sessions(), Whole: 20, Held: quota.Held{All: 12, Tenant: 9}}, {Kind: quota.Recordings(), Whole: 10 << 30, Held: quota.Held{All: 5 << 30, Tenant: 1 << 30}}}
}

func (f *fakeSessions) Open(_ context.Context, by identity.Principal, r session.OpenRequest) (session.Session, error) {
	tenant := by.TenantOr(r.Tenant)
	if err := identity.Can(by, identity.SessionOpen, tenant); err != nil {
		return session.Session{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = append(f.opened, r)
	if err := f.wrong; err != nil {
		f.wrong = nil
		return session.Session{}, err
	}
	s := aSession(fmt.Sprintf("s_new%d", len(f.opened)), tenant)
	s.Label, s.OpenedBy, s.CredentialMode, s.Domains = r.Label, by.Actor(), r.CredentialMode, r.Domains
	f.all = append(f.all, s)
	return s, nil
}

func (f *fakeSessions) Close(_ context.Context, by identity.Principal, id string) (session.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(by, identity.SessionClose, id)
	if err != nil {
		return session.Session{}, err
	}
	f.note("close %s", id)
	s.State, s.Ended = session.StateClosed, &session.Ended{Cause: session.CauseClosed, Message: "it was closed", At: time.Now()}
	return *s, nil
}

func (f *fakeSessions) WaitGone(ctx context.Context, by identity.Principal, id string) (session.Session, error) {
	return f.Get(ctx, by, id)
}

func (f *fakeSessions) EndPermitted(string, grant.Access) int { return 0 }

func (f *fakeSessions) TakeOver(_ context.Context, by identity.Principal, id string, force bool) (session.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(by, identity.SessionControl, id)
	if err != nil {
		return session.Session{}, err
	}
	if s.Control != nil && s.Control.By != by.Actor() && !force {
		return session.Session{}, problem.New(problem.Conflict, "ask them to hand it back, or take it with force", "%s has taken over session %s", s.Control.Name, id)
	}
	f.note("take-over %s %v", id, force)
	s.Control = &session.Control{By: by.Actor(), Name: by.Name, Since: time.Now()}
	return *s, nil
}

func (f *fakeSessions) HandBack(_ context.Context, by identity.Principal, id string, anyway bool) (session.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(by, identity.SessionControl, id)
	if err != nil {
		return session.Session{}, err
	}
	if f.password && !anyway {
		return session.Session{}, problem.New(problem.Conflict, "send or empty the field, or hand it back anyway", "tab t1 has a password in a field")
	}
	f.note("hand-back %s %v", id, anyway)
	s.Control = nil
	return *s, nil
}

func (f *fakeSessions) IssueToken(_ context.Context, by identity.Principal, id string, scope session.Scope, life time.Duration) (session.Token, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, identity.SessionToken, id); err != nil {
		return session.Token{}, err
	}
	if life > session.MaxTokenLife {
		return session.Token{}, problem.New(problem.BadLimit, "at most 24h", "a life of %s is too long", life)
	}
	out := session.Token{ID: fmt.Sprintf("st_%d", len(f.tokens)+1), Token: "cjses_SECRET", Scope: scope, Session: id, ExpiresAt: time.Now().Add(life)}
	f.tokens = append(f.tokens, session.IssuedToken{ID: out.ID, Scope: scope, By: by.Actor(), CreatedAt: time.Now(), ExpiresAt: out.ExpiresAt})
	return out, nil
}

func (f *fakeSessions) Tokens(_ context.Context, by identity.Principal, id string) ([]session.IssuedToken, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, identity.SessionToken, id); err != nil {
		return nil, err
	}
	return slices.Clone(f.tokens), nil
}

func (f *fakeSessions) RevokeToken(_ context.Context, by identity.Principal, id, token string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, identity.SessionToken, id); err != nil {
		return err
	}
	before := len(f.tokens)
	f.tokens = slices.DeleteFunc(f.tokens, func(t session.IssuedToken) bool { return t.ID == token })
	if len(f.tokens) == before {
		return problem.New(problem.NotFound, "list them", "session %s has no token %q that is good", id, token)
	}
	return nil
}

// Drive keeps files, and does nothing else.
func (f *fakeSessions) Drive(_ context.Context, by identity.Principal, id string, op browser.Operation) (any, error) {
	may := identity.SessionUse
	if op.Effect() == browser.Looks {
		may = identity.SessionLook
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, may, id); err != nil {
		return nil, err
	}
	if err := op.Validate(); err != nil {
		return nil, err
	}
	switch op := op.(type) {
	case browser.Navigate:
		f.note("navigate %s", op.URL)
		return browser.Result{OK: f.failing == nil, URL: op.URL, Refused: f.refused}, f.failing
	case browser.Files:
		return browser.FilesResult{Files: slices.Clone(f.files)}, nil
	case browser.PutFile:
		f.note("put %s %s", op.Name, op.Data)
		return browser.File{Name: op.Name, Kind: "upload", State: "complete", Bytes: int64(len(op.Data))}, nil
	case browser.GetFile:
		if data, ok := f.data[op.Name]; ok {
			return browser.FileContent{Name: op.Name, ContentType: "text/html", Data: data}, nil
		}
	}
	return nil, problem.New(problem.NotFound, "list the files", "there is no such file")
}

func (f *fakeSessions) Recorded(_ context.Context, by identity.Principal, id string, number int) ([]byte, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, identity.SessionRecording, id); err != nil {
		return nil, "", err
	}
	return fmt.Appendf(nil, "picture %d", number), "jpeg", nil
}

func (f *fakeSessions) WriteRecording(_ context.Context, by identity.Principal, id string, w io.Writer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, identity.SessionRecording, id); err != nil {
		return err
	}
	_, err := io.WriteString(w, "<h1>"+hostile+"</h1>")
	return err
}

func (f *fakeSessions) RemoveRecording(_ context.Context, by identity.Principal, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, identity.RecordingRemove, id); err != nil {
		return err
	}
	f.removed = append(f.removed, id)
	return nil
}

func (f *fakeSessions) Thumbnail(_ context.Context, by identity.Principal, id string) ([]byte, time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.find(by, identity.SessionLook, id)
	if err != nil {
		return nil, time.Time{}, err
	}
	if s.Control != nil {
		return nil, time.Time{}, problem.New(problem.NotFound, "", "a person has it in hand")
	}
	return []byte("\xff\xd8picture"), time.Now(), nil
}

func (f *fakeSessions) Watch(_ context.Context, by identity.Principal, id string) (*session.Live, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, identity.SessionWatch, id); err != nil {
		return nil, err
	}
	return nil, problem.New(problem.SessionClosed, "open a new one", "session %s has ended", id)
}

func (f *fakeSessions) OpenRefresh(_ context.Context, by identity.Principal, r session.RefreshRequest) (session.Session, error) {
	tenant := by.TenantOr(r.Tenant)
	if err := identity.Can(by, identity.SessionRefresh, tenant); err != nil {
		return session.Session{}, err
	}
	if domain, err := cookies.RegistrableDomain(r.Domain); err != nil || domain != r.Domain {
		return session.Session{}, problem.New(problem.BadDomain, "accounts belong to whole domains: write "+cmp.Or(domain, "one"), "%q is a subdomain", r.Domain)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := aRefresh("s_refresh", tenant, r.Domain, by)
	f.all = append(f.all, s)
	f.note("refresh %s %s %s", tenant, r.Domain, r.URL)
	return s, nil
}

func (f *fakeSessions) Seen(_ context.Context, by identity.Principal, id string) (session.Seen, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, identity.SessionRefresh, id); err != nil {
		return session.Seen{}, err
	}
	return f.seen, nil
}

func (f *fakeSessions) Capture(_ context.Context, by identity.Principal, id string, domains []string, keep func(weblogin.Login) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(by, identity.CookiesCapture, id); err != nil {
		return err
	}
	var jar []cookies.Cookie
	for _, c := range f.jar {
		if domain, err := cookies.RegistrableDomain(c.Host()); err == nil && slices.Contains(domains, domain) {
			jar = append(jar, c)
		}
	}
	return keep(weblogin.Login{Cookies: jar})
}

// aSession is one that is ready.
func aSession(id, tenant string) session.Session {
	now := time.Now()
	ready, expires, idle := now.Add(-4*time.Minute), now.Add(26*time.Minute), now.Add(8*time.Minute)
	return session.Session{ID: id, State: session.StateReady, Tenant: tenant, OpenedBy: "admin", CredentialMode: session.ModeClean, Access: "cdp",
		Record: session.RecordTransient, Template: "browser", Browser: "shell", BrowserVersion: "Chrome/156.0.7901.2", Jail: "bk3x900043", Address: "10.213.0.153",
		Warm: true, Created: now.Add(-5 * time.Minute), Ready: &ready, ExpiresAt: &expires, IdleUntil: &idle,
		Timing: session.Timing{Clone: 12, Attach: 3, Start: 21, Verify: 8, Ready: 143, Total: 191},
		Usage:  &session.Usage{MemoryBytes: 175 << 20, MemoryPeak: 210 << 20, CPU: 3420, Tasks: 131, DiskBytes: 9 << 20, OpenFiles: 212}}
}

func aRefresh(id, tenant, domain string, by identity.Principal) session.Session {
	s := aSession(id, tenant)
	s.CredentialMode, s.Domains, s.OpenedBy, s.Record, s.Browser = session.ModeRefresh, []string{domain}, by.Actor(), session.RecordOff, "full"
	s.Control = &session.Control{By: by.Actor(), Name: by.Name, Since: s.Created}
	return s
}
