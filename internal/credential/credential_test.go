package credential

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/servicetest"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// canary is in every value; no record may have it.
const canary = "canary-9a41c7"

// records is the audit log, which can be made to refuse intents.
type records struct {
	*audit.Log
	fail error
}

func (r *records) Begin(ctx context.Context, i audit.Intent) (audit.Pending, error) {
	if r.fail != nil {
		return nil, r.fail
	}
	return r.Log.Begin(ctx, i)
}

// oneSession is a session of acme's whose browser has some cookies.
type oneSession struct {
	jar    []cookies.Cookie
	stored []weblogin.Origin
	mode   string
	closed int
	ended  []string // what ended sessions of permissions
	gone   error    // of WaitGone
	// domains are what somebody logs in to in it.
	domains []string
}

func (o *oneSession) Close(context.Context, identity.Principal, string) (session.Session, error) {
	o.closed++
	return session.Session{}, nil
}

func (o *oneSession) WaitGone(context.Context, identity.Principal, string) (session.Session, error) {
	return session.Session{}, o.gone
}

func (o *oneSession) EndPermitted(permission string, is grant.Access) int {
	o.ended = append(o.ended, permission+" "+string(is))
	return 1
}

func (o *oneSession) Get(_ context.Context, by identity.Principal, id string) (session.Session, error) {
	if id != "s_1" || by.Tenant != "" && by.Tenant != "acme" {
		return session.Session{}, problem.New(problem.NotFound, "", "there is no session %q", id)
	}
	return session.Session{ID: id, Tenant: "acme", CredentialMode: o.mode, Domains: o.domains}, nil
}

func (o *oneSession) Capture(_ context.Context, _ identity.Principal, _ string, domains []string, use func(weblogin.Login) error) error {
	chosen, _ := cookies.Select(o.jar, domains)
	stored, _ := weblogin.Select(o.stored, domains)
	return use(weblogin.Login{Cookies: chosen, Origins: stored})
}

type fixture struct {
	*Service
	ctx      context.Context
	log      *records
	sessions *oneSession
	db       *sqlite.DB
	admin    identity.Principal
	operator identity.Principal // of acme
	viewer   identity.Principal // of acme
	stranger identity.Principal // the admin of beta
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	s := servicetest.New(t, servicetest.Options{IdentityAudit: new(audittest.Log)})
	who := s.Identity
	w := &fixture{ctx: ctx, log: &records{Log: s.Log}, db: s.DB, sessions: &oneSession{}, admin: s.Admin}
	for tenant, as := range map[string]map[identity.Role]*identity.Principal{
		"acme": {identity.RoleOperator: &w.operator, identity.RoleViewer: &w.viewer}, "beta": {identity.RoleAdmin: &w.stranger},
	} {
		_, err := who.CreateTenant(ctx, w.admin, tenant, identity.Policy{})
		must(err)
		for role, into := range as {
			key, _, err := who.CreateOperator(ctx, w.admin, identity.NewOperator{Name: "x", Tenant: tenant, Role: role, Life: time.Hour})
			must(err)
			*into, err = who.Authenticate(ctx, key.Reveal(), netip.Addr{})
			must(err)
		}
	}
	var err error
	w.Service, err = New(Options{Vault: s.Vault, Grants: s.Grants, Keyring: s.Keyring, Identity: who, Audit: w.log, Sessions: w.sessions, Now: time.Now})
	must(err)
	return w
}

func cookie(name, domain string) cookies.Cookie {
	return cookies.Cookie{Name: name, Value: secret.New([]byte(canary)), Domain: domain, Path: "/", Expires: cookies.Session, Secure: true}
}

func (w *fixture) jar() Import {
	return Import{Domain: "example.com", Cookies: []cookies.Cookie{cookie("sid", ".example.com")}}
}

// rows are the records of an action, in their order. Outcomes are not waited for when they are made.
func (w *fixture) rows(t *testing.T, action string, want int) []audit.Row {
	t.Helper()
	var rows []audit.Row
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline) && len(rows) < want; {
		// An event behind them is written after them.
		if err := w.log.Event(w.ctx, audit.Event{Action: "test.barrier"}); err != nil {
			t.Fatal(err)
		}
		var err error
		if rows, err = w.log.List(w.ctx, audit.Filter{Action: action}); err != nil {
			t.Fatal(err)
		}
	}
	if len(rows) != want {
		t.Fatalf("%s has %d records, want %d: %+v", action, len(rows), want, rows)
	}
	for _, r := range rows {
		if strings.Contains(fmt.Sprintf("%+v %s", r, r.Detail), canary) {
			t.Errorf("a record holds a value: %s", r.Detail)
		}
	}
	return rows
}

func TestEveryChangeHasItsRecordBeforeAndAfter(t *testing.T) {
	w := newFixture(t)
	w.sessions.jar = []cookies.Cookie{cookie("a", "example.net")}
	name := vault.SecretName{Service: "github"}
	for _, step := range []struct {
		action, target string
		do             func() error
	}{
		{"cookies.import", "example.com", func() error { _, err := w.Import(w.ctx, w.operator, w.jar()); return err }},
		{"cookies.update", "example.com", func() error {
			_, err := w.SetRules(w.ctx, w.operator, "", "example.com", vault.Rules{Scopes: []string{"cdp"}, MaxLeases: 2})
			return err
		}},
		{"cookies.capture", "example.net", func() error {
			_, err := w.Capture(w.ctx, w.operator, "s_1", []string{"example.net"}, nil)
			return err
		}},
		{"cookies.delete", "example.com", func() error { return w.DeleteCookies(w.ctx, w.operator, "", "example.com") }},
		{"secret.put", "github", func() error { return w.PutSecret(w.ctx, w.operator, name, secret.New([]byte(canary))) }},
		{"secret.delete", "github", func() error { return w.DeleteSecret(w.ctx, w.operator, name) }},
		{"vault.rotate", "", func() error { _, err := w.RotateVault(w.ctx, w.admin); return err }},
		{"grant.rotate_keys", "", func() error { _, err := w.RotateGrantKeys(w.ctx, w.admin); return err }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.action, err)
		}
		rows := w.rows(t, step.action, 2)
		if rows[0].Phase != audit.PhaseIntent || rows[1].Phase != audit.PhaseOutcome || rows[1].Ref != rows[0].ID || rows[1].Result != "ok" ||
			rows[0].Target != step.target || rows[0].Actor == "" {
			t.Errorf("%s is recorded as %+v", step.action, rows)
		}
		if step.target != "" && (rows[0].Tenant != "acme" || rows[0].Actor != w.operator.Actor()) {
			t.Errorf("%s is recorded as of %s by %s", step.action, rows[0].Tenant, rows[0].Actor)
		}
	}
	// Grants record themselves: an intent and its outcome, and nothing beside them.
	if _, err := w.Import(w.ctx, w.operator, w.jar()); err != nil {
		t.Fatal(err)
	}
	_, g, err := w.IssueGrant(w.ctx, w.operator, grant.Request{Domains: []string{"example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.RevokeGrant(w.ctx, w.operator, "", g.ID); err != nil {
		t.Fatal(err)
	}
	w.rows(t, "grant.issue", 2)
	w.rows(t, "grant.revoke", 2)
}

func TestAFailureIsRecordedAsOne(t *testing.T) {
	w := newFixture(t)
	bad := w.jar()
	bad.Cookies[0].Secure, bad.Cookies[0].SameSite = false, cookies.SameSiteNone
	if _, err := w.Import(w.ctx, w.operator, bad); problem.CodeOf(err) != problem.BadCookie {
		t.Fatal(err)
	}
	rows := w.rows(t, "cookies.import", 2)
	if rows[1].Result != "failed" || string(rows[1].Detail) != `{"code":"bad_cookie"}` {
		t.Errorf("%+v %s", rows[1], rows[1].Detail)
	}
}

func TestWhatCannotBeRecordedIsNotDone(t *testing.T) {
	w := newFixture(t)
	w.sessions.jar = []cookies.Cookie{cookie("a", "example.net")}
	if _, err := w.Import(w.ctx, w.operator, w.jar()); err != nil {
		t.Fatal(err)
	}
	before, err := w.VaultStatus(w.ctx, w.admin)
	if err != nil {
		t.Fatal(err)
	}
	w.log.fail = problem.New(problem.AuditUnavailable, "", "it is down")
	changed := w.jar()
	changed.Cookies = append(changed.Cookies, cookie("second", "example.com"))
	for name, do := range map[string]func() error{
		"import":  func() error { _, err := w.Import(w.ctx, w.operator, changed); return err },
		"capture": func() error { _, err := w.Capture(w.ctx, w.operator, "s_1", []string{"example.net"}, nil); return err },
		"rules": func() error {
			_, err := w.SetRules(w.ctx, w.operator, "", "example.com", vault.Rules{MaxLeases: 9})
			return err
		},
		"secret": func() error {
			return w.PutSecret(w.ctx, w.operator, vault.SecretName{Service: "github"}, secret.New([]byte("long enough")))
		},
		"rotate":      func() error { _, err := w.RotateVault(w.ctx, w.admin); return err },
		"rotate keys": func() error { _, err := w.RotateGrantKeys(w.ctx, w.admin); return err },
	} {
		if err := do(); problem.CodeOf(err) != problem.AuditUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.log.fail = nil
	sets, err := w.Cookies(w.ctx, w.admin, "")
	if err != nil || len(sets) != 1 || sets[0].Count != 1 || sets[0].MaxLeases != 1 {
		t.Errorf("%+v, %v", sets, err)
	}
	after, err := w.VaultStatus(w.ctx, w.admin)
	if err != nil || after.Keys[0].ID != before.Keys[0].ID || after.Keys[0].Secrets != 0 {
		t.Errorf("%+v, %v", after, err)
	}
	if keys, err := w.GrantKeys(w.ctx, w.admin); err != nil || len(keys) != 1 {
		t.Errorf("%+v, %v", keys, err)
	}
}

// A shorter one could not be told from a word of an answer.
func TestASecretThatIsTooShortToBeFoundIsRefused(t *testing.T) {
	w := newFixture(t)
	name := vault.SecretName{Service: "github"}
	for value, good := range map[string]bool{"": false, "hunter2": false, "hunter22": true} {
		err := w.PutSecret(w.ctx, w.operator, name, secret.New([]byte(value)))
		if good != (err == nil) || !good && (problem.CodeOf(err) != problem.BadSecret || !strings.Contains(err.Error(), "at least 8 bytes")) {
			t.Errorf("%d bytes: %v", len(value), err)
		}
	}
}

func TestEndingsHappenWithoutARecord(t *testing.T) {
	w := newFixture(t)
	name := vault.SecretName{Service: "github"}
	if _, err := w.Import(w.ctx, w.operator, w.jar()); err != nil {
		t.Fatal(err)
	}
	if err := w.PutSecret(w.ctx, w.operator, name, secret.New([]byte("long enough"))); err != nil {
		t.Fatal(err)
	}
	w.log.fail = problem.New(problem.AuditUnavailable, "", "it is down")
	if err := errors.Join(w.DeleteCookies(w.ctx, w.operator, "", "example.com"), w.DeleteSecret(w.ctx, w.operator, name)); err != nil {
		t.Fatal(err)
	}
	sets, err := w.Cookies(w.ctx, w.admin, "")
	secrets, also := w.Secrets(w.ctx, w.admin, "")
	if err := errors.Join(err, also); err != nil || len(sets)+len(secrets) != 0 {
		t.Errorf("%+v %+v %v", sets, secrets, err)
	}
}

// Whoever takes something back may leave before it is written, as a client does that is interrupted.
func TestAnEndIsWrittenAlsoWhenItsCallerHasLeft(t *testing.T) {
	w, _ := shopper(t)
	left, leave := context.WithCancel(w.ctx)
	leave()
	name := vault.SecretName{Service: "github"}
	if _, err := w.AllowAccount(left, w.operator, Allow{Domain: "example.com", Agent: "shopper"}); !errors.Is(err, context.Canceled) {
		t.Errorf("something is begun for a caller who has left: %v", err)
	}
	p, err := w.AllowAccount(w.ctx, w.operator, Allow{Domain: "example.com", Agent: "shopper"})
	_, g, issued := w.IssueGrant(w.ctx, w.operator, grant.Request{Domains: []string{"example.com"}})
	if err := errors.Join(err, issued, w.PutSecret(w.ctx, w.operator, name, secret.New([]byte("long enough")))); err != nil {
		t.Fatal(err)
	}
	_, ended, disallowed := w.DisallowAccount(left, w.operator, "", p.ID)
	g, revoked := w.RevokeGrant(left, w.operator, "", g.ID)
	err = errors.Join(disallowed, revoked, w.DeleteSecret(left, w.operator, name), w.DeleteCookies(left, w.operator, "", "example.com"))
	if err != nil || ended != 1 || g.RevokedAt.IsZero() {
		t.Errorf("%d sessions were ended, the grant is %+v, %v", ended, g, err)
	}
	permissions, err := w.Permissions(w.ctx, w.admin, "")
	sets, setsErr := w.Cookies(w.ctx, w.admin, "")
	secrets, secretsErr := w.Secrets(w.ctx, w.admin, "")
	if err := errors.Join(err, setsErr, secretsErr); err != nil || len(permissions)+len(sets)+len(secrets) != 0 {
		t.Errorf("there are %+v %+v %+v, %v", permissions, sets, secrets, err)
	}
}

func TestANewAccountCanBeUsedByTools(t *testing.T) {
	w := newFixture(t)
	set, err := w.Import(w.ctx, w.operator, w.jar())
	if err != nil || !slices.Equal(set.Scopes, []string{"tools"}) || set.MaxLeases != 1 || set.Tenant != "acme" {
		t.Fatalf("%+v, %v", set, err)
	}
	if set, err = w.SetRules(w.ctx, w.operator, "", "example.com", vault.Rules{Scopes: []string{}, MaxLeases: 3}); err != nil || set.MaxLeases != 3 {
		t.Fatalf("%+v, %v", set, err)
	}
	// Importing again is no reason to allow what was forbidden.
	if set, err = w.Import(w.ctx, w.operator, w.jar()); err != nil || len(set.Scopes) != 0 || set.MaxLeases != 3 {
		t.Errorf("%+v, %v", set, err)
	}
	i := w.jar()
	i.Rules = &vault.Rules{Scopes: []string{"cdp"}, MaxLeases: 2}
	if set, err = w.Import(w.ctx, w.operator, i); err != nil || !slices.Equal(set.Scopes, []string{"cdp"}) || set.MaxLeases != 2 {
		t.Errorf("%+v, %v", set, err)
	}
}

func TestTheAdminsAccountsAreThoseOfDefault(t *testing.T) {
	w := newFixture(t)
	set, err := w.Import(w.ctx, w.admin, w.jar())
	if err != nil || set.Tenant != "default" {
		t.Fatalf("%+v, %v", set, err)
	}
	i := w.jar()
	i.Tenant = "acme"
	if set, err = w.Import(w.ctx, w.admin, i); err != nil || set.Tenant != "acme" {
		t.Fatalf("%+v, %v", set, err)
	}
	for tenant, want := range map[string]int{"": 2, "acme": 1, "beta": 0} {
		if sets, err := w.Cookies(w.ctx, w.admin, tenant); err != nil || len(sets) != want {
			t.Errorf("%q has %+v, %v", tenant, sets, err)
		}
	}
	if sets, err := w.Cookies(w.ctx, w.operator, ""); err != nil || len(sets) != 1 || sets[0].Tenant != "acme" {
		t.Errorf("an operator of acme sees %+v, %v", sets, err)
	}
}

func TestACaptureIsTheSessionsTenants(t *testing.T) {
	w := newFixture(t)
	w.sessions.jar = []cookies.Cookie{cookie("a", ".example.com"), cookie("b", "www.example.com"), cookie("c", "example.net"), cookie("d", "example.org")}
	// An admin of all tenants, whose own would be default.
	sets, err := w.Capture(w.ctx, w.admin, "s_1", []string{"example.com", "EXAMPLE.net", "example.com"}, nil)
	if err != nil || len(sets) != 2 || sets[0].Tenant != "acme" || sets[0].Count != 2 || sets[1].Domain != "example.net" || sets[1].Count != 1 {
		t.Fatalf("%+v, %v", sets, err)
	}
	all, err := w.Cookies(w.ctx, w.admin, "")
	if err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	for _, row := range w.rows(t, "cookies.capture", 2) {
		if row.Session != "s_1" || row.Tenant != "acme" {
			t.Errorf("%+v", row)
		}
	}
}

func TestACaptureIsWholeOrNothing(t *testing.T) {
	w := newFixture(t)
	expired := cookie("old", "example.org")
	expired.Expires = 1000
	unsound := cookie("bent", "example.edu")
	unsound.Path = "/a b"
	w.sessions.jar = []cookies.Cookie{cookie("a", "example.com"), expired, unsound}
	for name, test := range map[string]struct {
		domains []string
		code    string
		want    string
	}{
		"a domain without cookies":    {[]string{"example.com", "example.net"}, problem.NotFound, "example.net"},
		"one whose cookies are over":  {[]string{"example.com", "example.org"}, problem.NotFound, "example.org"},
		"one that no browser takes":   {[]string{"example.com", "example.edu"}, problem.BadCookie, "bent"},
		"no domain":                   {nil, problem.BadDomain, "no domain"},
		"a part of a domain":          {[]string{"example.com", "www.example.com"}, problem.BadDomain, "is a subdomain"},
		"what nobody can register":    {[]string{"example.com", "com"}, problem.BadDomain, "com"},
		"more than a session can use": {make([]string, maxDomains+1), problem.BadDomain, "21"},
	} {
		_, err := w.Capture(w.ctx, w.operator, "s_1", test.domains, nil)
		if problem.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if sets, err := w.Cookies(w.ctx, w.admin, ""); err != nil || len(sets) != 0 {
		t.Errorf("stored all the same: %+v, %v", sets, err)
	}
	// The jar was read, so it is on record; what was refused before that is not.
	for _, row := range w.rows(t, "cookies.capture", 6) {
		if row.Phase == audit.PhaseOutcome && row.Result != string(audit.Failed) {
			t.Errorf("%+v", row)
		}
	}
}

// A rule that is not given for an account stays as it is, and is the default for a new one.
func TestACaptureChangesTheRulesThatAreSaid(t *testing.T) {
	w := newFixture(t)
	w.sessions.jar = []cookies.Cookie{cookie("a", ".example.com"), cookie("c", "example.net")}
	if _, err := w.Capture(w.ctx, w.admin, "s_1", []string{"example.com"}, func(r *vault.Rules) { r.MaxLeases = 3 }); err != nil {
		t.Fatal(err)
	}
	cdp := func(r *vault.Rules) { r.Scopes = []string{"cdp"} }
	sets, err := w.Capture(w.ctx, w.admin, "s_1", []string{"example.com", "example.net"}, cdp)
	if err != nil || len(sets) != 2 {
		t.Fatalf("%+v, %v", sets, err)
	}
	for n, limit := range []int{3, 1} {
		if sets[n].MaxLeases != limit || len(sets[n].Scopes) != 1 || sets[n].Scopes[0] != "cdp" {
			t.Errorf("%s has %d sessions and the scopes %v", sets[n].Domain, sets[n].MaxLeases, sets[n].Scopes)
		}
	}
}

func TestWhoMayNotIsToldSoAndNothingIsDone(t *testing.T) {
	w := newFixture(t)
	if _, err := w.Import(w.ctx, w.operator, w.jar()); err != nil {
		t.Fatal(err)
	}
	_, g, err := w.IssueGrant(w.ctx, w.operator, grant.Request{Domains: []string{"example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	name := vault.SecretName{Tenant: "acme", Service: "github"}
	for what, do := range map[string]func(by identity.Principal) error{
		"import": func(by identity.Principal) error {
			i := w.jar()
			i.Tenant = "acme"
			_, err := w.Import(w.ctx, by, i)
			return err
		},
		"rules": func(by identity.Principal) error {
			_, err := w.SetRules(w.ctx, by, "acme", "example.com", vault.Rules{MaxLeases: 5})
			return err
		},
		"delete": func(by identity.Principal) error { return w.DeleteCookies(w.ctx, by, "acme", "example.com") },
		"capture": func(by identity.Principal) error {
			_, err := w.Capture(w.ctx, by, "s_1", []string{"example.com"}, nil)
			return err
		},
		"secret": func(by identity.Principal) error {
			return w.PutSecret(w.ctx, by, name, secret.New([]byte("long enough")))
		},
		"remove": func(by identity.Principal) error { return w.DeleteSecret(w.ctx, by, name) },
		"issue": func(by identity.Principal) error {
			_, _, err := w.IssueGrant(w.ctx, by, grant.Request{Tenant: "acme", Domains: []string{"example.com"}})
			return err
		},
		"revoke": func(by identity.Principal) error { _, err := w.RevokeGrant(w.ctx, by, "acme", g.ID); return err },
	} {
		if err := do(w.viewer); problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s by a viewer: %v", what, err)
		}
		if err := do(w.stranger); problem.CodeOf(err) != problem.NotFound {
			t.Errorf("%s by a stranger: %v", what, err)
		}
		if err := do(identity.Principal{}); problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s by nobody: %v", what, err)
		}
	}
	if _, err := w.VaultStatus(w.ctx, w.stranger); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("the vault, by an admin of a tenant: %v", err)
	}
	if _, err := w.RotateVault(w.ctx, w.stranger); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("the vault, by an admin of a tenant: %v", err)
	}
	if _, err := w.RotateGrantKeys(w.ctx, w.stranger); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("the keys, by an admin of a tenant: %v", err)
	}
	grants, err := w.ListGrants(w.ctx, w.operator, "")
	if err != nil || len(grants) != 1 || !grants[0].RevokedAt.IsZero() {
		t.Errorf("%+v, %v", grants, err)
	}
	set, err := w.CookieSet(w.ctx, w.viewer, "", "example.com")
	if err != nil || set.MaxLeases != 1 || set.Count != 1 {
		t.Errorf("%+v, %v", set, err)
	}
	w.rows(t, "cookies.import", 2)
}

func TestARevokedGrantNamesItsSession(t *testing.T) {
	w := newFixture(t)
	if _, err := w.Import(w.ctx, w.operator, w.jar()); err != nil {
		t.Fatal(err)
	}
	token, g, err := w.IssueGrant(w.ctx, w.operator, grant.Request{Domains: []string{"example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	want := grant.Want{Tenant: "acme", Session: "s_7", Domains: []string{"example.com"}, Access: grant.AccessTools}
	if _, err := w.Grants.Use(w.ctx, token, want); err != nil {
		t.Fatal(err)
	}
	if g, err = w.RevokeGrant(w.ctx, w.operator, "", g.ID); err != nil || g.UsedBy != "s_7" || g.RevokedBy != w.operator.Actor() {
		t.Errorf("%+v, %v", g, err)
	}
}

// A grant that no session could use is not issued, and leaves no record: the mistake is told to whoever can mend it.
func TestAGrantThatCouldNotBeUsedIsNotIssued(t *testing.T) {
	w := newFixture(t)
	if _, err := w.Import(w.ctx, w.operator, w.jar()); err != nil { // example.com, with access tools
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		request grant.Request
		code    string
		says    string
	}{
		"an account that is there":       {grant.Request{Domains: []string{"example.com"}}, "", ""},
		"one that is not":                {grant.Request{Domains: []string{"example.com", "example.org"}}, problem.NotFound, "no account of example.org"},
		"an access that it forbids":      {grant.Request{Domains: []string{"example.com"}, Access: grant.AccessCDP}, problem.GrantScope, "clawjail cookies set example.com --scope cdp"},
		"a request that is wrong itself": {grant.Request{Domains: []string{"example.com"}, Access: "all"}, problem.BadRequest, "access"},
		"no domain":                      {grant.Request{Domains: []string{"com"}}, problem.BadDomain, "com"},
		"another tenant's account":       {grant.Request{Tenant: "beta", Domains: []string{"example.com"}}, problem.NotFound, ""},
	} {
		by := w.operator
		if c.request.Tenant != "" {
			by = w.admin
		}
		_, _, err := w.IssueGrant(w.ctx, by, c.request)
		if problem.CodeOf(err) != c.code && (err != nil || c.code != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if grants, err := w.ListGrants(w.ctx, w.operator, ""); err != nil || len(grants) != 1 {
		t.Errorf("%+v, %v", grants, err)
	}
	w.rows(t, "grant.issue", 2)
}

func TestAGrantOfATenantThatIsNotThere(t *testing.T) {
	w := newFixture(t)
	_, _, err := w.IssueGrant(w.ctx, w.admin, grant.Request{Tenant: "nosuch", Domains: []string{"example.com"}})
	if problem.CodeOf(err) != problem.NotFound {
		t.Errorf("%v", err)
	}
}

func TestAServiceNeedsAllItsParts(t *testing.T) {
	_, err := New(Options{})
	for _, part := range []string{"vault", "grants", "keyring", "identity", "audit", "sessions", "clock"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not missed: %v", part, err)
		}
	}
}
