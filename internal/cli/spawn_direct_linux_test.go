package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail/freebsd/hosttest"
	"github.com/clawjail/clawjail/internal/jailspawn"
	"github.com/clawjail/clawjail/internal/jailspawn/spawntest"
	"github.com/clawjail/clawjail/internal/problem"
)

// simulate makes this process a command of a simulated host, when it was started as one.
func simulate() { hosttest.Main() }

// direct runs a command line on a simulated host, as root, and says what it printed.
func direct(t *testing.T, h *spawntest.Simulated, o jailspawn.Options, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var s spawning
	var errs bytes.Buffer
	in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
	if err := errors.Join(os.WriteFile(in, []byte(stdin), 0o600), os.WriteFile(out, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	inFile, err1 := os.Open(in)
	outFile, err2 := os.OpenFile(out, os.O_WRONLY, 0)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(inFile.Close(), outFile.Close()) }() // what was written is there
	cmd := newSpawnCommand(&program{getenv: func(string) string { return "" }})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for name, to := range map[string]*string{"jail": &s.jail, "root": &s.root, "user": &s.user, "root-path": &s.rootPath, "network": &s.network, "dir": &s.request.Dir} {
			*to = cmd.Flag(name).Value.String()
		}
		s.env, err = cmd.Flags().GetStringArray("env")
		if err := errors.Join(err, s.read(cmd, args), s.readDirect(cmd)); err != nil {
			return err
		}
		o.Commands, o.Log = hostcmd.Runner{Dir: h.Commands()}, slog.New(slog.NewTextHandler(&errs, &slog.HandlerOptions{Level: slog.LevelWarn}))
		return runDirect(cmd, &s, o)
	}
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetIn(inFile)
	cmd.SetOut(outFile)
	err = cmd.ExecuteContext(t.Context())
	text, readErr := os.ReadFile(out)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return string(text), errs.String(), err
}

func TestWithoutAHostDaemonAProgramRunsInAJailOfTheHost(t *testing.T) {
	h := spawntest.Simulate(t)
	// The orphans of other tests are not this process's to wait for.
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	before := h.Left()
	script := `cat; printf '%s|%s' "$A" "$PWD"; exit 7`
	for _, where := range [][]string{{"--jail", "mcp0", "--root-path", h.Named}, {"--root", h.Folder}, {"--root", h.Folder, "--network", "none"}} {
		args := append(where, "--user", spawntest.User, "--env", "A=b c", "--dir", "/etc", "--", "/bin/sh", "-c", script)
		out, errs, err := direct(t, h, jailspawn.Options{Mode: jailspawn.ModeNone}, "in\x00\xff", args...)
		if out != "in\x00\xffb c|/etc" || errs != "" || !errors.Is(err, ExitStatus(7)) {
			t.Errorf("%q: %q, %q, %v", where, out, errs, err)
		}
	}
	if h.Ran("ip4=inherit") || !h.Ran("ip4=disable") {
		t.Error("a program had the network of the host")
	}
	if after := h.Left(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestTheHostsNetworkIsForWhoeverTheConfigurationAllows(t *testing.T) {
	h := spawntest.Simulate(t)
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	args := []string{"--root", h.Folder, "--user", spawntest.User, "--network", "inherit", "--", "/bin/sh", "-c", "exit 3"}
	_, _, err := direct(t, h, jailspawn.Options{Mode: jailspawn.ModeNone}, "", args...)
	p, _ := problem.As(err)
	if p == nil || p.Code != problem.Forbidden || !strings.Contains(p.Hint, "allow_host_network: true") || h.Ran(`"jail","-q"`) {
		t.Errorf("%+v", p)
	}
	_, errs, err := direct(t, h, jailspawn.Options{Mode: jailspawn.ModeNone, AllowHostNetwork: true}, "", args...)
	if !errors.Is(err, ExitStatus(3)) || !h.Ran(`"ip4=inherit","ip6=inherit"`) || !strings.Contains(errs, "on the network of the host") {
		t.Errorf("%v, %q", err, errs)
	}
	for _, bad := range [][]string{{"--root", h.Folder, "--network", "host"}, {"--jail", "mcp0", "--network", "inherit"}, {"--network", "none"}} {
		if _, _, err := direct(t, h, jailspawn.Options{Mode: jailspawn.ModeNone, AllowHostNetwork: true}, "", append(bad, "--user", spawntest.User, "--", "/bin/true")...); problem.CodeOf(err) != problem.BadUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestTheKeyOfTheConfigurationIsWhatAllowsTheHostsNetwork(t *testing.T) {
	for text, want := range map[string]bool{"": false, "allow_host_network: false\n": false, "allow_host_network: true\n": true} {
		file := filepath.Join(t.TempDir(), "clawjail.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := &program{file: file, getenv: func(name string) string { return map[string]string{jailspawn.StageVariable: "/stage"}[name] }}
		o, err := p.directOptions(jailspawn.ModeMDO, slog.New(slog.DiscardHandler))
		if err != nil || o.AllowHostNetwork != want || o.StageDir != "/stage" || o.Mode != jailspawn.ModeMDO || o.UID != os.Getuid() {
			t.Errorf("%q: %+v, %v", text, o, err)
		}
	}
}

func TestAJailWithoutAHostDaemonIsAThingOfFreeBSD(t *testing.T) {
	for _, mode := range []jailspawn.Mode{jailspawn.ModeMDO, jailspawn.ModeHelper, jailspawn.ModeSudo, jailspawn.ModeNone} {
		p := &program{getenv: func(name string) string { return map[string]string{jailspawn.ModeVariable: string(mode)}[name] }}
		_, is, err := p.spawnMode(t.Context())
		if q, _ := problem.As(err); is || q == nil || q.Code != problem.Unsupported || q.Hint == "" {
			t.Errorf("%s: %v, %v", mode, is, err)
		}
	}
	p := &program{getenv: func(string) string { return "" }}
	if mode, is, err := p.spawnMode(t.Context()); mode != jailspawn.ModeHostd || is || err != nil {
		t.Errorf("%s, %v, %v", mode, is, err)
	}
}
