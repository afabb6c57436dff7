package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpClient connects a client to `clawjail mcp`, and returns what calls a tool. At the end the input is closed, which ends
// the command without an error, and nothing but the protocol was on standard output.
func mcpClient(t *testing.T) (call func(tool string, args map[string]any) (string, bool)) {
	t.Helper()
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	var errs bytes.Buffer
	root := New("v1.2.3")
	root.SetArgs([]string{"mcp"})
	root.SetIn(toServer)
	root.SetOut(fromServer)
	root.SetErr(&errs)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &sdk.IOTransport{Reader: toClient, Writer: fromClient}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		c.Close()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
		if strings.Contains(errs.String(), "error") {
			t.Errorf("standard error: %s", errs.String())
		}
	})
	return func(tool string, args map[string]any) (string, bool) {
		t.Helper()
		out, err := c.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return out.Content[0].(*sdk.TextContent).Text, out.IsError
	}
}

func TestMCPOpensAndDrivesSessionsOfTheControlPlane(t *testing.T) {
	newWorld(t)
	call := mcpClient(t)
	for _, c := range []struct {
		tool string
		args map[string]any
		has  string
	}{
		{"browser_open_session", map[string]any{"ttl": "5m", "label": "mine"}, "session s_0000000000000001 is open: clean"},
		{"browser_navigate", map[string]any{"url": "https://example.com/a"}, `200 https://example.com/a "Example 0" in t1`},
		{"browser_eval", map[string]any{"js": "6*7"}, "6*7"}, // as the test's control plane answers it
		{"capabilities", nil, `{"id":"s_0000000000000001","mode":"clean","label":"mine"}`},
		{"browser_close_session", nil, "session s_0000000000000001 is closed"},
	} {
		if got, failed := call(c.tool, c.args); failed || !strings.Contains(got, c.has) {
			t.Errorf("%s: %s", c.tool, got)
		}
	}
	if got, failed := call("browser_navigate", map[string]any{"url": "https://example.com/", "session": "s_none"}); !failed || !strings.HasPrefix(got, "error not_found: ") {
		t.Errorf("a session that is not there: %s", got)
	}
}

func TestMCPWorksWithoutAControlPlane(t *testing.T) {
	t.Setenv("CLAWJAIL_CONFIG", settings(t, t.TempDir()))
	t.Setenv(urlVariable, "")
	withoutKey(t)
	call := mcpClient(t)
	if got, failed := call("capabilities", nil); failed || !strings.Contains(got, `"sessions_unavailable":"control_plane_unreachable"`) {
		t.Errorf("%s", got)
	}
	if got, failed := call("browser_open_session", nil); !failed || !strings.HasPrefix(got, "error control_plane_unreachable: ") || !strings.Contains(got, "hint: start it: sudo clawjail up") {
		t.Errorf("%s", got)
	}
}

func TestMCPPrintsConfigurationsWithoutKeys(t *testing.T) {
	t.Setenv("CLAWJAIL_CONFIG", settings(t, t.TempDir()))
	t.Setenv(urlVariable, "http://127.0.0.1:18780")
	t.Setenv(keyVariable, "cjop_canary")
	for _, name := range []string{"claude", "cursor", "vscode"} {
		var out, errs bytes.Buffer
		if status := Main(context.Background(), "v1", []string{"mcp", "--print-config", name}, &out, &errs); status != 0 {
			t.Fatalf("%s: %d %s", name, status, errs.String())
		}
		type server struct {
			Command string
			Args    []string
			Env     map[string]string
		}
		var said struct{ MCPServers, Servers map[string]server }
		if err := json.Unmarshal(out.Bytes(), &said); err != nil {
			t.Fatal(err)
		}
		s, ok := said.MCPServers["clawjail"]
		if name == "vscode" {
			s, ok = said.Servers["clawjail"]
		}
		if !ok || !filepath.IsAbs(s.Command) || len(s.Args) != 1 || s.Args[0] != "mcp" || s.Env[urlVariable] != "http://127.0.0.1:18780" || strings.Contains(out.String(), "canary") {
			t.Errorf("%s: %s", name, out.String())
		}
	}
	var out, errs bytes.Buffer
	if status := Main(context.Background(), "v1", []string{"mcp", "--print-config", "emacs"}, &out, &errs); status != exitUsage {
		t.Errorf("an unknown client: %d", status)
	}
}
