package archtest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMakefileHasItsTargets(t *testing.T) {
	make := testenv.Tool(t, "make")
	for _, target := range []string{"help", "setup", "build", "check", "template", "test", "bench", "demo", "clean"} {
		cmd := exec.CommandContext(t.Context(), make, "--dry-run", "--no-print-directory", target)
		cmd.Dir = testenv.Repository(t)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("make %s: %v\n%s", target, err, out)
		}
	}
}

// A machine that has no Go, or an old one, gets one before it is called.
func TestWhatCallsGoSetsItUp(t *testing.T) {
	make := testenv.Tool(t, "make")
	for _, target := range []string{"build", "manual", "packages", "install", "demo", "test"} {
		cmd := exec.CommandContext(t.Context(), make, "--dry-run", "--no-print-directory", target)
		cmd.Dir = testenv.Repository(t)
		out, err := cmd.CombinedOutput()
		setup := strings.Index(string(out), "scripts/setup.sh")
		calls := regexp.MustCompile(`(?m)^go |packages\.sh|scripts/test\.sh`).FindIndex(out)
		if err != nil || calls == nil || setup < 0 || setup > calls[0] {
			t.Errorf("make %s: %v\n%s", target, err, out)
		}
	}
}

func TestScriptsAreReadyToRun(t *testing.T) {
	top := testenv.Repository(t)
	sh := testenv.Tool(t, "sh")
	scripts, err := filepath.Glob(filepath.Join(top, "scripts", "*.sh"))
	if err != nil || len(scripts) < 3 {
		t.Fatalf("found %d scripts, %v", len(scripts), err)
	}
	for _, script := range scripts {
		if out, err := exec.CommandContext(t.Context(), sh, "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", script, out)
		}
		data, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(data), "#!") {
			executable(t, script)
		}
	}
	executable(t, filepath.Join(top, ".ci", "run"))
}

func executable(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&fs.FileMode(0o111) != 0o111 {
		t.Errorf("%s is not executable", path)
	}
}

func TestSetupWithoutAWordIsAUsageError(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "sh"), filepath.Join(testenv.Repository(t), "scripts", "setup.sh"))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "usage:") {
		t.Errorf("got %v\n%s", err, out)
	}
}

// apt says "Candidate" in English alone.
func TestSetupReadsAptInEveryLanguage(t *testing.T) {
	dir, sh := t.TempDir(), testenv.Tool(t, "sh")
	apt := `#!/bin/sh
case $2-${LC_ALL:-} in
there-C) echo "  Candidate: 1.26" ;;
there-*) echo "  Installationskandidat: 1.26" ;;
*-C) echo "  Candidate: (none)" ;;
*) echo "  Installationskandidat: (keine)" ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "apt-cache"), []byte(apt), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{"there": true, "nowhere": false} {
		// The head of the script, and what it asks apt with.
		cmd := exec.CommandContext(t.Context(), sh, "-c", `eval "$(sed -n '/^export /p; /^has_candidate()/p' "$1")"; has_candidate "$2"`, "sh",
			filepath.Join(testenv.Repository(t), "scripts", "setup.sh"), name)
		cmd.Env = append(os.Environ(), "LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8", "PATH="+dir+":"+os.Getenv("PATH"))
		var exit *exec.ExitError
		if out, err := cmd.CombinedOutput(); err != nil && !errors.As(err, &exit) || (err == nil) != there || len(out) > 0 {
			t.Errorf("a package that is %s: %v\n%s", name, err, out)
		}
	}
}

// A new machine has no list of packages, no git and no certificates.
func TestSetupFindsWhatBuildsOnANewMachine(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "apt-cache"), []byte("#!/bin/sh\n[ -z \"$listed\" ] || echo '  Candidate: 2:1.24~2'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const fakes = `export listed
has_candidate() { [ -n "$listed" ]; }
find() { echo "the lists are of today"; }
as_root() { echo "$*"; listed=yes; }
apt_install() { echo "install $*"; ready=yes; }
go_ready() { [ -n "$ready" ]; }
command() { false; }
is_there() { false; }
ready=
`
	for do, want := range map[string]string{
		"listed=; distribution=debian; ensure_go":                           "apt-get update -q\ninstall golang-go\n",
		"listed=yes; distribution=debian; ensure_go":                        "install golang-go\n",
		`distribution=debian; main build; missing "$needs" | cut -d' ' -f2`: "git\nca-certificates\n",
		`distribution=other; main build; missing "$needs" | cut -d' ' -f2`:  "",
	} {
		cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "sh"), "-euc", `part() { sed -n "$1" "$script"; }
script=$1
eval "$(part "/^[a-z]*_needs=/,/^'/p; /^at_least()/p; /^missing()/,/^}/p; /^ensure_go()/,/^}/p; /^needs_update()/,/^}/p; /^update_lists()/,/^}/p")"
main() { eval "$(part '/^case .{1:-} in/,/^esac/p')"; }
eval "$2"
eval "$3"`, "sh", filepath.Join(testenv.Repository(t), "scripts", "setup.sh"), fakes, do)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("%s: %v\n%s, want %s", do, err, out, want)
		}
	}
}

// The quick check is the promise that every system still builds.
func TestCheckLooksAtEverySystem(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(testenv.Repository(t), "scripts", "check.sh"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^for target in (.*); do$`).FindSubmatch(data)
	if list == nil {
		t.Fatal("scripts/check.sh has no list of targets")
	}
	for _, want := range []string{"linux/", "freebsd/", "darwin/", "/amd64", "/arm64"} {
		if !strings.Contains(string(list[1]), want) {
			t.Errorf("scripts/check.sh does not vet for %s", strings.Trim(want, "/"))
		}
	}
}
