//go:build linux

package linux

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// The next host daemon removes what one that was killed in the middle of a trial has left, also when it never makes a trial.
func TestATrialThatWasKilledIsRemovedAtTheNextStart(t *testing.T) {
	h := newTestHost(t)
	must(t, h.limiter.apply(trial, "", testLimits()))
	dir, err := h.runtime.run.Ensure(trial, 0o700, -1)
	must(t, err)
	must(t, dir.Close())
	cmd := exec.Command("/bin/sleep", "60")
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		must(t, h.runtime.endTrial(t.Context()))
	})
	group := h.limiter.group(h.limiter.pids, trial)
	must(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	if pids, err := h.limiter.processes(trial); err != nil || len(pids) == 0 {
		t.Fatalf("nothing is left that could be removed: %v", err)
	}
	next, err := NewRuntime(h.o, h.limiter)
	must(t, err)
	must(t, next.Close())
	for _, path := range []string{group, filepath.Join(h.o.RunDir, trial)} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is there still", path)
		}
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("its process runs on")
	}
}

// A process of a jail that nobody waits for is collected by the next look at the host, and does not stay a zombie until there is
// another jail.
func TestWhatEndsAfterTheLastLookIsNoZombieForLong(t *testing.T) {
	h := newTestHost(t)
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	must(t, cmd.Start()) // nobody waits for it
	status := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stat"
	testenv.Eventually(t, 10*time.Second, func() bool {
		text, err := os.ReadFile(status)
		return err == nil && bytes.Contains(text, []byte(") Z "))
	}, "it is no zombie: this shows nothing")
	h.resources(t)
	if text, err := os.ReadFile(status); err == nil {
		t.Errorf("it is left: %s", text)
	}
}
