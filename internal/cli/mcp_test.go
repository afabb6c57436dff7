package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
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
	newFixture(t)
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
	unset(t, urlVariable)
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
	for _, name := range mcpClients {
		var out, errs bytes.Buffer
		if status := Main(context.Background(), "v1", []string{"mcp", "--print-config", name}, &out, &errs); status != 0 {
			t.Fatalf("%s: %d %s", name, status, errs.String())
		}
		if name == clientCodex { // it gives programs only the variables that are named
			if c := connectionOf(t, name, out.String()); !filepath.IsAbs(c.Command) || len(c.EnvVars) != 1 || c.EnvVars[0] != keyVariable || len(c.Args) != 1 || c.Env[urlVariable] != "http://127.0.0.1:18780" || strings.Contains(out.String(), "canary") {
				t.Errorf("%s", out.String())
			}
			continue
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
	for _, args := range [][]string{{"--print-config", "emacs"}, {"--print-config", "emacs", "--agent", "a"}, {"--agent", "a"}, {"--print-config", "codex", "--tenant", "t"}} {
		var out, errs bytes.Buffer
		if status := Main(context.Background(), "v1", append([]string{"mcp"}, args...), &out, &errs); status != exitUsage || out.Len() > 0 {
			t.Errorf("%q: %d %s", args, status, out.String())
		}
	}
}

// connection is what a client takes from a configuration with an address.
type connection struct {
	Type        string
	URL         string            `toml:"url"`
	Headers     map[string]string `toml:"-"`
	HTTPHeaders map[string]string `json:"-" toml:"http_headers"`
	Command     string            `toml:"command"`
	Args        []string          `toml:"args"`
	Env         map[string]string `toml:"env"`
	EnvVars     []string          `json:"-" toml:"env_vars"`
}

// connectionOf reads what was printed as the client does.
func connectionOf(t *testing.T, name, printed string) connection {
	t.Helper()
	var said struct {
		MCPServers map[string]connection `toml:"mcp_servers"`
		Servers    map[string]connection `toml:"-"`
	}
	if name == clientCodex {
		if left, err := toml.Decode(printed, &said); err != nil || len(left.Undecoded()) > 0 {
			t.Fatalf("%s: %v %v", printed, err, left.Undecoded())
		}
		c := said.MCPServers["clawjail"]
		c.Headers = c.HTTPHeaders
		return c
	}
	if err := json.Unmarshal([]byte(printed), &said); err != nil {
		t.Fatalf("%s: %v", printed, err)
	}
	if name == clientVSCode {
		return said.Servers["clawjail"]
	}
	return said.MCPServers["clawjail"]
}

func TestMCPPrintsConfigurationsOfAgentsThatConnect(t *testing.T) {
	w := newFixture(t)
	run := func(args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		status := Main(context.Background(), "v1", append([]string{"mcp", "--print-config"}, args...), &out, &errs)
		return out.String(), errs.String(), status
	}
	keyOf := func(name, printed string) string {
		t.Helper()
		c := connectionOf(t, name, printed)
		key, found := strings.CutPrefix(c.Headers["Authorization"], "Bearer ")
		if !found || c.URL != w.url+"/mcp" || c.Command != "" || name != clientCodex && c.Type != "http" {
			t.Fatalf("%s: %s", name, printed)
		}
		return key
	}
	for _, name := range mcpClients {
		printed, said, status := run(name, "--agent", "of-"+name)
		if status != 0 || !strings.Contains(said, "made the agent of-"+name) || strings.Contains(printed, w.key) {
			t.Fatalf("%s: %d %s", name, status, said)
		}
		at, err := url.Parse(w.url)
		if err != nil {
			t.Fatal(err)
		}
		c := client.New(at, keyOf(name, printed))
		me, err := client.Call(context.Background(), c, op.WhoAmI(), op.None{})
		c.CloseIdle()
		if err != nil || me.Kind != identity.KindAgent || me.Name != "of-"+name {
			t.Errorf("%s: the key is that of %+v, %v", name, me, err)
		}
	}

	// The keys of an agent that is there stay as they are, and the way to another is said.
	printed, said, status := run("cursor", "--agent", "of-cursor")
	if status != exitFailure || printed != "" || !strings.Contains(said, "CLAWJAIL_KEY=$(sudo clawjail agent token rotate of-cursor) clawjail mcp --print-config cursor --agent of-cursor") {
		t.Errorf("%d %s %s", status, printed, said)
	}
	// With a key of the agent, it is in the configuration; with one of another agent, nothing is printed.
	mine, _, _ := run("claude", "--agent", "mine")
	key := keyOf("claude", mine)
	t.Setenv(keyVariable, key)
	if again, said, status := run("codex", "--agent", "mine"); status != 0 || keyOf("codex", again) != key {
		t.Errorf("%d %s", status, said)
	}
	if printed, said, status := run("codex", "--agent", "of-codex"); status != exitFailure || printed != "" || !strings.Contains(said, "the key is one of the agent mine") {
		t.Errorf("%d %s %s", status, printed, said)
	}
}

func TestMCPSaysWhenItHasTheRightsOfTheAdmin(t *testing.T) {
	newFixture(t)
	serve := func() string {
		var out, errs bytes.Buffer
		root := New("v1.2.3")
		root.SetArgs([]string{"mcp"})
		root.SetIn(strings.NewReader(""))
		root.SetOut(&out)
		root.SetErr(&errs)
		if err := root.ExecuteContext(context.Background()); err != nil {
			t.Fatal(err)
		}
		return errs.String()
	}
	const warning = "the tools act as the admin of this installation"
	if said := serve(); strings.Contains(said, warning) {
		t.Errorf("with a key: %s", said)
	}
	withoutKey(t)
	if said := serve(); !strings.Contains(said, warning) || !strings.Contains(said, "--print-config CLIENT --agent NAME") {
		t.Errorf("without a key: %s", said)
	}
	t.Setenv("CLAWJAIL_CONFIG", settings(t, t.TempDir())) // there is no admin key
	if said := serve(); strings.Contains(said, warning) {
		t.Errorf("without any key: %s", said)
	}
}
