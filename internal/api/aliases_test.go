package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/problem"
)

// read is an answer as a client of the aliases reads it.
func read[T any](t *testing.T, a asked, status int) T {
	t.Helper()
	var out T
	if err := json.Unmarshal([]byte(a.body), &out); err != nil || a.StatusCode != status {
		t.Fatalf("%d %s, %v; want %d", a.StatusCode, a.body, err, status)
	}
	return out
}

type object = map[string]any

// A program for the older control plane works as it is: with its header, its paths and its names.
func TestAProgramForTheOlderControlPlaneWorks(t *testing.T) {
	w := newFixture(t)
	d := &testAPI{API: w.API}
	ask := func(method, path, body string) asked {
		return d.ask(t, method, path, body, anonymous, header("X-Admin-Api-Key", w.keys["admin"]))
	}
	crab := read[object](t, ask("POST", "/v1/crabs", `{"name":"shelly"}`), 201)
	id, token := fmt.Sprint(crab["id"]), fmt.Sprint(crab["token"])
	if crab["name"] != "shelly" || crab["active"] != true || crab["uiPort"] != nil || !strings.HasPrefix(token, "cjagt_") || crab["createdAt"] == nil {
		t.Errorf("%v", crab)
	}
	if ask := d.ask(t, "GET", "/v1/whoami", "", key(token)); ask.StatusCode != 200 || !strings.Contains(ask.body, id) {
		t.Errorf("the token is not good: %s", ask.body)
	}
	list := ask("GET", "/v1/crabs", "")
	if first := read[struct{ Crabs []object }](t, list, 200).Crabs[0]; first["id"] != id || first["updatedAt"] == nil || strings.Contains(list.body, "token") {
		t.Errorf("the newest is %v", first)
	}

	pearl := read[object](t, ask("POST", "/v1/secrets", `{"crabId":"`+id+`","service":"github","plaintext":"`+canary+`","label":"mine"}`), 201)
	again := read[object](t, ask("POST", "/v1/secrets", `{"crabId":"`+id+`","service":"github","plaintext":"`+canary+`2"}`), 201)
	if pearl["crabId"] != id || pearl["service"] != "github" || pearl["id"] == "" || again["id"] != pearl["id"] || pearl["createdAt"] == nil {
		t.Errorf("%v, then %v", pearl, again)
	}
	pearls := ask("GET", "/v1/secrets?crabId="+id, "")
	if got := read[object](t, pearls, 200); len(got["pearls"].([]any)) != 1 || got["secrets"] != nil || strings.Contains(pearls.body, canary) {
		t.Errorf("%v", got)
	}
	if got := read[object](t, ask("GET", "/v1/secrets?crabId=nobody", ""), 200); len(got["pearls"].([]any)) != 0 {
		t.Errorf("%v", got)
	}
	if got := read[object](t, ask("GET", "/v1/secrets", ""), 200); got["secrets"] == nil || got["pearls"] != nil {
		t.Errorf("%v", got)
	}
	if a := ask("DELETE", "/v1/secrets/"+fmt.Sprint(pearl["id"]), ""); a.StatusCode != 204 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	ask("DELETE", "/v1/secrets/"+fmt.Sprint(pearl["id"]), "").wantProblem(t, 404, problem.NotFound)
	// The tenant's own of the same name is another one.
	if a := w.request("acme operator", "DELETE", "/v1/secrets/github", ""); a.StatusCode != 204 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}

	revoked := read[object](t, ask("PATCH", "/v1/crabs/"+id+"/revoke", ""), 200)
	if revoked["id"] != id || revoked["active"] != false {
		t.Errorf("%v", revoked)
	}
	d.ask(t, "GET", "/v1/whoami", "", key(token)).wantProblem(t, 401, problem.Unauthorized)
}

func TestErrorsOfAliasesHaveTheOlderMember(t *testing.T) {
	w := newFixture(t)
	for _, c := range []struct {
		who, method, path, body string
		status                  int
		text                    string
	}{
		{"", "GET", "/v1/crabs", "", 401, ""},
		{"wrong", "GET", "/v1/tides", "", 401, ""},
		{"admin", "POST", "/v1/crabs", `{"name":"worker","uiPort":18789}`, 400, "web pages"},
		{"admin", "POST", "/v1/crabs", `{"nickname":"x"}`, 400, "nickname"},
		{"admin", "PATCH", "/v1/crabs/ag_none/revoke", "", 404, "No agent found with id: ag_none"},
		{"admin", "POST", "/v1/secrets", `{"crabId":"ag_none"}`, 400, "crabId, service, and plaintext are required"},
		{"admin", "POST", "/v1/secrets", `{"crabId":"ag_none","service":"github","plaintext":"x"}`, 404, "No agent found with id: ag_none"},
		{"admin", "DELETE", "/v1/secrets/ABCDEFGHIJKLMNOPQRSTUVWXYZ", "", 404, "No secret found with id: ABCDEFGHIJKLMNOPQRSTUVWXYZ"},
		{"admin", "GET", "/v1/tides?limit=101", "", 422, ""},
		{"admin", "DELETE", "/v1/crabs", "", 405, ""},
		{"acme viewer", "POST", "/v1/crabs", `{"name":"x"}`, 403, ""},
	} {
		a := w.request(c.who, c.method, c.path, c.body)
		got := read[object](t, a, c.status)
		if text, _ := got["error"].(string); text == "" || text != got["detail"] || !strings.Contains(text, c.text) || got["code"] == nil {
			t.Errorf("%s %s is answered %s", c.method, c.path, a.body)
		}
	}
	if a := w.request("admin", "GET", "/v1/rules/none", ""); strings.Contains(a.body, `"error"`) {
		t.Errorf("what is no alias answers as one: %s", a.body)
	}
}

func TestTheOlderHeaderIsAKeyLikeTheOthers(t *testing.T) {
	d := newTestAPI(t)
	for name, c := range map[string]struct {
		status int
		change []func(*http.Request)
	}{
		"alone":            {200, []func(*http.Request){anonymous, header("X-Admin-Api-Key", goodKey)}},
		"wrong":            {401, []func(*http.Request){anonymous, header("X-Admin-Api-Key", "wrong")}},
		"beside another":   {401, []func(*http.Request){header("X-Admin-Api-Key", "wrong")}},
		"beside the same":  {200, []func(*http.Request){header("X-Admin-Api-Key", goodKey), header(KeyHeader, goodKey)}},
		"a wrong one too":  {401, []func(*http.Request){anonymous, header("X-Admin-Api-Key", goodKey), header(KeyHeader, "wrong")}},
		"there twice":      {401, []func(*http.Request){anonymous, func(r *http.Request) { r.Header["X-Admin-Api-Key"] = []string{goodKey, goodKey} }}},
		"empty and a good": {401, []func(*http.Request){header("X-Admin-Api-Key", "")}},
	} {
		if a := d.ask(t, "GET", "/v1/info", "", c.change...); a.StatusCode != c.status {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
}

func TestTidesAreWhatWentThroughTheGateway(t *testing.T) {
	at := time.Unix(1_700_000_000, 0).UTC()
	rows := []audit.Row{
		{ID: "1", Phase: audit.PhaseIntent, Action: "gateway.execute", Actor: "agent:ag_1", Target: "a.test:443", Time: at,
			Detail: []byte(`{"service":"github","scheme":"https","path":"/x"}`)},
		{ID: "2", Phase: audit.PhaseIntent, Action: "gateway.connect", Actor: "agent:ag_1", Target: "b.test:443", Time: at.Add(time.Second), Detail: []byte(`{"scheme":"https"}`)},
		{ID: "3", Ref: "1", Phase: audit.PhaseOutcome, Action: "gateway.execute", Actor: "agent:ag_1", Result: "ok", Time: at.Add(2 * time.Second), Detail: []byte(`{"status":200}`)},
		{ID: "4", Phase: audit.PhaseEvent, Action: "gateway.forward", Actor: "agent:ag_gone", Result: "refused", Target: "http://c.test/", Time: at.Add(3 * time.Second),
			Detail: []byte(`{"code":"host_denied","reason":"no rule"}`)},
		{ID: "5", Ref: "none", Phase: audit.PhaseOutcome, Action: "gateway.llm", Actor: "admin", Result: "failed", Time: at.Add(4 * time.Second), Detail: []byte(`{`)},
	}
	var asked audit.Filter
	d := newTestAPI(t, func(o *Options) {
		o.Audit = &noLog{list: func(f audit.Filter) ([]audit.Row, error) {
			asked = f
			return rows, nil
		}}
	})
	got := read[Tides](t, d.ask(t, "GET", "/v1/tides", ""), 200)
	if len(got.Tides) != 4 || got.Pagination != (Pagination{Page: 1, Limit: 50, Total: 4, Pages: 1}) || asked.ActionPrefix != "gateway." || asked.Limit != maxTides {
		t.Fatalf("%+v of %+v", got, asked)
	}
	failed, refused, tunnel, executed := got.Tides[0], got.Tides[1], got.Tides[2], got.Tides[3]
	if executed.Tool != "github" || *executed.StatusCode != 200 || executed.Error != nil || *executed.CrabID != "ag_1" || executed.Crab.Name != "writer" ||
		executed.TargetURL != "https://a.test:443/x" || executed.Direction != "EGRESS" {
		t.Errorf("%+v", executed)
	}
	if tunnel.Tool != "CONNECT" || tunnel.StatusCode != nil || tunnel.TargetURL != "b.test:443" {
		t.Errorf("%+v", tunnel)
	}
	if refused.Crab != nil || *refused.Error != "no rule" || *refused.CrabID != "ag_gone" {
		t.Errorf("%+v", refused)
	}
	if failed.CrabID != nil || *failed.Error != "failed" {
		t.Errorf("%+v", failed)
	}
	page := read[Tides](t, d.ask(t, "GET", "/v1/tides?page=2&limit=3&crabId=ag_1", ""), 200)
	if len(page.Tides) != 1 || page.Tides[0].ID != "1" || page.Pagination != (Pagination{Page: 2, Limit: 3, Total: 4, Pages: 2}) || asked.Actor != "agent:ag_1" {
		t.Errorf("%+v", page)
	}
	if far := read[Tides](t, d.ask(t, "GET", "/v1/tides?page=9", ""), 200); len(far.Tides) != 0 {
		t.Errorf("%+v", far)
	}
}
