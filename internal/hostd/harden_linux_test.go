package hostd

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// helperHardened shows what a hardened process is like. Arguments: the number of an inherited descriptor.
func helperHardened(args []string) error {
	if err := Harden(); err != nil {
		return err
	}
	fd, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil {
		return err
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return err
	}
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	mask := unix.Umask(0)
	fmt.Printf("cloexec=%t dumpable=%d core=%d dir=%s umask=%03o env=%q\n", flags&unix.FD_CLOEXEC != 0, dumpable, core.Cur, dir, mask, os.Environ())
	return nil
}

func TestAHardenedProcessBringsNothingAlong(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command(self, "3")
	cmd.Env = []string{helperVariable + "=hardened", "NOTIFY_SOCKET=@x", "CLAWJAIL_STAGE_DIR=/stage", "KUBERNETES_SERVICE_HOST=10.0.0.1", "LD_PRELOAD_X=/evil.so", "PATH=/tmp/evil"}
	cmd.ExtraFiles = []*os.File{w}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := string(out)
	for _, want := range []string{"cloexec=true", "dumpable=0", "core=1", "dir=/ ", "umask=077", "NOTIFY_SOCKET=@x", "CLAWJAIL_STAGE_DIR=/stage", "KUBERNETES_SERVICE_HOST=10.0.0.1", "PATH=" + searchPath} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
	for _, bad := range []string{"LD_PRELOAD_X", helperVariable, "/tmp/evil"} {
		if strings.Contains(got, bad) {
			t.Errorf("%s came along: %s", bad, got)
		}
	}
}
