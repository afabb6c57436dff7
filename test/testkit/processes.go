//go:build linux

package testkit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// Run runs a command that must succeed.
func Run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// Ready waits until both halves answer again.
func (b *Installation) Ready() {
	b.T.Helper()
	testenv.Eventually(b.T, 30*time.Second, func() bool {
		info, err := b.API.Info(b.T.Context())
		return err == nil && info.Host != nil
	}, "the instance does not answer again:\n%s", b.Log())
}

// Victims are the processes to kill.
func (b *Installation) Victims(what string) []int {
	b.T.Helper()
	if what == "chromium" {
		return b.InJails()
	}
	pids, err := b.Processes()
	if err != nil {
		b.T.Fatal(err)
	}
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // one that has ended has none
		for _, arg := range strings.Split(string(line), "\x00") {
			if arg == what {
				return []int{pid}
			}
		}
	}
	b.T.Fatalf("no process %s among %v", what, pids)
	return nil
}

// InJails are the processes that run as one of the jails' users.
func (b *Installation) InJails() []int {
	b.T.Helper()
	scope := b.HostScope()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		b.T.Fatal(err)
	}
	var out []int
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			continue // it has ended
		}
		uid := info.Sys().(*syscall.Stat_t).Uid
		if uid >= scope.UIDBase && uid < scope.UIDBase+scope.UIDs {
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}

// Transcript keeps all that is written to it.
type Transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write keeps what is written.
func (l *Transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// Bytes is a copy of what was written.
func (l *Transcript) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.text.Bytes())
}

// Child starts a process that ends with the test, and returns what is closed when it has ended.
func Child(t *testing.T, cmd *exec.Cmd) <-chan struct{} {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // the cleanup below waits for it
		_ = cmd.Wait() // how it ended is in its output
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Errorf("%s does not end", cmd.Path)
			_ = cmd.Process.Kill() // likewise
			<-ended
		}
	})
	return ended
}
