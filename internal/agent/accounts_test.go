package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// login keeps an account of a domain.
func (l *land) login(domain string) {
	l.t.Helper()
	_, err := l.accounts.Import(l.ctx, l.admin, credential.Import{Domain: domain, Cookies: []cookies.Cookie{{Name: "sid", Value: secret.New([]byte("v")), Domain: "." + domain,
		Path: "/", Expires: cookies.Session, Session: true, Secure: true, SameSite: cookies.SameSiteLax, Priority: "Medium", SourceScheme: cookies.SchemeSecure, SourcePort: 443}}})
	l.must(err)
}

// permitted is what is permitted in the tenant default, in short.
func (l *land) permitted() string {
	l.t.Helper()
	all, err := l.accounts.Permissions(l.ctx, l.admin, "default")
	l.must(err)
	var out []string
	for _, p := range all {
		text := p.AgentName + " " + p.Domain + " " + string(p.Access) + " " + string(p.Ask)
		if !p.Declared {
			text += " by hand"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func TestAFileSaysWhichAccountsAgentsMayUse(t *testing.T) {
	l := newLand(t)
	l.login("example.com")
	l.login("example.org")
	const both = "clawbots:\n  - name: a\n    accounts: [example.com, {domain: example.org, ask: first, hours: 08-18}]\n"
	p, err := l.sync(both)
	l.want("first", p, err, "create a")
	if got := l.permitted(); got != "a example.com tools never; a example.org tools first" {
		t.Errorf("permitted is %s", got)
	}
	p, err = l.sync(both)
	l.want("again", p, err, "unchanged a")

	// A permission that a person gives stays, whatever the file says; one of the file that a person takes back is given again.
	if _, err := l.accounts.AllowAccount(l.ctx, l.admin, credential.Allow{Tenant: "default", Domain: "example.com", Agent: "a", Ask: grant.AskAlways}); err != nil {
		t.Fatal(err)
	}
	all, err := l.accounts.Permissions(l.ctx, l.admin, "default")
	l.must(err)
	for _, one := range all {
		if one.Domain == "example.org" {
			_, _, err := l.accounts.DisallowAccount(l.ctx, l.admin, "default", one.ID)
			l.must(err)
		}
	}
	p, err = l.sync(both)
	l.want("after a person", p, err, "change a")
	if !strings.Contains(why(p, "a"), "not those that were declared") || !strings.Contains(why(p, "a"), "a person has said how it may use the account of example.com") {
		t.Errorf("it says %s", why(p, "a"))
	}
	if got := l.permitted(); got != "a example.com tools always by hand; a example.org tools first" {
		t.Errorf("permitted is %s", got)
	}
	// A permission that the file does not name any more is taken back, but not one that a person gave.
	p, err = l.sync("clawbots:\n  - name: a\n")
	l.want("without", p, err, "change a")
	if got := l.permitted(); got != "a example.com tools always by hand" {
		t.Errorf("permitted is %s", got)
	}
	// One that a person gave for a time says nothing when the time is over.
	if _, err := l.accounts.AllowAccount(l.ctx, l.admin, credential.Allow{Tenant: "default", Domain: "example.org", Agent: "a", Ask: grant.AskAlways, For: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a example.org tools always by hand", "a example.org tools first"} {
		_, err = l.sync(both)
		l.must(err)
		if got := l.permitted(); got != "a example.com tools always by hand; "+want {
			t.Errorf("permitted is %s", got)
		}
		l.forward(time.Hour)
	}
	// An agent that is made again under its name has nothing of the one before.
	l.must(l.who.DeleteAgent(l.ctx, l.admin, "default", "a"))
	_, err = l.sync("clawbots:\n  - name: a\n")
	l.must(err)
	if got := l.permitted(); got != "" {
		t.Errorf("permitted is %s", got)
	}
}

func TestAFileWhoseAccountsCannotBeUsedChangesNothing(t *testing.T) {
	l := newLand(t)
	l.login("example.com")
	p, err := l.sync("clawbots:\n  - name: a\n    accounts:\n      - example.com\n      - example.net\n")
	if err == nil || !strings.Contains(err.Error(), "there is no account of example.net") || !strings.Contains(err.Error(), "5:") {
		t.Errorf("%+v, %v", p, err)
	}
	_, err = l.sync("clawbots:\n  - name: a\n    accounts: [{domain: example.com, access: cdp}]\n")
	if err == nil || !strings.Contains(err.Error(), "may not be used with access cdp") {
		t.Errorf("got %v", err)
	}
	_, err = l.who.SetPolicy(l.ctx, l.admin, "default", func(p *identity.Policy) { p.ForbidAccountPermissions = true })
	l.must(err)
	const good = "clawbots:\n  - name: a\n    accounts: [example.com]\n"
	if _, err = l.sync(good); err == nil || !strings.Contains(err.Error(), "may not use accounts by permission") {
		t.Errorf("got %v", err)
	}
	if agents, err := l.who.Agents(l.ctx, l.admin, "default"); err != nil || len(agents) != 0 {
		t.Errorf("made %+v, %v", agents, err)
	}
	_, err = l.who.SetPolicy(l.ctx, l.admin, "default", func(p *identity.Policy) { p.ForbidAccountPermissions = false })
	l.must(err)
	p, err = l.sync(good)
	l.want("with it", p, err, "create a")
	viewer := l.operator("default", identity.RoleViewer)
	_, err = l.Sync(l.ctx, viewer, SyncRequest{Source: "clawbots.yml", Text: good, Dir: "/srv/bots/team"}, nil)
	l.wantCode("a viewer", err, problem.Forbidden)
}
