package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestFlagsOfMCPServersAreRead(t *testing.T) {
	var r api.MCPServerRequest
	err := mcpServerWords(new(cobra.Command), &r, []string{"A=b=c", "E="}, []string{"K=s", "env:T=u"}, []string{"/a:/mnt/a:ro", "/b:/mnt/b"})
	if err != nil {
		t.Fatal(err)
	}
	want := api.MCPServerRequest{Env: map[string]string{"A": "b=c", "E": ""},
		Secrets: map[string]api.MCPServerSecret{"K": {Secret: "s", As: "file"}, "T": {Secret: "u", As: "env"}},
		Mounts:  []config.ServerMount{{Source: "/a", Target: "/mnt/a", ReadOnly: true}, {Source: "/b", Target: "/mnt/b"}}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	for _, bad := range [][3][]string{{{"secretvalue"}}, {{"=secretvalue"}}, {nil, {"K"}}, {nil, {"K="}}, {nil, {"env:=s"}}, {nil, nil, {"/a"}}, {nil, nil, {"=/mnt/a"}}} {
		err := mcpServerWords(&cobra.Command{Use: "add"}, new(api.MCPServerRequest), bad[0], bad[1], bad[2])
		if problem.CodeOf(err) != problem.BadUsage || strings.Contains(err.Error(), "secretvalue") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// What a server says of itself cannot move the cursor of whoever lists it.
func TestMCPServersAreListedOnOneLineEach(t *testing.T) {
	rows := mcpServerRows([]api.MCPServer{
		{Name: "files", State: "running", Tools: 3, Template: "clawbot", Network: "none", Source: "file", Command: []string{"/x", strings.Repeat("y", 100)},
			Instances: []api.MCPServerInstance{{Owner: "agent:a_1", Name: "bot", State: "running"}, {Owner: "operator:o_1", Name: "ann\n", State: "starting"}}},
		{Name: "beside", State: "paused", Tools: -1, Agent: "bot", Source: "added", Command: []string{"/x"}, Problem: "it said\n\x1b[2J" + strings.Repeat("z", 100)},
	}, time.Time{})
	for _, row := range rows {
		if len(row) != len(rows[0]) || strings.ContainsAny(strings.Join(row, ""), "\n\x1b") {
			t.Errorf("%q", row)
		}
	}
	if rows[1][2] != "2: bot, ann  (starting)" || rows[2][2] != "-" || rows[1][3] != "3" || rows[2][3] != "-" || rows[2][4] != "agent bot" {
		t.Errorf("%q", rows)
	}
}
