//go:build linux

package agents

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

func TestSyncMakesTheMachineMatchTheFile(t *testing.T) {
	e := testkit.NewEstate(t, "")
	if got := testkit.Verbs(e.Sync(testkit.Family, "--dry-run")); got != "create alone, create own, create first, create second" {
		t.Errorf("the plan is %q", got)
	}
	if out, err := e.Run(t.Context(), "agent", "ls", "--json"); err != nil || strings.Contains(out, "alone") {
		t.Errorf("a dry run has made something: %v\n%s", err, out)
	}
	plan := e.Sync(testkit.Family)
	for _, s := range plan.Steps {
		if !s.Done || s.Problem != "" {
			t.Errorf("%s: %+v", s.Name, s)
		}
	}
	if got := testkit.Verbs(e.Sync(testkit.Family)); got != "unchanged alone, unchanged own, unchanged first, unchanged second" {
		t.Errorf("a second sync does %q", got)
	}

	for _, name := range []string{"alone", "own", "first", "second"} {
		e.Running(name)
	}
	// A change of what shapes the jail makes a new one; others are left alone.
	before, other := e.Running("alone").Jail.Name, e.Running("own").Jail.Name
	changed := strings.Replace(testkit.Family, "- name: alone", "- name: alone\n    limits: {memory: 300MiB}", 1)
	if got := testkit.Verbs(e.Sync(changed)); got != "restart alone, unchanged own, unchanged first, unchanged second" {
		t.Errorf("a change of a limit does %q", got)
	}
	if after := e.Running("alone").Jail.Name; after == before {
		t.Error("the jail is the one before")
	}
	if e.Running("own").Jail.Name != other {
		t.Error("the jail of another agent is a new one")
	}
	// A rule needs no new jail.
	ruled := strings.Replace(changed, "- name: own", "- name: own\n    allow: [example.com]", 1)
	if got := testkit.Verbs(e.Sync(ruled)); got != "unchanged alone, change own, unchanged first, unchanged second" {
		t.Errorf("a rule does %q", got)
	}
	if e.Running("own").Jail.Name != other {
		t.Error("a rule made a new jail")
	}

	// An agent that is in the file no more stays, until it is pruned.
	fewer := "clawbots:\n  - name: own\n    allow: [example.com]\n    workspace: ./workspaces/own\n"
	if got := testkit.Verbs(e.Sync(fewer)); got != "unchanged own, extra alone, extra first, extra second" {
		t.Errorf("a shorter file does %q", got)
	}
	if got := testkit.Verbs(e.Sync(fewer, "--prune")); got != "unchanged own, remove alone, remove first, remove second" {
		t.Errorf("pruning does %q", got)
	}
	// And can be added again.
	if got := testkit.Verbs(e.Sync(testkit.Family)); got != "create alone, change own, create first, create second" {
		t.Errorf("adding again does %q", got)
	}
}

func TestFilesThatCannotBeAreRefusedBeforeAnyChange(t *testing.T) {
	e := testkit.NewEstate(t, "")
	if err := os.Symlink("/etc", filepath.Join(e.Dir, "workspaces", "out")); err != nil {
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
		out, err := e.Run(t.Context(), "agent", "sync", "-f", e.File(test.text), "--yes")
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
	e := testkit.NewEstate(t, "")
	e.Sync(testkit.Family)
	e.Confined("own", "alone")
}

func TestAgentsRunOnThroughRestartsOfBothDaemons(t *testing.T) {
	e := testkit.NewEstate(t, "")
	e.Sync(`
clawbots:
  - name: counter
    command: [/bin/sh, -c, 'i=0; while :; do i=$((i+1)); echo "{\"type\":\"tick\",\"n\":$i}"; sleep 0.02; done']
`)
	was := e.Running("counter").Jail
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
	is := e.Running("counter").Jail
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
	if out := e.MustIn("counter", "cat /run/hermit/token"); !strings.HasPrefix(out, "cjagt_") {
		t.Errorf("the token is %q", out[:min(4, len(out))])
	}
}

func TestRotationReplacesTheTokenWithoutARestart(t *testing.T) {
	e := testkit.NewEstate(t, "")
	e.Sync("clawbots: [{name: bot}]")
	was := e.Running("bot").Jail
	before := e.MustIn("bot", "cat /run/hermit/token")
	if _, err := e.Run(t.Context(), "agent", "token", "rotate", "bot"); err != nil {
		t.Fatal(err)
	}
	after := e.MustIn("bot", "cat /run/hermit/token")
	if after == before || len(after) < 20 {
		t.Errorf("the token is %d characters, and the same: %v", len(after), after == before)
	}
	if is := e.Running("bot").Jail; is.Name != was.Name || is.PID != was.PID {
		t.Error("the jail is another one")
	}
	e.MustIn("bot", "curl -sf --noproxy '*' -H \"Authorization: Bearer $(cat /run/hermit/token)\" \"$SHELL_URL/v1/sessions\"")
}

// Whatever is killed at whichever step of a sync, the next one converges.
func TestSyncConvergesAfterEveryKill(t *testing.T) {
	testenv.Time(t)
	e := testkit.NewEstate(t, "")
	want := []string{"alone", "own", "first", "second"}
	for i := range 6 {
		cmd := e.Command(t.Context(), "agent", "sync", "-f", e.File(testkit.Family), "--yes")
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
		e.Sync(testkit.Family)
		plan := e.Sync(testkit.Family)
		if plan.Changes() {
			t.Fatalf("after kill %d: two syncs later there is still something to do: %s", i, testkit.Verbs(plan))
		}
		for _, name := range want {
			e.Running(name)
		}
		if i%2 == 1 {
			e.Sync("clawbots: []", "--prune")
			continue
		}
		if got := e.Names(); !slices.Equal(got, []string{"alone", "first", "own", "second"}) {
			t.Fatalf("after kill %d there are %v", i, got)
		}
	}
}
