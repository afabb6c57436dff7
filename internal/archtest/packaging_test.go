package archtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/cli"
	"github.com/clawjail/clawjail/internal/testenv"
)

func packaging(t *testing.T, parts ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{testenv.Repository(t), "packaging"}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// unit reads a systemd unit: "Section.Key" → its values.
func unit(t *testing.T, text string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	section := ""
	for number, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok || section == "" {
				t.Fatalf("line %d: %q is neither a section nor a setting", number+1, line)
			}
			out[section+"."+key] = append(out[section+"."+key], value)
		}
	}
	return out
}

func TestUnitsSayWhatTheyMust(t *testing.T) {
	tests := map[string]map[string]string{
		"clawjail-hostd.service": {
			"Service.ExecStart": "/usr/local/bin/clawjail hostd",
			"Service.User":      "root",
			"Service.KillMode":  "process", // agents outlive the daemon
			"Service.Delegate":  "yes",
			"Service.OOMPolicy": "continue", // what a jail's memory limit ends is not the daemon
			"Service.Type":      "notify",
			"Service.Restart":   "on-failure",
			"Install.WantedBy":  "multi-user.target",
			"Unit.Wants":        "network-pre.target clawjail-template.service",

			"Unit.StartLimitIntervalSec": "0", // nobody watches agents until it is there
		},
		"clawjail-template.service": {
			"Service.ExecStart": "/usr/local/bin/clawjail template build --if-missing browser",
			"Service.Type":      "oneshot",
			"Service.Restart":   "on-failure",
		},
		"clawjail.service": {
			"Service.ExecStart":             "/usr/local/bin/clawjail serve",
			"Service.Type":                  "notify",
			"Service.User":                  "clawjail",
			"Service.NoNewPrivileges":       "yes",
			"Service.CapabilityBoundingSet": "",
			"Service.ProtectSystem":         "strict",
			"Service.RestrictNamespaces":    "yes",
			"Unit.After":                    "network-online.target time-sync.target clawjail-hostd.service",
			"Unit.Wants":                    "network-online.target clawjail-hostd.service", // the doctor relies on it
			"Unit.StartLimitIntervalSec":    "0",
			"Install.WantedBy":              "multi-user.target",
		},
	}
	for name, want := range tests {
		got := unit(t, packaging(t, "systemd", name))
		for key, value := range want {
			if !slices.Equal(got[key], []string{value}) {
				t.Errorf("%s: %s is %q, want %q", name, key, got[key], value)
			}
		}
	}
	// systemd gives all that is in such a folder to the user of the unit at every start, and refuses the start where it cannot:
	// what belongs to running jails cannot be given away.
	if got := unit(t, packaging(t, "systemd", "clawjail-hostd.service"))["Service.RuntimeDirectory"]; got != nil {
		t.Errorf("clawjail-hostd.service: RuntimeDirectory is %q; the host daemon makes the folder", got)
	}
	// These give a service a mount namespace of its own. The jails of a host daemon that had one would not be seen by
	// the host, and would not be cleaned up.
	own := regexp.MustCompile(`^Service\.(Protect|Private|Read|Inaccessible|Bind|Temporary|NoExec|MountFlags|RootDirectory)`)
	for key := range unit(t, packaging(t, "systemd", "clawjail-hostd.service")) {
		if own.MatchString(key) {
			t.Errorf("clawjail-hostd.service: %s gives it a mount namespace of its own", key)
		}
	}
}

// A list with reasons says what the host daemon may do as root: that of its unit has all that the container's has, and what its own machine
// lets it do besides.
func TestTheHostDaemonMayDoWhatIsListed(t *testing.T) {
	list := func(words []string) []string {
		slices.Sort(words)
		return slices.Compact(words)
	}
	var want []string
	for line := range strings.Lines(packaging(t, "container", "compose.yaml")) {
		if m := regexp.MustCompile(`^ +- ([A-Z_]+)( +#.*)?\n$`).FindStringSubmatch(line); m != nil {
			want = append(want, "CAP_"+m[1])
		}
	}
	if len(want) < 10 {
		t.Fatalf("the container may do only %v", want)
	}
	want = append(want, "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN")
	text := packaging(t, "systemd", "clawjail-hostd.service")
	got := strings.Fields(strings.Join(unit(t, text)["Service.CapabilityBoundingSet"], " "))
	if got, want = list(got), list(want); !slices.Equal(got, want) {
		t.Errorf("the unit has %v, want %v", got, want)
	}
	reasons := regexp.MustCompile(`\n# [^\n]+\nCapabilityBoundingSet=`).FindAllString(text, -1)
	if len(reasons) != strings.Count(text, "\nCapabilityBoundingSet=") {
		t.Error("a capability has no reason before it")
	}
}

// ready copies the units to a folder in which systemd can check them although clawjail is not installed.
func ready(t *testing.T, change func(string) string) []string {
	t.Helper()
	dir := t.TempDir()
	var out []string
	for _, name := range []string{"clawjail-hostd.service", "clawjail.service", "clawjail-template.service"} {
		text := strings.ReplaceAll(packaging(t, "systemd", name), "/usr/local/bin/clawjail", "/bin/true")
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(change(text)), 0o644); err != nil {
			t.Fatal(err)
		}
		out = append(out, path)
	}
	return out
}

func TestSystemdAcceptsTheUnits(t *testing.T) {
	tool := testenv.Tool(t, "systemd-analyze")
	verify := func(change func(string) string) string {
		args := append([]string{"verify", "--man=no"}, ready(t, change)...)
		out, err := exec.CommandContext(t.Context(), tool, args...).CombinedOutput()
		if err != nil {
			return string(out) + err.Error()
		}
		return string(out)
	}
	same := func(text string) string { return text }
	if out := verify(same); out != "" {
		t.Errorf("systemd-analyze verify says:\n%s", out)
	}
	misspelt := func(text string) string { return strings.ReplaceAll(text, "UMask=", "UMaks=") }
	if out := verify(misspelt); !strings.Contains(out, "UMaks") {
		t.Errorf("a misspelt setting is not seen:\n%s", out)
	}
}

// What the page shows for one backup is refused on the second night: each has a name of its own in the example.
func TestTheExampleOfANightlyBackupRunsNightAfterNight(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testenv.Repository(t), "examples", "backup", "clawjail-backup.service"))
	if err != nil {
		t.Fatal(err)
	}
	_, command, found := strings.Cut(string(text), "\nExecStart=/bin/sh -c '")
	command, _, ends := strings.Cut(command, "'\n")
	if !found || !ends {
		t.Fatalf("there is no command in\n%s", text)
	}
	page, err := os.ReadFile(filepath.Join(testenv.Repository(t), "docs", "operations.md"))
	changed := "\nExecStart=\nExecStart=/bin/sh -c '" + strings.Replace(command, "backup ", "backup --without-database ", 1) + "'\n"
	if err != nil || !strings.Contains(string(page), changed) {
		t.Errorf("docs/operations.md (%v) does not show for PostgreSQL:%s", err, changed)
	}
	dir := t.TempDir()
	command = strings.NewReplacer("$$", "$", "%%", "%", "/var/backups/clawjail", dir).Replace(command) // as systemd hands it on
	tools := filepath.Join(dir, "tools")
	day := filepath.Join(dir, "day")
	if err := errors.Join(os.Mkdir(tools, 0o755), os.WriteFile(day, []byte("2026-01-01"), 0o600),
		os.WriteFile(filepath.Join(tools, "date"), []byte("#!/bin/sh\nexec /bin/date -u -d \"$(cat "+day+")\" \"$@\"\n"), 0o755),
		os.WriteFile(filepath.Join(tools, "clawjail"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\" >"+dir+"/args\nfor last; do :; done; [ ! -e \"$last\" ] && echo x >\"$last\"\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	night := func() error {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", command)
		cmd.Env = []string{"PATH=" + tools + ":/usr/bin:/bin", "RECIPIENT=age1x"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := night(); err != nil {
		t.Fatal(err)
	}
	if err := night(); err == nil {
		t.Error("a second backup of the same moment is not refused: this test would not see a name that stays")
	}
	if err := errors.Join(os.WriteFile(day, []byte("2026-01-02"), 0o600), night()); err != nil {
		t.Error(err)
	}
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil {
		t.Fatal(err)
	}
	given := strings.Split(strings.TrimSpace(string(args)), "\n")
	backup, rest, err := cli.New("v1.2.3").Find(given)
	if err == nil {
		err = backup.ParseFlags(rest)
	}
	if err != nil || backup.Name() != "backup" || given[len(given)-1] != filepath.Join(dir, "clawjail-2026-01-02T000000.tar.gz.age") {
		t.Errorf("it runs %q: %v", given, err)
	}
}

func TestControlPlaneUnitIsHardened(t *testing.T) {
	tool := testenv.Tool(t, "systemd-analyze")
	// The scale goes from 0 to 10, times ten on the command line; 2 and below is rated as good.
	exposed := func(change func(string) string) (string, bool) {
		file := ready(t, change)[1]
		out, err := exec.CommandContext(t.Context(), tool, "security", "--offline=true", "--threshold=20", "--no-pager", file).CombinedOutput()
		return string(out), err != nil
	}
	if out, bad := exposed(func(text string) string { return text }); bad {
		t.Errorf("more exposed than it may be:\n%s", out)
	}
	withCapabilities := func(text string) string { return strings.ReplaceAll(text, "CapabilityBoundingSet=\n", "") }
	if _, bad := exposed(withCapabilities); !bad {
		t.Error("without the empty capability set it is rated as good as with it")
	}
}
