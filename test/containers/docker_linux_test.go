//go:build linux

package containers

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// engine is the engine of all tests here, with the image of the agents.
var engine *testenv.Docker

// dock is an instance whose agents are containers of an engine that is the tests' own.
type dock struct{ *testkit.Deployment }

// newDock starts an instance, with more settings of the engine and of the instance.
func newDock(t *testing.T, docker, settings string) *dock {
	t.Helper()
	testenv.Root(t)
	testenv.Tool(t, "dockerd")
	made := engine != nil
	if !made {
		// As the head of the file for Docker Compose asks; a sync asks for it itself.
		engine = testenv.StartDocker(t, "--default-cgroupns-mode=private")
	}
	t.Cleanup(func() { emptyEngine(t) }) // after the instance's end
	d := &dock{testkit.NewEstate(t, "docker: {socket: "+engine.Socket+docker+"}\n"+settings)}
	if !made {
		if out, err := d.Run(t.Context(), "template", "image", "clawbot"); err != nil {
			t.Fatalf("make the image: %v\n%s", err, out)
		}
	}
	return d
}

// emptyEngine removes what a test has left in the engine but images.
func emptyEngine(t *testing.T) {
	var containers []struct{ ID string }
	var volumes struct{ Volumes []struct{ Name string } }
	get := func(path string, into any) {
		if text, err := engine.Ask(http.MethodGet, path); err != nil {
			t.Error(err)
		} else if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Error(err)
		}
	}
	remove := func(path string) {
		if _, err := engine.Ask(http.MethodDelete, path); err != nil {
			t.Error(err)
		}
	}
	get("/containers/json?all=1", &containers)
	for _, c := range containers {
		remove("/containers/" + c.ID + "?force=1")
	}
	get("/volumes", &volumes)
	for _, v := range volumes.Volumes {
		remove("/volumes/" + v.Name + "?force=1")
	}
	if _, err := engine.Ask(http.MethodPost, "/networks/prune"); err != nil {
		t.Error(err)
	}
}

// ask runs the engine's own client, and returns what it printed.
func ask(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "docker"), append([]string{"-H", "unix://" + engine.Socket}, args...)...)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0", "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// example is examples/clawbots.yml.
func example(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Repository(t), "examples", "clawbots.yml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// containers are the names of all that the engine has, ended ones too.
func (d *dock) containers() (out []string) {
	d.T.Helper()
	text, err := engine.Ask(http.MethodGet, "/containers/json?all=1")
	if err != nil {
		d.T.Fatal(err)
	}
	var list []struct{ Names []string }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		d.T.Fatal(err)
	}
	for _, c := range list {
		out = append(out, strings.TrimPrefix(c.Names[0], "/"))
	}
	slices.Sort(out)
	return out
}

// The example of the README, as containers.
func TestTheExampleSyncsTwiceAsContainers(t *testing.T) {
	d := newDock(t, "", "")
	text := example(t)
	if got := testkit.Verbs(d.Sync(text, "--driver", "docker")); got != "create hello, create lookout, create clerk, create writer, create reader" {
		t.Errorf("the plan is %q", got)
	}
	plan := d.Sync(text, "--driver", "docker")
	if plan.Changes() {
		t.Errorf("a second sync does %q", testkit.Verbs(plan))
	}
	all := []string{"clerk", "hello", "lookout", "reader", "writer"}
	var jails []string
	for _, name := range all {
		s := d.Running(name)
		if s.Jail.Driver != "docker" || !jail.Name(s.Jail.Name).InContainer() {
			t.Errorf("%s is of the driver %s, in %s", name, s.Jail.Driver, s.Jail.Name)
		}
		jails = append(jails, s.Jail.Name)
	}
	slices.Sort(jails)
	if got := d.containers(); !slices.Equal(got, jails) {
		t.Errorf("the engine has %v, and the agents are in %v", got, jails)
	}

	// They do what they are for.
	for name, want := range map[string]string{"lookout": `"type":"alive"`, "clerk": `"type":"wrote"`, "reader": `"type":"read"`} {
		testenv.Eventually(t, 30*time.Second, func() bool {
			out, err := d.Run(t.Context(), "agent", "logs", name)
			return err == nil && strings.Contains(out, want)
		}, "%s does not print %s", name, want)
	}
	if out := d.MustIn("writer", "echo \"$AGENT_HOME\"; id -u"); out != "/workspace/writer\n1000\n" {
		t.Errorf("in the writer's container: %q", out)
	}
	if _, err := os.Stat(filepath.Join(d.Dir, "workspaces/clerk/diary")); err != nil {
		t.Errorf("what the clerk writes is not on the host: %v", err)
	}

	d.Confined("clerk", "lookout")
	d.tokensAreNowhere(all)

	// Rotation replaces the file, and not the container.
	was := d.Running("clerk").Jail
	before := d.MustIn("clerk", "cat /run/hermit/token")
	if _, err := d.Run(t.Context(), "agent", "token", "rotate", "clerk"); err != nil {
		t.Fatal(err)
	}
	if after := d.MustIn("clerk", "cat /run/hermit/token"); after == before || !strings.HasPrefix(after, "cjagt_") {
		t.Errorf("the token is the same: %v", after == before)
	}
	if is := d.Running("clerk").Jail; is.Name != was.Name || is.PID != was.PID {
		t.Error("the container is another one")
	}
	d.MustIn("clerk", "curl -sf --noproxy '*' -H \"Authorization: Bearer $(cat /run/hermit/token)\" \"$SHELL_URL/v1/sessions\"")

	// One that is removed behind its back comes back, with its state.
	d.MustIn("lookout", "echo kept > /state/mark")
	gone := d.Running("lookout").Jail.Name
	if _, err := engine.Ask(http.MethodDelete, "/containers/"+gone+"?force=1"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		j := d.Show("lookout").Jail
		return j != nil && j.Name != gone && j.Phase == jail.PhaseRunning
	}, "a container that somebody removed does not come back")
	if got := d.MustIn("lookout", "cat /state/mark"); got != "kept\n" {
		t.Errorf("its state has %q", got)
	}

	// And what is removed for good leaves nothing in the engine.
	d.Sync("clawbots: []", "--prune")
	if got := d.containers(); len(got) > 0 {
		t.Errorf("after the last agent the engine has %v", got)
	}
	if out, err := engine.Ask(http.MethodGet, "/volumes"); err != nil || strings.Contains(out, "hermit_state_") {
		t.Errorf("after the last agent the engine has volumes: %v\n%s", err, out)
	}
}

// tokensAreNowhere looks for tokens where others could read them.
func (d *dock) tokensAreNowhere(names []string) {
	t := d.T
	t.Helper()
	tokens := map[string]string{}
	for _, name := range names {
		token := strings.TrimSpace(d.MustIn(name, "cat /run/hermit/token"))
		if len(token) < 20 {
			t.Fatalf("the token of %s has %d characters: the search shows nothing", name, len(token))
		}
		tokens[name] = token
	}
	// A canary shows that the search finds what is there.
	canary := exec.Command("sleep", "60")
	canary.Env = []string{"CANARY=cjagt_canary_for_the_search"}
	if err := canary.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = canary.Process.Kill(), canary.Wait() }() // its status says that it was killed
	tokens["the canary"] = "cjagt_canary_for_the_search"
	found := map[string]bool{}
	search := func(where, text string) {
		for of, token := range tokens {
			if strings.Contains(text, token) {
				found[of] = true
				if of != "the canary" {
					t.Errorf("the token of %s is in %s", of, where)
				}
			}
		}
	}
	containers := d.containers()
	if len(containers) < len(names) {
		t.Errorf("the search is in %q only", containers)
	}
	for _, name := range containers {
		for _, what := range []string{"/json", "/top", "/logs?stdout=1&stderr=1"} {
			text, err := engine.Ask(http.MethodGet, "/containers/"+name+what)
			if err != nil {
				t.Fatal(err)
			}
			if what == "/json" && !strings.Contains(text, name) {
				t.Errorf("the engine does not describe %s: %.100s", name, text)
			}
			search("docker "+what, text)
		}
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		for _, file := range []string{"cmdline", "environ"} {
			text, _ := os.ReadFile(filepath.Join("/proc", p.Name(), file)) // a process may have ended, or be none
			search("a process's "+file, string(text))
		}
	}
	search("the log", d.Log())
	if !found["the canary"] {
		t.Error("the search does not find what is there")
	}
}

// lazily is a list that is asked for when it is printed.
type lazily func() []string

func (l lazily) String() string { return strings.Join(l(), " ") }
