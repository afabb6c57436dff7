//go:build linux

package agents

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// asked calls a method of /mcp from inside an agent's jail, with curl and the agent's own token, as any program there would.
func asked(e *testkit.Deployment, agent, method string, params any) (result map[string]any, text string) {
	e.T.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		e.T.Fatal(err)
	}
	out, errs, status := spawned(e, body, "--jail", agent, "--", "/bin/sh", "-c", `exec curl -sS --noproxy '*' --max-time 30 -H "Authorization: Bearer $(cat /run/hermit/token)" `+
		`-H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2025-06-18' --data-binary @- "$SHELL_URL/mcp"`)
	if status != 0 {
		e.T.Fatalf("%s: %d\n%s\n%s", method, status, out, errs)
	}
	for line := range strings.Lines(out) { // one answer, as it is or as an event
		line = strings.TrimPrefix(line, "data: ")
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var answer struct{ Result, Error map[string]any }
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			e.T.Fatalf("%v: %s", err, line)
		}
		if answer.Result != nil || answer.Error != nil {
			return answer.Result, line
		}
	}
	e.T.Fatalf("%s: no answer in %q", method, out)
	return nil, ""
}

// called calls a tool from inside an agent's jail. ok says whether it answers, and not that something is wrong.
func called(e *testkit.Deployment, agent, tool string, arguments map[string]any) (text string, ok bool) {
	e.T.Helper()
	result, text := asked(e, agent, "tools/call", map[string]any{"name": tool, "arguments": testkit.OrEmpty(arguments)})
	return text, result != nil && result["isError"] != true
}

const estateOfServers = `
clawbots:
  - {name: bot, mcp: [everything, draws], command: [/bin/sleep, infinity]}
  - {name: brave, mcp: [everything, hangs, floods, draws], command: [/bin/sleep, infinity]}
  - {name: plain, command: [/bin/sleep, infinity]}
`

// An agent uses the tools of the servers that it is given, and what goes wrong with one server is no matter of another.
func TestAgentsUseTheMCPServersThatTheyAreGiven(t *testing.T) {
	testenv.Root(t)
	testkit.Clients(t)
	// A server that answers its first messages as the protocol wants, and then does what it is made for.
	server := func(name, then string) string {
		return fmt.Sprintf("  %s:\n    template: node\n    limits: {memory: 256MiB, cpu: 1, tasks: 64}\n    command:\n      - %s\n      - -e\n      - |\n%s\n", name, jailedNode,
			indent(`const say = (id, result) => process.stdout.write(JSON.stringify({jsonrpc: "2.0", id, result}) + "\n");
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const m = JSON.parse(line);
  if (m.method === "initialize") return say(m.id, {protocolVersion: m.params.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: "x", version: "1"}});
  if (m.method === "tools/list") return say(m.id, {tools: [{name: "go", inputSchema: {type: "object"}}]});
  if (m.method === "ping") return say(m.id, {});
  if (m.method === "tools/call") { `+then+` }
});`))
	}
	settings := testkit.NoPool + "mcp_servers:\n  everything:\n    command: [" + jailedNode + ", " + jailedTools + "server-everything/dist/index.js, stdio]\n    shared: true\n    template: node\n    limits: {memory: 512MiB, cpu: 2, tasks: 64}\n" +
		server("hangs", "for (;;) {}") + server("floods", `const line = "x".repeat(65536) + "\n"; for (;;) process.stdout.write(line);`) +
		server("draws", `globalThis.calls = (globalThis.calls ?? 0) + 1;
    const fs = require("fs"), left = fs.existsSync("/state/left") ? " with a file" : "";
    fs.writeFileSync("/state/left", "x");
    return say(m.id, {content: [{type: "text", text: "call " + calls + left}, {type: "image", mimeType: "image/png", data: "A".repeat(m.params.arguments.size)}]});`)
	templates := testenv.Templates(t, cachedNode(t), testenv.TemplateNamed(t, "clawbot"))
	b := testkit.PrepareWith(t, instance.Options{Settings: settings}, func(o *instance.Options, _ string) { o.Templates = templates })
	b.Up()
	e := &testkit.Deployment{Installation: b, Dir: t.TempDir()}
	e.Sync(estateOfServers)
	for _, name := range []string{"bot", "brave", "plain"} {
		e.Running(name)
	}
	offered := func(agent, server string) bool {
		_, text := asked(e, agent, "tools/list", map[string]any{})
		return strings.Contains(text, `"`+server+`__`)
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		return offered("bot", "everything") && offered("brave", "hangs") && offered("brave", "floods")
	}, "the tools are not listed")
	if offered("bot", "hangs") || offered("bot", "floods") || offered("plain", "everything") || offered("plain", "hangs") {
		t.Error("an agent is offered what it is not given")
	}
	echo := func(agent string) (string, bool) {
		return called(e, agent, "everything__echo", map[string]any{"message": "from a jail"})
	}
	if text, ok := echo("bot"); !ok || !strings.Contains(text, "Echo: from a jail") {
		t.Errorf("%s", text)
	}
	for agent, tool := range map[string]string{"plain": "everything__echo", "bot": "hangs__go"} {
		if text, ok := called(e, agent, tool, map[string]any{"message": "x"}); ok || strings.Contains(text, "Echo") {
			t.Errorf("%s uses %s: %s", agent, tool, text)
		}
	}
	hearsOfAServerThatItIsGiven(e)
	// A picture of 5 MB arrives whole. One that is larger than the server may send costs its call: the server goes on with
	// what it has in mind.
	for n, size := range []int{7_000_000, 20 << 20, 4} {
		text, ok := called(e, "brave", "draws__go", map[string]any{"size": size})
		switch size {
		case 20 << 20:
			if ok || !strings.Contains(text, "16MiB") {
				t.Errorf("an answer of 20 MiB: %v %.300s", ok, text)
			}
		default:
			want := fmt.Sprintf("call %d with a file\"", n+1)
			if n == 0 {
				want = "call 1\""
			}
			if !ok || !strings.Contains(text, want) || strings.Count(text, "A") < size {
				t.Errorf("an answer of %d: %v, %d bytes: %.300s", size, ok, len(text), text)
			}
		}
	}
	// Another agent's is its own: there is nothing of this one in its mind, nor in its folder.
	for _, want := range []string{"call 1\"", "call 2 with a file\""} {
		if text, ok := called(e, "bot", "draws__go", map[string]any{"size": 4}); !ok || !strings.Contains(text, want) {
			t.Errorf("the other agent is answered %.300s", text)
		}
	}
	// While one hangs and another floods, the third answers.
	var busy sync.WaitGroup
	for _, tool := range []string{"hangs__go", "floods__go"} {
		busy.Go(func() {
			cmd := e.Command(t.Context(), "spawn", "--jail", "brave", "--ttl", "20s", "--", "/bin/sh", "-c", `exec curl -sS --noproxy '*' --max-time 15 -H "Authorization: Bearer $(cat /run/hermit/token)" `+
				`-H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","arguments":{}}}' "$SHELL_URL/mcp"`)
			if out, err := cmd.CombinedOutput(); err == nil && !strings.Contains(string(out), "rror") {
				t.Errorf("%s answers %.300s", tool, out)
			}
		})
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return len(nodes(e, "for (;;) {}")) > 0 && len(nodes(e, "x\".repeat")) > 0 }, "they do not run")
	for range 10 {
		for _, agent := range []string{"bot", "brave"} {
			if text, ok := echo(agent); !ok {
				t.Errorf("%s, while others misbehave: %s", agent, text)
			}
		}
	}
	// One that is killed is there again for the next call.
	for range 2 {
		pids := nodes(e, "server-everything/dist")
		if len(pids) != 1 {
			t.Fatalf("of the server the processes %v run", pids)
		}
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 30*time.Second, func() bool { _, ok := echo("bot"); return ok }, "the server does not come back")
		if again := nodes(e, "server-everything/dist"); len(again) != 1 || again[0] == pids[0] {
			t.Errorf("after %v run %v", pids, again)
		}
	}
	busy.Wait()
	servers, err := client.Call(t.Context(), e.API, op.ListMCPServers(), op.OfTenant{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers.Servers {
		if s.Name == "everything" && (!isUp(s) || len(s.Instances) != 1 || s.Instances[0].Owner != "") {
			t.Errorf("%+v", s)
		}
		if names := len(s.Instances); s.Name == "draws" && (names != 2 || s.Instances[0].Name != "bot" || s.Instances[1].Name != "brave") {
			t.Errorf("%+v", s)
		}
	}
	// Instances that run for an agent end with the agent, and no others do.
	if out, err := e.Run(t.Context(), "agent", "remove", "brave", "--yes"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		servers, err := client.Call(t.Context(), e.API, op.ListMCPServers(), op.OfTenant{})
		at := slices.IndexFunc(servers.Servers, func(s op.MCPServer) bool { return s.Name == "draws" })
		return err == nil && at >= 0 && len(servers.Servers[at].Instances) == 1 && servers.Servers[at].Instances[0].Name == "bot"
	}, "the servers of an agent that was removed run on")
	if text, ok := called(e, "bot", "draws__go", map[string]any{"size": 4}); !ok || !strings.Contains(text, "call 3 with") {
		t.Errorf("the other agent's is another one: %.300s", text)
	}
}

// hearsOfAServerThatItIsGiven lets an agent listen from inside its jail, where the gateway is in between, and gives it a server.
func hearsOfAServerThatItIsGiven(e *testkit.Deployment) {
	e.T.Helper()
	const with = `-sS --noproxy '*' --max-time 60 -H "Authorization: Bearer $(cat /run/hermit/token)" -H 'Content-Type: application/json' "$SHELL_URL/mcp"`
	cmd := e.Command(e.T.Context(), "spawn", "--jail", "plain", "--ttl", "60s", "--", "/bin/sh", "-c", `id=$(curl -D - -o /dev/null -H 'Accept: application/json, text/event-stream' `+
		`-d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}' `+with+
		` | sed -n 's/^[Mm]cp-[Ss]ession-[Ii]d: *\([A-Za-z0-9_]*\).*/\1/p')
exec curl -N -H 'Accept: text/event-stream' -H "Mcp-Session-Id: $id" `+with)
	out, err := cmd.StdoutPipe()
	if err != nil {
		e.T.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		e.T.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	given := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.Contains(line, "notifications/tools/list_changed"):
			if !given {
				e.T.Error("it hears of a change before there is one")
			}
			return
		case strings.HasPrefix(line, ":") && !given: // it listens
			given = true
			e.Sync(strings.Replace(estateOfServers, "{name: plain,", "{name: plain, mcp: [draws],", 1))
		}
	}
	e.T.Errorf("it hears nothing; it has been given a server: %t", given)
}

func isUp(s op.MCPServer) bool { return string(s.State) == "running" }

// nodes are the processes of node in the instance's jails that have a text on their command line.
func nodes(e *testkit.Deployment, text string) (out []int) {
	e.T.Helper()
	own := string(e.HostScope().Installation)
	for _, pid := range hostProcesses(e.T, "cmdline", text) {
		program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		group, groupErr := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err == nil && groupErr == nil && strings.HasSuffix(program, "/node") && strings.Contains(string(group), own) {
			out = append(out, pid)
		}
	}
	return out
}

func indent(text string) string {
	return "          " + strings.ReplaceAll(text, "\n", "\n          ")
}
