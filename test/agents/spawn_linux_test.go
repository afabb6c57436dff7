//go:build linux

package agents

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	agents "github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// spawned runs `clawjail spawn`, and returns what the program printed and how the command ended.
func spawned(e *testkit.Deployment, input []byte, args ...string) (out, errs string, status int) {
	e.T.Helper()
	cmd := e.Command(e.T.Context(), append([]string{"spawn"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.T.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// identities makes agents that have no jail.
func identities(e *testkit.Deployment, names ...string) {
	e.T.Helper()
	for _, name := range names {
		if out, err := e.Run(e.T.Context(), "agent", "create", name); err != nil {
			e.T.Fatalf("%v\n%s", err, out)
		}
	}
}

// hostProcesses are the processes of this machine whose command line or cgroup has a text in it.
func hostProcesses(t *testing.T, file, text string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(data, []byte(text)) {
			continue // it has ended
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// mark is a number to know processes by, of this run of the tests alone: they sleep for so many seconds.
func mark(seconds string) string { return fmt.Sprintf("%s.%d", seconds, os.Getpid()) }

// inJail are the processes of a jail, by the cgroup that it has.
func inJail(t *testing.T, name string) []int {
	t.Helper()
	return hostProcesses(t, "cgroup", name)
}

func TestSpawnedProgramsHaveTheirStdio(t *testing.T) {
	e := testkit.NewEstate(t, "")
	e.Sync("clawbots: [{name: bot, limits: {cpu: 2, memory: 256MiB}}]")
	e.Running("bot")
	random := make([]byte, 1<<20)
	_, _ = rand.Read(random) // never fails (crypto/rand)
	for where, flags := range map[string][]string{"in a jail of its own": {"--agent", "bot"}, "in the jail of the agent": {"--jail", "bot"}} {
		t.Run(where, func(t *testing.T) {
			e := &testkit.Deployment{Installation: &testkit.Installation{Instance: e.Instance, T: t, API: e.API, Idle: e.Idle}, Dir: e.Dir}
			run := func(input []byte, program ...string) (string, string, int) {
				return spawned(e, input, slices.Concat(flags, []string{"--"}, program)...)
			}
			if out, errs, status := run(random, "cat"); status != 0 || errs != "" || !bytes.Equal([]byte(out), random) {
				t.Errorf("of %d bytes %d come back, with status %d and %q", len(random), len(out), status, errs)
			}
			if out, errs, status := run(random, "/bin/sh", "-c", "cat >&2"); status != 0 || out != "" || !bytes.Equal([]byte(errs), random) {
				t.Errorf("by stderr %d of %d bytes come, with status %d and %q", len(errs), len(random), status, out)
			}
			// The end of the input arrives, and nothing else does before it.
			if out, _, status := run(nil, "/bin/sh", "-c", "wc -c; id -u"); status != 0 || out != "0\n1000\n" {
				t.Errorf("%q, %d", out, status)
			}
			ends := map[string]int{"exit 0": 0, "exit 42": 42, "exit 255": 255, "exec /no/such": 127,
				"exec python3 -c 'import ctypes; ctypes.string_at(0)'": 128 + int(syscall.SIGSEGV)}
			if slices.Contains(flags, "--jail") {
				// The first process of a jail has none of these from itself: to it the kernel gives what it has asked for, and no other.
				ends["kill -TERM $$"], ends["kill -KILL $$"] = 128+int(syscall.SIGTERM), 128+int(syscall.SIGKILL)
			}
			for script, want := range ends {
				if _, errs, status := run(nil, "/bin/sh", "-c", script); status != want {
					t.Errorf("%s: status %d, want %d; %s", script, status, want, errs)
				}
			}
			if _, errs, status := run(nil, "no-such-program"); status == 0 || !strings.Contains(errs, "no-such-program") {
				t.Errorf("a program that is not there: %d, %s", status, errs)
			}
		})
	}
}

// A program may ask for something with its first instruction: it is not refused because nobody knows it yet.
func TestTheFirstRequestOfAProgramIsAnswered(t *testing.T) {
	e := testkit.NewEstate(t, "")
	identities(e, "writer")
	for range 5 {
		out, errs, status := spawned(e, nil, "--agent", "writer", "--", "/usr/bin/curl", "-sS", "--noproxy", "*", "--max-time", "10", "http://gateway:3000/v1/sessions")
		// It has no token, and that is what it is told.
		if status != 0 || !strings.Contains(out, problem.Unauthorized) {
			t.Errorf("%q, %q, %d", out, errs, status)
		}
	}
	out, errs, status := spawned(e, nil, "--agent", "writer", "--network", "none", "--", "/usr/bin/curl", "-sS", "--noproxy", "*", "--max-time", "2", "http://gateway:3000/v1/sessions")
	if status == 0 || out != "" || !strings.Contains(errs, "curl: (") {
		t.Errorf("without a network: %q, %q, %d", out, errs, status)
	}
	e.Clean(20 * time.Second)
}

// Whatever a program has started ends with it, also what has left its session and its parents.
func TestNothingThatAProgramStartedIsLeft(t *testing.T) {
	e := testkit.NewEstate(t, "")
	e.Sync("clawbots: [{name: bot, command: [/bin/sleep, infinity]}]")
	own := string(e.Running("bot").Jail.Name)
	var before []int
	testenv.Eventually(t, 20*time.Second, func() bool { // a jail runs while its home is filled
		before = inJail(t, own)
		programs := hostProcesses(t, "comm", "sleep")
		return slices.ContainsFunc(before, func(pid int) bool { return slices.Contains(programs, pid) })
	}, "the agent's program does not start")
	// Twice forked, in a session of its own, deaf to what could be said to it, and with the pipes still open.
	escape := func(sign string) string {
		return "( setsid /bin/sh -c 'trap \"\" TERM HUP INT; ( setsid sleep " + sign + " & ) ; sleep " + sign + " & wait' & ) ; echo started; "
	}
	for where, flags := range map[string][]string{mark("31415926"): {"--agent", "bot"}, mark("27182818"): {"--jail", "bot"}} {
		for how, rest := range map[string]string{"ended": "exit 3", "crashed": "exec python3 -c 'import ctypes; ctypes.string_at(0)'"} {
			out, errs, status := spawned(e, nil, append(flags, "--", "/bin/sh", "-c", escape(where)+rest)...)
			if out != "started\n" || status == 0 {
				t.Errorf("%v, %s: %q, %q, %d", flags, how, out, errs, status)
			}
			if left := hostProcesses(t, "cmdline", where); len(left) > 0 {
				t.Errorf("%v: when it has %s, its processes %v are left", flags, how, left)
			}
		}
	}
	if after := inJail(t, own); !slices.Equal(before, after) {
		t.Errorf("in the agent's jail were the processes %v, and are %v", before, after)
	}

	// Ctrl-C ends the program, and the command with it.
	for sign, flags := range map[string][]string{mark("16180339"): {"--agent", "bot"}, mark("14142135"): {"--jail", "bot"}} {
		cmd := e.Command(t.Context(), append(append([]string{"spawn"}, flags...), "--", "/bin/sh", "-c", escape(sign)+"exec sleep "+sign)...)
		var out testkit.Transcript
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 20*time.Second, func() bool { return strings.Contains(string(out.Bytes()), "started") }, "%v: it does not start", flags)
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 128+int(syscall.SIGINT) {
			t.Errorf("%v: %v\n%s", flags, err, out.Bytes())
		}
		testenv.Eventually(t, 20*time.Second, func() bool { return len(inJailsOf(t, sign)) == 0 }, "%v: after Ctrl-C processes are left", flags)
	}
	// A time that is over does so too.
	_, errs, status := spawned(e, nil, "--agent", "bot", "--ttl", "1s", "--", "/bin/sh", "-c", escape(mark("17320508"))+"exec sleep "+mark("17320508"))
	if status == 0 || !strings.Contains(errs, "the program's time was up") || len(hostProcesses(t, "cmdline", mark("17320508"))) > 0 {
		t.Errorf("%q, %d", errs, status)
	}
	e.Sync("clawbots: []", "--prune")
	e.Clean(20 * time.Second)
}

// inJailsOf are processes with a text on their command line that are not the command's own.
func inJailsOf(t *testing.T, sign string) []int {
	t.Helper()
	return slices.DeleteFunc(hostProcesses(t, "cmdline", sign), func(pid int) bool {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // one that has ended has none
		return bytes.Contains(line, []byte("\x00spawn\x00"))
	})
}

// Arguments and variables of a program may be secret: they arrive whole, and are nowhere but in its jail.
func TestTheEnvironmentOfAProgramStaysInItsJail(t *testing.T) {
	e := testkit.NewEstate(t, "")
	e.Sync("clawbots: [{name: bot}]")
	bot := e.Running("bot")
	canary := "canary-" + strings.ToLower(rand.Text())
	env := map[string]string{
		"PLAIN": canary, "QUOTES": canary + `'"` + "`", "DOLLAR": "$(touch /state/oops)${HOME}$$" + canary, "LINES": canary + "\n\n export OTHER=x\n",
		"BLANK": " \t" + canary + "  ", "EMPTY": "", "BACKSLASH": `\n\'\\` + canary, "BYTES": "\x01\x7f\xc3\xa9\U0001F980" + canary, "GLOB": "* ? [a-z] ~ ; & | > <" + canary,
		"EQUALS": "=a=b==" + canary, "DASH": "-e " + canary,
	}
	printed := func(path string) bool { return strings.Contains(path, "/control/programs/pr_") }
	for where, at := range map[string]*op.ProcessJail{"its own": nil, "the agent's": {Name: "bot"}} {
		started, err := client.Call(t.Context(), e.API, op.StartProcess(), op.NewProcess{Name: "bot", Body: op.With(op.ProcessRequest{Jail: at, Env: env,
			Argv: []string{"/usr/bin/env", "python3", "-c", "import json, os, time; print(json.dumps(dict(os.environ)), flush=True); time.sleep(1000)"}})})
		if err != nil {
			t.Fatal(err)
		}
		line := firstLine(e, "bot", started.ID)
		var seen map[string]string
		if err := json.Unmarshal(line, &seen); err != nil {
			t.Fatalf("%v: %.200s", err, line)
		}
		for name, want := range env {
			if got, ok := seen[name]; !ok || got != want {
				t.Errorf("%s jail: %s is %q, want %q", where, name, got, want)
			}
		}
		if seen["OTHER"] != "" || seen["AGENT_NAME"] != "bot" {
			t.Errorf("%s jail: it has %v", where, seen)
		}
		for _, file := range []string{"cmdline", "environ"} {
			for _, pid := range hostProcesses(t, file, canary) {
				if group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil && !bytes.Contains(group, []byte(started.Jail)) {
					t.Errorf("%s jail: it is in the %s of process %d, which is in no jail: %s", where, file, pid, group)
				}
			}
		}
		for _, path := range filesWith(e, canary) {
			info, err := os.Stat(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			// The program's own copy, and what it has printed of it, which is its agent's to read.
			if !printed(path) && filepath.Base(path) != "env.sh" || err != nil || info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s jail: it is in %s, %v", where, path, info)
			}
		}
		writeState(t, bot.Jail.PID)
		if err := client.Do(t.Context(), e.API, op.EndProcess(), op.ProcessNamed{Name: "bot", ID: started.ID}); err != nil {
			t.Fatal(err)
		}
		if left := slices.DeleteFunc(filesWith(e, canary), printed); len(left) > 0 {
			t.Errorf("%s jail: when it has ended it is in %v", where, left)
		}
	}
	if strings.Contains(e.Log(), canary) {
		t.Error("it is in the log")
	}
	if out := e.MustIn("bot", "ls -d "+jail.StageDir+"/????????????????????????????????; ls -A /state"); strings.Contains(out, "oops") || strings.Count(out, "\n") > 3 {
		t.Errorf("left in the jail %s: %q", bot.Jail.Name, out)
	}
}

// writeState writes what is in memory of an agent's state to its image, which the system does by itself in half a minute.
func writeState(t *testing.T, pid int) {
	t.Helper()
	state, err := os.Open(fmt.Sprintf("/proc/%d/root/state", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if err := unix.Syncfs(int(state.Fd())); err != nil {
		t.Fatal(err)
	}
}

// firstLine waits for the first JSON line of a program.
func firstLine(e *testkit.Deployment, agent, id string) (line []byte) {
	e.T.Helper()
	ctx, cancel := context.WithTimeout(e.T.Context(), 30*time.Second)
	defer cancel()
	enough := errors.New("enough")
	err := e.API.Events(ctx, client.EventsQuery{Agent: agent, Process: id, Follow: true}, func(ev agents.Event) error {
		if ev.JSON != nil {
			line = bytes.Clone(ev.JSON)
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		e.T.Fatalf("it prints nothing: %v\n%.4000s", err, e.Log())
	}
	return line
}

// filesWith are the files of the instance that have a text in them.
func filesWith(e *testkit.Deployment, text string) (out []string) {
	e.T.Helper()
	for _, dir := range []string{e.Config.DataDir, e.Config.RunDir} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it has gone meanwhile
			}
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if err == nil && bytes.Contains(data, []byte(text)) {
				out = append(out, path)
			}
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) {
				return nil
			}
			return err
		})
		if err != nil {
			e.T.Fatal(err)
		}
	}
	return out
}

func TestProgramsRunInFoldersOfTheOperatorsAndNowhereElse(t *testing.T) {
	testenv.Root(t)
	roots, err := os.MkdirTemp("/var/lib/clawjail", "test-roots-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.RemoveTrees(t, roots) })
	small, secret := filepath.Join(roots, "small"), filepath.Join(roots, "..", filepath.Base(roots)+"-outside")
	if err := errors.Join(os.Chmod(roots, 0o755), os.Mkdir(small, 0o755), os.Mkdir(secret, 0o755), os.Symlink(secret, filepath.Join(roots, "out"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.RemoveTrees(t, secret) })
	inside.Template(t, small)
	inside.Template(t, secret)
	e := testkit.NewEstate(t, "jail_roots: ["+roots+"]\n")
	identities(e, "writer", "other")
	shared := filepath.Join(e.Dir, "workspaces", "shared")
	if err := errors.Join(os.Mkdir(shared, 0o755), os.WriteFile(filepath.Join(shared, "file"), []byte("of the host\n"), 0o644), os.Chown(shared, 1000, 1000),
		os.Symlink("/etc", filepath.Join(e.Dir, "workspaces", "etc"))); err != nil {
		t.Fatal(err)
	}
	// The folder is its root, and stays as it is.
	out, errs, status := spawned(e, nil, "--agent", "writer", "--root", small, "--", "/bin/sh", "-c", "for f in /*; do printf '%s ' $f; done; echo x > /bin/x || echo refused; echo y > /state/y && echo kept")
	if status != 0 || !strings.Contains(out, "/bin ") || !strings.Contains(out, "refused\nkept\n") || strings.Contains(out, "/usr/games") {
		t.Errorf("%q, %q, %d", out, errs, status)
	}
	if _, err := os.Stat(filepath.Join(small, "bin/x")); err == nil {
		t.Error("the operator's folder was written to")
	}
	out, errs, status = spawned(e, nil, "--agent", "writer", "--mount", shared+":/workspace", "--mount", shared+":/mnt/again:ro", "--", "/bin/sh", "-c",
		"cat /workspace/file; echo from the jail > /workspace/answer; echo x > /mnt/again/x || cat /mnt/again/answer")
	if answer, err := os.ReadFile(filepath.Join(shared, "answer")); status != 0 || err != nil || string(answer) != "from the jail\n" || out != "of the host\nfrom the jail\n" {
		t.Errorf("%q, %q, %d; %q, %v", out, errs, status, answer, err)
	}
	foldersOfTenants(e, roots)
	// These requests are refused, with nothing made.
	argv := []string{"/bin/sh", "-c", "echo it runs"}
	for what, r := range map[string]op.ProcessRequest{
		"the bare host":             {Jail: &op.ProcessJail{Path: "/"}},
		"the host's root by a name": {Jail: &op.ProcessJail{Path: "/usr/../"}},
		"another root":              {Jail: &op.ProcessJail{Path: small, RootPath: "/"}},
		"the host's network":        {Jail: &op.ProcessJail{IP4: "inherit"}},
		"another user":              {Jail: &op.ProcessJail{User: "root"}},
		"outside the roots":         {Jail: &op.ProcessJail{Path: secret}},
		"a link out of the roots":   {Jail: &op.ProcessJail{Path: filepath.Join(roots, "out")}},
		"the roots themselves":      {Jail: &op.ProcessJail{Path: filepath.Join(roots, "..", "templates")}},
		"a mount outside":           {Jail: &op.ProcessJail{Mounts: []op.ProcessMount{{Source: "/etc", Target: "/mnt/etc"}}}},
		"a mount by a link":         {Jail: &op.ProcessJail{Mounts: []op.ProcessMount{{Source: filepath.Join(e.Dir, "workspaces", "etc"), Target: "/mnt/etc"}}}},
		"a mount over the system":   {Jail: &op.ProcessJail{Mounts: []op.ProcessMount{{Source: shared, Target: "/usr"}}}},
		"a mount over the token":    {Jail: &op.ProcessJail{Mounts: []op.ProcessMount{{Source: shared, Target: "/run/hermit"}}}},
		"another agent's jail":      {Jail: &op.ProcessJail{Name: "other"}},
		"a jail that does not run":  {Jail: &op.ProcessJail{Name: "writer"}},
		"a template elsewhere":      {Template: "../../etc"},
		"no template":               {Template: "nosuch"},
		"a ttl without an end":      {TTL: "0"},
		"a ttl that is negative":    {TTL: "-1h"},
		"a NUL":                     {Env: map[string]string{"A": "b\x00c"}},
		"a variable with a program": {Env: map[string]string{"A;reboot": "x"}},
	} {
		r.Argv = argv
		attached, err := e.API.Attach(t.Context(), "writer", false, r, client.Streams{Out: os.Stderr, Err: os.Stderr})
		if p, ok := problem.As(err); !ok || p.Code == problem.Internal {
			t.Errorf("%s: %+v, %v", what, attached, err)
		}
	}
	e.Clean(20 * time.Second)
}

// foldersOfTenants shows that the programs of a tenant have its own folders, and those of nobody else, whoever starts them.
func foldersOfTenants(e *testkit.Deployment, roots string) {
	e.T.Helper()
	run := func(args ...string) string {
		e.T.Helper()
		out, err := e.Run(e.T.Context(), args...)
		if err != nil {
			e.T.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	work := filepath.Join(e.Dir, "workspaces")
	for _, dir := range []string{"acme", "beta"} {
		folder, root := filepath.Join(work, dir), filepath.Join(roots, dir)
		err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(folder, "file"), []byte("of "+dir+"\n"), 0o644), os.Mkdir(root, 0o755))
		if err != nil {
			e.T.Fatal(err)
		}
		inside.Template(e.T, root)
		run("tenant", "create", dir)
	}
	if err := os.Symlink("../beta", filepath.Join(work, "acme", "link")); err != nil {
		e.T.Fatal(err)
	}
	run("agent", "create", "bot", "--tenant", "acme")
	key, _, _ := strings.Cut(run("operator", "create", "eve", "--tenant", "acme", "--role", "operator"), "\n")
	spawn := func(key string, flags ...string) string {
		cmd := e.Command(e.T.Context(), slices.Concat([]string{"spawn", "--agent", "bot", "--tenant", "acme"}, flags)...)
		if key != "" {
			cmd.Env = append(cmd.Environ(), "CLAWJAIL_KEY="+key)
		}
		out, _ := cmd.CombinedOutput() // what it says shows how it ended
		return string(out)
	}
	for who, key := range map[string]string{"an operator of it": key, "an admin": ""} {
		for what, tt := range map[string]struct {
			flags []string
			want  string
		}{
			"its own folder":      {[]string{"--mount", filepath.Join(work, "acme") + ":/workspace", "--", "cat", "/workspace/file"}, "of acme\n"},
			"its own root":        {[]string{"--root", filepath.Join(roots, "acme"), "--", "/bin/sh", "-c", "echo it runs"}, "it runs\n"},
			"another's folder":    {[]string{"--mount", filepath.Join(work, "beta") + ":/workspace", "--", "cat", "/workspace/file"}, "the tenant acme may not have"},
			"the folder of all":   {[]string{"--mount", work + ":/workspace", "--", "cat", "/workspace/beta/file"}, "the tenant acme may not have"},
			"a link to another's": {[]string{"--mount", filepath.Join(work, "acme/link") + ":/workspace", "--", "cat", "/workspace/file"}, "is a symbolic link"},
			"another's root":      {[]string{"--root", filepath.Join(roots, "beta"), "--", "/bin/sh", "-c", "echo it runs"}, "the tenant acme may not have"},
		} {
			if out := spawn(key, tt.flags...); !strings.Contains(out, tt.want) || strings.Contains(out, "of beta") {
				e.T.Errorf("%s gives %s: %q", who, what, out)
			}
		}
	}
}
