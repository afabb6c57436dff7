//go:build linux

package agents

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/test/testkit"
)

// modesOfWorkspaces are agents of every mode: with nothing of the host, with a folder that is made for them, with one of the
// operator's, and with one that two share.
const modesOfWorkspaces = `
clawbots:
  - {name: alone}
  - {name: own, workspace: ./workspaces/own}
  - {name: guest, workspace: ./workspaces/theirs}
  - {name: first, workspace: ./workspaces/team}
  - {name: second, workspace: ./workspaces/team, workspace_mode: ro}
`

// An agent looks from inside after each command of its life: at its home, what it has left in /state, what is in /workspace with
// owners and rights, and whether its home can be written. Then it leaves a mark where it can. It is the table of docs/agents.md.
func TestWhatAnAgentHasAfterEachCommandOfItsLife(t *testing.T) {
	e := testkit.NewEstate(t, "")
	if err := errors.Join(os.Mkdir(workspace(e, "theirs"), 0o755), os.WriteFile(workspace(e, "theirs/note"), nil, 0o644),
		os.Chown(workspace(e, "theirs"), 1000, 1000), os.Chown(workspace(e, "theirs/note"), 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	names := []string{"alone", "own", "guest", "first", "second"}
	sees := func(name string) string {
		e.Running(name)
		out := e.MustIn(name, `echo "$AGENT_HOME"; cat /state/mark 2>/dev/null || echo -
find /workspace -mindepth 1 -printf '%P %U %m\n' 2>/dev/null | sort
touch "$AGENT_HOME/mark" 2>/dev/null && echo rw || echo ro
echo stays >/state/mark`)
		return strings.Join(strings.Fields(out), " ")
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := e.Run(t.Context(), slices.Concat([]string{"agent"}, args)...); err != nil {
			t.Fatalf("agent %q: %v\n%s", args, err, out)
		}
	}
	again := func(text string, flags ...string) func() {
		return func() {
			run(slices.Concat([]string{"remove"}, names, []string{"--yes"}, flags)...)
			e.Sync(text)
		}
	}
	renamed := strings.NewReplacer("alone,", "alone2,", "alone}", "alone2}", "own,", "own2,", "guest,", "guest2,", "first,", "first2,", "second,", "second2,").Replace(modesOfWorkspaces)
	const team, teams = "first 1000 755 second 1000 755", "first 1000 755 first/mark 1000 600 second 1000 755"
	const both = "first 1000 755 first/mark 1000 600 first2 1000 755 second 1000 755 second2 1000 755"
	const marked = "first 1000 755 first/mark 1000 600 first2 1000 755 first2/mark 1000 600 second 1000 755 second2 1000 755"
	all := []string{"/state stays rw", "/workspace stays mark 1000 600 rw", "/workspace stays mark 1000 600 note 1000 644 rw",
		"/workspace/first stays " + teams + " rw", "/workspace/second stays " + teams + " ro"}
	for _, command := range []struct {
		what string
		run  func()
		want []string
	}{
		{"added", func() { e.Sync(modesOfWorkspaces) }, []string{"/state - rw", "/workspace - rw", "/workspace - note 1000 644 rw",
			"/workspace/first - " + team + " rw", "/workspace/second - " + teams + " ro"}},
		{"restarted", func() { run(append([]string{"restart"}, names...)...) }, all},
		{"removed with --keep-state and --keep-workspace, and added again", again(modesOfWorkspaces, "--keep-state", "--keep-workspace"), all},
		{"removed with --keep-workspace, and added again", again(modesOfWorkspaces, "--keep-workspace"), []string{"/state - rw", "/workspace - mark 1000 600 rw",
			"/workspace - mark 1000 600 note 1000 644 rw", "/workspace/first - " + teams + " rw", "/workspace/second - " + teams + " ro"}},
		{"removed with --keep-state, and added again", again(modesOfWorkspaces, "--keep-state"), []string{"/state stays rw", "/workspace stays rw",
			"/workspace stays mark 1000 600 note 1000 644 rw", "/workspace/first stays " + team + " rw", "/workspace/second stays " + teams + " ro"}},
		{"under another name in the file, with --prune", func() {
			e.Sync(renamed, "--prune")
			for n := range names {
				names[n] += "2"
			}
		}, []string{"/state - rw", "/workspace - mark 1000 600 rw", "/workspace - mark 1000 600 note 1000 644 rw",
			"/workspace/first2 - " + both + " rw", "/workspace/second2 - " + marked + " ro"}},
		// The folder that own had before own2 is the operator's by now.
		{"removed, and added again", again(renamed), []string{"/state - rw", "/workspace - mark 1000 600 rw", "/workspace - mark 1000 600 note 1000 644 rw",
			"/workspace/first2 - " + both + " rw", "/workspace/second2 - " + marked + " ro"}},
	} {
		command.run()
		for n, name := range names {
			if got := sees(name); got != command.want[n] {
				t.Errorf("%s: %s sees\n%s, not\n%s", command.what, name, got, command.want[n])
			}
		}
	}
}
