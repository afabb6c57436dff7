//go:build linux

package browsers

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/injail"
	"github.com/clawjail/clawjail/test/testkit"
)

// gatewayURL is the one wire of an agent.
const gatewayURL = "http://gateway:3000"

// newAgents starts an instance that lets the test admit jails as agents', with a template for them beside the browser's.
func newAgents(t *testing.T) *laboratory {
	t.Helper()
	testenv.Need(t, testenv.Root)
	browsers := testenv.Template(t)
	l := testkit.NewLab(t)
	dir := templatesBeside(t)
	plane := program(t, "plane")
	b := testkit.PrepareWith(t, instance.Options{Settings: testkit.NoPool + l.Settings()}, func(o *instance.Options, _ string) {
		o.Templates, o.Binary = dir, plane
	})
	root := filepath.Join(t.TempDir(), "root")
	inside.Template(t, root)
	testkit.CopyFile(t, program(t, "agent"), filepath.Join(root, "bin", "agent"))
	if out, err := b.Run(t.Context(), "template", "build", "agent", "--from", "dir:"+root); err != nil {
		t.Fatalf("build the template: %v\n%s", err, out)
	}
	at := filepath.Join(dir, "browser")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(browsers, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	b.Up()
	return &laboratory{Installation: b, lab: l}
}

// templatesBeside makes a folder for templates in which the machine's own template browser may be mounted. It goes after
// the instance that is made later, and nothing that is still mounted in it goes with it.
func templatesBeside(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("/var/lib/clawjail", "test-")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "templates")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mounted := filepath.Join(dir, "browser")
		if err := unix.Unmount(mounted, 0); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			t.Errorf("unmount %s: %v", mounted, err)
			return
		}
		// Only an empty folder is removed here: never the template itself.
		if err := os.Remove(mounted); err != nil && !os.IsNotExist(err) {
			t.Error(err)
			return
		}
		testkit.RemoveTrees(t, parent)
	})
	return dir
}

// programs is the folder with those of package injail.
var programs = testkit.Build("-ldflags=-w", "github.com/clawjail/clawjail/test/injail/...")

// program returns the path of one of them.
func program(t *testing.T, name string) string {
	t.Helper()
	testenv.Tool(t, "go")
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// agent is a jail with the program agent in it, and what its agent is known as.
type agent struct {
	t        *testing.T
	v        *laboratory
	jail     *jail.Jail
	id, key  string
	commands *json.Encoder
	replies  *json.Decoder
}

// issue makes an agent, that has no jail.
func (v *laboratory) issue(name string) op.IssuedAgent {
	v.T.Helper()
	issued, err := client.Call(v.T.Context(), v.API, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Name: name})})
	if err != nil {
		v.T.Fatal(err)
	}
	return issued
}

// as is a client outside of all jails with somebody's key.
func (v *laboratory) as(key string) *client.Client {
	v.T.Helper()
	at, err := v.API.SessionURL("x")
	if err != nil {
		v.T.Fatal(err)
	}
	at.Path = ""
	c := client.New(at, key)
	v.T.Cleanup(c.CloseIdle)
	return c
}

// newAgent starts a jail, which the gateway does not know yet.
func (v *laboratory) newAgent(issued op.IssuedAgent) *agent {
	t := v.T
	t.Helper()
	host := hostd.NewClient(hostd.SocketPath(v.Config), nil)
	if err := host.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	j, err := host.Create(t.Context(), jail.Spec{Kind: jail.KindAgent, Lifetime: jail.LifetimeOwner, Template: "agent",
		Program: jail.Program{Argv: []string{"/bin/agent"}, Wire: jail.WireStdio},
		Limits: jail.Limits{Memory: 256 << 20, MilliCPU: 1000, Tasks: 64, Disk: 16 << 20, SharedMemory: 1 << 20, Files: 256,
			WallClock: 10 * time.Minute}})
	if err != nil {
		t.Fatalf("%v\nlog of the instance:\n%s", err, v.Log())
	}
	var said testkit.Transcript
	var listening sync.WaitGroup
	listening.Go(func() { _, _ = io.Copy(&said, j.Stdio.Err) }) // ends with the jail
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := host.Destroy(ctx, j.Name); err != nil {
			t.Error(err)
		}
		j.Stdio.Close()
		listening.Wait()
		if t.Failed() {
			t.Logf("what the agent printed: %.4000s\nlog of the instance:\n%s", said.Bytes(), v.Log())
		}
	})
	if err := host.Admit(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	return &agent{t: t, v: v, jail: j, id: issued.Agent.ID, key: issued.Key,
		commands: json.NewEncoder(j.Stdio.In), replies: json.NewDecoder(j.Stdio.Out)}
}

// admit admits the jail to the gateway as its agent's. end takes that back.
func (a *agent) admit() (end func()) {
	a.t.Helper()
	conn, err := net.Dial("unix", injail.Socket(a.v.Config))
	if err != nil {
		a.t.Fatal(err)
	}
	var once sync.Once
	end = func() { once.Do(func() { _ = conn.Close() }) }
	a.t.Cleanup(end)
	var answer injail.Admitted
	if err := json.NewEncoder(conn).Encode(injail.Order{Address: a.jail.Lease.Addr, Jail: string(a.jail.Name), Agent: a.id}); err != nil {
		a.t.Fatal(err)
	}
	if err := json.NewDecoder(conn).Decode(&answer); err != nil || answer.Error != "" {
		a.t.Fatalf("admit: %v %s", err, answer.Error)
	}
	return end
}

// try has the agent do something.
func (a *agent) try(t *testing.T, c injail.Command) injail.Reply {
	t.Helper()
	if err := a.commands.Encode(c); err != nil {
		t.Fatal(err)
	}
	var r injail.Reply
	if err := a.replies.Decode(&r); err != nil {
		t.Fatalf("the agent does not answer: %v", err)
	}
	return r
}

// do has it do something that must work.
func (a *agent) do(t *testing.T, c injail.Command) injail.Reply {
	t.Helper()
	r := a.try(t, c)
	if r.Error != "" || r.Failed {
		t.Fatalf("%s %s%s: %s %s", c.Do, c.URL, c.Tool, r.Error, r.Body)
	}
	return r
}

// call calls a tool that must work, and returns the text of its answer.
func (a *agent) call(t *testing.T, tool string, arguments map[string]any) injail.Reply {
	t.Helper()
	return a.do(t, injail.Command{Do: injail.Call, Tool: tool, Arguments: arguments})
}

// ask makes a request with a key.
func (a *agent) ask(t *testing.T, key, method, path, body string) injail.Reply {
	t.Helper()
	return a.do(t, injail.Command{Do: injail.Request, Method: method, URL: gatewayURL + path, Key: key, Body: body})
}

// dial opens the DevTools endpoint of a session with a token made with a key.
func (a *agent) dial(t *testing.T, key, id string) injail.Reply {
	t.Helper()
	r := a.ask(t, key, http.MethodPost, "/v1/sessions/"+id+"/tokens", `{"scope":"cdp"}`)
	var token struct {
		URL string `json:"ws_url"`
	}
	if err := json.Unmarshal([]byte(r.Body), &token); err != nil || !strings.HasPrefix(token.URL, "ws://gateway:3000/") {
		t.Fatalf("the token is %d, %v, at %.40q", r.Status, err, token.URL)
	}
	return a.try(t, injail.Command{Do: injail.Dial, URL: token.URL})
}

var sessionID = regexp.MustCompile(`session (s_[a-z0-9]+) is open`)

// openOne opens a session by MCP.
func (a *agent) openOne(t *testing.T) string {
	t.Helper()
	found := sessionID.FindStringSubmatch(a.call(t, "browser_open_session", map[string]any{}).Body)
	if found == nil {
		t.Fatal("no session is named")
	}
	return found[1]
}

func TestAgentInAJailDrivesABrowserInAnother(t *testing.T) {
	v := newAgents(t)
	a := v.newAgent(v.issue("worker"))
	end := a.admit()

	t.Run("with the rules of the agent", func(t *testing.T) { boundByItsAgent(t, v, a) })

	// Without that its browsers reach what the agent does, which is nothing.
	if _, err := v.API.PutSettings(t.Context(), op.Whose{}, op.SettingsRequest{Browser: egress.BrowserOpen}); err != nil {
		t.Fatal(err)
	}
	var id string
	t.Run("by MCP", func(t *testing.T) {
		tools := a.do(t, injail.Command{Do: injail.Connect, URL: gatewayURL + "/mcp", Key: a.key}).Tools
		for _, name := range []string{"browser_open_session", "browser_act", "capabilities"} {
			if !slices.Contains(tools, name) {
				t.Errorf("the tools are %v", tools)
			}
		}
		id = a.openOne(t)
		got, err := v.API.Get(t.Context(), id)
		if err != nil || got.Jail == "" || got.Jail == string(a.jail.Name) || got.OpenedBy != "agent:"+a.id {
			t.Errorf("the session is of %s in the jail %s, %v; the agent's is %s", got.OpenedBy, got.Jail, err, a.jail.Name)
		}
		// Its version of the protocol has no sessions, so that every call names the browser's.
		a.call(t, "browser_navigate", map[string]any{"session": id, "url": v.lab.URL("/login")})
		text := a.call(t, "browser_snapshot", map[string]any{"session": id}).Body
		button := regexp.MustCompile(`button "Log in".*\b(e\d+)\b`).FindStringSubmatch(text)
		if button == nil {
			t.Fatalf("the snapshot is %s", text)
		}
		a.call(t, "browser_act", map[string]any{"session": id, "kind": "type", "selector": "#user", "text": "alice"})
		a.call(t, "browser_act", map[string]any{"session": id, "kind": "click", "ref": button[1]})
		a.call(t, "browser_act", map[string]any{"session": id, "kind": "wait", "text": "Hello alice"})
		if v.lab.Visits() == 0 {
			t.Error("the site has not seen the browser")
		}
		if picture := a.call(t, "browser_screenshot", map[string]any{"session": id}).Pictures; picture < 1000 {
			t.Errorf("the picture has %d bytes", picture)
		}
		second := a.openOne(t)
		a.call(t, "browser_close_session", map[string]any{"session": second})
		if got, err := v.API.Get(t.Context(), second); err != nil || got.Ended == nil || got.Ended.Cause != session.CauseClosed {
			t.Errorf("a session that it has closed is %s, %v", got.State, err)
		}
	})
	t.Run("by DevTools", func(t *testing.T) {
		if r := a.dial(t, a.key, id); r.Error != "" {
			t.Fatal(r.Error)
		}
		targets := a.do(t, injail.Command{Do: injail.Send, Body: `{"id":1,"method":"Target.getTargets"}`}).Body
		target := regexp.MustCompile(`"targetId":"(\w+)"[^}]*"type":"page"`).FindStringSubmatch(targets)
		if target == nil {
			t.Fatalf("there is no page: %s", targets)
		}
		attached := a.do(t, injail.Command{Do: injail.Send,
			Body: `{"id":2,"method":"Target.attachToTarget","params":{"flatten":true,"targetId":"` + target[1] + `"}}`}).Body
		at := regexp.MustCompile(`"sessionId":"([^"]+)"`).FindStringSubmatch(attached)
		if at == nil {
			t.Fatalf("it does not attach: %s", attached)
		}
		got := a.do(t, injail.Command{Do: injail.Send,
			Body: `{"id":3,"sessionId":"` + at[1] + `","method":"Runtime.evaluate","params":{"expression":"document.body.innerText"}}`}).Body
		if !strings.Contains(got, "Hello alice") {
			t.Errorf("the page says %s", got)
		}
	})
	t.Run("through the proxy", func(t *testing.T) {
		command := injail.Command{Do: injail.Request, Method: http.MethodGet, URL: gatewayURL + "/v1/sessions/" + id, Key: a.key, Proxy: gatewayURL}
		if r := a.do(t, command); r.Status != http.StatusOK || !strings.Contains(r.Body, id) {
			t.Errorf("a client that sends everything to the proxy is answered %d %s", r.Status, r.Body)
		}
		command.URL = v.lab.URL("/")
		if r := a.do(t, command); r.Status != http.StatusForbidden {
			t.Errorf("the policy allows nothing, and the lab answers %d %.200s", r.Status, r.Body)
		}
	})

	other := v.issue("other")
	theirs, err := v.as(other.Key).Open(t.Context(), session.OpenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("and no other's", func(t *testing.T) { refusedInside(t, a, other.Key, id, theirs.ID) })
	t.Run("and no page has that way", func(t *testing.T) { pagesHaveNoWay(t, v, a, theirs.ID) })

	t.Run("until its jail is not admitted any more", func(t *testing.T) {
		if r := a.dial(t, a.key, id); r.Error != "" {
			t.Fatal(r.Error)
		}
		end()
		if r := a.try(t, injail.Command{Do: injail.AwaitClose}); r.Error == "" {
			t.Errorf("the socket is closed in good order: %d %s", r.Status, r.Body)
		}
		r := a.try(t, injail.Command{Do: injail.Request, Method: http.MethodGet, URL: gatewayURL + "/v1/health"})
		if r.Error == "" && !strings.Contains(r.Body, problem.UnknownCaller) {
			t.Errorf("a jail that is not admitted is answered %d %s", r.Status, r.Body)
		}
		testenv.Eventually(t, 10*time.Second, func() bool {
			return a.try(t, injail.Command{Do: injail.Request, Method: http.MethodGet, URL: gatewayURL + "/v1/health"}).Status == http.StatusForbidden
		}, "the gateway does not forget it")
		a.admit()
	})
	t.Run("until its token is revoked", func(t *testing.T) {
		// The second token is not the one that the session was opened with, and the session goes on without it.
		second, err := client.Call(t.Context(), v.API, op.RotateToken(), op.NewToken{OneAgent: op.OneAgent{Name: "worker"}, Body: op.With(op.RotateRequest{Overlap: "1h"})})
		if err != nil {
			t.Fatal(err)
		}
		if r := a.dial(t, second.Key, id); r.Error != "" {
			t.Fatal(r.Error)
		}
		if err := client.Do(t.Context(), v.API, op.RevokeToken(), op.TokenNamed{Name: "worker", ID: second.Token.ID}); err != nil {
			t.Fatal(err)
		}
		r := a.do(t, injail.Command{Do: injail.AwaitClose})
		if r.Status != int(websocket.StatusPolicyViolation) || !strings.Contains(r.Body, problem.Unauthorized) {
			t.Errorf("the socket ends with %d %s", r.Status, r.Body)
		}
		if r := a.ask(t, second.Key, http.MethodGet, "/v1/sessions", ""); r.Status != http.StatusUnauthorized {
			t.Errorf("a revoked token is answered %d", r.Status)
		}
		if r := a.ask(t, a.key, http.MethodGet, "/v1/sessions/"+id, ""); r.Status != http.StatusOK || !strings.Contains(r.Body, `"ready"`) {
			t.Errorf("the other token is answered %d %s", r.Status, r.Body)
		}
	})
	t.Run("until it is revoked itself", func(t *testing.T) {
		if r := a.dial(t, a.key, id); r.Error != "" {
			t.Fatal(r.Error)
		}
		if err := client.Do(t.Context(), v.API, op.RevokeAgent(), op.OneAgent{Name: "worker"}); err != nil {
			t.Fatal(err)
		}
		a.do(t, injail.Command{Do: injail.AwaitClose})
		if r := a.try(t, injail.Command{Do: injail.Call, Tool: "capabilities"}); r.Error == "" {
			t.Errorf("a revoked agent calls a tool: %s", r.Body)
		}
		// Sessions that it has opened end with it.
		testenv.Eventually(t, 10*time.Second, func() bool {
			got, err := v.API.Get(t.Context(), id)
			return err == nil && got.State == session.StateClosed
		}, "its session stays open")
	})
	v.Close(theirs.ID)
}

// refusedInside tries what is not the agent's: other keys, other sessions, and the rest of the API.
func refusedInside(t *testing.T, a *agent, otherKey, own, theirs string) {
	if r := a.ask(t, a.key, http.MethodGet, "/v1/sessions/"+own, ""); r.Status != http.StatusOK {
		t.Fatalf("its own session is answered %d %s", r.Status, r.Body)
	}
	theirToken, err := a.v.as(otherKey).SessionToken(t.Context(), theirs, api.TokenRequest{Scope: "cdp"})
	if err != nil {
		t.Fatal(err)
	}
	ownToken, err := a.v.API.SessionToken(t.Context(), own, api.TokenRequest{Scope: "control"})
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]string{"nobody": "", "another agent": otherKey, "the admin": a.v.Key(),
		"whoever has a token of another agent's": theirToken.Token, "whoever has a token of the admin's": ownToken.Token} {
		for _, path := range []string{"/v1/sessions", "/v1/sessions/" + own, "/v1/sessions/" + theirs, "/mcp"} {
			if r := a.ask(t, key, http.MethodGet, path, ""); r.Status != http.StatusUnauthorized {
				t.Errorf("%s has GET %s there: %d %.200s", name, path, r.Status, r.Body)
			}
		}
	}
	dial := injail.Command{Do: injail.Dial, URL: gatewayURL + "/v1/sessions/" + theirs + "/cdp?token=" + theirToken.Token}
	if r := a.try(t, dial); !strings.Contains(r.Error, "401") {
		t.Errorf("a token of another agent's opens a socket there: %q", r.Error)
	}
	for _, path := range []string{"", "/snapshot", "/tabs", "/recording", "/cdp/json/version"} {
		if r := a.ask(t, a.key, http.MethodGet, "/v1/sessions/"+theirs+path, ""); r.Status != http.StatusNotFound {
			t.Errorf("another's session%s is answered %d %.200s", path, r.Status, r.Body)
		}
	}
	if r := a.ask(t, a.key, http.MethodDelete, "/v1/sessions/"+theirs, ""); r.Status != http.StatusNotFound {
		t.Errorf("closing another's session is answered %d %.200s", r.Status, r.Body)
	}
	if r := a.ask(t, a.key, http.MethodGet, "/v1/sessions", ""); !strings.Contains(r.Body, own) || strings.Contains(r.Body, theirs) {
		t.Errorf("the sessions it sees are %s", r.Body)
	}
	look := injail.Command{Do: injail.Call, Tool: "browser_snapshot", Arguments: map[string]any{"session": theirs}}
	if r := a.try(t, look); !r.Failed || !strings.Contains(r.Body, problem.NotFound) {
		t.Errorf("a snapshot of another's session: %+v", r)
	}
	for _, path := range []string{"/v1/audit", "/v1/cookies", "/v1/agents", "/v1/secrets", "/v1/grants", "/v1/operators", "/v1/tenants", "/v1/info",
		"/v1/whoami", "/openapi.json", "/", "/v1/sessionsx"} {
		if r := a.ask(t, a.key, http.MethodGet, path, ""); r.Status != http.StatusNotFound {
			t.Errorf("%s is answered %d %.200s", path, r.Status, r.Body)
		}
	}
	// A page of a name that leads to the gateway's address sends that name.
	command := injail.Command{Do: injail.Request, Method: http.MethodGet, URL: gatewayURL + "/v1/sessions", Host: "attacker.example", Key: a.key}
	if r := a.do(t, command); r.Status != http.StatusForbidden {
		t.Errorf("another Host is answered %d %.200s", r.Status, r.Body)
	}
}

// pagesHaveNoWay asks the same from a page in a session's jail.
func pagesHaveNoWay(t *testing.T, v *laboratory, a *agent, id string) {
	health := a.ask(t, "", http.MethodGet, "/v1/health", "")
	if health.Status != http.StatusOK || len(health.Body) < 2 {
		t.Fatalf("health is %d %s", health.Status, health.Body)
	}
	address := ""
	if info, err := v.API.Info(t.Context()); err != nil || info.Host == nil {
		t.Fatal(err)
	} else {
		address = info.Host.Gateway
	}
	for _, base := range []string{gatewayURL, "http://hermit_shell:3000", "http://" + address + ":3000"} {
		for _, path := range []string{"/v1/health", "/mcp", "/v1/sessions"} {
			got, err := v.API.Navigate(t.Context(), id, browser.Navigate{URL: base + path})
			if err == nil && got.Status < 400 {
				t.Errorf("a page at %s%s is answered %d", base, path, got.Status)
			}
			if err == nil && got.Status == http.StatusUnauthorized {
				t.Errorf("a page at %s%s reaches the API, which asks for its key", base, path)
			}
		}
	}
	// A browser that reaches nothing at all would pass as well.
	if got, err := v.API.Navigate(t.Context(), id, browser.Navigate{URL: v.lab.URL("/")}); err != nil || got.Status != http.StatusOK {
		t.Errorf("the lab is answered %d, %v", got.Status, err)
	}
	if got, err := v.API.Get(t.Context(), id); err != nil || got.State != session.StateReady {
		t.Errorf("afterwards the session is %s, %v", got.State, err)
	}
}
