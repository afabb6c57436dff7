//go:build linux

package browsers

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/test/testkit"
)

// stockServer starts an MCP server of somebody else's, and is its client.
func stockServer(t *testing.T, args ...string) *mcp.ClientSession {
	t.Helper()
	dir, node := testkit.Clients(t)
	args[0] = filepath.Join(dir, "node_modules", args[0])
	cmd := exec.Command(node, args...)
	home := t.TempDir()
	cmd.Dir = home // they leave files where they run
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CACHE_HOME="+home, "CI=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(ctx, &mcp.CommandTransport{Command: cmd, TerminateDuration: 5 * time.Second}, nil)
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, stderr.String())
	}
	t.Cleanup(func() {
		_ = session.Close() // how another's server ends is its business
		if t.Failed() {
			t.Logf("what it printed: %.4000s", stderr.String())
		}
	})
	return session
}

// call calls a tool, and returns the text of its answer.
func call(t *testing.T, s *mcp.ClientSession, tool string, arguments map[string]any) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	result, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: testkit.OrEmpty(arguments)})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	var text strings.Builder
	for _, content := range result.Content {
		if c, ok := content.(*mcp.TextContent); ok {
			text.WriteString(c.Text)
		}
	}
	if result.IsError {
		t.Fatalf("%s: %s", tool, text.String())
	}
	return text.String()
}

func TestMCPServersOfOthersDriveASession(t *testing.T) {
	testkit.Clients(t)
	v := newLaboratory(t)
	t.Run("playwright", func(t *testing.T) {
		inner := &laboratory{Installation: &testkit.Installation{Instance: v.Instance, T: t, API: v.API}, lab: v.lab}
		_, env := inner.open(session.OpenRequest{})
		s := stockServer(t, "@playwright/mcp/cli.js", "--cdp-endpoint", env["CDP_URL"])
		call(t, s, "browser_navigate", map[string]any{"url": v.lab.URL("/login")})
		if text := call(t, s, "browser_snapshot", nil); !strings.Contains(text, "Log in") {
			t.Errorf("the snapshot is %s", text)
		}
		call(t, s, "browser_evaluate", map[string]any{"function": "() => { document.querySelector('#user').value = 'alice'; document.querySelector('button').click() }"})
		call(t, s, "browser_wait_for", map[string]any{"text": "Hello alice"})
		call(t, s, "browser_take_screenshot", nil)
	})
	t.Run("chrome-devtools", func(t *testing.T) {
		inner := &laboratory{Installation: &testkit.Installation{Instance: v.Instance, T: t, API: v.API}, lab: v.lab}
		_, env := inner.open(session.OpenRequest{Browser: "full"})
		s := stockServer(t, "chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js", "--wsEndpoint", env["WS_URL"], "--no-usage-statistics", "--no-performance-crux")
		opened := call(t, s, "new_page", map[string]any{"url": v.lab.URL("/login")})
		selected := regexp.MustCompile(`(\d+): .*\[selected\]`).FindStringSubmatch(opened)
		if selected == nil {
			t.Fatalf("the pages are %s", opened)
		}
		number, _ := strconv.Atoi(selected[1]) // digits
		with := func(arguments map[string]any) map[string]any {
			arguments["pageId"] = number
			return arguments
		}
		if text := call(t, s, "take_snapshot", with(map[string]any{})); !strings.Contains(text, "Log in") {
			t.Errorf("the snapshot is %s", text)
		}
		call(t, s, "evaluate_script", with(map[string]any{"function": "() => { document.querySelector('button').click() }"}))
		call(t, s, "wait_for", with(map[string]any{"text": []string{"Hello alice"}}))
		call(t, s, "take_screenshot", with(map[string]any{}))
		if text := call(t, s, "list_network_requests", with(map[string]any{})); !strings.Contains(text, "/account") {
			t.Errorf("the requests are %s", text)
		}
		call(t, s, "performance_start_trace", with(map[string]any{"reload": true, "autoStop": true}))
	})
	t.Run("agent-browser", func(t *testing.T) {
		inner := &laboratory{Installation: &testkit.Installation{Instance: v.Instance, T: t, API: v.API}, lab: v.lab}
		_, env := inner.open(session.OpenRequest{})
		home := t.TempDir()
		dir, node := testkit.Clients(t)
		run := func(args ...string) string {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, node, append([]string{filepath.Join(dir, "node_modules/agent-browser/bin/agent-browser.js"), "--session", "clawjail-test"}, args...)...)
			cmd.WaitDelay = 2 * time.Second
			cmd.Env = append(os.Environ(), "HOME="+home, "XDG_RUNTIME_DIR="+home)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("agent-browser %s: %v: %s", args[0], err, out)
			}
			return string(out)
		}
		defer run("close") // it leaves the browser, and ends what it has started
		run("connect", env["WS_URL"])
		run("open", v.lab.URL("/login"))
		if text := run("snapshot", "-i"); !strings.Contains(text, "Log in") {
			t.Errorf("the snapshot is %s", text)
		}
		run("fill", "#user", "alice")
		run("click", "button")
		run("wait", "h1") // get does not wait for the next page
		if text := run("get", "text", "h1"); !strings.Contains(text, "Hello alice") {
			t.Errorf("the heading is %s", text)
		}
	})
}
