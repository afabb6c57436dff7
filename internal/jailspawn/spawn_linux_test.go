package jailspawn_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jailspawn"
	"github.com/clawjail/clawjail/internal/jailspawn/process"
	"github.com/clawjail/clawjail/internal/jailspawn/spawntest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func run(t *testing.T, ctx context.Context, h *spawntest.Host, m jailspawn.Mode, c jailspawn.JailConfig, prog jail.Program, stdin string) (process.Exit, string, string, error) {
	t.Helper()
	dir := t.TempDir()
	open := func(name, text string) *os.File {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	in, out, errs := open("in", stdin), open("out", ""), open("err", "")
	exit, err := jailspawn.New(jailspawn.Options{Mode: m, Commands: hostcmd.Runner{Dir: h.Commands}}).Run(ctx, c, prog, jailspawn.Stdio{In: in, Out: out, Err: errs})
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	return exit, read("out"), read("err"), err
}

func TestTheWholeTreeEndsWithItsCaller(t *testing.T) {
	for _, m := range []jailspawn.Mode{jailspawn.ModeNone, jailspawn.ModeMDO} {
		for _, ephemeral := range []bool{false, true} {
			h := spawntest.New(t)
			c := jailspawn.JailConfig{Name: "mcp0", RootPath: h.Root, User: spawntest.User}
			if ephemeral {
				c.Name, c.RootPath, c.Path = "", "", h.Root
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended, watched := make(chan struct{}), make(chan bool)
			go func() {
				for len(h.Inside()) < 4 {
					select {
					case <-ended:
						watched <- false
						return
					case <-time.After(10 * time.Millisecond):
					}
				}
				cancel()
				watched <- true
			}()
			prog := jail.Program{Argv: []string{"/bin/sh", "-c", "setsid sleep 1000 & (setsid sleep 1000 &) ; sleep 1000"}}
			_, _, _, err := run(t, ctx, h, m, c, prog, "")
			close(ended)
			if !<-watched {
				t.Errorf("%s, ephemeral %v: it ended before all of its processes were there: %v", m, ephemeral, err)
			}
			if left := h.Inside(); len(left) > 0 || len(h.Staged()) > 0 || err != nil {
				t.Errorf("%s, ephemeral %v: %q and %q are left: %v", m, ephemeral, left, h.Staged(), err)
			}
			cancel()
		}
	}
}

func TestWhatAProgramLeavesBehindEndsWithIt(t *testing.T) {
	h := spawntest.New(t)
	c := jailspawn.JailConfig{Name: "mcp0", RootPath: h.Root, User: spawntest.User}
	exit, _, _, err := run(t, t.Context(), h, jailspawn.ModeMDO, c, jail.Program{Argv: []string{"/bin/sh", "-c", "(setsid sleep 1000 &); exit 3"}}, "")
	if left := h.Inside(); err != nil || exit.Code != 3 || len(left) > 0 {
		t.Errorf("%+v, %v, %q are left", exit, err, left)
	}
}

func TestWhatAKilledCallerStagedIsRemovedByTheNext(t *testing.T) {
	h := spawntest.New(t)
	stage := h.Root + spawntest.Home + "/.cache/clawjail/stage/"
	for id, pid := range map[string]string{strings.Repeat("a", 32): "4194304", strings.Repeat("b", 32): "1", "mine": "4194304"} {
		if err := os.MkdirAll(stage+id, 0o700); err != nil {
			t.Fatal(err)
		}
		h.Write(stage+id+"/wrapper", pid+"\n")
		h.Write(stage+id+"/env.sh", "")
	}
	h.Set("jail.cjsaaaaaaaa", h.Root+"\n")
	c := jailspawn.JailConfig{Name: "mcp0", RootPath: h.Root, User: spawntest.User}
	if _, _, _, err := run(t, t.Context(), h, jailspawn.ModeNone, c, jail.Program{Argv: []string{"/bin/true"}}, ""); err != nil {
		t.Fatal(err)
	}
	if left := h.Staged(); len(left) != 2 || filepath.Base(left[0])[0] != 'b' || filepath.Base(left[1]) != "mine" {
		t.Errorf("%q are left", left)
	}
	if log := h.Record("log"); !strings.Contains(log, "jail -R cjsaaaaaaaa\n") {
		t.Errorf("the jail runs on: %s", log)
	}
}

func TestALinkInTheWayOfTheStageIsNotFollowed(t *testing.T) {
	h := spawntest.New(t)
	outside := h.Base + "/outside"
	if err := os.Mkdir(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, h.Root+spawntest.Home+"/.cache"); err != nil {
		t.Fatal(err)
	}
	c := jailspawn.JailConfig{Name: "mcp0", RootPath: h.Root, User: spawntest.User}
	_, _, _, err := run(t, t.Context(), h, jailspawn.ModeNone, c, jail.Program{Argv: []string{"/bin/true"}}, "")
	if names, _ := os.ReadDir(outside); problem.CodeOf(err) != problem.JailFailed || len(names) > 0 || strings.Contains(h.Record("log"), "jexec") {
		t.Errorf("%v, %v, %s", err, names, h.Record("log"))
	}
}

func TestEachModeSaysBeforeTheFirstSpawnWhatIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		mode jailspawn.Mode
		set  func(*spawntest.Host)
		code string
		says string
	}{
		"mdo is missing":        {jailspawn.ModeMDO, func(h *spawntest.Host) { _ = os.Remove(h.Commands + "/mdo") }, problem.ToolMissing, "mdo is not on this host"},
		"mac_do is not loaded":  {jailspawn.ModeMDO, func(h *spawntest.Host) { h.Set("no-mac_do", "") }, problem.RuntimeMissing, "mac_do is not loaded"},
		"mac_do has no rule":    {jailspawn.ModeMDO, func(h *spawntest.Host) { h.Set("rules", "\n") }, problem.Forbidden, "has no rule"},
		"the rule is another's": {jailspawn.ModeMDO, func(h *spawntest.Host) { h.Set("mdo-refuses", "") }, problem.Forbidden, "does not make you root"},
		"sudo asks":             {jailspawn.ModeSudo, func(h *spawntest.Host) { h.Set("sudo-refuses", "") }, problem.Forbidden, "without a password"},
		"no helper":             {jailspawn.ModeHelper, func(*spawntest.Host) {}, problem.ToolMissing, "not installed"},
		"no jexec":              {jailspawn.ModeNone, func(h *spawntest.Host) { _ = os.Remove(h.Commands + "/jexec") }, problem.ToolMissing, "jexec is not on this host"},
	} {
		t.Run(name, func(t *testing.T) {
			h := spawntest.New(t)
			test.set(h)
			o := jailspawn.Options{Mode: test.mode, Commands: hostcmd.Runner{Dir: h.Commands}, Helper: h.Base + "/none", HelperConfig: h.Base + "/none.conf"}
			err := jailspawn.Probe(t.Context(), o).Err()
			p, _ := problem.As(err)
			if p == nil || p.Code != test.code || !strings.Contains(p.Message, test.says) || p.Hint == "" {
				t.Errorf("%+v", p)
			}
			if strings.HasPrefix(h.Record("log"), "jexec -l") || strings.Contains(h.Record("log"), "\njexec -l") {
				t.Error("something was run")
			}
		})
	}
	h := spawntest.New(t)
	sudo := jailspawn.New(jailspawn.Options{Mode: jailspawn.ModeSudo, Commands: hostcmd.Runner{Dir: h.Commands}})
	folder := jailspawn.JailConfig{Path: h.Root, User: spawntest.User}
	if err := sudo.Probe(t.Context(), folder).Err(); err != nil {
		t.Errorf("with all commands: %v", err)
	}
	if err := os.Remove(h.Commands + "/umount"); err != nil {
		t.Fatal(err)
	}
	if p, _ := problem.As(sudo.Probe(t.Context(), folder).Err()); p == nil || p.Code != problem.ToolMissing || !strings.Contains(p.Message, "umount is not on this host") {
		t.Errorf("without umount: %+v", p)
	}
	o := jailspawn.Options{Mode: jailspawn.ModeNone, UID: 1001, Commands: hostcmd.Runner{Dir: h.Commands}}
	if err := jailspawn.Probe(t.Context(), o).Err(); problem.CodeOf(err) != problem.NoRoot {
		t.Errorf("%v", err)
	}
	testenv.Need(t, testenv.Root)
}
