//go:build unix

// Package cdptest starts a real browser for tests, as a jail would: over a pipe, not as root, with its own sandbox on.
// Only tests import it.
package cdptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/testenv"
)

// nobody is the user that browsers run as when the test is run by root: Chromium's sandbox does not start as root.
const nobody = 65534

// Browser is a browser process that a test started. It is killed, with all its children, when the test ends.
type Browser struct {
	// Replies is what the browser writes, Commands is what it reads.
	Replies, Commands *os.File
	// Started is the moment before the process was made.
	Started time.Time

	cmd    *exec.Cmd
	stderr texts.Tail
	exited chan struct{}
}

// Dir makes a private folder that belongs to the browser's user, and removes it when the test ends.
func Dir(t testing.TB) string {
	t.Helper()
	// Not t.TempDir: its parent is closed to other users.
	dir, err := os.MkdirTemp("", "clawjail-test-")
	if err != nil {
		t.Fatalf("make the browser's folder: %v", err)
	}
	t.Cleanup(func() {
		// The children of a browser that was killed may write for a moment longer.
		testenv.Eventually(t, 5*time.Second, func() bool { return os.RemoveAll(dir) == nil }, "remove %s", dir)
	})
	Give(t, dir)
	return dir
}

// Give makes the browser's user the owner of a folder and of everything in it.
func Give(t testing.TB, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
	if err != nil {
		t.Fatalf("give the browser its folder: %v", err)
	}
}

// Start runs a program with its arguments and environment, with fd 3 and 4 as Chromium wants them for
// --remote-debugging-pipe. The caller, or what it gives them to, closes the pipe's ends.
func Start(t testing.TB, argv, env []string) *Browser {
	t.Helper()
	theirIn, ourOut := pipe(t)
	ourIn, theirOut := pipe(t)
	b := &Browser{Replies: ourIn, Commands: ourOut, exited: make(chan struct{})}
	b.cmd = exec.Command(argv[0], argv[1:]...)
	b.cmd.Env = env
	b.cmd.Dir = "/"
	b.cmd.Stderr = &b.stderr
	b.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	// A group of its own, so that nothing of it outlives the test.
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		b.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	// A child of the browser that keeps its standard error must not keep the test.
	b.cmd.WaitDelay = 2 * time.Second
	b.Started = time.Now()
	err := b.cmd.Start()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		ourIn.Close()
		ourOut.Close()
		t.Fatalf("start %s: %v", argv[0], err)
	}
	go func() {
		// How it ended is for the test to judge, by the pipe.
		_ = b.cmd.Wait()
		close(b.exited)
	}()
	t.Cleanup(func() {
		b.Kill()
		<-b.exited
		ourIn.Close()
		ourOut.Close()
		if t.Failed() {
			t.Logf("the browser's last words:\n%s", &b.stderr)
		}
	})
	return b
}

// PID is the process id of the browser.
func (b *Browser) PID() int { return b.cmd.Process.Pid }

// Exited is closed when the browser process is gone.
func (b *Browser) Exited() <-chan struct{} { return b.exited }

// Kill kills the browser and its children at once.
func (b *Browser) Kill() {
	// An error means that there is nothing left to kill.
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatalf("make a pipe: %v", err)
	}
	return r, w
}

// Shell starts a headless shell with one page, in a folder of its own and with no way to any network: what tests of
// the protocol need. Tests of the launch line bring their own.
func Shell(t testing.TB) *Browser {
	t.Helper()
	path, dir := testenv.Chromium(t), Dir(t)
	return Start(t, []string{path,
		"--remote-debugging-pipe", "--user-data-dir=" + dir,
		"--disable-gpu", "--disable-software-rasterizer", "--disable-background-networking",
		"--proxy-server=http://127.0.0.1:9", "--proxy-bypass-list=<-loopback>",
		"about:blank",
	}, []string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=/usr/bin:/bin", "LANG=C.UTF-8"})
}
