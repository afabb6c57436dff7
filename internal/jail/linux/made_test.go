//go:build linux

package linux

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/safepath"
	"github.com/clawjail/clawjail/internal/testenv"
)

// A host daemon that was killed between making a folder and giving it away leaves one that the agent could not enter.
func TestAHalfMadeWorkspaceIsFinished(t *testing.T) {
	testenv.Need(t, testenv.Root)
	for name, test := range map[string]struct {
		half bool
		full bool // there is something in it
		m    jail.Mount
		mode uint32 // of the folder a, in the end
		uid  uint32
	}{
		"the workspace":      {true, false, jail.Mount{Source: "a"}, 0o755, jail.AgentUID},
		"a folder above it":  {true, false, jail.Mount{Source: "a/b"}, 0o755, jail.AgentUID},
		"a shared one":       {true, false, jail.Mount{Source: "a", Make: []string{"bot"}}, 0o755, jail.AgentUID},
		"the operator's own": {false, false, jail.Mount{Source: "a"}, 0o750, 0},
		// An agent that shares it could keep the others out.
		"one in use that has got the mode": {true, true, jail.Mount{Source: "a", Make: []string{"bot"}}, safepath.Unfinished, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			must(t, os.Mkdir(filepath.Join(root, "a"), 0o750))
			if test.half {
				must(t, unix.Chmod(filepath.Join(root, "a"), safepath.Unfinished))
			}
			if test.full {
				must(t, os.WriteFile(filepath.Join(root, "a/file"), nil, 0o600))
			}
			m := test.m
			m.Source, m.Target = filepath.Join(root, m.Source), jail.WorkspaceDir
			f, err := OpenMount([]string{root}, bot, m, jail.AgentUID)
			must(t, err)
			must(t, f.Close())
			var st unix.Stat_t
			must(t, unix.Stat(filepath.Join(root, "a"), &st))
			if st.Mode&0o7777 != test.mode || st.Uid != test.uid {
				t.Errorf("the folder has mode %o and is of %d", st.Mode&0o7777, st.Uid)
			}
		})
	}
}

// Agents that are given one folder are begun at once. None fails, and the folder is not removed with one of them.
func TestAFolderThatTwoAgentsMakeAtOnceIsOfNeither(t *testing.T) {
	testenv.Need(t, testenv.Root)
	root := t.TempDir()
	roots := []string{root}
	twin := Holder{Installation: bot.Installation, Agent: jail.Agent{Tenant: bot.Agent.Tenant, Name: "twin"}}
	opens := func(m jail.Mount, who ...Holder) {
		t.Helper()
		var all sync.WaitGroup
		for _, h := range who {
			all.Go(func() {
				f, err := OpenMount(roots, h, m, jail.AgentUID)
				if err != nil {
					t.Error(err)
					return
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	left := func(m jail.Mount, h Holder) bool {
		t.Helper()
		must(t, RemoveMade(context.Background(), roots, h, []jail.Mount{m}))
		_, err := os.Stat(m.Source)
		return err == nil
	}
	for n := range 300 {
		for _, shares := range [][]string{nil, {"bot"}} {
			m := jail.Mount{Source: filepath.Join(root, fmt.Sprint("of", n, len(shares))), Target: jail.WorkspaceDir, Make: shares}
			opens(m, bot, twin)
			if t.Failed() {
				t.FailNow()
			}
			var st unix.Stat_t
			must(t, unix.Stat(m.Source, &st))
			if st.Mode&0o7777 != 0o755 || st.Uid != jail.AgentUID {
				t.Fatalf("round %d: the folder has mode %o and is of %d", n, st.Mode&0o7777, st.Uid)
			}
			if !left(m, bot) || !left(m, twin) {
				t.Fatalf("round %d: it was removed with one of them", n)
			}
		}
	}
	one := jail.Mount{Source: filepath.Join(root, "one"), Target: jail.WorkspaceDir}
	opens(one, bot)
	if !left(one, twin) || left(one, bot) {
		t.Error("a folder that was made for one agent is removed with another, or stays")
	}
}
