package clawbots

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
)

// What a file may not say of an agent, nobody says of it as a value.
func TestTogetherLooksAtEveryValue(t *testing.T) {
	good := func() Agent {
		return Agent{Name: "a", Workspace: "/w", Command: []string{"/bin/sh"}, Limits: Limits{CPU: 0.5}, TTL: time.Hour, Env: map[string]string{"A": "b"}, Without: []string{"TZ"},
			Allow: []Rule{{Target: "http://a.example/", Methods: []string{"PURGE"}}}, Services: []string{}, Tools: []Tool{{URL: "https://a.example/**", Methods: []string{"GET"}}},
			Accounts: []Account{{Domain: "example.com", EgressDomains: []string{}}}, MCP: []string{"files"}}
	}
	other := Agent{Name: "b", Workspace: "/w/.", Line: 7}
	all, err := Together(good(), other)
	if err != nil || all[0].Sharing != Shared || all[0].WorkspaceMode != ReadWrite || all[1].Workspace != "/w" || all[1].Line != 0 || len(all[1].Siblings) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	long := strings.Fields(strings.Repeat("x ", 300))
	for field, change := range map[string]func(*Agent){
		"name": func(a *Agent) { a.Name = "" }, "template": func(a *Agent) { a.Template = "A" }, "image": func(a *Agent) { a.Template, a.Image = "a", "b" },
		"command": func(a *Agent) { a.Command = []string{"sh"} }, "command[1]": func(a *Agent) { a.Command = append(a.Command, "\x00") },
		"workspace": func(a *Agent) { a.Workspace = "/w/x" }, "workspace_mode": func(a *Agent) { a.WorkspaceMode = "x" }, "tmp": func(a *Agent) { a.Tmp = "x" },
		"limits.memory": func(a *Agent) { a.Limits.Memory = 1 }, "limits.cpu": func(a *Agent) { a.Limits.CPU = -1 }, "ttl": func(a *Agent) { a.TTL = 1 },
		"restart": func(a *Agent) { a.Restart = "x" }, "env.A": func(a *Agent) { a.Env["A"] = "ghp_0123456789abcdefghijABCDEFGHIJ012345" },
		"env.HOME": func(a *Agent) { a.Without = []string{"HOME"} }, "browser": func(a *Agent) { a.Browser = "x" }, "allow[0]": func(a *Agent) { a.Allow[0].Target = "" },
		"allow[1]": func(a *Agent) { a.Allow = append(a.Allow, a.Allow[0]) }, "allow[0].methods[0]": func(a *Agent) { a.Allow[0] = Rule{Target: "x.example", Methods: []string{"CONNECT"}, Deny: true} },
		"services": func(a *Agent) { a.Services = long }, "services[1]": func(a *Agent) { a.Services = long[:2] }, "mcp[0]": func(a *Agent) { a.MCP[0] = "X" },
		"tools[0].url": func(a *Agent) { a.Tools[0].URL = "x" }, "tools[0]": func(a *Agent) { a.Tools[0].Methods = nil }, "tools[0].services[0]": func(a *Agent) { a.Tools[0].Services = []string{"X"} },
		"accounts[0]": func(a *Agent) { a.Accounts[0].Domain = "" }, "accounts[0].hours": func(a *Agent) { a.Accounts[0].Hours = "9" },
		"accounts[0].egress_domains[0]": func(a *Agent) { a.Accounts[0].EgressDomains = []string{"com"} }, "rate.llm": func(a *Agent) { a.Rate.LLM = -1 },
		"llm.cost_per_day": func(a *Agent) { a.LLM.CostPerDay = -1 },
	} {
		bad := good()
		change(&bad)
		_, err := Together(bad, other)
		var many *problem.ValidationError
		if !errors.As(err, &many) || problem.CodeOf(err) != problem.BadRequest || many.Flaws[0].Field != field || strings.Contains(err.Error(), "line") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// What a file says of agents can be said of them as values, and is the same.
func TestTogetherTakesWhatAFileSays(t *testing.T) {
	for _, name := range []string{"examples/clawbots.yml", "clawbots.yml.example"} {
		agents := mustParse(t, switchedOn(exampleFile(t, name))).Agents
		again, err := Together(agents...)
		if err != nil {
			t.Fatal(err)
		}
		for i := range agents {
			agents[i].Line = 0
		}
		if diff := cmp.Diff(agents, again); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}
