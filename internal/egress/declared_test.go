package egress

import (
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestSettingsBoundTheServicesOfAnAgent(t *testing.T) {
	w := newFixture(t)
	for _, name := range []string{"one", "two"} {
		s := service(name)
		s.Tenant = "acme"
		_, err := w.PutService(w.ctx, w.operator, s)
		w.must(err)
	}
	own := service("own")
	own.Tenant, own.Agent = "acme", w.bot.ID
	_, err := w.PutService(w.ctx, w.operator, own)
	w.must(err)
	put := func(services []string, tools ...Tool) {
		t.Helper()
		_, err := w.DeclareSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme", Agent: w.bot.ID}, Services: services, Tools: tools})
		w.must(err)
	}
	has := func(what string, want ...string) {
		t.Helper()
		v := w.View(agent(w.bot))
		for _, name := range []string{"one", "two", "own"} {
			_, _, is := v.Service(name)
			may := false
			for _, n := range want {
				may = may || n == name
			}
			if is != may {
				t.Errorf("%s: the agent has %s: %t", what, name, is)
			}
			if tool := v.Tool(name).Decide(get("api.example.com", "/v1")).Allowed; tool != may {
				t.Errorf("%s: execute with the credential of %s is allowed: %t", what, name, tool)
			}
		}
	}
	tool := Tool{URL: "https://api.example.com/**", Methods: []string{"GET"}}
	put(nil, tool)
	has("without a list", "one", "two", "own")
	put([]string{"one"}, tool)
	has("with a list", "one", "own")
	if _, _, is := w.View(agent(w.twin)).Service("two"); !is {
		t.Error("another agent has lost a service")
	}

	// A client that changes other settings, and does not know services, leaves the services as they were.
	_, err = w.PutSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme", Agent: w.bot.ID}, Tools: []Tool{tool}, Mode: policy.Enforce})
	w.must(err)
	has("after other settings", "one", "own")
	put([]string{}, tool)
	has("with an empty list", "own")
	put(nil, tool)
	has("without a list again", "one", "two", "own")

	_, err = w.PutSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme"}, Services: []string{"two"}})
	w.must(err)
	has("with the tenant's list", "two", "own")
	_, err = w.DeclareSettings(w.ctx, w.operator, Settings{Meta: Meta{Tenant: "acme"}, Services: []string{"NO"}})
	w.wantCode("a name that is none", err, problem.BadName)
}

func TestAllSettingsAreThoseOfOneTenant(t *testing.T) {
	w := newFixture(t)
	for _, s := range []Settings{{Meta: Meta{Tenant: "acme", Agent: w.bot.ID}}, {Meta: Meta{Tenant: "acme"}}, {Meta: Meta{Tenant: "beta", Agent: w.spy.ID}}} {
		s.Hold = "1s"
		_, err := w.PutSettings(w.ctx, w.admin, s)
		w.must(err)
	}
	all, err := w.AllSettings(w.ctx, w.operator, "acme")
	w.must(err)
	if len(all) != 2 || all[0].Tenant != "acme" || all[1].Tenant != "acme" {
		t.Errorf("they are %+v", all)
	}
	if _, err := w.AllSettings(w.ctx, w.operator, "beta"); problem.CodeOf(err) == "" {
		t.Error("an operator of acme reads the settings of beta")
	}
	if _, err := w.AllSettings(w.ctx, w.operator, ""); err == nil {
		t.Error("settings of all tenants are listed")
	}
}

func TestCheckingARuleSaysWhatAddingItWould(t *testing.T) {
	w := newFixture(t)
	for _, r := range []Rule{rule(policy.Allow, "example.com"), {Rule: policy.Rule{Action: "may"}}, {}} {
		r.Tenant = "acme"
		checked := CheckRule(r)
		_, err := w.AddRule(w.ctx, w.operator, r)
		if (checked == nil) != (err == nil) {
			t.Errorf("checked: %v, added: %v", checked, err)
		}
	}
}

func TestDeclarationsDecideNothing(t *testing.T) {
	w := newFixture(t)
	w.add(rule(policy.Allow, "example.com").of("acme", ""))
	w.must(w.db.CreateEntry(w.ctx, store.Entry{ID: "dec_1", Kind: KindDeclaration, Tenant: "acme", Name: "bot", Body: []byte(`{"agent":{"name":"bot"}}`), CreatedAt: w.clock.Now()}))
	before := w.View(agent(w.bot))
	w.must(w.load(w.ctx))
	w.want(agent(w.bot), "example.com", true)
	if w.View(agent(w.bot)) != before {
		t.Error("what was compiled is thrown away when a declaration is written")
	}
}
