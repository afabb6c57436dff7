//go:build linux

package containers

import (
	"encoding/json"
	"errors"
	"fmt"
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

// dock is an instance whose agents are containers of an engine that is this test's own.
type dock struct {
	*testkit.Estate
	engine *testenv.Docker
}

func newDock(t *testing.T, daemon ...string) *dock {
	t.Helper()
	return newDockWith(t, "", daemon...)
}

// newDockWith is newDock with more settings.
func newDockWith(t *testing.T, settings string, daemon ...string) *dock {
	t.Helper()
	return newDockSet(t, "", settings, daemon...)
}

// newDockSet is newDockWith with more settings of the engine.
func newDockSet(t *testing.T, docker, settings string, daemon ...string) *dock {
	t.Helper()
	testenv.Root(t)
	testenv.Tool(t, "dockerd")
	engine := testenv.StartDocker(t, daemon...)
	t.Cleanup(func() { // after the instance's end
		if err := engine.Stop(); err != nil {
			t.Errorf("stop the engine: %v", err)
		}
	})
	d := &dock{testkit.NewEstate(t, "docker: {socket: "+engine.Socket+docker+"}\n"+settings), engine}
	if out, err := d.Run(t.Context(), "template", "image", "clawbot"); err != nil {
		t.Fatalf("make the image: %v\n%s", err, out)
	}
	return d
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
	text, err := d.engine.Ask(http.MethodGet, "/containers/json?all=1")
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
	d := newDock(t)
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
	if _, err := d.engine.Ask(http.MethodDelete, "/containers/"+gone+"?force=1"); err != nil {
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
	if out, err := d.engine.Ask(http.MethodGet, "/volumes"); err != nil || strings.Contains(out, "hermit_state_") {
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
	for _, name := range d.containers() {
		for _, what := range []string{"/json", "/top", "/logs?stdout=1&stderr=1"} {
			text, err := d.engine.Ask(http.MethodGet, "/containers/"+name+what)
			if err != nil {
				t.Fatal(err)
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

// Whatever is killed in the middle of a sync, the engine too, the next one converges.
func TestSyncOfContainersConvergesAfterEveryKill(t *testing.T) {
	testenv.Time(t)
	d := newDock(t)
	want := []string{"alone", "first", "own", "second"}
	// The network is there before. An engine that is killed while it makes one can keep the bridge and forget the network, and
	// never makes it again.
	d.Sync(testkit.Family, "--driver", "docker")
	d.Sync("clawbots: []", "--prune")
	for i := range 4 {
		cmd := d.Command(t.Context(), "agent", "sync", "-f", d.File(testkit.Family), "--driver", "docker", "--yes")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Each time a little later than the time before.
		time.Sleep(time.Duration(150+i*350) * time.Millisecond)
		kills := []func() error{d.engine.Kill, d.Kill}
		if i%2 == 1 {
			slices.Reverse(kills)
		}
		if err := errors.Join(kills[0](), kills[1]()); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if err := errors.Join(d.engine.Start(), d.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		d.Sync(testkit.Family, "--driver", "docker")
		if plan := d.Sync(testkit.Family, "--driver", "docker"); plan.Changes() {
			t.Fatalf("after kill %d: two syncs later there is still something to do: %s", i, testkit.Verbs(plan))
		}
		var jails []string
		for _, name := range want {
			jails = append(jails, d.Running(name).Jail.Name)
		}
		if got := d.Names(); !slices.Equal(got, want) {
			t.Fatalf("after kill %d there are %v", i, got)
		}
		slices.Sort(jails)
		testenv.Eventually(t, 45*time.Second, func() bool { return slices.Equal(d.containers(), jails) },
			"after kill %d the engine has %v, and the agents are in %v", i, fmt.Stringer(lazily(d.containers)), jails)
		if i%2 == 1 {
			d.Sync("clawbots: []", "--prune")
		}
	}
}

// lazily is a list that is asked for when it is printed.
type lazily func() []string

func (l lazily) String() string { return strings.Join(l(), " ") }
