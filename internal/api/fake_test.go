package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSessions answers what it is told, and keeps what it was asked, and by whom.
type fakeSessions struct {
	mu      sync.Mutex
	calls   []string
	by      identity.Principal
	request session.OpenRequest
	op      browser.Operation
	result  any // of Drive; the zero result of the operation when it is nil
	scope   session.Scope
	life    time.Duration
	clients []*fakeDevtools
	unready error
	viewers []*fakeViewing
	forced  bool // of a take-over, or anyway of its end
	refresh session.RefreshRequest
	refuse  bool                          // what its DevTools clients ask
	holders map[string]identity.Principal // of tokens
	page    []string                      // of a recording, as it is written
	tenant  string
	all     bool
	fail    error
	wait    chan struct{} // Open waits for it
}

const someID = "s_abcdefgh23456789"

func (f *fakeSessions) called(by identity.Principal, name, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by = by
	f.calls = append(f.calls, strings.TrimSpace(name+" "+id))
	return f.fail
}

func (f *fakeSessions) Open(ctx context.Context, by identity.Principal, r session.OpenRequest) (session.Session, error) {
	err := f.called(by, "open", "")
	f.mu.Lock()
	f.request = r
	wait := f.wait
	f.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return session.Session{}, ctx.Err()
		}
	}
	return session.Session{ID: someID, State: session.StateReady}, err
}

func (f *fakeSessions) Get(_ context.Context, by identity.Principal, id string) (session.Session, error) {
	return session.Session{ID: id}, f.called(by, "get", id)
}

func (f *fakeSessions) List(_ context.Context, by identity.Principal, tenant string, all bool) ([]session.Session, error) {
	f.tenant, f.all = tenant, all
	return []session.Session{}, f.called(by, "list", "")
}

func (f *fakeSessions) Close(_ context.Context, by identity.Principal, id string) (session.Session, error) {
	return session.Session{ID: id, State: session.StateClosing}, f.called(by, "close", id)
}

func (f *fakeSessions) WaitGone(_ context.Context, by identity.Principal, id string) (session.Session, error) {
	return session.Session{ID: id, State: session.StateClosed}, f.called(by, "wait", id)
}

func (f *fakeSessions) Drive(_ context.Context, by identity.Principal, id string, op browser.Operation) (any, error) {
	f.mu.Lock()
	f.op = op
	result := f.result
	f.mu.Unlock()
	if result == nil {
		result = reflect.ValueOf(op.Result()).Elem().Interface()
	}
	return result, f.called(by, "drive", id)
}

func (f *fakeSessions) Devtools(_ context.Context, by identity.Principal, id string) (browser.Version, error) {
	if err := f.called(by, "attach", id); err != nil {
		return browser.Version{}, err
	}
	return browser.Version{Product: "Chrome/1", Protocol: "1.3", UserAgent: "agent"}, nil
}

func (f *fakeSessions) Attach(_ context.Context, by identity.Principal, id string) (session.Devtools, error) {
	if err := f.called(by, "attach", id); err != nil {
		return nil, err
	}
	client := newDevtools()
	client.deny = f.refuse
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clients = append(f.clients, client)
	return client, nil
}

func (f *fakeSessions) IssueToken(_ context.Context, by identity.Principal, id string, scope session.Scope, life time.Duration) (session.Token, error) {
	f.mu.Lock()
	f.scope, f.life = scope, life
	f.mu.Unlock()
	return session.Token{Token: session.TokenPrefix + "issued", Scope: scope, Session: id, ExpiresAt: time.Unix(1e9, 0).UTC()}, f.called(by, "token", id)
}

func (f *fakeSessions) Redeem(_ context.Context, presented string) (identity.Principal, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if by, ok := f.holders[presented]; ok {
		return by, nil
	}
	return identity.Principal{}, problem.New(problem.Unauthorized, "make a new one", "the token is not good")
}

func (f *fakeSessions) WriteRecording(_ context.Context, by identity.Principal, id string, w io.Writer) error {
	for _, part := range f.page {
		if _, err := io.WriteString(w, part); err != nil {
			return err
		}
	}
	return f.called(by, "recording", id)
}

func (f *fakeSessions) ListRecordings(_ context.Context, by identity.Principal, tenant string) ([]session.Recording, error) {
	return []session.Recording{}, f.called(by, "recordings", tenant)
}

func (f *fakeSessions) RemoveRecording(_ context.Context, by identity.Principal, id string) error {
	return f.called(by, "remove recording", id)
}

func (f *fakeSessions) Recorded(_ context.Context, by identity.Principal, id string, _ int) ([]byte, string, error) {
	return []byte("old picture"), "jpeg", f.called(by, "recorded", id)
}

func (f *fakeSessions) Status() session.Status { return session.Status{MaxSessions: 7} }

func (f *fakeSessions) Ready() error { return f.unready }

// fakeIdentity knows one key, which is an admin's. It is not for what it does not have.
type fakeIdentity struct {
	Identity
	key  string
	mu   sync.Mutex
	held map[int]context.CancelCauseFunc
	next int
	from []netip.Addr // where keys came from
}

func (f *fakeIdentity) Authenticate(_ context.Context, presented string, from netip.Addr) (identity.Principal, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from = append(f.from, from)
	switch presented {
	case f.key:
		return identity.Principal{Kind: identity.KindAdmin, ID: "admin", Name: "admin", Role: identity.RoleAdmin, TokenID: "admin"}, nil
	case "":
		return identity.Principal{}, problem.New(problem.Unauthorized, "send a key", "no key was sent")
	}
	return identity.Principal{}, problem.New(problem.Unauthorized, "send another", "the key is not good")
}

func (f *fakeIdentity) Redeem(_ context.Context, _ netip.Addr, look func() (identity.Principal, error)) (identity.Principal, error) {
	return look()
}

func (f *fakeIdentity) Enter(ctx context.Context, p identity.Principal, cancel context.CancelCauseFunc) (func(), error) {
	return f.WatchValidity(ctx, p, cancel)
}

func (f *fakeIdentity) WatchValidity(_ context.Context, _ identity.Principal, cancel context.CancelCauseFunc) (func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.next
	f.next++
	f.held[n] = cancel
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.held, n)
	}, nil
}

func (f *fakeIdentity) open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held)
}

func (f *fakeIdentity) Authorize(_ context.Context, p identity.Principal, op identity.Operation, tenant string) error {
	return identity.Can(p, op, tenant)
}

// fakeCredentials keeps what it was asked for. It is not for what it does not have.
type fakeCredentials struct {
	Credentials
	imported credential.Import
	rules    vault.Rules
	captured *vault.Rules
	finished credential.FinishRefresh
	set      vault.CookieSet // what is stored
	fail     error
	value    []byte // of the secret
	name     vault.SecretName
}

func (f *fakeCredentials) CookieSet(context.Context, identity.Principal, string, string) (vault.CookieSet, error) {
	if f.set.Domain == "" {
		return vault.CookieSet{}, problem.New(problem.NotFound, "", "there is none")
	}
	return f.set, nil
}

func (f *fakeCredentials) Import(_ context.Context, _ identity.Principal, i credential.Import) (vault.CookieSet, error) {
	f.imported = i
	f.imported.Cookies = nil
	for _, c := range i.Cookies {
		f.imported.Cookies = append(f.imported.Cookies, c.Clone()) // the caller wipes its own
	}
	return vault.CookieSet{Domain: i.Domain, Count: len(i.Cookies)}, f.fail
}

func (f *fakeCredentials) SetRules(_ context.Context, _ identity.Principal, _, _ string, r vault.Rules) (vault.CookieSet, error) {
	f.rules = r
	return f.set, f.fail
}

func (f *fakeCredentials) SetSignedIn(_ context.Context, _ identity.Principal, _, domain string, i vault.SignedIn) (vault.CookieSet, error) {
	return vault.CookieSet{Domain: domain, SignedIn: i}, f.fail
}

func (f *fakeCredentials) Capture(_ context.Context, _ identity.Principal, _ string, _ []string, change func(*vault.Rules)) ([]vault.CookieSet, error) {
	f.captured = nil
	if change != nil {
		rules := credential.DefaultRules()
		change(&rules)
		f.captured = &rules
	}
	return nil, f.fail
}

func (f *fakeCredentials) PutSecret(_ context.Context, _ identity.Principal, name vault.SecretName, value secret.Value, _ ...string) error {
	f.name, f.value = name, value.Append(nil)
	return f.fail
}

// noLog is an audit log without records.
type noLog struct {
	audittest.Log
	list func(audit.Filter) ([]audit.Row, error)
	tail func(ctx context.Context, follow bool, yield func(audit.Row, error) bool)
}

func (n *noLog) List(_ context.Context, f audit.Filter) ([]audit.Row, error) {
	if n.list == nil {
		return nil, nil
	}
	return n.list(f)
}

func (n *noLog) Tail(ctx context.Context, _ audit.Filter, follow bool) iter.Seq2[audit.Row, error] {
	return func(yield func(audit.Row, error) bool) {
		if n.tail != nil {
			n.tail(ctx, follow, yield)
		}
	}
}

// fakeRows are the rows of one node.
type fakeRows struct {
	rows []store.AuditRow
	fail error // after them
}

func (f fakeRows) AuditNodes(context.Context) ([]string, error) { return []string{"n1"}, nil }

func (f fakeRows) WalkAudit(_ context.Context, node string, _ int64) iter.Seq2[store.AuditRow, error] {
	return func(yield func(store.AuditRow, error) bool) {
		for _, row := range f.rows {
			if row.Node == node && !yield(row, nil) {
				return
			}
		}
		if f.fail != nil {
			yield(store.AuditRow{}, f.fail)
		}
	}
}

// testAPI is an API with its key.
type testAPI struct {
	*API
	key         string
	sessions    *fakeSessions
	identity    *fakeIdentity
	credentials *fakeCredentials
	egress      *fakeEgress
	clock       time.Time
	later       atomic.Int64 // how far the clock has gone on
}

const goodKey = "a key that is good"

func newTestAPI(t testing.TB, change ...func(*Options)) *testAPI {
	t.Helper()
	d := &testAPI{key: goodKey, sessions: &fakeSessions{}, credentials: &fakeCredentials{}, egress: &fakeEgress{}, clock: time.Unix(1_700_000_000, 0)}
	d.identity = &fakeIdentity{key: d.key, held: map[int]context.CancelCauseFunc{}}
	o := Options{
		Sessions: d.sessions, Identity: d.identity, Credentials: d.credentials, Egress: d.egress, Audit: new(noLog), Rows: fakeRows{},
		Verify:  func(context.Context) (audit.Report, error) { return audit.Report{}, nil },
		Version: "v1.2.3", Listen: netip.MustParseAddrPort("127.0.0.1:18780"),
		Now:  func() time.Time { return d.clock.Add(time.Duration(d.later.Load())) },
		Host: func(context.Context) (HostInfo, error) { return HostInfo{Installation: "abcd"}, nil },
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if d.API, err = New(o); err != nil {
		t.Fatal(err)
	}
	d.watching = d.sessions.watch
	return d
}

type asked struct {
	*http.Response
	body string
}

// ask makes a request with the key, as a program on this machine does. An answer that is broken off panics, as it does
// for net/http.
func (d *testAPI) ask(t testing.TB, method, path, body string, change ...func(*http.Request)) asked {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, path, reader)
	r.Host, r.RemoteAddr = "127.0.0.1:18780", "127.0.0.1:40000"
	r.Header.Set("Authorization", bearer+" "+d.key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return asked{w.Result(), w.Body.String()}
}

// brokenOff says whether a request's answer was broken off, and what of it arrived.
func (d *testAPI) brokenOff(t testing.TB, path string) (body string, broken bool) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = "127.0.0.1:18780"
	r.Header.Set("Authorization", bearer+" "+d.key)
	w := httptest.NewRecorder()
	defer func() {
		if what := recover(); what != nil {
			if err, ok := what.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(what)
			}
			body, broken = w.Body.String(), true
		}
	}()
	d.ServeHTTP(w, r)
	return w.Body.String(), false
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func anonymous(r *http.Request) { r.Header.Del("Authorization") }

func key(text string) func(*http.Request) { return header("Authorization", bearer+" "+text) }

// wantProblem checks that an answer is a problem as RFC 9457 and this API have it.
func (a asked) wantProblem(t testing.TB, status int, code string) Problem {
	t.Helper()
	var p Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatalf("the answer is no JSON: %v: %s", err, a.body)
	}
	if a.StatusCode != status || p.Status != status || p.Code != code || a.Header.Get("Content-Type") != problemType ||
		p.Type != "about:blank" || p.Title == "" || p.Detail == "" {
		t.Errorf("%d %s %s, want %d %s", a.StatusCode, a.Header.Get("Content-Type"), a.body, status, code)
	}
	return p
}

func noCalls(t *testing.T, d *testAPI) {
	t.Helper()
	if len(d.sessions.calls) > 0 {
		t.Errorf("the service was asked for %q", d.sessions.calls)
	}
}
