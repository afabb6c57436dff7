package testenv

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// aloneVariable names the test that a process was started for.
const aloneVariable = "CLAWJAIL_TEST_ALONE"

var pools atomic.Uint32

// OnZFS says whether the test may go on, and use Pool. It may in a process of its own, which OnZFS starts, for that test
// only and in a mount namespace of its own; where it answers false that has been done, with the same outcome.
//
// Two reasons. A dataset cannot be destroyed while any namespace has it mounted, and other tests, building a template
// for example, keep a copy of all the machine's mounts for minutes. And there is one zfs-fuse on a machine, unless its folders are private.
func OnZFS(t testing.TB) bool {
	t.Helper()
	Need(t, Root)
	Tool(t, "zfs")
	Tool(t, "zpool")
	if _, err := os.Stat("/dev/zfs"); err != nil {
		Tool(t, "zfs-fuse")
	}
	if os.Getenv(aloneVariable) == t.Name() {
		return true
	}
	names := strings.Split(t.Name(), "/")
	for i, n := range names {
		names[i] = "^" + regexp.QuoteMeta(n) + "$"
	}
	limit := 5 * time.Minute
	args := []string{"-test.run=" + strings.Join(names, "/"), "-test.count=1", "-test.timeout=" + limit.String()}
	_, bench := t.(*testing.B)
	if bench {
		args = append(args[1:], "-test.run=^$", "-test.bench="+strings.Join(names, "/"), "-test.benchtime="+flag.Lookup("test.benchtime").Value.String())
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), aloneVariable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	runtime.LockOSThread() // the parent that it dies with is this thread
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("in a process of its own: %v\n%s", err, out)
	}
	if bench {
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "Benchmark") || strings.Contains(line, "ns/op") {
				fmt.Print(line)
			}
		}
		t.SkipNow() // the figures were printed by the process that measured them
	}
	return false
}

// Pool makes a ZFS pool in a file of the given size, and in it a dataset that is mounted nowhere, whose name it returns.
// Both are gone when the test has ended. The kernel's ZFS is used where there is one, else a zfs-fuse of the test's own.
func Pool(t testing.TB, size int64) string {
	t.Helper()
	if os.Getenv(aloneVariable) == "" {
		t.Fatal("a test that makes a pool asks OnZFS first")
	}
	zfs, zpool := Tool(t, "zfs"), Tool(t, "zpool")
	if _, err := os.Stat("/dev/zfs"); err != nil {
		startZFS(t, zfs)
	}
	image := filepath.Join(t.TempDir(), "pool")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size)); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("cjtest%dx%d", os.Getpid(), pools.Add(1))
	command(t, zpool, "create", "-f", "-o", "cachefile=none", "-m", "none", name, image)
	t.Cleanup(func() {
		// zfs-fuse hears of an unmounted file system a moment later.
		var out []byte
		Eventually(t, 5*time.Second, func() (ok bool) {
			var err error
			out, err = exec.Command(zpool, "destroy", "-f", name).CombinedOutput()
			return err == nil
		}, "destroy the pool: %s", &out)
	})
	command(t, zfs, "create", "-o", "mountpoint=none", name+"/clawjail")
	return name + "/clawjail"
}

func command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %q: %v: %s", name, args, err, out)
	}
}

// startZFS starts a zfs-fuse that is seen in this mount namespace only.
func startZFS(t testing.TB, zfs string) {
	t.Helper()
	// Its socket, its lock and its list of pools. There is one of each on a machine.
	for _, dir := range []string{"/var/run/zfs", "/var/lock/zfs", "/var/lib/zfs"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unmount(dir) })
	}
	// Without a kstat: it would be a mount on a new folder of the host's root.
	cmd := exec.Command(Tool(t, "zfs-fuse"), "--no-daemon", "--no-kstat-mount")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent that it dies with is this thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start zfs-fuse: %v", err)
	}
	t.Cleanup(func() {
		// Its pool is gone by now, and by itself it takes three seconds to end.
		if err := cmd.Process.Kill(); err != nil {
			t.Errorf("end zfs-fuse: %v", err)
		}
		<-ended
	})
	Eventually(t, 10*time.Second, func() bool { return exec.Command(zfs, "list", "-H").Run() == nil }, "zfs-fuse does not answer")
}
