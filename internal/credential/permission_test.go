package credential

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/vault"
)

// shopper is an agent of acme's, with an account to be permitted.
func shopper(t *testing.T) (*fixture, identity.Agent) {
	t.Helper()
	w := newFixture(t)
	who := w.Identity.(*identity.Service)
	_, a, err := who.CreateAgent(w.ctx, w.admin, "acme", "shopper", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Import(w.ctx, w.operator, w.jar()); err != nil {
		t.Fatal(err)
	}
	return w, a
}

func TestAnAccountIsPermittedOnceForManySessions(t *testing.T) {
	w, agent := shopper(t)
	p, err := w.AllowAccount(w.ctx, w.operator, Allow{Domain: "Example.com", Agent: "shopper"})
	if err != nil {
		t.Fatal(err)
	}
	if p.Agent != agent.ID || p.Domain != "example.com" || p.Access != grant.AccessTools || p.By != w.operator.Actor() || p.Ask != grant.AskNever {
		t.Errorf("permitted %+v", p)
	}
	// Again it is the same, narrower or wider: its sessions are compared with it.
	again, err := w.AllowAccount(w.ctx, w.operator, Allow{Domain: "example.com", Agent: agent.ID, Ask: grant.AskAlways})
	if err != nil || again.ID != p.ID || again.Ask != grant.AskAlways {
		t.Errorf("permitted %+v, %v", again, err)
	}
	if want := []string{p.ID + " tools", p.ID + " tools"}; !slices.Equal(w.sessions.ended, want) {
		t.Errorf("compared %q", w.sessions.ended)
	}
	if all, err := w.Permissions(w.ctx, w.viewer, ""); err != nil || len(all) != 1 || all[0].ID != p.ID {
		t.Errorf("%+v, %v", all, err)
	}
	w.sessions.ended = nil
	if out, ended, err := w.DisallowAccount(w.ctx, w.operator, "", p.ID); err != nil || ended != 1 || out.ID != p.ID {
		t.Errorf("%+v, %d, %v", out, ended, err)
	}
	if want := []string{p.ID + " "}; !slices.Equal(w.sessions.ended, want) {
		t.Errorf("ended %q", w.sessions.ended)
	}
	w.rows(t, "cookies.allow", 4)
	w.rows(t, "cookies.disallow", 2)
	if _, _, err := w.DisallowAccount(w.ctx, w.operator, "", p.ID); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("taken back twice: %v", err)
	}
}

func TestWhoPermitsAnAccountMustBeAllowedTo(t *testing.T) {
	w, agent := shopper(t)
	allow := func(by identity.Principal, a Allow) error {
		_, err := w.AllowAccount(w.ctx, by, a)
		return err
	}
	good := Allow{Tenant: "acme", Domain: "example.com", Agent: "shopper"}
	itself := identity.Principal{Kind: identity.KindAgent, ID: agent.ID, Name: agent.Name, Tenant: "acme"}
	bad := func(change func(*Allow)) Allow {
		out := good
		change(&out)
		return out
	}
	for what, c := range map[string]struct {
		err  error
		code string
	}{
		"a viewer":             {allow(w.viewer, good), problem.Forbidden},
		"the agent":            {allow(itself, good), problem.Forbidden},
		"another tenant":       {allow(w.stranger, good), problem.NotFound},
		"no account":           {allow(w.operator, bad(func(a *Allow) { a.Domain = "example.org" })), problem.NotFound},
		"no agent":             {allow(w.operator, bad(func(a *Allow) { a.Agent = "nobody" })), problem.NotFound},
		"a part of a domain":   {allow(w.operator, bad(func(a *Allow) { a.Domain = "www.example.com" })), problem.BadDomain},
		"an access too wide":   {allow(w.operator, bad(func(a *Allow) { a.Access = grant.AccessCDP })), problem.GrantScope},
		"an access that is no": {allow(w.operator, bad(func(a *Allow) { a.Access = "all" })), problem.BadRequest},
		"a past":               {allow(w.operator, bad(func(a *Allow) { a.For = -time.Hour })), problem.BadLimit},
	} {
		if problem.CodeOf(c.err) != c.code {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	if _, err := w.Permissions(w.ctx, w.stranger, "acme"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("a stranger looks: %v", err)
	}
	w.log.fail = problem.New(problem.AuditUnavailable, "", "it is down")
	if err := allow(w.operator, good); problem.CodeOf(err) != problem.AuditUnavailable {
		t.Errorf("without a record: %v", err)
	}
	w.log.fail = nil
	if all, err := w.Permissions(w.ctx, w.admin, ""); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := allow(w.operator, good); err != nil {
		t.Fatal(err)
	}
	all, err := w.Permissions(w.ctx, w.operator, "")
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	for what, by := range map[string]identity.Principal{"a viewer": w.viewer, "the agent": itself, "another tenant": w.stranger} {
		if _, _, err := w.DisallowAccount(w.ctx, by, "acme", all[0].ID); err == nil {
			t.Errorf("%s has taken it back", what)
		}
		if by.Tenant == "beta" {
			if _, _, err := w.DisallowAccount(w.ctx, by, "", all[0].ID); problem.CodeOf(err) != problem.NotFound {
				t.Errorf("%s has taken it back: %v", what, err)
			}
		}
	}
	if len(w.sessions.ended) != 1 {
		t.Errorf("ended %q", w.sessions.ended)
	}
}

func TestATenantThatForbidsPermissionsHasNone(t *testing.T) {
	w, _ := shopper(t)
	who := w.Identity.(*identity.Service)
	forbid := func(by identity.Principal, is bool) error {
		_, err := who.SetPolicy(w.ctx, by, "acme", func(p *identity.Policy) { p.ForbidAccountPermissions = is })
		return err
	}
	if err := forbid(w.operator, true); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("an operator of the tenant: %v", err)
	}
	if err := forbid(w.admin, true); err != nil {
		t.Fatal(err)
	}
	good := Allow{Domain: "example.com", Agent: "shopper"}
	if _, err := w.AllowAccount(w.ctx, w.operator, good); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("got %v", err)
	}
	if err := forbid(w.admin, false); err != nil {
		t.Fatal(err)
	}
	if _, err := w.AllowAccount(w.ctx, w.operator, good); err != nil {
		t.Error(err)
	}
}

func TestRemovingAnAccountTakesItsPermissionsBack(t *testing.T) {
	w, _ := shopper(t)
	p, err := w.AllowAccount(w.ctx, w.operator, Allow{Domain: "example.com", Agent: "shopper"})
	if err != nil {
		t.Fatal(err)
	}
	w.sessions.ended = nil
	if err := w.DeleteCookies(w.ctx, w.operator, "", "example.com"); err != nil {
		t.Fatal(err)
	}
	all, err := w.Permissions(w.ctx, w.operator, "")
	if err != nil || len(all) != 0 || !slices.Equal(w.sessions.ended, []string{p.ID + " "}) {
		t.Errorf("left %+v, ended %q, %v", all, w.sessions.ended, err)
	}
}

// stuck is a database that removes no permission as long as it fails.
type stuck struct {
	*sqlite.DB
	fails error
}

func (s *stuck) DeleteEntry(ctx context.Context, id string) error {
	if s.fails != nil {
		return s.fails
	}
	return s.DB.DeleteEntry(ctx, id)
}

func TestRemovingAnAccountThatWasCutCanBeRepeated(t *testing.T) {
	w, _ := shopper(t)
	p, err := w.AllowAccount(w.ctx, w.operator, Allow{Domain: "example.com", Agent: "shopper"})
	if err != nil {
		t.Fatal(err)
	}
	w.sessions.ended = nil
	db := &stuck{w.db, errors.New("planted")}
	w.Grants, err = grant.New(grant.Options{Store: db, Keys: w.Keyring, Installation: "test", RegistrableDomain: cookies.RegistrableDomain,
		Limits: grant.DefaultLimits(), Now: time.Now, Audit: new(audittest.Log)})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.DeleteCookies(w.ctx, w.operator, "", "example.com"); !errors.Is(err, db.fails) {
		t.Errorf("it went on without the permissions: %v", err)
	}
	db.fails = nil
	if err := w.DeleteCookies(w.ctx, w.operator, "", "example.com"); err != nil {
		t.Errorf("once more: %v", err)
	}
	all, err := w.Permissions(w.ctx, w.operator, "")
	sets, also := w.Cookies(w.ctx, w.operator, "")
	if err := errors.Join(err, also); err != nil || len(all)+len(sets) != 0 || !slices.Equal(w.sessions.ended, []string{p.ID + " "}) {
		t.Errorf("left %+v and %+v, ended %q, %v", all, sets, w.sessions.ended, err)
	}
}

// A permission is taken back whether that can be recorded or not.
func TestAPermissionIsTakenBackWithoutARecord(t *testing.T) {
	w, _ := shopper(t)
	p, err := w.AllowAccount(w.ctx, w.operator, Allow{Domain: "example.com", Agent: "shopper"})
	if err != nil {
		t.Fatal(err)
	}
	w.log.fail = errors.New("it is down")
	if _, _, err := w.DisallowAccount(w.ctx, w.operator, "", p.ID); err != nil {
		t.Error(err)
	}
	w.log.fail = nil
	if rows := w.rows(t, "cookies.disallow", 2); !strings.Contains(string(rows[0].Detail), p.ID) {
		t.Errorf("%+v", rows)
	}
}

// asking has a book of requests besides, and the agent as it asks.
func asking(t *testing.T) (*fixture, *egress.Book, identity.Principal) {
	t.Helper()
	w, agent := shopper(t)
	book, err := egress.Open(w.ctx, egress.Options{Store: w.db, Identity: w.Identity, Audit: w.log.Log, Now: time.Now, Recheck: time.Hour, Accounts: w.Service})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(book.Close)
	return w, book, identity.Principal{Kind: identity.KindAgent, ID: agent.ID, Name: agent.Name, Tenant: "acme", TokenID: "t"}
}

// open is what a session does without a grant.
func (w *fixture) open(by identity.Principal, access grant.Access) error {
	want := grant.Want{Tenant: by.Tenant, Session: "s_1", Agent: by.ID, Domains: []string{"example.com"}, Access: access}
	s, err := w.Grants.Permitted(w.ctx, want)
	if err == nil {
		_, err = w.Grants.UsePermissions(w.ctx, s, want)
	}
	return err
}

func TestAnAgentAsksForAnAccountAndAPersonApproves(t *testing.T) {
	w, book, by := asking(t)
	ask := func(target string) (egress.AccessRequest, error) {
		return book.Ask(w.ctx, by, egress.AccessAccount, target, "to buy", 0)
	}
	pending, err := ask("Example.COM")
	if err != nil || pending.State != egress.AccessPending || pending.Target != "example.com" {
		t.Fatalf("%+v, %v", pending, err)
	}
	if err := w.open(by, grant.AccessTools); problem.CodeOf(err) != problem.AccountNotAllowed {
		t.Errorf("before the answer: %v", err)
	}
	for what, who := range map[string]identity.Principal{"itself": by, "a viewer": w.viewer, "a stranger": w.stranger} {
		if _, err := book.Answer(w.ctx, who, pending.ID, egress.AccessAnswer{Approve: true}); err == nil {
			t.Errorf("%s has approved it", what)
		}
	}
	done, err := book.Answer(w.ctx, w.operator, pending.ID, egress.AccessAnswer{Approve: true, Once: true})
	if err != nil || done.Made == "" {
		t.Fatalf("%+v, %v", done, err)
	}
	// Asked again before it is used, the answer is the same.
	if again, err := ask("example.com"); err != nil || again.ID != pending.ID || again.State != egress.AccessApproved {
		t.Errorf("%+v, %v", again, err)
	}
	if err := w.open(by, grant.AccessTools); err != nil {
		t.Error(err)
	}
	if err := w.open(by, grant.AccessTools); problem.CodeOf(err) != problem.AccountNotAllowed {
		t.Errorf("a second time: %v", err)
	}
	// It was used up: what is asked now is another question, and its approval is one use more.
	second, err := ask("example.com")
	if err != nil || second.ID == pending.ID || second.State != egress.AccessPending {
		t.Fatalf("%+v, %v", second, err)
	}
	if again, err := book.Answer(w.ctx, w.operator, second.ID, egress.AccessAnswer{Approve: true}); err != nil || again.Made != done.Made {
		t.Errorf("%+v, %v", again, err)
	}
	if err := errors.Join(w.open(by, grant.AccessTools)); err != nil {
		t.Error(err)
	}
	if err := w.open(by, grant.AccessTools); problem.CodeOf(err) != problem.AccountNotAllowed {
		t.Errorf("a second time: %v", err)
	}
	// An approval widens no access; whoever wants that says so.
	if _, err := w.SetRules(w.ctx, w.operator, "", "example.com", vault.Rules{Scopes: []string{"tools", "cdp"}, MaxLeases: 1}); err != nil {
		t.Fatal(err)
	}
	wide, err := ask("example.com cdp")
	if err != nil || wide.ID == second.ID {
		t.Fatalf("%+v, %v", wide, err)
	}
	if _, err := book.Answer(w.ctx, w.operator, wide.ID, egress.AccessAnswer{Approve: true}); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("got %v", err)
	}
	if err := w.open(by, grant.AccessCDP); problem.CodeOf(err) != problem.AccountNotAllowed {
		t.Errorf("with cdp: %v", err)
	}
	if _, _, err := w.DisallowAccount(w.ctx, w.operator, "", done.Made); err != nil {
		t.Fatal(err)
	}
	if out, err := book.Answer(w.ctx, w.operator, wide.ID, egress.AccessAnswer{Approve: true, For: "1h"}); err != nil || out.Made == done.Made {
		t.Errorf("%+v, %v", out, err)
	}
	if all, err := w.Permissions(w.ctx, w.operator, ""); err != nil || len(all) != 1 || all[0].Access != grant.AccessCDP || all[0].Left != nil || all[0].ExpiresAt.IsZero() {
		t.Errorf("%+v, %v", all, err)
	}
	for range 3 {
		if err := w.open(by, grant.AccessTools); err != nil {
			t.Error(err)
		}
	}
	if _, err := ask("example.com"); problem.CodeOf(err) != problem.Conflict || !strings.Contains(err.Error(), "already") {
		t.Errorf("asked for what it has: %v", err)
	}
}

func TestWhatCannotBeApprovedStaysAQuestion(t *testing.T) {
	w, book, by := asking(t)
	for _, target := range []string{"", "com", "www.example.com", "example.com all", "example.com  cdp", "10.0.0.1", "example.com tools cdp"} {
		if _, err := book.Ask(w.ctx, by, egress.AccessAccount, target, "x", 0); err == nil {
			t.Errorf("%q can be asked for", target)
		}
	}
	// Whether there is such an account is nothing that asking tells.
	asked, err := book.Ask(w.ctx, by, egress.AccessAccount, "example.org", "x", 0)
	if err != nil || asked.State != egress.AccessPending {
		t.Fatalf("%+v, %v", asked, err)
	}
	if _, err := book.Answer(w.ctx, w.operator, asked.ID, egress.AccessAnswer{Approve: true}); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("no account: %v", err)
	}
	if still, err := book.AccessRequest(w.ctx, w.operator, asked.ID, 0); err != nil || still.State != egress.AccessPending {
		t.Errorf("%+v, %v", still, err)
	}
	if _, err := book.Answer(w.ctx, w.operator, asked.ID, egress.AccessAnswer{}); err != nil {
		t.Error(err)
	}
	if again, err := book.Ask(w.ctx, by, egress.AccessAccount, "example.org", "x", 0); err != nil || again.State != egress.AccessRefused {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestOpeningAsksAPersonWherePermissionsSaySo(t *testing.T) {
	w, book, by := asking(t)
	p, err := w.AllowAccount(w.ctx, w.operator, Allow{Domain: "example.com", Agent: "shopper", Ask: grant.AskAlways})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 { // each time anew
		answered := make(chan error, 1)
		go func() { answered <- book.AskForAccount(w.ctx, by, "example.com", grant.AccessTools) }()
		var waiting []egress.AccessRequest
		for deadline := time.Now().Add(10 * time.Second); len(waiting) == 0 && time.Now().Before(deadline); runtime.Gosched() {
			if waiting, err = book.AccessRequests(w.ctx, w.operator, "", false); err != nil {
				t.Fatal(err)
			}
		}
		if len(waiting) != 1 {
			t.Fatalf("%d: nobody was asked", n)
		}
		if out, err := book.Answer(w.ctx, w.operator, waiting[0].ID, egress.AccessAnswer{Approve: true}); err != nil || out.Made != p.ID {
			t.Fatalf("%+v, %v", out, err)
		}
		if err := <-answered; err != nil {
			t.Errorf("%d: %v", n, err)
		}
		if err := w.open(by, grant.AccessTools); err != nil {
			t.Errorf("%d: %v", n, err)
		}
	}
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	if err := book.AskForAccount(ctx, by, "example.com", grant.AccessTools); err == nil {
		t.Error("nobody has answered")
	}
}
