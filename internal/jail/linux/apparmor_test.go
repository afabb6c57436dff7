//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// fakeHost is the root folder of a host with AppArmor, whose parser puts what it is given into the list of profiles.
type fakeHost struct {
	t *testing.T
	AppArmorOptions
}

func newFakeHost(t *testing.T) *fakeHost {
	root := t.TempDir()
	h := &fakeHost{t, AppArmorOptions{Installation: "k3x9", Mode: AppArmorAuto, Root: root,
		Run: hostcmd.Runner{Dir: filepath.Join(root, "sbin")}, Log: slog.New(slog.DiscardHandler)}}
	h.write(appArmorEnabled, "Y\n")
	h.write(appArmorProfiles, "docker-default (enforce)\n")
	h.write(appArmorABI+"/3.0", "")
	h.parser("enforce")
	return h
}

// parser installs one that loads profiles in a mode.
func (h *fakeHost) parser(mode string) {
	h.write("sbin/"+appArmorParser, fmt.Sprintf(`#!/bin/sh
[ "$*" = "--replace --skip-cache" ] || exit 2
tee %s | sed -n 's/^profile \([^ ]*\) .*/\1 (%s)/p' >>%s`, filepath.Join(h.Root, "text"), mode, filepath.Join(h.Root, appArmorProfiles)))
}

func (h *fakeHost) write(path, text string) {
	h.t.Helper()
	path = filepath.Join(h.Root, path)
	must(h.t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)))
}

func (h *fakeHost) remove(path string) {
	h.t.Helper()
	must(h.t, os.Remove(filepath.Join(h.Root, path)))
}

func TestProfilesOfAppArmorAreLoadedWhereTheHostHasIt(t *testing.T) {
	for _, tt := range []struct {
		host          string
		change        func(h *fakeHost)
		auto, require string // the code of the error, "yes" or "no"
	}{
		{"with all of it", func(*fakeHost) {}, "yes", "yes"},
		{"without AppArmor", func(h *fakeHost) { h.remove(appArmorEnabled) }, "no", problem.Unsupported},
		{"with AppArmor that is off", func(h *fakeHost) { h.write(appArmorEnabled, "N\n") }, "no", problem.Unsupported},
		{"without its file system", func(h *fakeHost) { h.remove(appArmorProfiles) }, "no", problem.Unsupported},
		{"without the parser", func(h *fakeHost) { h.remove("sbin/" + appArmorParser) }, "no", problem.ToolMissing},
		{"with a parser that fails", func(h *fakeHost) { h.write("sbin/"+appArmorParser, "#!/bin/sh\nexit 1\n") }, problem.Unsupported, problem.Unsupported},
		{"with a parser that does nothing", func(h *fakeHost) { h.write("sbin/"+appArmorParser, "#!/bin/sh\n") }, problem.JailUnconfined, problem.JailUnconfined},
		{"with a parser that has them complain", func(h *fakeHost) { h.parser("complain") }, problem.JailUnconfined, problem.JailUnconfined},
	} {
		for mode, want := range map[string]string{AppArmorAuto: tt.auto, AppArmorRequired: tt.require, AppArmorOff: "no"} {
			t.Run(tt.host+"/"+mode, func(t *testing.T) {
				h := newFakeHost(t)
				tt.change(h)
				h.Mode = mode
				loaded, err := LoadAppArmor(t.Context(), h.AppArmorOptions)
				got := map[bool]string{true: "yes", false: "no"}[loaded]
				if err != nil {
					got = problem.CodeOf(err)
					if p, ok := problem.As(err); !ok || p.Hint == "" {
						t.Errorf("no hint with %v", err)
					}
				}
				if got != want {
					t.Errorf("got %s (%v), want %s", got, err, want)
				}
			})
		}
	}
}

func TestUnloadingTakesTheProfilesOfOneInstallation(t *testing.T) {
	h := newFakeHost(t)
	if err := UnloadAppArmor(t.TempDir(), "k3x9"); err != nil {
		t.Errorf("on a host without AppArmor: %v", err)
	}
	h.write(appArmorRemove, "")
	if err := UnloadAppArmor(h.Root, "k3x9"); err != nil {
		t.Errorf("when there is none: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(h.Root, appArmorRemove)); err != nil || len(got) > 0 {
		t.Errorf("removed %q (%v), and none of them was loaded", got, err)
	}
	_, err := LoadAppArmor(t.Context(), h.AppArmorOptions)
	must(t, err)
	if err := UnloadAppArmor(h.Root, "other"); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(h.Root, appArmorRemove)); err != nil || len(got) > 0 {
		t.Errorf("removed %q (%v) of another installation", got, err)
	}
	must(t, UnloadAppArmor(h.Root, "k3x9"))
	// A name at a time is written over what was written before.
	if got, err := os.ReadFile(filepath.Join(h.Root, appArmorRemove)); err != nil || !strings.HasPrefix(string(got), "clawjail-k3x9-agent") {
		t.Errorf("removed %q (%v)", got, err)
	}
}

// The parser of this host reads the profiles; the kernel need not have AppArmor for that.
func TestTheParserTakesTheProfilesOfJails(t *testing.T) {
	parser := testenv.Tool(t, appArmorParser)
	read := func(text string) error {
		cmd := exec.CommandContext(t.Context(), parser, "--skip-kernel-load", "--skip-cache")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	for _, features := range []string{"", "3.0", "4.0"} {
		if _, err := os.Stat(filepath.Join("/", appArmorABI, features)); err != nil {
			continue // this parser does not know it
		}
		text := appArmorText("k3x9", features)
		if err := read(text); err != nil {
			t.Errorf("with the features %q: %v\n%s", features, err, text)
		}
		if read(strings.Replace(text, "network unix,", "network nothing,", 1)) == nil {
			t.Errorf("with the features %q a rule that is none is taken, so nothing was read", features)
		}
	}
}

func TestOnlyBrowsersMakeUserNamespaces(t *testing.T) {
	text := appArmorText("k3x9", "4.0")
	browser, agent, ok := strings.Cut(text, "profile clawjail-k3x9-agent ")
	if !ok || !strings.Contains(browser, "profile clawjail-k3x9-browser ") {
		t.Fatalf("not two profiles:\n%s", text)
	}
	for _, rule := range []string{"  userns,\n", "  capability sys_admin,\n"} {
		if !strings.Contains(browser, rule) || strings.Contains(agent, rule) {
			t.Errorf("%q is not a rule of browsers alone:\n%s", rule, text)
		}
	}
	// An older parser does not know the rule. An act without mediation is allowed, also where the kernel restricts others.
	if text := appArmorText("k3x9", "3.0"); strings.Contains(text, "userns") || !strings.Contains(text, "abi <abi/3.0>") {
		t.Errorf("for an older parser:\n%s", text)
	}
}

func TestTheProfileOfAProcessIsRead(t *testing.T) {
	for label, want := range map[string]jail.AppArmorProfile{
		"clawjail-k3x9-browser (enforce)\n":        jail.AppArmorBrowser,
		"clawjail-k3x9-agent (enforce)\x00":        jail.AppArmorAgent,
		"clawjail-k3x9-agent (complain)\n":         "clawjail-k3x9-agent (complain)",
		"clawjail-other-agent (enforce)\n":         "clawjail-other-agent (enforce)",
		"clawjail-k3x9-agent//&unconfined (mix)\n": "clawjail-k3x9-agent//&unconfined (mix)",
		"unconfined\n": "unconfined",
	} {
		for _, file := range []string{"attr/apparmor/current", "attr/current"} {
			h := newFakeHost(t)
			h.write(file, label)
			dir, err := os.Open(h.Root)
			must(t, err)
			var o jail.Observed
			err = (&process{dir: dir}).underAppArmor("k3x9", &o)
			must(t, errors.Join(err, dir.Close()))
			if o.AppArmor != want {
				t.Errorf("%s says %q: read as %q, want %q", file, label, o.AppArmor, want)
			}
		}
	}
}

func TestAJailWithoutItsProfileOfAppArmorDoesNotStart(t *testing.T) {
	h := newTestHost(t, func(o *Options) { o.AppArmor = true })
	host := newFakeHost(t)
	h.runtime.hostRoot = host.Root
	p := h.place(t, probeSpec(jail.KindBrowser))
	if p.Profile.AppArmor != jail.AppArmorBrowser {
		t.Fatalf("the profile of the jail is %q", p.Profile.AppArmor)
	}
	starts := func() error {
		_, err := h.runtime.Start(context.Background(), p, [3]*os.File{})
		return err
	}
	other := jail.AppArmorBrowser.Name("other") + " (enforce)\n"
	complains := jail.AppArmorBrowser.Name(h.o.Installation) + " (complain)\n"
	for _, loaded := range []string{"", other, complains} {
		host.write(appArmorProfiles, loaded)
		err := starts()
		if told, ok := problem.As(err); !ok || told.Code != problem.JailUnconfined || !strings.Contains(told.Hint, "systemctl restart clawjail-hostd") {
			t.Errorf("with the profiles %q: %v", loaded, err)
		}
		_, err = h.runtime.Exec(context.Background(), p, jail.Process{}, jail.Program{Argv: []string{"/bin/true"}}, [3]*os.File{})
		if problem.CodeOf(err) != problem.JailUnconfined {
			t.Errorf("a program joins with the profiles %q: %v", loaded, err)
		}
	}
	// With it, it is for the runtime, which is told the name.
	host.write(appArmorProfiles, jail.AppArmorBrowser.Name(h.o.Installation)+" (enforce)\n")
	if err := starts(); problem.CodeOf(err) == problem.JailUnconfined {
		t.Errorf("with its profile: %v", err)
	}
	if got := h.runtime.process(p.Profile, "launch").ApparmorProfile; got != jail.AppArmorBrowser.Name(h.o.Installation) {
		t.Errorf("the runtime is told the profile %q", got)
	}
	if got := h.runtime.process(p.Profile.With(jail.Means{Seccomp: true, SharedMemoryFolder: true}), "launch").ApparmorProfile; got != "" {
		t.Errorf("a jail that has none is told the profile %q", got)
	}
}
