//go:build linux

package agents

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// workspace is a path beneath the root of an estate's workspaces.
func workspace(e *testkit.Deployment, path string) string {
	return filepath.Join(e.Dir, "workspaces", path)
}

// there says whether something is there, link or not.
func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// With an agent goes the folder that was made for it, unless it is to be kept. A folder of the operator's stays, and so does one
// that another agent has had, whatever the agent has planted.
func TestRemovingAnAgentRemovesTheFolderThatWasMadeForIt(t *testing.T) {
	e := testkit.NewEstate(t, "")
	outside := filepath.Join(e.Dir, "outside")
	if err := errors.Join(os.Mkdir(outside, 0o777), os.Chmod(outside, 0o777), os.WriteFile(filepath.Join(outside, "stays"), nil, 0o666),
		os.Mkdir(workspace(e, "theirs"), 0o755), os.WriteFile(workspace(e, "theirs/stays"), nil, 0o644),
		os.Chown(workspace(e, "theirs"), 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	e.Sync(`
clawbots:
  - {name: made, workspace: ./workspaces/made}
  - {name: silent, workspace: ./workspaces/silent}
  - {name: guest, workspace: ./workspaces/theirs}
  - {name: first, workspace: ./workspaces/team}
  - {name: second, workspace: ./workspaces/team}
`)
	removed := func(name string) {
		t.Helper()
		if out, err := e.Run(t.Context(), "agent", "remove", name, "--yes"); err != nil {
			t.Fatalf("remove %s: %v\n%s\n%.3000s", name, err, out, e.Log())
		}
		if out, err := e.Run(t.Context(), "agent", "show", name); err == nil {
			t.Errorf("%s is there still: %s", name, out)
		}
	}
	for _, name := range []string{"made", "silent", "guest"} {
		e.MustIn(name, "echo x > /workspace/file && mkdir -p /workspace/"+strings.Repeat("d/", 100)+" && ln -s "+outside+" /workspace/out && ln -s "+
			outside+"/stays /workspace/d/file && ln -s ../theirs /workspace/neighbour")
	}
	e.MustIn("second", "echo x > /workspace/second/file")
	e.MustIn("first", "rm -r /workspace/first && ln -s ../theirs /workspace/first")

	t.Run("only when it is said", func(t *testing.T) {
		if out, err := e.Run(t.Context(), "agent", "remove", "made"); err == nil || !strings.Contains(err.Error()+out, "workspace folders that clawjail made") {
			t.Errorf("it is removed without a question: %v %s", err, out)
		}
		if err := client.Do(t.Context(), e.API, op.RemoveAgent(), op.AgentRemoved{OneAgent: op.OneAgent{Name: "silent"}, KeepWorkspace: true}); err != nil || !there(workspace(e, "silent/file")) {
			t.Errorf("over the API, where nothing is said of the folder, it is gone: %v", err)
		}
	})
	t.Run("its own folder", func(t *testing.T) {
		if !there(workspace(e, "made/out")) {
			t.Fatal("there is nothing to be removed")
		}
		removed("made")
		if there(workspace(e, "made")) {
			t.Error("the folder is there")
		}
	})
	t.Run("in a shared one", func(t *testing.T) {
		removed("first")
		removed("second")
		if there(workspace(e, "team/second")) || !there(workspace(e, "team")) {
			t.Error("the agent's folder is there, or the shared one is gone")
		}
	})
	t.Run("the operator's", func(t *testing.T) {
		removed("guest")
		if !there(workspace(e, "theirs/stays")) || !there(workspace(e, "theirs/file")) {
			t.Error("a folder of the operator's was removed")
		}
	})
	t.Run("a folder of the same name", func(t *testing.T) {
		e.Sync("clawbots: [{name: again, workspace: ./workspaces/again}]")
		e.Running("again")
		// The operator has put another in its place, with a copy of what was in it.
		if err := errors.Join(os.Rename(workspace(e, "again"), workspace(e, "moved")), os.Mkdir(workspace(e, "again"), 0o755),
			os.WriteFile(workspace(e, "again/stays"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		value := make([]byte, 256)
		n, err := syscall.Getxattr(workspace(e, "moved"), "trusted.clawjail.made", value)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Setxattr(workspace(e, "again"), "trusted.clawjail.made", value[:n], 0); err != nil {
			t.Fatal(err)
		}
		removed("again")
		if !there(workspace(e, "again/stays")) || !there(workspace(e, "moved")) {
			t.Error("a folder that was not made for it is gone")
		}
	})
	if !there(filepath.Join(outside, "stays")) || !there(workspace(e, "theirs/stays")) {
		t.Error("a link of an agent's led to the removal of what is outside")
	}
}

// An agent whose removal was begun is gone after a cut of everything at once, whenever that is: none is back, and none is left
// without the half of it.
func TestARemovalThatIsCutIsFinished(t *testing.T) {
	e := testkit.NewEstate(t, "")
	barriers := filepath.Join(e.Config.RunDir, "barriers")
	if err := os.Mkdir(barriers, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, step := range []jail.Step{jail.StepTerminate, jail.StepForget} {
		t.Run(string(step), func(t *testing.T) {
			e.Sync("clawbots: [{name: bot, workspace: ./workspaces/bot}, {name: other}]")
			e.Running("bot")
			armed := filepath.Join(barriers, string(step))
			if err := os.WriteFile(armed, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go func() {
				done <- client.Do(ctx, e.API, op.RemoveAgent(), op.AgentRemoved{OneAgent: op.OneAgent{Name: "bot"}})
			}()
			testenv.Eventually(t, 20*time.Second, func() bool { return there(armed + ".reached") }, "the step %s was not reached", step)
			for _, half := range []string{"serve", "hostd"} {
				for _, pid := range e.Victims(half) {
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := errors.Join(os.Remove(armed), os.Remove(armed+".reached")); err != nil {
				t.Error(err)
			}
			if err := <-done; err == nil {
				t.Error("it was removed before the cut: this shows nothing")
			}
			e.Ready()
			testenv.Eventually(t, 30*time.Second, func() bool {
				all, err := client.Call(t.Context(), e.API, op.ListAgents(), op.OfTenant{})
				return err == nil && all.JailsUnknown == nil && len(all.Agents) == 1 && all.Agents[0].Name == "other" && !there(workspace(e, "bot"))
			}, "the agent is back, or a part of it")
			e.Running("other")
		})
	}
}
