package credential

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// shopper is an agent of acme's, with an account to be permitted.
func shopper(t *testing.T) (*world, identity.Agent) {
	t.Helper()
	w := newWorld(t)
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

// What is taken back is taken back, whether it can be written down or not.
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
