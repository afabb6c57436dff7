//go:build linux

package hostpath

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsMissingIsMadeForTheJailAndWhatIsThereStaysAsItIs(t *testing.T) {
	testenv.Need(t, testenv.Root)
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "there"), 0o711))
	must(t, os.Chmod(filepath.Join(root, "there"), 0o711))
	f, err := Roots{root}.Open(jail.Mount{Source: filepath.Join(root, "there/new/deep"), Target: "/workspace", Make: []string{"bot"}}, 1000)
	must(t, err)
	must(t, f.Close())
	for path, want := range map[string]struct {
		uid  uint32
		mode uint32
	}{"there": {0, 0o711}, "there/new": {1000, 0o755}, "there/new/deep": {1000, 0o755}, "there/new/deep/bot": {1000, 0o755}} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(root, path), &st))
		if st.Uid != want.uid || st.Mode&0o777 != want.mode {
			t.Errorf("%s belongs to %d with mode %o", path, st.Uid, st.Mode&0o777)
		}
	}
}

// A table of everything that can be planted in a workspace's way: it is refused, and nothing outside is written.
func TestWhatIsPlantedIsRefused(t *testing.T) {
	testenv.Need(t, testenv.Root)
	for name, c := range map[string]struct {
		plant func(t *testing.T, root, outside string)
		make  []string
		ok    bool
		code  string
	}{
		"nothing":             {func(*testing.T, string, string) {}, []string{"bot"}, true, ""},
		"a link out":          {func(t *testing.T, root, outside string) { must(t, os.Symlink(outside, filepath.Join(root, "a"))) }, nil, false, problem.Forbidden},
		"a relative link out": {func(t *testing.T, root, _ string) { must(t, os.Symlink("../..", filepath.Join(root, "a"))) }, nil, false, problem.Forbidden},
		"a link that stays": {func(t *testing.T, root, _ string) {
			must(t, os.Mkdir(filepath.Join(root, "c"), 0o755))
			must(t, os.Symlink("c", filepath.Join(root, "a")))
		}, nil, true, ""},
		"a magic link":    {func(t *testing.T, root, _ string) { must(t, os.Symlink("/proc/self/root", filepath.Join(root, "a"))) }, nil, false, problem.Forbidden},
		"a dangling link": {func(t *testing.T, root, _ string) { must(t, os.Symlink("nowhere", filepath.Join(root, "a"))) }, nil, false, problem.Forbidden},
		"a file":          {func(t *testing.T, root, _ string) { must(t, os.WriteFile(filepath.Join(root, "a"), nil, 0o600)) }, nil, false, problem.Conflict},
		"a FIFO":          {func(t *testing.T, root, _ string) { must(t, unix.Mkfifo(filepath.Join(root, "a"), 0o666)) }, nil, false, problem.Conflict},
		"a link in an agent's place": {func(t *testing.T, root, outside string) {
			must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
			must(t, os.Symlink(outside, filepath.Join(root, "a/b/bot")))
		}, []string{"bot"}, false, problem.Forbidden},
		"a FIFO in an agent's place": {func(t *testing.T, root, _ string) {
			must(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
			must(t, unix.Mkfifo(filepath.Join(root, "a/b/bot"), 0o666))
		}, []string{"bot"}, false, problem.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
			must(t, os.Mkdir(root, 0o755))
			must(t, os.Mkdir(outside, 0o755))
			c.plant(t, root, outside)
			m := jail.Mount{Source: filepath.Join(root, "a/b"), Target: "/workspace", Make: c.make}
			if err := (Roots{root}).Check(m); (err == nil) != c.ok || problem.CodeOf(err) != c.code && !c.ok {
				t.Errorf("check: %v (%s), want %q", err, problem.CodeOf(err), c.code)
			}
			f, err := Roots{root}.Open(m, 1000)
			if (err == nil) != c.ok || problem.CodeOf(err) != c.code && !c.ok {
				t.Errorf("%v (%s), want %q", err, problem.CodeOf(err), c.code)
			}
			if err == nil {
				must(t, f.Close())
			}
			if all, err := os.ReadDir(outside); err != nil || len(all) > 0 {
				t.Errorf("something was written outside: %v, %v", all, err)
			}
		})
	}
}

func TestOnlyWhatIsBeneathARootIsOpened(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "work"), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "workshop"), 0o755))
	r := Roots{filepath.Join(dir, "work")}
	for path, ok := range map[string]bool{"work": true, "workshop": false, "": false, "elsewhere": false} {
		err := r.Check(jail.Mount{Source: filepath.Join(dir, path)})
		if (err == nil) != ok || !ok && problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%q: %v", path, err)
		}
	}
	if err := (Roots{}).Check(jail.Mount{Source: "/tmp/x"}); err == nil || !strings.Contains(err.Error(), "/tmp/x") {
		t.Errorf("without roots: %v", err)
	}
}

func TestCheckMakesNothing(t *testing.T) {
	root := t.TempDir()
	must(t, Roots{root}.Check(jail.Mount{Source: filepath.Join(root, "a/b/c"), Make: []string{"x"}}))
	if all, err := os.ReadDir(root); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	must(t, os.Symlink("/", filepath.Join(root, "out")))
	if err := (Roots{root}).Check(jail.Mount{Source: filepath.Join(root, "out/etc")}); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("a link out: %v", err)
	}
}
