//go:build unix

// Package hosttest runs tests as an ordinary user: the host browser does not run as root, and tests often do. Only tests
// import it.
package hosttest

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
)

// nobody is the user that tests become.
const nobody = 65534

// homeVariable tells the test in the other process where its home is.
const homeVariable = "CLAWJAIL_TEST_HOME"

// AsUser runs the calling test as a user who is not root. ok says that this is that user, with a home folder; else the
// test was run in another process, and the caller returns.
func AsUser(t *testing.T) (home string, ok bool) {
	t.Helper()
	if home := os.Getenv(homeVariable); home != "" {
		return home, true
	}
	home = cdptest.Dir(t)
	if os.Geteuid() != 0 {
		return home, true
	}
	// The binary is in a folder of root's.
	binary := filepath.Join(home, "test")
	copyProgram(t, binary)
	cdptest.Give(t, home)
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Dir = home
	cmd.Env = Environ(home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	// Nothing of it stays, also when it failed. A browser is in a group of its own, and goes with its pipe.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if err != nil {
		t.Errorf("as another user: %v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("as another user:\n%s", out)
	}
	return "", false
}

// Environ is the environment of a user without a desktop.
func Environ(home string) []string {
	out := []string{homeVariable + "=" + home, "HOME=" + home, "TMPDIR=" + home, "PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	for _, name := range []string{"CI", "CLAWJAIL_TEST_CHROMIUM"} {
		if value := os.Getenv(name); value != "" {
			out = append(out, name+"="+value)
		}
	}
	return out
}

func copyProgram(t *testing.T, to string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, from); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
