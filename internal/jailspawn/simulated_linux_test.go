package jailspawn_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/freebsd/hosttest"
	"github.com/clawjail/clawjail/internal/jailspawn"
	"github.com/clawjail/clawjail/internal/jailspawn/spawntest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// callerVariable makes the test's binary a caller, which is a process and a user of its own: see call.
const callerVariable = "JAILSPAWN_TEST_CALLER"

func TestMain(m *testing.M) {
	hosttest.Main()
	if text := os.Getenv(callerVariable); text != "" {
		os.Exit(call(text))
	}
	os.Exit(m.Run())
}

// spawn is what a caller runs.
type spawn struct {
	Mode                           jailspawn.Mode
	Commands, Helper, HelperConfig string
	Jail                           jailspawn.JailConfig
	Program                        jail.Program
}

func (s spawn) options(uid int) jailspawn.Options {
	return jailspawn.Options{Mode: s.Mode, Commands: hostcmd.Runner{Dir: s.Commands}, Helper: s.Helper, HelperConfig: s.HelperConfig, UID: uid}
}

// failed is the status of a caller that cannot run its program.
const failed = 99

// call is a caller: it runs a program with its own stdio until SIGTERM.
func call(text string) int {
	var s spawn
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return failed
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	exit, err := jailspawn.New(s.options(os.Getuid())).Run(ctx, s.Jail, s.Program, jailspawn.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return failed
	}
	return exit.Code
}

// way is a mode and a jail on a host.
type way struct {
	name string
	spawn
	uid uint32
}

// modes are every mode, without a jail.
func modes(h *spawntest.Simulated) (out []way) {
	helper, config := h.Helper()
	for _, m := range []jailspawn.Mode{jailspawn.ModeNone, jailspawn.ModeMDO, jailspawn.ModeSudo, jailspawn.ModeHelper} {
		w := way{name: string(m), spawn: spawn{Mode: m, Commands: h.Commands()}}
		if m != jailspawn.ModeNone {
			w.uid = spawntest.UID // whom mdo, sudo and the helper let do it, and who may do none of it by himself
		}
		if m == jailspawn.ModeHelper {
			w.Helper, w.HelperConfig = helper, config
		}
		out = append(out, w)
	}
	return out
}

// ways are every mode, with a jail that runs and with one that is made.
func ways(h *spawntest.Simulated) (out []way) {
	for _, w := range modes(h) {
		for name, j := range map[string]jailspawn.JailConfig{"named": {Name: "mcp0", RootPath: h.Named}, "made": {Path: h.Folder}} {
			of := w
			of.name, of.Jail, of.Jail.User = w.name+"/"+name, j, spawntest.User
			out = append(out, of)
		}
	}
	return out
}

// caller is a caller as a process.
func (w way) caller(t *testing.T, h *spawntest.Simulated, prog jail.Program) (cmd *exec.Cmd, out, errs *bytes.Buffer) {
	t.Helper()
	w.Program = prog
	text, err := json.Marshal(w.spawn)
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(h.Caller())
	cmd.Env = []string{callerVariable + "=" + string(text), "SECRET=canary"}
	cmd.Dir = "/"
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: w.uid, Gid: w.uid}}
	out, errs = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, errs
	return cmd, out, errs
}

// Each key of a JailConfig does the same on every way. The column of the host daemon is TestEveryKeyOfAJailConfig of package agent.
func TestOnASimulatedHostEveryWayPassesAllAndLeavesNothing(t *testing.T) {
	h := spawntest.Simulate(t)
	input := make([]byte, 300_000)
	_, _ = rand.Read(input) // never fails (crypto/rand)
	for root, text := range map[string]string{h.Named: "named\n", h.Folder: "made\n"} {
		if err := os.WriteFile(root+"/where", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script := `cat; read where </where; printf '%s|%s|%s|%s|%s|%s' "$where" "$GREETING" "$PWD" "$(id -u)" "$LANG" "$SECRET" >&2; exit 7`
	place := spawntest.Place{Named: "mcp0", Root: h.Named, Folder: h.Folder, User: spawntest.User}
	for _, w := range modes(h) {
		for _, row := range spawntest.Rows(place, script) {
			w.Jail = jailspawn.JailConfig(row.Jail)
			before := h.Left()
			if code := row.Refused[spawntest.Way(w.Mode)]; code != "" {
				_, err := jailspawn.New(w.options(int(w.uid))).Run(t.Context(), w.Jail, row.Program, jailspawn.Stdio{})
				if problem.CodeOf(err) != code {
					t.Errorf("%s, %s: %v, not %s", w.name, row.What, err, code)
				}
			} else {
				where, dir := "made", spawntest.Home
				if row.Jail.Name != "" {
					where = "named"
				}
				if row.Program.Dir != "" {
					dir = row.Program.Dir
				}
				want := where + "|" + row.Program.Env["GREETING"] + "|" + dir + "|65534|C.UTF-8|"
				cmd, out, errs := w.caller(t, h, row.Program)
				cmd.Stdin = bytes.NewReader(input)
				_ = cmd.Run() // the status says how
				if status := cmd.ProcessState.ExitCode(); status != 7 || !bytes.Equal(out.Bytes(), input) || errs.String() != want {
					t.Errorf("%s, %s: status %d, %d bytes of %d, %q and not %q", w.name, row.What, status, out.Len(), len(input), errs, want)
				}
			}
			if after := h.Left(); after != before {
				t.Errorf("%s, %s\nbefore:\n%s\nafter:\n%s", w.name, row.What, before, after)
			}
		}
	}
	if h.Ran("ip4=inherit") || !h.Ran(`"ip4=disable","ip6=disable"`) {
		t.Error("a program had the network of the host")
	}
	for _, part := range []string{`["mdo","-u","root","` + h.Commands() + `/jexec","-l","-U","clawdie","mcp0","/bin/sh",`, `["mdo","-u","root","` + h.Commands() + `/jail","-q","-c","name=cjs`} {
		if !h.Ran(part) {
			t.Errorf("%s was not run", part)
		}
	}
	if h.Ran("GREETING=") || h.Ran("it's") {
		t.Error("variables are in arguments")
	}
}

func TestOnASimulatedHostEverythingEndsWithTheCaller(t *testing.T) {
	h := spawntest.Simulate(t)
	prog := jail.Program{Argv: []string{"/bin/sh", "-c", "setsid sleep 1000 & (setsid sleep 1000 &) ; sleep 1000"}}
	for _, w := range ways(h) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			if sig == syscall.SIGKILL && w.Mode != jailspawn.ModeHelper {
				continue // docs/spawn.md says that it is not so
			}
			t.Run(w.name+"/"+sig.String(), func(t *testing.T) {
				before := h.Left()
				cmd, _, errs := w.caller(t, h, prog)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, 30*time.Second, func() bool { return h.Programs() >= 4 }, "the program does not begin: %s", errs)
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait() // it was ended
				if sig == syscall.SIGKILL {
					testenv.Eventually(t, 30*time.Second, func() bool { return h.Left() == before }, "something is left")
				}
				if after := h.Left(); after != before || cmd.ProcessState.ExitCode() == failed {
					t.Errorf("%s\nbefore:\n%s\nafter:\n%s", errs, before, after)
				}
			})
		}
	}
}

func TestOnASimulatedHostWhoMayNotBecomeRootIsToldSo(t *testing.T) {
	h := spawntest.Simulate(t)
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: spawntest.UID, Gid: spawntest.UID}}
	// The user of the other tests is nobody by itself: mdo and sudo are what makes it root.
	enter := []string{h.Commands() + "/jexec", "-l", "-U", spawntest.User, "mcp0", "/bin/sh", "-c", "echo in"}
	for name, first := range map[string][]string{"": nil, "mdo": {h.Commands() + "/mdo", "-u", "root"}, "sudo": {h.Commands() + "/sudo", "-n", "--"}} {
		argv := slices.Concat(first, enter)
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = user
		if out, err := cmd.CombinedOutput(); (err == nil && string(out) == "in\n") != (name != "") {
			t.Errorf("a user enters a jail with %q: %q, %v", name, out, err)
		}
	}
	h.Scenario("mac_do-no-rule")
	h.Set(hosttest.Settings{Sysctls: map[string]string{"hosttest.uid": "", "hosttest.sudo": ""}})
	before := h.Left()
	says := map[jailspawn.Mode]string{jailspawn.ModeMDO: "mdo does not make you root", jailspawn.ModeSudo: "sudo does not let you run"}
	for _, w := range ways(h) {
		if says[w.Mode] == "" {
			continue
		}
		cmd, _, errs := w.caller(t, h, jail.Program{Argv: []string{"/bin/true"}})
		_ = cmd.Run() // the status says how
		if cmd.ProcessState.ExitCode() != failed || !strings.Contains(errs.String(), says[w.Mode]) || h.Left() != before {
			t.Errorf("%s: %s", w.name, errs)
		}
	}
}
