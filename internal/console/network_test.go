package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
)

func TestAServiceIsAddedAndChanged(t *testing.T) {
	w := newFixture(t)
	builder := w.agent("acme", "builder")
	w.get("acme operator", "/console/network/services").holds(t, http.StatusOK, "No services yet", "Add a service")
	w.get("acme operator", "/console/network/services/edit").holds(t, http.StatusOK, "<h1>Add a service</h1>", "GET /**")
	added := w.post("acme operator", "/console/network/services/edit", "name", "tracker", "whose", "acme/builder", "base_url", "https://api.example.com/v1",
		"allow", "GET,POST /issues/**\r\n\r\n/search", "inject", "header", "inject_name", "X-Api-Key", "secret", "tracker-key", "scrub", "block", "compressed", "refuse",
		"encoded_slash", "allow", "env", "API_URL={url}\nMODE=a=b", "note", hostile)
	w.follow("acme operator", added).holds(t, http.StatusOK, "Service tracker is saved.", "GET,POST /issues/**", "X-Api-Key", "secret tracker-key", "builder", "&lt;img")
	all, err := w.book.ListServices(w.ctx, w.admin, "acme")
	w.must(err)
	if len(all) != 1 || all[0].Agent != builder.ID || len(all[0].Allow) != 2 || all[0].Allow[1].Path != "/search" || all[0].Env["MODE"] != "a=b" ||
		all[0].Scrub != egress.ScrubBlock || all[0].Compressed != egress.CompressedRefuse || all[0].EncodedSlash != egress.EncodedSlashAllow {
		t.Fatalf("the services are %+v", all)
	}
	edit := w.get("acme operator", "/console/network/services/edit?id="+all[0].ID)
	edit.holds(t, http.StatusOK, "Service tracker", `value="acme/builder"`, "GET,POST /issues/**\n/search", "API_URL={url}\nMODE=a=b", `value="https://api.example.com/v1"`, "Agent builder")
	// The form has all of the service: sent back as it is, it changes nothing.
	again := formOf(all[0], all[0].Meta, map[string]identity.Agent{builder.ID: {ID: builder.ID, Tenant: "acme", Name: "builder"}})
	w.send("acme operator", http.MethodPost, "/console/network/services/edit", again.Values).holds(t, http.StatusSeeOther)
	same, err := w.book.ListServices(w.ctx, w.admin, "acme")
	w.must(err)
	if len(same) != 1 || same[0].Note != all[0].Note || same[0].Inject != all[0].Inject || len(same[0].Allow) != 2 || same[0].Env["MODE"] != "a=b" || same[0].EncodedSlash != all[0].EncodedSlash {
		t.Errorf("the service has become %+v", same)
	}
	w.follow("acme operator", w.post("acme operator", "/console/network/services/remove", "id", all[0].ID)).holds(t, http.StatusOK, "The service is removed.", "No services yet")
}

func TestAProviderIsAddedAndChanged(t *testing.T) {
	w := newFixture(t)
	added := w.post("acme operator", "/console/network/providers/edit", "name", "openai", "whose", "acme", "wire", "openai", "base_url", "https://models.example.com",
		"models", "gpt-*\no3", "prices", "gpt-4o*=2.50/10\n\no3=0/0.5", "priority", "7", "note", hostile)
	w.follow("acme operator", added).holds(t, http.StatusOK, "Provider openai is saved.", "gpt-*", "gpt-4o*=2.5/10", "o3=0/0.5", "&lt;img")
	all, err := w.book.ListProviders(w.ctx, w.admin, "acme")
	w.must(err)
	if len(all) != 1 || all[0].Priority != 7 || len(all[0].Models) != 2 || len(all[0].Prices) != 2 || all[0].Prices[0].Output != 10 {
		t.Fatalf("the providers are %+v", all)
	}
	w.get("acme operator", "/console/network/providers/edit?id="+all[0].ID).holds(t, http.StatusOK, "gpt-4o*=2.5/10\no3=0/0.5", "gpt-*\no3", `value="7"`)
	again := formOf(all[0], all[0].Meta, nil)
	w.send("acme operator", http.MethodPost, "/console/network/providers/edit", again.Values).holds(t, http.StatusSeeOther)
	same, err := w.book.ListProviders(w.ctx, w.admin, "acme")
	w.must(err)
	if len(same) != 1 || len(same[0].Prices) != 2 || same[0].Prices[1] != all[0].Prices[1] || same[0].Inject != all[0].Inject {
		t.Errorf("the provider has become %+v", same)
	}
	w.follow("acme operator", w.post("acme operator", "/console/network/providers/remove", "id", all[0].ID)).holds(t, http.StatusOK, "The provider is removed.")
}

func TestWhatIsWrongWithAServiceOrAProviderIsSaidBesideItsField(t *testing.T) {
	w := newFixture(t)
	service := func(pairs ...string) url.Values {
		return blank(append([]string{"name", "tracker", "whose", "acme", "base_url", "https://api.example.com", "inject", "bearer", "allow", "GET /**", "scrub", "redact",
			"compressed", "decode", "inject_name", "", "inject_user", "", "git", "", "env", "", "address", "", "secret", "", "note", hostile}, pairs...)...).Values
	}
	provider := func(pairs ...string) url.Values {
		return blank(append([]string{"name", "openai", "whose", "acme", "base_url", "https://api.example.com", "wire", "openai", "models", "*", "prices", "", "priority", "",
			"inject", "", "inject_name", "", "address", "", "secret", "", "note", hostile}, pairs...)...).Values
	}
	for name, c := range map[string]struct {
		path   string
		values url.Values
		field  string
	}{
		"name":              {"services", service("name", "A name"), "name"},
		"base URL":          {"services", service("base_url", "ftp://example.com"), "base_url"},
		"allowance":         {"services", service("allow", "GET /a\nnot a path"), "allow"},
		"allowance's path":  {"services", service("allow", "GET /a/../b"), "allow"},
		"header":            {"services", service("inject", "header", "inject_name", "Host"), "inject_name"},
		"kind of injection": {"services", service("inject", "magic"), "inject"},
		"user":              {"services", service("inject_user", "me"), "inject_user"},
		"place in the path": {"services", service("inject", "path"), "base_url"},
		"variable":          {"services", service("env", "no value"), "env"},
		"name of variable":  {"services", service("env", "lower=x"), "env"},
		"git":               {"services", service("git", "https://example.com"), "git"},
		"address":           {"services", service("address", "near"), "address"},
		"secret":            {"services", service("secret", "A Secret"), "secret"},
		"models":            {"providers", provider("models", ""), "models"},
		"prices":            {"providers", provider("prices", "cheap"), "prices"},
		"language":          {"providers", provider("wire", "french"), "wire"},
		"priority":          {"providers", provider("priority", "1000"), "priority"},
		"no priority":       {"providers", provider("priority", "x"), "priority"},
		"provider's URL":    {"providers", provider("base_url", "nowhere"), "base_url"},
	} {
		t.Run(name, func(t *testing.T) {
			p := w.send("admin", http.MethodPost, "/console/network/"+c.path+"/edit", c.values)
			p.holds(t, http.StatusUnprocessableEntity, `id="f-`+c.field+`-wrong"`, "&lt;img")
		})
	}
	for _, good := range []struct {
		path   string
		values url.Values
	}{{"services", service()}, {"providers", provider()}} {
		w.send("admin", http.MethodPost, "/console/network/"+good.path+"/edit", good.values).holds(t, http.StatusSeeOther)
	}
}

func TestOnlyWhoMayChangesServicesAndProviders(t *testing.T) {
	w := newFixture(t)
	theirs, everybodys, own := w.service("beta", "", "theirs"), w.service("", "", "everybodys"), w.service("acme", "", "own")
	models, theirModels := w.provider("acme", "own"), w.provider("beta", "theirs")
	for _, path := range []string{"services", "providers"} {
		list := w.get("acme viewer", "/console/network/"+path)
		list.holds(t, http.StatusOK, "own", "&lt;img")
		list.lacks(t, "theirs", "Remove", ">Change<", "Add a")
		w.get("acme viewer", "/console/network/"+path+"/edit").holds(t, http.StatusForbidden)
		w.post("acme viewer", "/console/network/"+path+"/edit", "name", "x", "whose", "acme", "base_url", "https://x.example", "inject", "none", "wire", "openai", "models", "*").
			holds(t, http.StatusForbidden)
		w.post("acme operator", "/console/network/"+path+"/edit", "name", "x", "whose", "beta", "base_url", "https://x.example", "inject", "none", "wire", "openai", "models", "*").
			holds(t, http.StatusNotFound)
	}
	operators := w.get("acme operator", "/console/network/services")
	operators.holds(t, http.StatusOK, own.ID, "everybodys")
	operators.lacks(t, everybodys.ID, theirs.ID)
	w.get("acme operator", "/console/network/services/edit?id="+theirs.ID).holds(t, http.StatusNotFound)
	w.get("acme operator", "/console/network/services/edit?id="+everybodys.ID).holds(t, http.StatusNotFound)
	w.get("acme operator", "/console/network/providers/edit?id="+theirModels.ID).holds(t, http.StatusNotFound)
	w.post("acme viewer", "/console/network/services/remove", "id", own.ID).holds(t, http.StatusForbidden)
	w.post("acme viewer", "/console/network/providers/remove", "id", models.ID).holds(t, http.StatusForbidden)
	w.post("acme operator", "/console/network/services/remove", "id", theirs.ID).holds(t, http.StatusNotFound)
	w.post("acme operator", "/console/network/providers/remove", "id", theirModels.ID).holds(t, http.StatusNotFound)
	w.post("acme operator", "/console/network/services/remove", "id", everybodys.ID).holds(t, http.StatusForbidden)
}

func TestUsageIsAddedUpAndDrawn(t *testing.T) {
	w := newFixture(t)
	builder, other := w.agent("acme", "builder"), w.agent("beta", "other")
	w.get("acme viewer", "/console/network/usage").holds(t, http.StatusOK, "Nothing was used", "No budgets are set")
	for range 3 {
		w.must(w.book.Charge(w.ctx, egress.Who{Tenant: "acme", Agent: builder.ID}, "openai", "gpt-4o", 1, egress.Tokens{Input: 1000, Output: 500, MicroCost: 1_500_000}))
	}
	w.must(w.book.Charge(w.ctx, egress.Who{Tenant: "acme", Agent: builder.ID}, "openai", hostile, 1, egress.Tokens{Input: 1}))
	w.must(w.book.Charge(w.ctx, egress.Who{Tenant: "beta", Agent: other.ID}, "claude", "opus", 1, egress.Tokens{Input: 9000}))
	_, err := w.book.PutSettings(w.ctx, w.admin, egress.Settings{Meta: egress.Meta{Tenant: "acme", Agent: builder.ID}, Mode: policy.Enforce, Budget: egress.Budget{TokensPerDay: 9002}})
	w.must(err)

	p := w.get("acme viewer", "/console/network/usage")
	p.holds(t, http.StatusOK, "4,501", "4.50", "gpt-4o", "&lt;img", `role="img"`, "Requests a day from", "4,501 of 9,002", `value="50"`, "A model without a price")
	p.lacks(t, "opus", "beta", `class="limit"`)
	w.get("admin", "/console/network/usage").holds(t, http.StatusOK, "opus", "13,501", "of beta")
	one := w.get("admin", "/console/network/usage?agent=acme/builder")
	one.holds(t, http.StatusOK, "4,501", `class="limit"`, "the limit is 9,002", `href="/console/agents/acme/builder"`)
	one.lacks(t, "opus")
	if n := strings.Count(p.body, "<rect"); n != 4 {
		t.Errorf("there are %d bars: one of requests, two of tokens and one of cost are to be there", n)
	}
	// An agent of another tenant is none.
	w.get("acme viewer", "/console/network/usage?agent=beta/other").lacks(t, "opus", "9,000")
}
