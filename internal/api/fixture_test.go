package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
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
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/servicetest"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// canary is in every value that is stored: no answer and no log may have it.
const canary = "canary-5d8e1f"

// fixture is an API on the real services and a database, with two tenants: acme, whose things they are, and beta, to whom
// they are nobody's business. Of the sessions there is only whose they are.
type fixture struct {
	*API
	t        testing.TB
	ctx      context.Context
	identity *identity.Service
	accounts *credential.Service
	sessions *ownedSessions
	jails    *ownedAgents
	log      *audit.Log
	written  *strings.Builder // the operator's log
	keys     map[string]string
	admin    identity.Principal
	clients  int

	session, agents string // acme's, of an operator's and of its agent's
	grant, operator string // acme's; made anew before each use
	permission      string // of acme's worker
	token           string // of the agent writer2
	writer, worker  string // the ids of writer2, and of the agent worker

	signIns *signin.Service
	signIn  string // of acme's operator

	book                            *egress.Book
	rule, service, provider, access string // acme's
}

func newFixture(t testing.TB, change ...func(*Options)) *fixture {
	t.Helper()
	ctx := t.Context()
	w := &fixture{t: t, ctx: ctx, keys: map[string]string{}, written: &strings.Builder{}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	closing := func(end func() error) {
		t.Cleanup(func() {
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
	s := servicetest.New(t, servicetest.Options{})
	db := s.DB
	w.log, w.identity, w.admin, w.keys["admin"] = s.Log, s.Identity, s.Admin, s.AdminKey
	var err error
	w.signIns, err = signin.Open(ctx, signin.Options{Store: db, Identity: w.identity, Idle: time.Hour, Life: time.Hour, Now: time.Now})
	must(err)
	closing(func() error { w.signIns.Close(); return nil })

	w.sessions = &ownedSessions{authority: w.identity, of: map[string]identity.Object{}}
	w.accounts, err = credential.New(credential.Options{Vault: s.Vault, Grants: s.Grants, Keyring: s.Keyring, Identity: w.identity, Audit: w.log,
		Sessions: w.sessions, Now: time.Now})
	must(err)
	w.book, err = egress.Open(ctx, egress.Options{Store: db, Identity: w.identity, Audit: w.log, Now: time.Now, Recheck: time.Hour, Accounts: w.accounts})
	must(err)
	closing(func() error { w.book.Close(); return nil })
	w.jails = &ownedAgents{authority: w.identity, kept: map[string]jail.KeptStatus{}}
	doing, err := health.New(health.Options{Divided: config.Default().Quotas, Held: []quota.Look{quota.Always(w.sessions.Held)}, Sessions: w.sessions, Identity: w.identity, Accounts: w.accounts, Requests: w.book, Now: time.Now, Audit: w.log.Status,
		Machine: func(context.Context) (health.Machine, error) {
			return health.Machine{Reachable: true, Installation: "abcd"}, nil
		},
		Database: db, DatabaseKind: "embedded", Node: "n1", Version: "v1.2.3"})
	must(err)
	must(db.StartNode(ctx, store.Node{Name: "n1", Run: "r"}, "", 0))
	nodes := &peer.Nodes{Self: "n1", Store: db, Identity: w.identity, Audit: w.log, Changed: func(bool) {}, Leaving: func(context.Context) (map[string]int, error) { return nil, nil },
		Sessions: func(context.Context, identity.Principal) ([]session.Session, error) { return nil, nil }}
	o := Options{
		Status: doing, Nodes: nodes,
		Agents: w.jails, Servers: ownedServers{w.identity}, Tasks: &ownedTasks{authority: w.identity}, SignIn: w.signIns,
		Sessions: w.sessions, Identity: w.identity, Credentials: w.accounts, Egress: w.book, Audit: w.log, Rows: db, Version: "v1.2.3",
		Verify: func(ctx context.Context) (audit.Report, error) { return audit.Verify(ctx, db, nil, s.LogKey.Keys()) },
		Listen: netip.MustParseAddrPort("127.0.0.1:18780"), Log: logTo(w.written),
		Host: func(context.Context) (HostInfo, error) { return HostInfo{Installation: "abcd"}, nil },
	}
	for _, f := range change {
		f(&o)
	}
	w.API, err = New(o)
	must(err)
	w.watching = w.sessions.watch

	for _, tenant := range []string{"acme", "beta"} {
		_, err := w.identity.CreateTenant(ctx, w.admin, tenant, identity.Policy{})
		must(err)
		for _, role := range []identity.Role{identity.RoleViewer, identity.RoleOperator, identity.RoleAdmin} {
			key, _, err := w.identity.CreateOperator(ctx, w.admin,
				identity.NewOperator{Name: string(role), Tenant: tenant, Role: role, Life: identity.NeverExpires})
			must(err)
			w.keys[tenant+" "+string(role)] = key.Reveal()
		}
		key, agent, err := w.identity.CreateAgent(ctx, w.admin, tenant, "worker", identity.NeverExpires)
		must(err)
		w.keys[tenant+" agent"] = key.Reveal()
		if tenant == "acme" {
			w.worker = agent.ID
			w.session, w.agents = "s_acmeaaaaaaaaaaaa", "s_agentaaaaaaaaaaa"
			w.sessions.of[w.session] = identity.Object{Tenant: tenant}
			w.sessions.of[w.agents] = identity.Object{Tenant: tenant, Agent: agent.ID}
		}
	}
	w.seed()
	return w
}

// seed makes what acme has, as far as an earlier request has removed it.
func (w *fixture) seed() {
	w.t.Helper()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	_, err := w.accounts.Import(w.ctx, w.admin, credential.Import{Tenant: "acme", Domain: "example.com", Cookies: someCookies()})
	must(err)
	must(w.accounts.PutSecret(w.ctx, w.admin, vault.SecretName{Tenant: "acme", Service: "github"}, secret.New([]byte(canary))))
	_, g, err := w.accounts.IssueGrant(w.ctx, w.admin, grant.Request{Tenant: "acme", Domains: []string{"example.com"}})
	must(err)
	w.grant = g.ID
	allowed, err := w.accounts.AllowAccount(w.ctx, w.admin, credential.Allow{Tenant: "acme", Domain: "example.com", Agent: "worker"})
	must(err)
	w.permission = allowed.ID
	_, o, err := w.identity.CreateOperator(w.ctx, w.admin, identity.NewOperator{Name: "victim", Tenant: "acme", Role: identity.RoleViewer, Life: time.Hour})
	must(err)
	w.operator = o.ID
	signIns, err := w.signIns.List(w.ctx, w.admin, signin.SignIn{})
	must(err)
	if !slices.ContainsFunc(signIns, func(in signin.SignIn) bool { return in.ID == w.signIn }) {
		_, in, err := w.signIns.WithKey(w.ctx, w.keys["acme operator"], signin.From{})
		must(err)
		w.signIn = in.ID
	}
	_, _, err = w.identity.CreateAgent(w.ctx, w.admin, "acme", "writer2", time.Hour)
	if problem.CodeOf(err) == problem.Conflict {
		err = w.identity.RestoreAgent(w.ctx, w.admin, "acme", "writer2")
	}
	must(err)
	tokens, err := w.identity.Tokens(w.ctx, w.admin, "acme", "writer2")
	must(err)
	w.token = tokens[0].ID
	agents, err := w.identity.Agents(w.ctx, w.admin, "acme")
	must(err)
	for _, a := range agents {
		if a.Name == "writer2" {
			w.writer = a.ID
		}
	}
	w.decide(must)
}

// decide makes what acme has decided about the way out, and what its agent asks for, as far as it is not there.
func (w *fixture) decide(must func(error)) {
	w.t.Helper()
	of := egress.Meta{Tenant: "acme"}
	rules, err := w.book.Rules(w.ctx, w.admin, "acme")
	must(err)
	if !slices.ContainsFunc(rules, func(r egress.Rule) bool { return r.ID == w.rule }) {
		target, err := policy.ParseURL("example.com")
		must(err)
		target.Action = policy.Allow
		rule, err := w.book.AddRule(w.ctx, w.admin, egress.Rule{Meta: of, Rule: target})
		must(err)
		w.rule = rule.ID
	}
	services, err := w.book.ListServices(w.ctx, w.admin, "acme")
	must(err)
	if len(services) == 0 {
		service, err := w.book.PutService(w.ctx, w.admin, egress.Service{Meta: of, Name: "github", Upstream: egress.Upstream{BaseURL: "https://example.com"},
			Allow: []egress.Allowance{{Path: "/**"}}, Inject: egress.Injection{Type: egress.InjectBearer}})
		must(err)
		w.service = service.ID
	}
	providers, err := w.book.ListProviders(w.ctx, w.admin, "acme")
	must(err)
	if len(providers) == 0 {
		provider, err := w.book.PutProvider(w.ctx, w.admin, egress.Provider{Meta: of, Name: "models", Upstream: egress.Upstream{BaseURL: "https://example.com"},
			Wire: egress.WireOpenAI, Models: []string{"*"}})
		must(err)
		w.provider = provider.ID
	}
	pending, err := w.book.AccessRequests(w.ctx, w.admin, "acme", false)
	must(err)
	if !slices.ContainsFunc(pending, func(r egress.AccessRequest) bool { return r.ID == w.access }) {
		worker, err := w.identity.Authenticate(w.ctx, w.keys["acme agent"], netip.Addr{})
		must(err)
		// For a host that nobody has asked for: an answer is the answer to the same question for a day.
		asked, err := w.book.Ask(w.ctx, worker, egress.AccessHost, "h"+strings.TrimPrefix(w.access, "ask_")+".example.net", "to read", 0)
		must(err)
		w.access = asked.ID
	}
}

func someCookies() []cookies.Cookie {
	return []cookies.Cookie{{Name: "sid", Value: secret.New([]byte(canary)), Domain: ".example.com", Path: "/", Expires: cookies.Session, Secure: true}}
}

// request is one by somebody: the name of a key, or empty for no key.
func (w *fixture) request(who, method, path, body string) asked {
	w.t.Helper()
	d := &testAPI{API: w.API, key: "wrong"}
	change := anonymous
	if text, ok := w.keys[who]; ok {
		change = key(text)
	} else if who != "" {
		change = key(who)
	}
	w.clients++ // from an address of its own, so that the limit of wrong keys counts each for itself
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(w.clients >> 8), byte(w.clients)}), 1).String()
	return d.ask(w.t, method, path, body, change, func(r *http.Request) { r.RemoteAddr = from })
}

func logTo(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// serve puts the API behind a real server, for what needs a connection.
func serve(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

// ownedSessions has sessions of which only the owner is known. It decides who may do what with them as package
// session does it.
type ownedSessions struct {
	authority *identity.Service
	of        map[string]identity.Object
	holders   map[string]identity.Principal // of tokens
}

func agentID(by identity.Principal) string {
	if by.Kind == identity.KindAgent {
		return by.ID
	}
	return ""
}

func (s *ownedSessions) permit(ctx context.Context, by identity.Principal, op identity.Operation, id string) error {
	object, ok := s.of[id]
	if !ok {
		object = identity.Object{Tenant: by.TenantOr(""), Agent: agentID(by)}
	}
	object.Session = id
	err := s.authority.AuthorizeWith(ctx, by, op, object)
	if problem.CodeOf(err) == problem.NotFound || err == nil && !ok {
		return problem.New(problem.NotFound, "list them: clawjail session ls", "there is no session %q", id)
	}
	return err
}

func (s *ownedSessions) Open(ctx context.Context, by identity.Principal, r session.OpenRequest) (session.Session, error) {
	op := identity.SessionOpen
	if r.CredentialMode == session.ModeOperator {
		op = identity.SessionOpenOperator
	}
	err := s.authority.AuthorizeWith(ctx, by, op, identity.Object{Tenant: by.TenantOr(r.Tenant), Agent: agentID(by)})
	return session.Session{ID: someID, Tenant: by.TenantOr(r.Tenant)}, err
}

func (s *ownedSessions) Get(ctx context.Context, by identity.Principal, id string) (session.Session, error) {
	// All are of a kind that a refresh can be finished of.
	return session.Session{ID: id, Tenant: s.of[id].Tenant, CredentialMode: session.ModeRefresh}, s.permit(ctx, by, identity.SessionRead, id)
}

func (s *ownedSessions) List(ctx context.Context, by identity.Principal, tenant string, _ bool) ([]session.Session, error) {
	tenant = by.Among(tenant)
	if err := s.authority.AuthorizeWith(ctx, by, identity.SessionList, identity.Object{Tenant: tenant, Agent: agentID(by)}); err != nil {
		return nil, err
	}
	out := []session.Session{}
	for id, object := range s.of {
		if (tenant == "" || object.Tenant == tenant) && identity.CanWith(by, identity.SessionList, object) == nil {
			out = append(out, session.Session{ID: id, Tenant: object.Tenant})
		}
	}
	return out, nil
}

func (s *ownedSessions) Close(ctx context.Context, by identity.Principal, id string) (session.Session, error) {
	return session.Session{ID: id}, s.permit(ctx, by, identity.SessionClose, id)
}

func (s *ownedSessions) WaitGone(ctx context.Context, by identity.Principal, id string) (session.Session, error) {
	return session.Session{ID: id}, s.permit(ctx, by, identity.SessionRead, id)
}

func (s *ownedSessions) Drive(ctx context.Context, by identity.Principal, id string, op browser.Operation) (any, error) {
	may := identity.SessionUse
	if op.Effect() == browser.Looks {
		may = identity.SessionLook
	}
	return reflect.ValueOf(op.Result()).Elem().Interface(), s.permit(ctx, by, may, id)
}

func (s *ownedSessions) Devtools(ctx context.Context, by identity.Principal, id string) (browser.Version, error) {
	if err := s.permit(ctx, by, identity.SessionAttach, id); err != nil {
		return browser.Version{}, err
	}
	return browser.Version{Product: "Chrome/1"}, nil
}

func (s *ownedSessions) Attach(ctx context.Context, by identity.Principal, id string) (session.Devtools, error) {
	if err := s.permit(ctx, by, identity.SessionAttach, id); err != nil {
		return nil, err
	}
	return newDevtools(), nil
}

func (s *ownedSessions) IssueToken(ctx context.Context, by identity.Principal, id string, scope session.Scope, _ time.Duration) (session.Token, error) {
	return session.Token{Token: session.TokenPrefix + "issued", Scope: scope, Session: id}, s.permit(ctx, by, identity.SessionToken, id)
}

func (s *ownedSessions) Redeem(_ context.Context, presented string) (identity.Principal, error) {
	if by, ok := s.holders[presented]; ok {
		return by, nil
	}
	return identity.Principal{}, problem.New(problem.Unauthorized, "make a new one", "the token is not good")
}

func (s *ownedSessions) WriteRecording(ctx context.Context, by identity.Principal, id string, w io.Writer) error {
	if err := s.permit(ctx, by, identity.SessionRecording, id); err != nil {
		return err
	}
	_, err := io.WriteString(w, "<!doctype html>")
	return err
}

func (s *ownedSessions) ListRecordings(ctx context.Context, by identity.Principal, tenant string) ([]session.Recording, error) {
	return []session.Recording{}, s.authority.AuthorizeWith(ctx, by, identity.SessionList, identity.Object{Tenant: by.Among(tenant), Agent: by.AgentID()})
}

func (s *ownedSessions) RemoveRecording(ctx context.Context, by identity.Principal, id string) error {
	return s.permit(ctx, by, identity.RecordingRemove, id)
}

func (s *ownedSessions) Recorded(ctx context.Context, by identity.Principal, id string, _ int) ([]byte, string, error) {
	return []byte("picture"), "png", s.permit(ctx, by, identity.SessionRecording, id)
}

func (s *ownedSessions) Capture(ctx context.Context, by identity.Principal, id string, domains []string, use func(weblogin.Login) error) error {
	if err := s.permit(ctx, by, identity.CookiesCapture, id); err != nil {
		return err
	}
	list := someCookies()
	defer cookies.Wipe(list)
	chosen, _ := cookies.Select(list, domains)
	return use(weblogin.Login{Cookies: chosen})
}

func (s *ownedSessions) Status() session.Status { return session.Status{MaxSessions: 7} }

func (s *ownedSessions) Ready() error { return nil }

func (*ownedSessions) Held(asks quota.Holder) []quota.Amount {
	return []quota.Amount{{Kind: quota.Sessions(), Whole: 20, Held: quota.Held{All: 12, Tenant: 9}}, {Kind: quota.Recordings(), Whole: 10 << 30, Held: quota.Held{All: 5 << 30, Tenant: 1 << 30}}}
}

// rows are the audit rows of an action, as the database has them.
func (w *fixture) rows(action string) []audit.Row {
	w.t.Helper()
	rows, err := w.log.List(w.ctx, audit.Filter{Action: action})
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}

func TestFixtureHasWhatItSays(t *testing.T) {
	w := newFixture(t)
	sets, err := w.accounts.Cookies(w.ctx, w.admin, "")
	if err != nil || len(sets) != 1 || sets[0].Tenant != "acme" || !slices.Equal(sets[0].Scopes, []string{"tools"}) || sets[0].MaxLeases != 1 {
		t.Errorf("%+v, %v", sets, err)
	}
	if err := w.sessions.permit(w.ctx, w.admin, identity.SessionRead, w.session); err != nil {
		t.Error(err)
	}
	if err := errors.Join(w.log.Event(w.ctx, audit.Event{Action: "test.x"})); err != nil || len(w.rows("test.x")) != 1 {
		t.Errorf("%v", err)
	}
}
