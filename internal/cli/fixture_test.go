package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// node is the name of the control plane of a test in its audit log.
const node = "abcd"

// fixture is a control plane with everything real but its sessions, which have no jails.
type fixture struct {
	url, key string
	sessions *inMemory
	agents   *keptAgents
	book     *egress.Book
	log      *audit.Log
	accounts *credential.Service
	store    store.Store
}

// start starts a control plane with its data in a folder, and returns what ends it.
func start(data string) (w *fixture, end func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var ends []func() error
	end = func() error {
		cancel()
		var errs []error
		for _, end := range slices.Backward(ends) {
			errs = append(errs, end())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	own := func(name string) string { return filepath.Join(data, "control", name) }
	kept := &notes{path: filepath.Join(data, "audit", "checkpoints")}
	for _, folder := range []string{"control", "audit", open.Folder} {
		if err := os.MkdirAll(filepath.Join(data, folder), 0o700); err != nil {
			return nil, nil, err
		}
	}
	if err := os.WriteFile(kept.path, nil, 0o600); err != nil {
		return nil, nil, err
	}
	key, err := checkpoint.LoadKey(own("audit.key"))
	if err != nil {
		return nil, nil, err
	}
	db, err := open.Open(ctx, "", data)
	if err != nil {
		return nil, nil, err
	}
	ends = append(ends, db.Close)
	log, err := audit.Open(ctx, audit.Options{Store: db, Node: node, SpillPath: own("audit.spill"), Key: key, Checkpoints: kept,
		CheckpointEvery: time.Millisecond})
	if err != nil {
		return nil, nil, err
	}
	ends = append(ends, func() error { return log.Close(context.Background()) })
	values, err := vault.Open(ctx, vault.Options{KeyFile: own("vault.key"), Store: db, Now: time.Now})
	if err != nil {
		return nil, nil, err
	}
	keyring, err := grant.OpenKeyring(own("grants.key"), time.Now)
	if err != nil {
		return nil, nil, err
	}
	grants, err := grant.New(grant.Options{Store: db, Keys: keyring, Installation: "test",
		RegistrableDomain: cookies.RegistrableDomain,
		Limits:            grant.DefaultLimits(), Now: time.Now, Audit: log})
	if err != nil {
		return nil, nil, err
	}
	admin, err := identity.LoadAdminKey(own("admin.key"))
	if err != nil {
		return nil, nil, err
	}
	people, err := identity.Open(ctx, identity.Options{Store: db, Admin: admin, Now: time.Now, Audit: log,
		Recheck: identity.DefaultRecheck, RateLimit: identity.DefaultRateLimit()})
	if err != nil {
		return nil, nil, err
	}
	ends = append(ends, func() error { people.Close(); return nil })
	signedIn, err := signin.Open(ctx, signin.Options{Store: db, Identity: people, Idle: time.Hour, Life: time.Hour, Now: time.Now})
	if err != nil {
		return nil, nil, err
	}
	ends = append(ends, func() error { signedIn.Close(); return nil })
	w = &fixture{store: db, sessions: &inMemory{all: map[string]*session.Session{}, files: map[string][]byte{}, grants: grants}}
	accounts, err := credential.New(credential.Options{Vault: values, Grants: grants, Keyring: keyring, Identity: people,
		Audit: log, Sessions: w.sessions, Now: time.Now})
	if err != nil {
		return nil, nil, err
	}
	book, err := egress.Open(ctx, egress.Options{Store: db, Identity: people, Audit: log, Now: time.Now, Recheck: time.Hour, Accounts: accounts})
	if err != nil {
		return nil, nil, err
	}
	ends = append(ends, func() error { book.Close(); return nil })
	w.book, w.log, w.accounts = book, log, accounts
	doing, err := health.New(health.Options{Divided: config.Default().Quotas, Held: []quota.Look{quota.Always(w.sessions.Held)}, Sessions: w.sessions, Identity: people, Accounts: accounts, Requests: book, Audit: log.Status, Checkpoints: kept.path,
		Machine: func(context.Context) (health.Machine, error) { return wellMachine(), nil }, Database: db, DatabaseKind: "embedded",
		DatabaseDir: filepath.Join(data, open.Folder), Gateway: func() (uint64, uint64) { return 1204, 7 }, GatewayAt: "10.213.0.1:3000", API: "127.0.0.1:18780",
		Version: "v1.2.3", Node: node, Now: time.Now})
	if err != nil {
		return nil, nil, err
	}
	w.agents = &keptAgents{identity: people, restarts: map[string]int{}, log: map[jail.Stream]string{}}
	a, err := api.New(api.Options{Status: doing, Agents: w.agents, Tasks: told{}, Sessions: w.sessions, Identity: people, Credentials: accounts, Egress: book, Audit: log,
		Rows: db, Version: "v1.2.3", SignIn: signedIn,
		Verify: func(ctx context.Context) (audit.Report, error) {
			return audit.Verify(ctx, db, checkpoint.ReadFile(kept.path), key.Keys())
		}, Listen: netip.MustParseAddrPort("127.0.0.1:18780"),
		Host: func(context.Context) (api.HostInfo, error) { return api.HostInfo{}, nil }})
	if err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(own("admin.key"))
	if err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	w.url, w.key = "http://"+listener.Addr().String(), strings.TrimSpace(string(text))
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, listener) }()
	ends = append(ends, func() error { return <-served })
	return w, end, nil
}

// wellMachine is a machine that is doing well.
func wellMachine() health.Machine {
	return health.Machine{Reachable: true, HostVersion: "v1.2.3", Installation: node, HostSince: time.Now().Add(-3 * time.Hour), Jails: 3, Load: 0.42, Cores: 2, MemoryTotal: 24 << 30,
		MemoryFree: 20 << 30, DiskTotal: 100 << 30, DiskFree: 60 << 30, Templates: []health.Template{{Name: "browser", BuiltAt: time.Now().Add(-50 * time.Hour)}}}
}

// newFixture starts a control plane for a test, and points the environment at it.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	dir := t.TempDir()
	w := startFixture(t, dir)
	t.Setenv("CLAWJAIL_CONFIG", settings(t, dir))
	t.Setenv("CLAWJAIL_URL", w.url)
	t.Setenv("CLAWJAIL_KEY", w.key)
	return w
}

// startFixture starts a control plane for a test, with its data below a folder.
func startFixture(t *testing.T, dir string) *fixture {
	t.Helper()
	w, end, err := start(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// settings writes the configuration of an installation in a folder, of which nothing runs.
func settings(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "clawjail.yml")
	if err := writeSettings(path, dir); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeSettings(path, dir string) error {
	text := fmt.Sprintf("data_dir: %s/data\nrun_dir: /tmp/clawjail-test-no-such-folder\nlisten: 127.0.0.1:1\n", dir)
	return os.WriteFile(path, []byte(text), 0o600)
}

// notes keeps checkpoints as the host daemon does, but in a file that a test can remove.
type notes struct {
	mu   sync.Mutex
	path string
}

func (n *notes) Append(_ context.Context, note []byte) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, err := os.OpenFile(n.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.Write(append(note[:len(note):len(note)], '\n'))
	return err
}

// inMemory are sessions without jails. Their grants are used as those of real ones are.
type inMemory struct {
	grants *grant.Issuer

	mu    sync.Mutex
	all   map[string]*session.Session
	files map[string][]byte
	count int
}

func (s *inMemory) Open(ctx context.Context, by identity.Principal, r session.OpenRequest) (session.Session, error) {
	if r.Label == "full" {
		return session.Session{}, problem.New(problem.TooManySessions, "close one", "64 sessions are open, and more are not allowed")
	}
	if r.CredentialMode != session.ModeOperator && !r.Grant.IsZero() {
		return session.Session{}, problem.New(problem.BadRequest, "", "grants are of operator sessions")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	out := session.Session{ID: fmt.Sprintf("s_%016d", s.count+1), Label: r.Label, State: session.StateReady, Browser: "shell",
		Tenant: by.TenantOr(r.Tenant), OpenedBy: by.Actor(), CredentialMode: session.ModeClean, Access: "tools",
		Template: "browser", Record: "transient", Jail: fmt.Sprintf("babcd%05d", s.count+1), Address: "10.213.0.150",
		Created: now, Warm: s.count == 0,
		Timing: session.Timing{Total: 2.5}}
	if r.CredentialMode == session.ModeOperator {
		g, err := s.grants.Use(ctx, r.Grant, grant.Want{Tenant: out.Tenant, Session: out.ID, Caller: r.Origin, Domains: r.Domains,
			Access: grant.AccessTools, Actor: by.Actor()})
		if err != nil {
			return session.Session{}, err
		}
		out.CredentialMode, out.Domains, out.Grant = session.ModeOperator, r.Domains, g.ID
	}
	s.count++
	if r.Browser != "" {
		out.Browser = r.Browser
	}
	if r.Limits.Tasks != nil {
		out.Label = fmt.Sprintf("tasks=%d", *r.Limits.Tasks)
	}
	s.all[out.ID] = &out
	return out, nil
}

func (s *inMemory) find(id string) (*session.Session, error) {
	if out := s.all[id]; out != nil {
		return out, nil
	}
	return nil, problem.New(problem.NotFound, "list them: clawjail session ls", "there is no session %q", id)
}

func (s *inMemory) Get(_ context.Context, _ identity.Principal, id string) (session.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := s.find(id)
	if err != nil {
		return session.Session{}, err
	}
	return *out, nil
}

func (s *inMemory) List(_ context.Context, _ identity.Principal, tenant string, all bool) ([]session.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []session.Session{}
	for n := range s.count {
		one := s.all[fmt.Sprintf("s_%016d", n+1)]
		if (all || one.State == session.StateReady) && (tenant == "" || tenant == one.Tenant) {
			out = append(out, *one)
		}
	}
	return out, nil
}

func (s *inMemory) Close(_ context.Context, _ identity.Principal, id string) (session.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := s.find(id)
	if err != nil {
		return session.Session{}, err
	}
	out.State = session.StateClosing
	out.Ended = &session.Ended{Cause: session.CauseClosed, Message: "it was closed", At: time.Now()}
	return *out, nil
}

func (s *inMemory) WaitGone(_ context.Context, _ identity.Principal, id string) (session.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := s.find(id)
	if err != nil {
		return session.Session{}, err
	}
	out.State = session.StateClosed
	return *out, nil
}

// Drive answers as a browser with one page does, whose scripts are hostile.
func (s *inMemory) Drive(_ context.Context, _ identity.Principal, id string, op browser.Operation) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(id); err != nil {
		return nil, err
	}
	switch op := op.(type) {
	case *browser.Navigate:
		switch {
		case strings.HasPrefix(op.URL, "http://blocked"):
			return browser.Result{OK: true, URL: op.URL, Status: 403, Refused: problem.HostDenied}, nil
		case strings.Contains(op.URL, "blocked"):
			return nil, problem.New(problem.NavigationFailed, "ask the operator to allow the host", "the page could not be loaded")
		case strings.Contains(op.URL, "hostile"):
			return browser.Result{OK: true, TargetID: "t1", URL: op.URL + "\x1b[2Jb", Title: "a\x1b[2Jb", Status: 200}, nil
		}
		return browser.Result{OK: true, TargetID: "t1", URL: op.URL, Title: fmt.Sprint("Example ", op.TimeoutMS), Status: 200, LoadMS: 12}, nil
	case *browser.Screenshot:
		text := fmt.Appendf(nil, "%s full=%t %dx%d q%d", op.Type, op.FullPage, op.Width, op.Height, op.Quality)
		return browser.Picture{OK: true, TargetID: "t1", Media: "m1", ContentType: "image/" + op.Type, Data: text}, nil
	case *browser.Tabs:
		return browser.TabsResult{Running: true, Tabs: []browser.Tab{{TabID: "t1", Title: "a\x1b[2Jb", URL: "https://example.com/"}}}, nil
	case *browser.Eval:
		return browser.EvalResult{Type: "string", Value: op.JS}, nil
	case *browser.Act:
		if op.Ref == "e9" {
			return nil, problem.New(problem.StaleRef, "take a new snapshot", "the ref e9 is of a page that is gone")
		}
		return browser.ActResult{OK: true, TargetID: "t1", Value: op.Kind + " " + op.Ref}, nil
	case *browser.Files:
		out := browser.FilesResult{}
		for name, data := range s.files {
			out.Files = append(out.Files, browser.File{Name: name, Kind: "upload", State: "complete", Bytes: int64(len(data))})
		}
		return out, nil
	case *browser.PutFile:
		s.files[op.Name] = op.Data
		return browser.File{Name: op.Name, Kind: "upload", State: "complete", Bytes: int64(len(op.Data))}, nil
	case *browser.GetFile:
		if data, ok := s.files[op.Name]; ok {
			return browser.FileContent{Name: op.Name, ContentType: "text/plain", Data: data}, nil
		}
		return nil, problem.New(problem.NotFound, "list them", "there is no file %q", op.Name)
	case *browser.DeleteFile:
		delete(s.files, op.Name)
		return browser.Done{OK: true}, nil
	}
	return reflect.ValueOf(op.Result()).Elem().Interface(), nil
}

func (s *inMemory) Devtools(context.Context, identity.Principal, string) (browser.Version, error) {
	return browser.Version{}, problem.New(problem.Forbidden, "", "there is no browser")
}

func (s *inMemory) Attach(context.Context, identity.Principal, string) (session.Devtools, error) {
	return nil, problem.New(problem.Forbidden, "", "there is no browser")
}

func (s *inMemory) IssueToken(_ context.Context, _ identity.Principal, id string, scope session.Scope, life time.Duration) (session.Token, error) {
	if !scope.Valid() {
		return session.Token{}, problem.New(problem.BadRequest, "they are view, control and cdp", "%q is not a scope", scope)
	}
	return session.Token{Token: session.TokenPrefix + "x", Scope: scope, Session: id, ExpiresAt: time.Unix(1e9, 0).Add(life).UTC()}, nil
}

func (s *inMemory) Redeem(context.Context, string) (identity.Principal, error) {
	return identity.Principal{}, problem.New(problem.Unauthorized, "", "no token is good here")
}

func (s *inMemory) WriteRecording(_ context.Context, _ identity.Principal, id string, w io.Writer) error {
	_, err := io.WriteString(w, "<!doctype html>"+id)
	return err
}

func (s *inMemory) ListRecordings(context.Context, identity.Principal, string) ([]session.Recording, error) {
	return []session.Recording{{Session: "s_abcdefgh23456789", Tenant: "acme", OpenedBy: "admin", Record: "audit", Bytes: 3 << 20}}, nil
}

func (s *inMemory) RemoveRecording(_ context.Context, _ identity.Principal, id string) error {
	if id != "s_abcdefgh23456789" {
		return problem.New(problem.NotFound, "", "there is none")
	}
	return nil
}

func (s *inMemory) Recorded(context.Context, identity.Principal, string, int) ([]byte, string, error) {
	return nil, "", problem.New(problem.NotFound, "", "there is none")
}

func (s *inMemory) Status() session.Status { return session.Status{} }

func (s *inMemory) Ready() error { return nil }

// Held says that tenant acme has as many sessions as it may.
func (*inMemory) Held(asks quota.Holder) []quota.Amount {
	open := quota.Held{All: 19, Tenant: 3}
	if asks.Tenant == "acme" {
		open.Tenant = 16
	}
	return []quota.Amount{{Kind: quota.Sessions(), Whole: 20, Held: open}, {Kind: quota.Recordings(), Whole: 10 << 30, Held: quota.Held{All: 5 << 30, Tenant: 1 << 30}}}
}

// Capture gives a login at example.com to every session.
func (s *inMemory) Capture(_ context.Context, _ identity.Principal, id string, domains []string, use func(weblogin.Login) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(id); err != nil {
		return err
	}
	list := []cookies.Cookie{{Name: "sid", Value: secret.New([]byte(canary)), Domain: "example.com", Path: "/", Expires: cookies.Session,
		Session: true, Secure: true, HTTPOnly: true}}
	defer cookies.Wipe(list)
	chosen, _ := cookies.Select(list, domains)
	return use(weblogin.Login{Cookies: chosen})
}
