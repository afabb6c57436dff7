package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestFlagsOfMCPServersAreRead(t *testing.T) {
	var r op.MCPServerRequest
	err := mcpServerWords(new(cobra.Command), &r, []string{"A=b=c", "E="}, []string{"K=s", "env:T=u"}, []string{"/a:/mnt/a:ro", "/b:/mnt/b"})
	if err != nil {
		t.Fatal(err)
	}
	want := op.MCPServerRequest{Env: map[string]string{"A": "b=c", "E": ""},
		Secrets: map[string]op.MCPServerSecret{"K": {Secret: "s", As: "file"}, "T": {Secret: "u", As: "env"}},
		Mounts:  []config.ServerMount{{Source: "/a", Target: "/mnt/a", ReadOnly: true}, {Source: "/b", Target: "/mnt/b"}}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	for _, bad := range [][3][]string{{{"secretvalue"}}, {{"=secretvalue"}}, {nil, {"K"}}, {nil, {"K="}}, {nil, {"env:=s"}}, {nil, nil, {"/a"}}, {nil, nil, {"=/mnt/a"}}} {
		err := mcpServerWords(&cobra.Command{Use: "add"}, new(op.MCPServerRequest), bad[0], bad[1], bad[2])
		if problem.CodeOf(err) != problem.BadUsage || strings.Contains(err.Error(), "secretvalue") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// The words of a server about itself cannot move the cursor of a terminal.
func TestMCPServersAreListedOnOneLineEach(t *testing.T) {
	rows := rowsOf(op.ListMCPServers().View(op.MCPServers{Servers: []op.MCPServer{
		{Name: "files", State: "running", Tools: 3, Template: "clawbot", Network: "none", Source: "file", Command: []string{"/x", strings.Repeat("y", 100)},
			Instances: []op.MCPServerInstance{{Owner: "agent:a_1", Name: "bot", State: "running"}, {Owner: "operator:o_1", Name: "ann\n", State: "starting"}}},
		{Name: "beside", State: "paused", Tools: -1, Agent: "bot", Source: "added", Command: []string{"/x"}, Problem: "it said\n\x1b[2J" + strings.Repeat("z", 100)},
	}})[0], time.Time{})
	for _, row := range rows {
		if len(row) != len(rows[0]) || strings.ContainsAny(strings.Join(row, ""), "\n\x1b") {
			t.Errorf("%q", row)
		}
	}
	if rows[1][2] != "2: bot, ann  (starting)" || rows[2][2] != "-" || rows[1][3] != "3" || rows[2][3] != "-" || rows[2][4] != "agent bot" {
		t.Errorf("%q", rows)
	}
}

// The flags are those of the description, and a test that found something wrong fails when it has been read.
func TestCommandsOfMCPServersAreAsDescribed(t *testing.T) {
	var sent string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is missing is seen below
		sent = strings.TrimSpace(r.Method + " " + r.URL.Path + " " + string(body))
		_, _ = io.WriteString(w, map[string]string{ // a command that has gone is seen below
			"/v1/mcp-servers/good/test": `{"name":"good","ok":true,"protocol":"1","tools":[{"name":"good__read"}]}`,
			"/v1/mcp-servers/bad/test":  `{"name":"bad","ok":false,"stderr":"no module\u001b[2J\n","code":"jail_failed","problem":"it ended","hint":"look at it"}`,
			"/v1/mcp-servers":           `{"name":"files","replaced":true,"problem":"there is no template x\u001b[2J"}`,
		}[r.URL.Path])
	}))
	t.Cleanup(server.Close)
	t.Setenv(urlVariable, server.URL)
	t.Setenv(keyVariable, "cjop_1")
	if status, out, errs := run(t, "", "mcp-server", "test", "good"); status != exitDone || !strings.Contains(out, "tool     good__read") || errs != "" {
		t.Errorf("it ended with %d: %s%s", status, out, errs)
	}
	for _, args := range [][]string{{"mcp-server", "test", "bad"}, {"mcp-server", "test", "bad", "--json"}} {
		status, out, errs := run(t, "", args...)
		if status != exitFailure || !strings.Contains(out, "no module") || !strings.Contains(errs, "it ended") || !strings.Contains(errs, "look at it") {
			t.Errorf("%q ended with %d: %s%s", args, status, out, errs)
		}
		harmless(t, out+errs)
	}
	status, out, errs := run(t, "", "mcp-server", "add", "files", "--tenant", "acme", "--memory", "256MiB", "--cpu", "0.5", "--tasks", "9", "--resources=false", "--network", "gateway",
		"--allow", "a.test", "--shared", "--no-tools", "--", "/x", "y")
	const want = `PUT /v1/mcp-servers {"name":"files","command":["/x","y"],"tenants":["acme"],"tools":[],"resources":false,` +
		`"limits":{"memory":"256MiB","cpu":0.5,"tasks":9,"files":0},"network":"gateway","allow":["a.test"],"shared":true}`
	if status != exitDone || sent != want || !strings.HasPrefix(out, "replaced files;") || !strings.HasPrefix(errs, "warning: it cannot be started yet: there is no template x") {
		t.Errorf("it ended with %d and sent %s: %s%s", status, sent, out, errs)
	}
	harmless(t, errs)
}
