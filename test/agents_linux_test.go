//go:build linux

package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	agents "github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// estate is an instance with agents, and the folder of their file.
type estate struct {
	*box
	dir string
}

// newEstate makes an instance whose agents may have folders below dir/workspaces. DIR in the settings becomes that dir.
func newEstate(t *testing.T, more string) *estate {
	t.Helper()
	testenv.Root(t)
	templates := filepath.Dir(testenv.TemplateNamed(t, "clawbot"))
	dir, err := os.MkdirTemp("/var/lib/clawjail", "test-estate-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeTrees(t, dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "workspaces"), 0o755)); err != nil {
		t.Fatal(err)
	}
	settings := noPool + "workspace_roots: [" + filepath.Join(dir, "workspaces") + "]\n" + strings.ReplaceAll(more, "DIR", dir)
	b := prepareWith(t, instance.Options{Settings: settings}, func(o *instance.Options, _ string) { o.Templates = templates })
	b.up()
	return &estate{b, dir}
}

// file writes clawbots.yml and returns its path.
func (e *estate) file(text string) string {
	e.t.Helper()
	path := filepath.Join(e.dir, "clawbots.yml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		e.t.Fatal(err)
	}
	return path
}

// sync makes the machine match a file, and returns the plan.
func (e *estate) sync(text string, flags ...string) agents.Plan {
	e.t.Helper()
	out, err := e.Run(e.t.Context(), append([]string{"agent", "sync", "-f", e.file(text), "--json", "--yes"}, flags...)...)
	if err != nil {
		e.t.Fatalf("%v\n%.4000s", err, e.Log())
	}
	return planOf(e.t, out)
}

func planOf(t *testing.T, out string) (p agents.Plan) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return p
}

// verbs is a plan in short.
func verbs(p agents.Plan) string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, string(s.Verb)+" "+s.Name)
	}
	return strings.Join(out, ", ")
}

func (e *estate) show(name string) (s api.AgentDetails) {
	e.t.Helper()
	out, err := e.Run(e.t.Context(), "agent", "show", name, "--json")
	if err != nil {
		e.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		e.t.Fatalf("%v\n%s", err, out)
	}
	return s
}

// running waits until an agent's jail runs, and returns it.
func (e *estate) running(name string) api.AgentDetails {
	e.t.Helper()
	var s api.AgentDetails
	testenv.Eventually(e.t, 30*time.Second, func() bool {
		s = e.show(name)
		return s.Jail != nil && s.Jail.Phase == jail.PhaseRunning
	}, "%s does not come to run", name)
	return s
}

// in runs a shell command in an agent's jail.
func (e *estate) in(name, command string) (string, error) {
	e.t.Helper()
	return e.Run(e.t.Context(), "agent", "exec", name, "--", "/bin/sh", "-c", command)
}

func (e *estate) mustIn(name, command string) string {
	e.t.Helper()
	out, err := e.in(name, command)
	if err != nil {
		e.t.Fatalf("in %s: %s: %v\n%s", name, command, err, out)
	}
	return out
}

const family = `
clawbots:
  - name: alone
  - name: own
    workspace: ./workspaces/own
  - name: first
    workspace: ./workspaces/team
  - name: second
    workspace: ./workspaces/team
    workspace_mode: ro
`

func TestSyncMakesTheMachineMatchTheFile(t *testing.T) {
	e := newEstate(t, "")
	if got := verbs(e.sync(family, "--dry-run")); got != "create alone, create own, create first, create second" {
		t.Errorf("the plan is %q", got)
	}
	if out, err := e.Run(t.Context(), "agent", "ls", "--json"); err != nil || strings.Contains(out, "alone") {
		t.Errorf("a dry run has made something: %v\n%s", err, out)
	}
	plan := e.sync(family)
	for _, s := range plan.Steps {
		if !s.Done || s.Problem != "" {
			t.Errorf("%s: %+v", s.Name, s)
		}
	}
	if got := verbs(e.sync(family)); got != "unchanged alone, unchanged own, unchanged first, unchanged second" {
		t.Errorf("a second sync does %q", got)
	}

	// The modes, as the jails see them.
	for _, name := range []string{"alone", "own", "first", "second"} {
		e.running(name)
	}
	if _, err := e.in("alone", "ls -d /workspace/*"); err == nil {
		t.Error("an isolated agent has a workspace")
	}
	e.mustIn("own", `echo mine > /workspace/file && test "$AGENT_HOME" = /workspace`)
	e.mustIn("first", `test "$AGENT_HOME" = /workspace/first && echo shared > /workspace/first/file`)
	if got := e.mustIn("second", "cat /workspace/first/file"); got != "shared\n" {
		t.Errorf("the other of a group reads %q", got)
	}
	if _, err := e.in("second", "echo x > /workspace/second/file"); err == nil {
		t.Error("a workspace that is read-only takes a file")
	}
	for path, want := range map[string]string{"own/file": "mine\n", "team/first/file": "shared\n"} {
		if got, err := os.ReadFile(filepath.Join(e.dir, "workspaces", path)); err != nil || string(got) != want {
			t.Errorf("%s on the host: %q, %v", path, got, err)
		}
	}

	// A change of what shapes the jail makes a new one, with the state of the old; others are left alone.
	e.mustIn("alone", "echo kept > /state/file")
	before, other := e.running("alone").Jail.Name, e.running("own").Jail.Name
	changed := strings.Replace(family, "- name: alone", "- name: alone\n    limits: {memory: 300MiB}", 1)
	if got := verbs(e.sync(changed)); got != "restart alone, unchanged own, unchanged first, unchanged second" {
		t.Errorf("a change of a limit does %q", got)
	}
	if after := e.running("alone").Jail.Name; after == before {
		t.Error("the jail is the one before")
	}
	if e.running("own").Jail.Name != other {
		t.Error("the jail of another agent is a new one")
	}
	if got := e.mustIn("alone", "cat /state/file"); got != "kept\n" {
		t.Errorf("the state has %q", got)
	}
	// A rule needs no new jail.
	ruled := strings.Replace(changed, "- name: own", "- name: own\n    allow: [example.com]", 1)
	if got := verbs(e.sync(ruled)); got != "unchanged alone, change own, unchanged first, unchanged second" {
		t.Errorf("a rule does %q", got)
	}
	if e.running("own").Jail.Name != other {
		t.Error("a rule made a new jail")
	}

	// What is in the file no more stays, until it is pruned.
	fewer := "clawbots:\n  - name: own\n    allow: [example.com]\n    workspace: ./workspaces/own\n"
	if got := verbs(e.sync(fewer)); got != "unchanged own, extra alone, extra first, extra second" {
		t.Errorf("a shorter file does %q", got)
	}
	if got := verbs(e.sync(fewer, "--prune")); got != "unchanged own, remove alone, remove first, remove second" {
		t.Errorf("pruning does %q", got)
	}
	// And can be added again.
	if got := verbs(e.sync(family)); got != "create alone, change own, create first, create second" {
		t.Errorf("adding again does %q", got)
	}
	e.running("alone")
	if _, err := e.in("alone", "cat /state/file"); err == nil {
		t.Error("the state of a removed agent came back")
	}
}

func TestFilesThatCannotBeAreRefusedBeforeAnyChange(t *testing.T) {
	e := newEstate(t, "")
	if err := os.Symlink("/etc", filepath.Join(e.dir, "workspaces", "out")); err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct{ text, want string }{
		"two of a name":        {"clawbots: [{name: a}, {name: a}]", "a"},
		"a workspace inside":   {"clawbots: [{name: a, workspace: ./workspaces/x}, {name: b, workspace: ./workspaces/x/y}]", "inside"},
		"an unknown key":       {"clawbots: [{name: a, workspaces: ./workspaces/x}]", "did you mean"},
		"a missing template":   {"clawbots: [{name: a}, {name: b, template: nosuch}]", "nosuch"},
		"outside the roots":    {"clawbots: [{name: a}, {name: b, workspace: /etc}]", "workspace_roots"},
		"a link that leads on": {"clawbots: [{name: a}, {name: b, workspace: ./workspaces/out}]", "out"},
		"a secret":             {"clawbots: [{name: a, env: {GITHUB_TOKEN: ghp_4kQ7mX2vT9sW8nB3zR6cA1}}]", "secret"},
	} {
		out, err := e.Run(t.Context(), "agent", "sync", "-f", e.file(test.text), "--yes")
		if err == nil || !strings.Contains(err.Error()+out, test.want) {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
		if strings.Contains(fmt.Sprint(err)+out, "ghp_") {
			t.Errorf("%s: the value is shown", what)
		}
		if out, err := e.Run(t.Context(), "agent", "ls", "--json"); err != nil || strings.Contains(out, `"name"`) {
			t.Errorf("%s: something was made: %v\n%s", what, err, out)
		}
	}
}

func TestAgentsAreConfined(t *testing.T) {
	e := newEstate(t, "")
	e.sync(family)
	e.confined("own", "alone")
}

// confined is the table of what an agent can do from inside its jail, whatever makes it. It has a workspace, and other is
// another agent.
func (e *estate) confined(name, other string) {
	t := e.t
	t.Helper()
	e.running(name)
	address := e.running(other).Jail.Address
	if got := e.mustIn(name, "id -u; id -g; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status"); got !=
		"1000\n1000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n" {
		t.Errorf("an agent is %q", got)
	}
	outside := e.outside(name, other)
	for what, command := range map[string]string{
		"writing to the root":     "echo x > /etc/x",
		"writing to /usr":         "echo x > /usr/x",
		"running from /tmp":       "cp /bin/true /tmp/x && chmod +x /tmp/x && /tmp/x",
		"another agent":           "curl -s --noproxy '*' --max-time 3 http://" + address + ":8000/",
		"a port of the host":      "curl -s --noproxy '*' --max-time 3 http://gateway:" + outside + "/",
		"the Internet by itself":  "curl -s --noproxy '*' --max-time 3 http://" + elsewhereAddress + ":" + outside + "/",
		"the Internet by a proxy": "curl -sf --max-time 5 http://web.test:" + outside + "/",
		"writing to the token":    "echo x > /run/hermit/token",
		"more than 64 tasks":      "i=0; while [ $i -lt 80 ]; do sleep 20 & i=$((i+1)); done; wait",
	} {
		if out, err := e.in(name, command); err == nil {
			t.Errorf("%s succeeds: %s", what, out)
		}
	}
	for what, command := range map[string]string{
		"writing to /state":           "echo x > /state/x",
		"writing to /workspace":       "echo x > /workspace/x",
		"writing to /tmp":             "echo x > /tmp/x",
		"running from /state":         "cp /bin/true /state/true && /state/true",
		"the gateway":                 "curl -sf --noproxy '*' -H \"Authorization: Bearer $(cat /run/hermit/token)\" \"$SHELL_URL/v1/sessions\"",
		"the token is the agent's":    "test \"$(stat -c '%a %u' /run/hermit/token)\" = '600 1000' || test \"$(stat -c '%a %u' /run/hermit/token)\" = '400 1000'",
		"no token in the environment": "! env | grep -qi claw_ && ! env | grep -q cjagt_",
	} {
		if out, err := e.in(name, command); err != nil {
			t.Errorf("%s fails: %v\n%s", what, err, out)
		}
	}
}

// elsewhereAddress is an address of nobody's (RFC 5737), until a test gives it to this host.
const elsewhereAddress = "198.51.100.7"

// outside opens what an agent must not reach, and sees that it could be reached: a port of this host at all its addresses,
// one of which no jail knows the way to but by routing; the same by a name, as long as a rule leads it there; and port 8000 of
// another agent. It returns the port.
func (e *estate) outside(name, other string) (port string) {
	t := e.t
	t.Helper()
	ip := testenv.Tool(t, "ip")
	run(t, ip, "address", "add", elsewhereAddress+"/32", "dev", "lo")
	t.Cleanup(func() { run(t, ip, "address", "del", elsewhereAddress+"/32", "dev", "lo") })
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "reached") })}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	gateway, ok := strings.CutSuffix(e.mustIn(name, "getent ahostsv4 gateway | cut -d' ' -f1 | head -n1"), "\n")
	if !ok {
		t.Fatalf("the agent does not know the gateway: %q", gateway)
	}
	for _, address := range []string{elsewhereAddress, gateway} {
		if answer, err := http.Get("http://" + address + ":" + port + "/"); err != nil || answer.Body.Close() != nil {
			t.Fatalf("the host does not reach its own port, so a refusal shows nothing: %v", err)
		}
	}
	out, err := e.Run(t.Context(), "rules", "add", "allow", "http://web.test:"+port, "--agent", name, "--address", "127.0.0.1", "--json")
	var rule struct{ ID string }
	if err != nil || json.Unmarshal([]byte(out), &rule) != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out := e.mustIn(name, "curl -sf --max-time 10 http://web.test:"+port+"/"); out != "reached" {
		t.Fatalf("an agent does not reach what a rule allows, so a refusal shows nothing: %q", out)
	}
	if out, err := e.Run(t.Context(), "rules", "rm", rule.ID); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	listening := e.Command(t.Context(), "agent", "exec", other, "--", "python3", "-m", "http.server", "8000", "--bind", "0.0.0.0", "--directory", "/tmp")
	if err := listening.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listening.Process.Kill(); _ = listening.Wait() }) // the program ends with it
	address := e.running(other).Jail.Address
	testenv.Eventually(t, 20*time.Second, func() bool {
		_, err := e.in(other, "curl -sf --noproxy '*' --max-time 3 http://"+address+":8000/")
		return err == nil
	}, "the other agent does not listen, so that it is not reached shows nothing")
	return port
}

func TestAgentsRunOnThroughRestartsOfBothDaemons(t *testing.T) {
	e := newEstate(t, "")
	e.sync(`
clawbots:
  - name: counter
    command: [/bin/sh, -c, 'i=0; while :; do i=$((i+1)); echo "{\"type\":\"tick\",\"n\":$i}"; sleep 0.02; done']
`)
	was := e.running("counter").Jail
	printed := func() []string {
		out, err := e.Run(t.Context(), "agent", "logs", "counter", "--stdout")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(out), "\n")
	}
	testenv.Eventually(t, 30*time.Second, func() bool { return len(printed()) >= 20 }, "it does not print")
	if err := e.Kill(); err != nil { // both daemons at once
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := len(printed())
	testenv.Eventually(t, 30*time.Second, func() bool { return len(printed()) >= before+20 }, "it does not go on")
	is := e.running("counter").Jail
	if is.Name != was.Name || is.PID != was.PID {
		t.Errorf("it was %s with process %d, and is %s with process %d", was.Name, was.PID, is.Name, is.PID)
	}
	// No line is lost, and none comes twice.
	lines := printed()
	for i, line := range lines {
		if want := fmt.Sprintf(`{"type":"tick","n":%d}`, i+1); line != want {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
	if out := e.mustIn("counter", "cat /run/hermit/token"); !strings.HasPrefix(out, "cjagt_") {
		t.Errorf("the token is %q", out[:min(4, len(out))])
	}
}

func TestRotationReplacesTheTokenWithoutARestart(t *testing.T) {
	e := newEstate(t, "")
	e.sync("clawbots: [{name: bot}]")
	was := e.running("bot").Jail
	before := e.mustIn("bot", "cat /run/hermit/token")
	if _, err := e.Run(t.Context(), "agent", "token", "rotate", "bot"); err != nil {
		t.Fatal(err)
	}
	after := e.mustIn("bot", "cat /run/hermit/token")
	if after == before || len(after) < 20 {
		t.Errorf("the token is %d characters, and the same: %v", len(after), after == before)
	}
	if is := e.running("bot").Jail; is.Name != was.Name || is.PID != was.PID {
		t.Error("the jail is another one")
	}
	e.mustIn("bot", "curl -sf --noproxy '*' -H \"Authorization: Bearer $(cat /run/hermit/token)\" \"$SHELL_URL/v1/sessions\"")
}

// Whatever is killed at whichever step of a sync, the next one converges.
func TestSyncConvergesAfterEveryKill(t *testing.T) {
	testenv.Time(t)
	e := newEstate(t, "")
	want := []string{"alone", "own", "first", "second"}
	for i := range 6 {
		cmd := e.Command(t.Context(), "agent", "sync", "-f", e.file(family), "--yes")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Each time a little later than the time before.
		time.Sleep(time.Duration(40+i*90) * time.Millisecond)
		if err := e.Kill(); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if err := e.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.sync(family)
		plan := e.sync(family)
		if plan.Changes() {
			t.Fatalf("after kill %d: two syncs later there is still something to do: %s", i, verbs(plan))
		}
		for _, name := range want {
			e.running(name)
		}
		if i%2 == 1 {
			e.sync("clawbots: []", "--prune")
			continue
		}
		if got := e.names(); !slices.Equal(got, []string{"alone", "first", "own", "second"}) {
			t.Fatalf("after kill %d there are %v", i, got)
		}
	}
}

// names are those of all agents.
func (e *estate) names() (out []string) {
	e.t.Helper()
	text, err := e.Run(e.t.Context(), "agent", "ls", "--json")
	if err != nil {
		e.t.Fatal(err)
	}
	var list []struct{ Name string }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		e.t.Fatalf("%v\n%s", err, text)
	}
	for _, a := range list {
		out = append(out, a.Name)
	}
	slices.Sort(out)
	return out
}
