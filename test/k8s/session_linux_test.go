//go:build k8s

package k8s

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/template"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// importTemplate makes an image of a template for pods, once, and returns its name.
func (c *cluster) importTemplate(name string) string {
	c.t.Helper()
	image := "clawjail.test/" + name + ":1"
	if strings.Contains(c.images(), image) {
		return image
	}
	store, err := template.New(template.Config{Dir: filepath.Dir(testenv.TemplateNamed(c.t, name)), Clock: time.Now})
	c.must(err)
	file, err := os.Create(filepath.Join(c.dir, "image.tar"))
	c.must(err)
	_, err = store.Export(c.t.Context(), name, template.ExportOptions{Tag: image, Shim: filepath.Join(c.dir, "clawjail-shim")}, file)
	c.must(err)
	c.must(file.Close())
	if out, err := c.ctr("images", "import", "--base-name", image, file.Name()).CombinedOutput(); err != nil {
		c.t.Fatalf("import %s: %v: %s", image, err, out)
	}
	c.must(os.Remove(file.Name()))
	return image
}

func (c *cluster) images() string {
	out, err := c.ctr("images", "ls", "-q").Output()
	c.must(err)
	return string(out)
}

// enforce has the node let pods reach some ports and nothing else, as a network that enforces policies does, until the test ends.
func (c *cluster) enforce(ports ...int) {
	c.t.Helper()
	var list strings.Builder
	for _, port := range ports {
		fmt.Fprintf(&list, "%d, ", port)
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf("table inet clawjail_test { chain in { type filter hook input priority 0; iifname cni0 tcp dport { %s } accept; iifname cni0 reject; }; }\n", list.String()))
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	c.t.Cleanup(func() { c.must(exec.Command("nft", "delete", "table", "inet", "clawjail_test").Run()) })
}

// settings are those of a control plane whose jails are pods of some templates.
func (c *cluster) settings(namespace string, templates ...string) string {
	c.t.Helper()
	var images []string
	for _, name := range templates {
		images = append(images, fmt.Sprintf("%s: %q", name, c.importTemplate(name)))
	}
	return fmt.Sprintf("kubernetes:\n  namespace: %s\n  address: %s\n  server: %s\n  authority: %s\n  token: %s\n  images: {%s}\n  seccomp: clawjail.json\n",
		namespace, nodeAddress, apiAddress, c.dir+"/pki/apiserver.crt", c.account(), strings.Join(images, ", "))
}

// settingsOf are what a control plane has beside others of its database in one namespace, on this machine: its name and its ports.
func settingsOf(t *testing.T, n int, kubernetes string) string {
	return fmt.Sprintf("node: node-%d\nnode_listen: 127.0.0.1:%d\n%s  port: %d\n", n, testenv.FreePort(t), kubernetes, podPort(n))
}

// podPort and proxyPort are where pods reach a control plane.
func podPort(n int) int   { return 18795 + 2*n }
func proxyPort(n int) int { return 3000 + n }

// Sessions are pods of a cluster, and stock clients drive them as they are.
func TestSessionsArePods(t *testing.T) {
	testkit.Clients(t)
	c := theCluster(t)
	c.furnish("sessions")
	lab := testkit.NewLab(t)
	v := testkit.Prepare(t, instance.Options{Settings: testkit.NoPool + lab.Settings() + c.settings("sessions", "browser")})
	c.enforce(podPort(0), proxyPort(0))
	v.Up()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s", c.kubectl("", "-n", "sessions", "get", "events"), v.Log())
		}
	})
	open := func(r session.OpenRequest) (session.Session, map[string]string) {
		t.Helper()
		began := time.Now()
		s, err := v.API.Open(t.Context(), r)
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, c.kubectl("", "-n", "sessions", "get", "events"), v.Log())
		}
		t.Logf("a session is there after %s: %+v", time.Since(began).Round(time.Millisecond), s.Timing)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := v.API.Close(ctx, s.ID, true); err != nil {
				t.Error(err)
			}
		})
		token, err := v.API.SessionToken(t.Context(), s.ID, api.TokenRequest{Scope: "cdp"})
		c.must(err)
		return s, map[string]string{"SITE": strings.TrimSuffix(lab.URL("/"), "/"), "CDP_URL": token.CDPURL, "WS_URL": token.WSURL, "API": v.URL(), "KEY": v.Key(), "SESSION": s.ID}
	}
	for _, build := range []string{"shell", "full"} {
		t.Run(build, func(t *testing.T) {
			_, env := open(session.OpenRequest{Browser: build})
			testkit.Script(t, "playwright.mjs", env)
		})
	}
	t.Run("twenty", func(t *testing.T) {
		began := time.Now()
		var all sync.WaitGroup
		ids, took := make([]string, 20), make([]time.Duration, 20)
		for n := range ids {
			all.Go(func() {
				s, err := v.API.Open(t.Context(), session.OpenRequest{})
				if err != nil {
					t.Errorf("session %d: %v", n, err)
				}
				ids[n], took[n] = s.ID, time.Since(began)
			})
		}
		all.Wait()
		slices.Sort(took)
		t.Logf("twenty sessions are open after %s, half of them after %s", took[19].Round(100*time.Millisecond), took[10].Round(100*time.Millisecond))
		for _, id := range ids {
			if id == "" {
				continue
			}
			if _, err := v.API.Drive(t.Context(), id, browser.Navigate{URL: lab.URL("/")}); err != nil {
				t.Error(err)
			}
			if err := v.API.Close(t.Context(), id, true); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("operator", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "state.json")
		c.must(os.WriteFile(file, []byte(lab.State()), 0o600))
		if out, err := v.Run(t.Context(), "cookies", "import", file, "--domain", testkit.LabDomain, "--scope", "cdp"); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		issued, err := client.Call(t.Context(), v.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{testkit.LabDomain}, Access: "cdp"})})
		c.must(err)
		_, env := open(session.OpenRequest{CredentialMode: session.ModeOperator, Domains: []string{testkit.LabDomain}, Grant: grant.ParseToken(issued.Token), Access: "cdp", Browser: "full"})
		testkit.Script(t, "leaks.mjs", env)
	})
}

// The five agents of the three modes of workspaces are pods, and keep what they have in volumes of the cluster.
func TestAgentsArePods(t *testing.T) {
	c := theCluster(t)
	c.furnish("agents")
	c.store()
	c.enforce(podPort(0), proxyPort(0))
	e := testkit.NewEstate(t, c.settings("agents", "clawbot"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s\n%s", c.kubectl("", "-n", "agents", "get", "events"), c.kubectl("", "-n", "agents", "get", "pods,pvc", "-o", "wide"), e.Log())
		}
	})
	const file = `
clawbots:
  - name: dev-bot
  - name: archive-bot
    workspace: ./workspaces/archive
    workspace_mode: ro
  - name: researcher-bot
    workspace: ./workspaces/project-x
  - name: writer-bot
    workspace: ./workspaces/project-x
  - name: reviewer-bot
    workspace: ./workspaces/project-x
    workspace_mode: ro
`
	began := time.Now()
	if plan := testkit.Verbs(e.Sync(file)); strings.Count(plan, "create") != 5 {
		t.Fatalf("the plan is %s", plan)
	}
	names := []string{"dev-bot", "archive-bot", "researcher-bot", "writer-bot", "reviewer-bot"}
	look := func(when string) {
		t.Helper()
		for _, name := range names {
			e.Running(name)
			e.MustIn(name, `test -s /run/hermit/token && test "$AGENT_NAME" = `+name+` && test -n "$SHELL_URL" && test "$(id -u)" = 1000`)
			testenv.Eventually(t, 30*time.Second, func() bool {
				log, err := e.Run(t.Context(), "agent", "logs", name)
				return err == nil && strings.Contains(log, `"type":"alive","agent":"`+name+`"`) && strings.Contains(log, `"gateway":"200"`)
			}, "%s: %s does not say that it is alive", when, name)
		}
		e.MustIn("dev-bot", `test "$AGENT_HOME" = /state && ! grep -q " /workspace " /proc/mounts`)
		refused := func(name, command string) {
			t.Helper()
			if out, err := e.In(name, command); err == nil {
				t.Errorf("%s: %s does %s: %s", when, name, command, out)
			}
		}
		refused("archive-bot", ": > /workspace/x")
		if got := e.MustIn("reviewer-bot", `cat /workspace/researcher-bot/notes`); got != "found\nmore\n" {
			t.Errorf("%s: the reviewer reads %q", when, got)
		}
		refused("reviewer-bot", ": > /workspace/researcher-bot/x")
		// The gateway is the only way out, and says no to what nobody has allowed.
		if got := e.MustIn("dev-bot", `curl -s -o /dev/null -w '%{http_connect}' https://example.com || true`); got != "403" {
			t.Errorf("%s: the gateway answers %q", when, got)
		}
		refused("dev-bot", `curl -sm 3 --noproxy '*' `+apiAddress+`/healthz -k`)
	}
	for _, name := range names {
		e.Running(name)
	}
	t.Logf("five agents run after %s", time.Since(began).Round(100*time.Millisecond))
	e.MustIn("dev-bot", `echo kept > /state/file`)
	e.MustIn("researcher-bot", `test "$AGENT_HOME" = /workspace/researcher-bot && echo found > /workspace/researcher-bot/notes`)
	e.MustIn("writer-bot", `test "$AGENT_HOME" = /workspace/writer-bot && echo more >> /workspace/researcher-bot/notes`)
	look("at first")

	// A socket in a shared folder would be a way around the gateway.
	const socket = `python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/tmp/s")'`
	e.MustIn("dev-bot", socket)
	if out, err := e.In("writer-bot", socket); err == nil || !strings.Contains(out+err.Error(), "Operation not permitted") {
		t.Errorf("with a shared folder: %v %s", err, out)
	}

	// A program that ends is started again, in another pod with the same volume.
	before := e.Running("dev-bot").Jail.Name
	if _, err := e.Run(t.Context(), "agent", "restart", "dev-bot"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() bool { s := e.Running("dev-bot"); return s.Jail.Name != before }, "it is another jail")
	if got := e.MustIn("dev-bot", "cat /state/file"); got != "kept\n" {
		t.Errorf("after a restart its state has %q", got)
	}
	// All of them are made anew when the host daemon is.
	if err := e.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Up()
	look("after a restart of everything")
	if got := e.MustIn("dev-bot", "cat /state/file"); got != "kept\n" {
		t.Errorf("after a restart of everything its state has %q", got)
	}

	// What an agent has kept goes when it is removed and that is said.
	if _, err := e.Run(t.Context(), "agent", "rm", "dev-bot", "--yes"); err != nil {
		t.Fatal(err)
	}
	c.until("that its volume is gone", nil, func() error {
		left := c.kubectl("", "-n", "agents", "get", "pvc", "-o", "name")
		if strings.Contains(left, "state-dev-bot") || !strings.Contains(left, "state-writer-bot") {
			return errors.New(left)
		}
		return nil
	})
}

// An agent of an image that is nobody's template is a pod like the others: clawjail-shim is put beside what is in the image.
func TestAnAgentOfAnImageIsAPod(t *testing.T) {
	c := theCluster(t)
	c.furnish("images")
	c.store()
	c.enforce(podPort(0), proxyPort(0))
	e := testkit.NewEstate(t, strings.Replace(c.settings("images"), "images: {}", `images: {clawbot: "clawjail.test/shim:1"}`, 1))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s\n%s", c.kubectl("", "-n", "images", "get", "events"), c.kubectl("", "-n", "images", "get", "pods", "-o", "yaml"), e.Log())
		}
	})
	const file = `
clawbots:
  - name: plain
    image: clawjail.test/plain:1
    command: [/bin/sh, -c, "echo $IMAGE $AGENT_NAME $(pwd) $(busybox id -u); echo line >> /state/file; exec /bin/busybox sleep 1000000"]
`
	if _, err := e.Run(t.Context(), "agent", "sync", "--yes", "-f", e.File("clawbots: [{name: silent, image: 'clawjail.test/plain:1'}]")); err == nil || !strings.Contains(err.Error(), "name a command") {
		t.Errorf("an image without a command: %v", err)
	}
	began := time.Now()
	e.Sync(file)
	first := e.Running("plain").Jail.Name
	t.Logf("it runs after %s", time.Since(began).Round(100*time.Millisecond))
	testenv.Eventually(t, 30*time.Second, func() bool {
		log, err := e.Run(t.Context(), "agent", "logs", "plain")
		return err == nil && strings.Contains(log, "yes plain /state 1000\n")
	}, "it does not say what it has")
	e.MustIn("plain", `test -s /run/hermit/token && test -n "$SHELL_URL" && busybox touch /tmp/x && ! busybox touch /bin/x && ! busybox touch /run/clawjail-shim/x`)
	if _, err := e.Run(t.Context(), "agent", "restart", "plain"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() bool { return e.Running("plain").Jail.Name != first }, "it is another jail")
	testenv.Eventually(t, 30*time.Second, func() bool { return e.MustIn("plain", "busybox cat /state/file") == "line\nline\n" }, "it has its state")

	// One whose image the nodes cannot have says so.
	out, err := e.Run(t.Context(), "agent", "sync", "--yes", "-f", e.File(strings.Replace(file, "clawjail.test/plain:1", "127.0.0.1:1/nothing:1", 1)))
	if err == nil || !strings.Contains(err.Error()+out, "the image cannot be had") || !strings.Contains(err.Error()+out, "template_missing") {
		t.Errorf("an image that the nodes cannot have: %v: %s", err, out)
	}
}

// serverOfNotes is an MCP server with one tool, which says what it finds in its jail.
const serverOfNotes = `import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    r = {"initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "notes", "version": "1"}},
         "tools/list": {"tools": [{"name": "note", "inputSchema": {"type": "object"}}]}, "ping": {}}.get(m.get("method"))
    if m.get("method") == "tools/call":
        with open("/mnt/notes/log", "a") as f: f.write("line\n")
        found = [os.environ.get("WORD"), open(os.environ["KEY_FILE"]).read(), os.getuid(), len(open("/mnt/notes/log").readlines())]
        r = {"content": [{"type": "text", "text": " ".join(map(str, found))}]}
    if r is not None: print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
`

// Programs that are spawned, and the tools of MCP servers, are pods of their own, or run in that of an agent.
func TestProgramsAndToolServersArePods(t *testing.T) {
	c := theCluster(t)
	c.furnish("programs")
	c.store()
	c.enforce(podPort(0), proxyPort(0))
	e := testkit.NewEstate(t, c.settings("programs", "clawbot")+"mcp_servers:\n  notes:\n    limits: {memory: 128MiB, cpu: 1}\n    secrets: {KEY: {secret: key}, WORD: {secret: word, as: env}}\n"+
		"    mounts: [{source: DIR/workspaces/notes, target: /mnt/notes}]\n    command:\n      - /usr/bin/python3\n      - -c\n      - |\n        "+strings.ReplaceAll(serverOfNotes, "\n", "\n        ")+"\n")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s\n%s", c.kubectl("", "-n", "programs", "get", "events"), c.kubectl("", "-n", "programs", "get", "pods,pvc", "-o", "wide"), e.Log())
		}
	})
	for _, name := range []string{"key", "word"} {
		cmd := e.Command(t.Context(), "secret", "set", name)
		cmd.Stdin = strings.NewReader("value-of-" + name)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	e.Sync("clawbots: [{name: bot, mcp: [notes]}, {name: plain}]")
	e.Running("bot")
	e.Running("plain")

	t.Run("spawn", func(t *testing.T) {
		run := func(input string, argv ...string) (string, string, int) {
			cmd := e.Command(t.Context(), append([]string{"spawn"}, argv...)...)
			var out, errs bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
			_ = cmd.Run() // its status is what counts
			return out.String(), errs.String(), cmd.ProcessState.ExitCode()
		}
		for _, flag := range []string{"--agent", "--jail"} {
			began := time.Now()
			out, errs, status := run("a line\n", flag, "bot", "--env", "SAID=it's \"so\" $HOME", "--dir", "/tmp", "--", "/bin/sh", "-c",
				`read line; echo "$line, $SAID, $PWD, $AGENT_NAME, $(id -u)"; echo to the other >&2; exit 7`)
			if out != "a line, it's \"so\" $HOME, /tmp, bot, 1000\n" || errs != "to the other\n" || status != 7 {
				t.Errorf("%s: %q, %q, %d", flag, out, errs, status)
			}
			t.Logf("%s bot: %s", flag, time.Since(began).Round(100*time.Millisecond))
			// The gateway knows whose program it is: it has no key, and a name that no rule has is refused.
			out, errs, status = run("", flag, "bot", "--", "/bin/sh", "-c", `curl -sS --noproxy '*' "$SHELL_URL/v1/sessions"; curl -s -o /dev/null -w '%{http_connect}' https://example.com`)
			if !strings.Contains(out, "unauthorized") || !strings.HasSuffix(out, "403") {
				t.Errorf("%s: the gateway says %q, %q, %d", flag, out, errs, status)
			}
			if out, errs, status := run("", flag, "bot", "--", "/bin/sh", "-c", "kill -9 $$"); flag == "--jail" && status != 128+9 {
				t.Errorf("%s: %q, %q, %d", flag, out, errs, status)
			}
			if out, errs, status := run("", flag, "bot", "--ttl", "1s", "--", "sleep", "60"); status == 0 || !strings.Contains(errs, "the program's time was up") {
				t.Errorf("%s: %q, %q, %d", flag, out, errs, status)
			}
		}
		// The gateway's port is open to all pods. What it takes from one without a network is nothing.
		for _, script := range []string{"curl -sS -m 10 --noproxy '*' http://gateway:3000/v1/sessions", "curl -sS -m 10 -p -x http://gateway:3000 https://example.com -D - -o /dev/null || true"} {
			out, errs, status := run("", "--agent", "bot", "--network", "none", "--", "/bin/sh", "-c", script)
			if status != 0 || !strings.Contains(out, "unknown_caller") && !strings.HasPrefix(out, "HTTP/1.1 403") {
				t.Errorf("without a network: %q, %q, %d", out, errs, status)
			}
		}
		// What one writes into a folder another one reads, in another pod.
		for _, script := range []string{"echo kept > /mnt/shared/file", "cat /mnt/shared/file"} {
			out, errs, status := run("", "--agent", "bot", "--mount", e.Dir+"/workspaces/shared:/mnt/shared", "--", "/bin/sh", "-c", script)
			if status != 0 || strings.HasPrefix(script, "cat") && out != "kept\n" {
				t.Errorf("%s: %q, %q, %d", script, out, errs, status)
			}
		}
	})
	t.Run("tools", func(t *testing.T) {
		call := func(agent, method, params string) string {
			return e.MustIn(agent, `curl -sS --noproxy '*' -m 60 -H "Authorization: Bearer $(cat /run/hermit/token)" -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' `+
				`-H 'MCP-Protocol-Version: 2025-06-18' -d '{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}' "$SHELL_URL/mcp"`)
		}
		c.until("the tools", nil, func() error {
			if list := call("bot", "tools/list", "{}"); !strings.Contains(list, `"notes__note"`) {
				return errors.New(list)
			}
			return nil
		})
		if list := call("plain", "tools/list", "{}"); strings.Contains(list, "notes__note") {
			t.Error("an agent is offered what it is not given")
		}
		for n := range 2 {
			began := time.Now()
			if got := call("bot", "tools/call", `{"name":"notes__note","arguments":{}}`); !strings.Contains(got, fmt.Sprintf("value-of-word value-of-key 1000 %d", n+1)) {
				t.Errorf("the tool answers %s", got)
			}
			t.Logf("the tool answers after %s", time.Since(began).Round(10*time.Millisecond))
		}
		if pods := c.kubectl("", "-n", "programs", "get", "pods", "-o", "json"); strings.Contains(pods, "value-of-") {
			t.Error("a secret is in what the cluster knows of a pod")
		}
	})
	e.Sync("clawbots: []", "--prune")
	c.until("that nothing is left", nil, func() error {
		if out, err := e.Run(t.Context(), "mcp-server", "ls", "--json"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		left := strings.Fields(c.kubectl("", "-n", "programs", "get", "sandboxclaims", "-o", "name"))
		if len(left) > 1 { // the server goes when nobody calls it
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
}

// The rights that the chart gives are those that control planes use, and no others. It is the last of the tests, and looks at what all have asked for.
func TestNoRightIsGivenThatIsNotUsed(t *testing.T) {
	if only := flag.Lookup("test.run").Value.String(); only != "" {
		t.Skipf("SKIPPED: it is about all tests, and not about %s", only)
	}
	c := theCluster(t)
	c.furnish("rights")
	used, given, forbidden := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, event := range c.record() {
		what := event.what()
		switch account := event.User.Username; {
		case event.Annotations["authorization.k8s.io/decision"] == "forbid":
			forbidden[what] = true
		case account == "system:serviceaccount:default:clawjail" || account == "system:serviceaccount:chart:jailer":
			used[what] = true
		}
	}
	for _, kind := range []string{"role/rights", "clusterrole/rights-tokens-default"} {
		var role struct {
			Rules []struct{ APIGroups, Resources, Verbs []string }
		}
		c.must(json.Unmarshal([]byte(c.kubectl("", "-n", "rights", "get", kind, "-o", "json")), &role))
		for _, r := range role.Rules {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						given[strings.Join([]string{verb, group, resource}, " ")] = true
					}
				}
			}
		}
	}
	for what := range given {
		if !used[what] {
			t.Errorf("nobody uses the right to %s", what)
		}
	}
	for what := range forbidden { // also of the test that takes all rights away
		if !given[what] {
			t.Errorf("there is no right to %s, and somebody tries", what)
		}
	}
	namespaced, clustered := kubernetes.Rights()
	for _, r := range append(namespaced, clustered...) {
		if !given[strings.Join([]string{r.Verb, r.Group, r.Resource}, " ")] {
			t.Errorf("the chart does not give the right to %s", r)
		}
	}
	if n := len(namespaced) + len(clustered); n != len(given) {
		t.Errorf("the chart gives %d rights, and the doctor knows %d", len(given), n)
	}
	if len(used) < 10 {
		t.Errorf("only %v was used: the record says nothing", used)
	}
	c.kubectl("", "delete", "namespace", "rights", "--wait=false")
}
