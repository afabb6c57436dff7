// Package testenv says what a test needs from the machine it runs on.
//
// A test that needs root, a program, a Chromium or a built template asks for it here, in its first lines:
//
//	testenv.Need(t, testenv.Root)
//	nft := testenv.Tool(t, "nft")
//
// Where the thing is missing, the test is skipped with a reason that says how to get it; in continuous integration
// (CI=true) it fails instead, because there a skipped test is a hole that goes unnoticed. `go test -short` is the quick
// run that needs nothing prepared: it always skips, and it skips what needs root even when run by root.
//
// Only tests import this package.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Need asks for several things at once: testenv.Need(t, testenv.Root).
func Need(t testing.TB, needs ...func(testing.TB)) {
	t.Helper()
	for _, need := range needs {
		need(t)
	}
}

// Fresh has go test run the tests of a package although nothing in it has changed: they ask something of the machine, of which
// go test knows nothing. `make test` gives the variable another value each time. A test that needs something of this package is fresh.
func Fresh() { _ = os.Getenv("CLAWJAIL_TEST_RUN") }

// Root is for tests that make namespaces, mounts, interfaces or jails.
func Root(t testing.TB) {
	t.Helper()
	Fresh()
	if testing.Short() {
		t.Skip("SKIPPED: needs root, and -short leaves those tests out; run `make test`")
	}
	if os.Geteuid() != 0 {
		Missing(t, "root", "run `make test`, which uses sudo")
	}
}

// Time is for tests that take seconds, with a browser mostly, in packages that have many of them.
func Time(t testing.TB) {
	t.Helper()
	Fresh()
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves out what takes long; run `make test`")
	}
}

// Long is for tests that `make test-long` runs and `make test` does not: they take minutes, or ask servers of others.
func Long(t testing.TB) {
	t.Helper()
	if !IsLong() {
		t.Skip("SKIPPED: a part of `make test-long`")
	}
}

// IsLong is for tests of which `make test-long` runs more cases.
func IsLong() bool { return os.Getenv("CLAWJAIL_TEST_LONG") != "" }

// Tool returns the path of a program. The administrator's folders are searched too: they are not in everyone's PATH.
func Tool(t testing.TB, name string) string {
	t.Helper()
	Fresh()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	Missing(t, "the program "+name, "run `make setup`")
	return ""
}

// Chromium returns the path of a headless shell on this host: the one of CLAWJAIL_TEST_CHROMIUM_SHELL, or the
// distribution's. It is the binary itself, not the script around it, where both are installed.
func Chromium(t testing.TB) string {
	t.Helper()
	return browser(t, "chromium-headless-shell", "CLAWJAIL_TEST_CHROMIUM_SHELL",
		"/usr/lib/chromium/chromium-headless-shell", "chromium-headless-shell", "chrome-headless-shell", "headless_shell")
}

// ChromiumFull returns the path of a full Chromium on this host: the one of CLAWJAIL_TEST_CHROMIUM, or the
// distribution's.
func ChromiumFull(t testing.TB) string {
	t.Helper()
	return browser(t, "chromium", "CLAWJAIL_TEST_CHROMIUM",
		"/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome")
}

func browser(t testing.TB, what, variable string, candidates ...string) string {
	t.Helper()
	Fresh()
	if path := os.Getenv(variable); path != "" {
		found, err := exec.LookPath(path)
		if err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
		return found
	}
	for _, candidate := range candidates {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	Missing(t, what, "run `make setup`, or set "+variable)
	return ""
}

// Template returns the folder of the built template "browser". Templates are looked for in CLAWJAIL_TEST_TEMPLATES,
// else in /var/lib/clawjail/templates.
func Template(t testing.TB) string {
	t.Helper()
	return TemplateNamed(t, "browser")
}

// TemplateNamed is [Template] for another one.
func TemplateNamed(t testing.TB, name string) string {
	t.Helper()
	Fresh()
	if testing.Short() {
		t.Skip("SKIPPED: needs the template " + name + ", and -short leaves those tests out; run `make test`")
	}
	dir := os.Getenv("CLAWJAIL_TEST_TEMPLATES")
	if dir == "" {
		dir = "/var/lib/clawjail/templates"
	}
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		Missing(t, "the template "+path, "run `make template`, or set CLAWJAIL_TEST_TEMPLATES")
	}
	return path
}

// Repository returns the top folder of the checkout: the nearest one above with a go.mod.
func Repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("find the working directory: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod in any folder above")
		}
		dir = parent
	}
}

// Missing ends the test because what it needs is not there: skipped, or failed where CI=true. The hint says how to
// get it. It is for needs that have no function of their own here.
func Missing(t testing.TB, what, hint string) {
	t.Helper()
	Fresh()
	if mustHave(os.Getenv("CI"), testing.Short()) {
		t.Fatalf("MISSING: %s; CI=true does not allow skipping: %s", what, hint)
	}
	t.Skipf("SKIPPED: this machine has no %s: %s", what, hint)
}

// mustHave decides whether something missing fails the test.
func mustHave(ci string, short bool) bool { return ci == "true" && !short }
