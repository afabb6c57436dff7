package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// recorder is a testing.TB that remembers how its test ended instead of ending it.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Skip(args ...any) { r.skipped = fmt.Sprint(args...); runtime.Goexit() }

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.failed = fmt.Sprint(args...); runtime.Goexit() }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// record runs f in a goroutine of its own, because Skip and Fatal end the goroutine that they are called from.
func record(f func(testing.TB)) *recorder {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

func TestMissingSkipsExceptInContinuousIntegration(t *testing.T) {
	tests := []struct {
		ci    string
		short bool
		want  bool
	}{
		{"", false, false}, {"false", false, false}, {"true", false, true},
		{"", true, false}, {"true", true, false},
	}
	for _, tt := range tests {
		if got := mustHave(tt.ci, tt.short); got != tt.want {
			t.Errorf("CI=%q short=%v: got %v, want %v", tt.ci, tt.short, got, tt.want)
		}
	}

	t.Setenv("CI", "")
	r := record(func(tb testing.TB) { Tool(tb, "no-such-program-anywhere") })
	if !strings.Contains(r.skipped, "no-such-program-anywhere") || r.failed != "" {
		t.Errorf("without CI: skipped %q, failed %q", r.skipped, r.failed)
	}
	if testing.Short() {
		return
	}
	t.Setenv("CI", "true")
	r = record(func(tb testing.TB) { Tool(tb, "no-such-program-anywhere") })
	if !strings.Contains(r.failed, "no-such-program-anywhere") || r.skipped != "" {
		t.Errorf("with CI: skipped %q, failed %q", r.skipped, r.failed)
	}
}

func TestRootAgreesWithTheUser(t *testing.T) {
	t.Setenv("CI", "")
	r := record(Root)
	needsSkip := os.Geteuid() != 0 || testing.Short()
	if (r.skipped != "") != needsSkip || r.failed != "" {
		t.Errorf("uid %d, short %v: skipped %q, failed %q", os.Geteuid(), testing.Short(), r.skipped, r.failed)
	}
}

func TestNeedAsksForAll(t *testing.T) {
	var asked []string
	ask := func(name string) func(testing.TB) { return func(testing.TB) { asked = append(asked, name) } }
	Need(t, ask("a"), ask("b"))
	if strings.Join(asked, "") != "ab" {
		t.Errorf("asked %v", asked)
	}
}

func TestBrowserOfTheEnvironmentComesFirst(t *testing.T) {
	shell := filepath.Join(t.TempDir(), "shell")
	if err := os.WriteFile(shell, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CLAWJAIL_TEST_CHROMIUM_SHELL", shell)
	if got := Chromium(t); got != shell {
		t.Errorf("got %q, want %q", got, shell)
	}
	t.Setenv("CLAWJAIL_TEST_CHROMIUM_SHELL", shell+".gone")
	if r := record(func(tb testing.TB) { Chromium(tb) }); r.failed == "" {
		t.Error("a wrong CLAWJAIL_TEST_CHROMIUM_SHELL is not an error")
	}
}

func TestTemplateIsLookedForWhereTheEnvironmentSays(t *testing.T) {
	if testing.Short() {
		t.Skip("Template always skips with -short")
	}
	t.Setenv("CI", "")
	dir := t.TempDir()
	t.Setenv("CLAWJAIL_TEST_TEMPLATES", dir)
	if r := record(func(tb testing.TB) { Template(tb) }); !strings.Contains(r.skipped, dir) {
		t.Errorf("no template: skipped %q", r.skipped)
	}
	if err := os.Mkdir(filepath.Join(dir, "browser"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, want := Template(t), filepath.Join(dir, "browser"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRepositoryIsTheFolderWithGoMod(t *testing.T) {
	if _, err := os.Stat(filepath.Join(Repository(t), "go.mod")); err != nil {
		t.Error(err)
	}
}

func TestEventuallyAsksAgainUntilTrueAndGivesUp(t *testing.T) {
	calls := 0
	Eventually(t, time.Minute, func() bool { calls++; return calls == 3 }, "three calls")
	if calls != 3 {
		t.Errorf("asked %d times, want 3", calls)
	}
	r := record(func(tb testing.TB) { Eventually(tb, time.Millisecond, func() bool { return false }, "jail %d", 7) })
	if r.failed != "not within 4ms: jail 7" {
		t.Errorf("got %q", r.failed)
	}
}

func TestToolFindsAdministratorsPrograms(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/chroot"); err != nil {
		t.Skip("SKIPPED: this machine has no /usr/sbin/chroot")
	}
	t.Setenv("PATH", t.TempDir())
	if got := Tool(t, "chroot"); got != "/usr/sbin/chroot" {
		t.Errorf("got %q", got)
	}
}
