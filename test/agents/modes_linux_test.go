package agents

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// modes is a file with the three modes of workspaces, as people write it who have configured nothing.
func modes(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Repository(t), "internal/clawbots/testdata/origin.yml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// aHome is a folder of a user of the host, with a file in it.
func aHome(t *testing.T, text string) (file, home string) {
	t.Helper()
	home, err := os.MkdirTemp("/var/lib/clawjail", "test-home-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.RemoveTrees(t, home) })
	file = filepath.Join(home, "clawbots.yml")
	if err := errors.Join(os.WriteFile(file, []byte(text), 0o644), os.Chmod(home, 0o755), os.Chown(home, 4321, 4321)); err != nil {
		t.Fatal(err)
	}
	return file, home
}

// asBuilt is an instance without any configuration about agents, with the rights of the unit that a package installs.
func asBuilt(t *testing.T) *testkit.Deployment {
	t.Helper()
	testenv.Root(t)
	templates := filepath.Dir(testenv.TemplateNamed(t, "clawbot"))
	b := testkit.PrepareWith(t, instance.Options{Settings: testkit.NoPool}, func(o *instance.Options, _ string) { o.Templates = templates })
	b.AsUnit(t)
	b.Up()
	return &testkit.Deployment{Installation: b}
}

// typing runs a command on a terminal at which somebody answers.
func typing(e *testkit.Deployment, answer string, args ...string) (string, error) {
	e.T.Helper()
	person, program := testenv.Terminal(e.T)
	if _, err := person.WriteString(answer + "\n"); err != nil {
		e.T.Fatal(err)
	}
	cmd := e.Command(e.T.Context(), args...)
	cmd.Stdin = program
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestTheThreeModesOfWorkspacesComeUpWithoutAConfiguration(t *testing.T) {
	e := asBuilt(t)
	text := modes(t)
	file, home := aHome(t, text)
	workspaces := filepath.Join(home, "workspaces")
	untouched := func(when string) {
		t.Helper()
		for _, path := range []string{workspaces, hostd.WorkspaceRootsFile(e.Config)} {
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("%s there is %s: %v", when, path, err)
			}
		}
		if out, err := e.Run(t.Context(), "agent", "ls", "--json"); err != nil || strings.Contains(out, "-bot") {
			t.Errorf("%s there are agents: %v\n%s", when, err, out)
		}
	}

	// No agent is given a folder that root has not said yes to: --yes is about other things.
	_, err := e.Run(t.Context(), "agent", "sync", "-f", file, "--yes")
	if err == nil || !strings.Contains(err.Error(), "which are not allowed yet") || !strings.Contains(err.Error(), "--allow-folders") {
		t.Fatalf("off a terminal: %v", err)
	}
	untouched("off a terminal")
	out, err := typing(e, "n", "agent", "sync", "-f", file)
	if err == nil || !strings.Contains(out, workspaces+"   of user 4321") || !strings.Contains(out, "nothing was changed") {
		t.Fatalf("after a no: %v\n%s", err, out)
	}
	untouched("after a no")
	if out, err = typing(e, "y", "agent", "sync", "-f", file); err != nil || !strings.Contains(out, "5 to create") ||
		!strings.Contains(out, "may be given folders beneath "+workspaces+" from now on") {
		t.Fatalf("after a yes: %v\n%s\n%.4000s", err, out, e.Log())
	}

	look := func(when string) {
		t.Helper()
		for _, name := range []string{"dev-bot", "archive-bot", "researcher-bot", "writer-bot", "reviewer-bot"} {
			e.Running(name)
			e.MustIn(name, `test -s /run/hermit/token && test "$AGENT_NAME" = `+name+` && test -n "$SHELL_URL" && test "$(id -u)" = 1000 && : > /state/file`)
			testenv.Eventually(t, 30*time.Second, func() bool {
				log, err := e.Run(t.Context(), "agent", "logs", name)
				return err == nil && strings.Contains(log, `"type":"alive","agent":"`+name+`"`) && strings.Contains(log, `"gateway":"200"`)
			}, "%s: %s does not say that it is alive", when, name)
		}
		// Isolated: nothing of the host.
		e.MustIn("dev-bot", `test "$AGENT_HOME" = /state && test -z "$(ls -A /workspace 2>/dev/null)" && ! grep -q " /workspace " /proc/mounts`)
		// Dedicated, and read-only.
		if err := os.WriteFile(filepath.Join(workspaces, "archive/note"), []byte("old\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := e.MustIn("archive-bot", `test "$AGENT_HOME" = /workspace && cat /workspace/note`); got != "old\n" {
			t.Errorf("%s: the dedicated folder has %q", when, got)
		}
		if _, err := e.In("archive-bot", ": > /workspace/x"); err == nil {
			t.Errorf("%s: a workspace that is ro can be written", when)
		}
		// Shared: each has a folder of its name, and sees what the others make.
		e.MustIn("researcher-bot", `test "$AGENT_HOME" = /workspace/researcher-bot && echo found > /workspace/researcher-bot/notes`)
		if got := e.MustIn("writer-bot", `test "$AGENT_HOME" = /workspace/writer-bot && cat /workspace/researcher-bot/notes && echo more >> /workspace/researcher-bot/notes`); got != "found\n" {
			t.Errorf("%s: the writer reads %q", when, got)
		}
		if got := e.MustIn("reviewer-bot", `test "$AGENT_HOME" = /workspace/reviewer-bot && cat /workspace/researcher-bot/notes`); got != "found\nmore\n" {
			t.Errorf("%s: the reviewer reads %q", when, got)
		}
		if _, err := e.In("reviewer-bot", ": > /workspace/reviewer-bot/x"); err == nil {
			t.Errorf("%s: the reviewer writes", when)
		}
	}
	look("after the first sync")
	// Files that agents make in a user's folder are that user's, and not those of user 1000.
	for _, path := range []string{"", "archive", "project-x", "project-x/writer-bot", "project-x/researcher-bot/notes"} {
		info, err := os.Lstat(filepath.Join(workspaces, path))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 4321 {
			t.Errorf("workspaces/%s is of user %d", path, st.Uid)
		}
	}

	// The yes is remembered: by a later sync, and by the next start.
	if plan := synced(e, file); plan != "unchanged dev-bot, unchanged archive-bot, unchanged researcher-bot, unchanged writer-bot, unchanged reviewer-bot" {
		t.Errorf("a second sync does %s", plan)
	}
	if err := e.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Up()
	look("after a restart")

	// A line that is removed takes it back: the folder is not opened any more.
	if err := os.Remove(hostd.WorkspaceRootsFile(e.Config)); err != nil {
		t.Fatal(err)
	}
	more := strings.Replace(text, "- name: dev-bot", "- name: late-bot\n    workspace: ./workspaces/late\n\n  - name: dev-bot", 1)
	if err := os.WriteFile(file, []byte(more), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Run(t.Context(), "agent", "sync", "-f", file, "--yes"); err == nil || !strings.Contains(err.Error(), "which are not allowed yet") {
		t.Errorf("after it was taken back: %v", err)
	}
	// In a script root says yes with a flag of its own.
	if _, err := e.Run(t.Context(), "agent", "sync", "-f", file, "--allow-folders"); err != nil {
		t.Errorf("with --allow-folders: %v", err)
	}
	e.Running("late-bot")
}

// synced syncs a file, and returns what was done.
func synced(e *testkit.Deployment, file string) string {
	e.T.Helper()
	out, err := e.Run(e.T.Context(), "agent", "sync", "-f", file, "--json")
	if err != nil {
		e.T.Fatal(err)
	}
	return testkit.Verbs(testkit.PlanOf(e.T, out))
}

func TestTheDefaultFolderForWorkspacesNeedsNoConfigurationAndIsRootsAlone(t *testing.T) {
	e := asBuilt(t)
	common := e.Config.Workspaces()
	if info, err := os.Lstat(common); err != nil || info.Mode().Perm() != 0o700 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the folder: %v, %v", info, err)
	}
	file, _ := aHome(t, "clawbots:\n  - {name: one, workspace: "+common+"/team}\n  - {name: two, workspace: "+common+"/team}\n")
	if plan := synced(e, file); plan != "create one, create two" {
		t.Errorf("the plan is %s", plan)
	}
	e.Running("one")
	e.Running("two")
	e.MustIn("one", "echo mine > /workspace/one/file")
	if got := e.MustIn("two", "cat /workspace/one/file"); got != "mine\n" {
		t.Errorf("the other reads %q", got)
	}
	// Another tenant has its own folder there, and reaches no other: neither by name nor by a link.
	if _, err := e.Run(t.Context(), "tenant", "create", "team"); err != nil {
		t.Fatal(err)
	}
	for what, path := range map[string]string{"the other's folder, which has its name": common + "/team", "one in it": common + "/team/one", "all": common, "elsewhere": common + "/x"} {
		text := "clawbots: [{name: theirs, workspace: " + path + "}]"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Run(t.Context(), "agent", "sync", "-f", file, "--tenant", "team", "--allow-folders"); err == nil {
			t.Errorf("the tenant team has %s", what)
		}
	}
	if err := os.WriteFile(file, []byte("clawbots: [{name: theirs, workspace: "+common+"/team/free}]"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Run(t.Context(), "agent", "sync", "-f", file, "--tenant", "team"); err == nil {
		t.Error("a folder in one of the default tenant's agents is another tenant's")
	}
	// With the agents of the default tenant gone it is free: the refusals above were about them.
	for _, name := range []string{"one", "two"} {
		if _, err := e.Run(t.Context(), "agent", "remove", name, "--yes"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Run(t.Context(), "agent", "sync", "-f", file, "--tenant", "team"); err != nil {
		t.Error(err)
	}
}

func TestATemplateIsBuiltWhenAgentsNeedItAndNotBefore(t *testing.T) {
	b := testkit.OnANewMachine(t)
	b.Up() // with --no-build
	file, _ := aHome(t, "clawbots: [{name: bot}]")
	of := func(args []string) string {
		if args[0] == "agent" {
			return "clawbot"
		}
		return "browser"
	}
	for _, args := range [][]string{{"agent", "sync", "-f", file, "--no-build"}, {"agent", "sync", "-f", file, "--dry-run"}, {"agent", "add", "bot", "--no-build"},
		{"session", "open", "--no-build"}, {"cookies", "refresh", "example.com", "--no-build"}} {
		out, err := b.Command(t.Context(), args...).CombinedOutput()
		if err == nil || strings.Contains(string(out), "bootstrap") || !strings.Contains(string(out), "clawjail template build "+of(args)) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	// The mirror is nobody: that it is asked shows that the template is being built.
	for _, args := range [][]string{{"agent", "sync", "-f", file}, {"agent", "add", "bot"}, {"session", "open"}, {"cookies", "refresh", "example.com"}} {
		out, err := b.Command(t.Context(), args...).CombinedOutput()
		for _, want := range []string{"there is no template " + of(args) + " yet", " GiB of the disk", "bootstrap\n", "hint: ", "clawjail template import " + of(args) + ".tar"} {
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("%v does not say %q: %v\n%s", args, want, err, out)
			}
		}
	}
	if out, err := b.Run(t.Context(), "agent", "ls", "--json"); err != nil || strings.Contains(out, strconv.Quote("bot")) {
		t.Errorf("there is an agent: %v\n%s", err, out)
	}
}
