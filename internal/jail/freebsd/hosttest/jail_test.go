//go:build linux

package hosttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

func TestAProgramInAJailIsAProcessOfItsOwn(t *testing.T) {
	h, root := withJail(t)
	args := user("/bin/sh", "-c", `echo in >/tmp/a && echo out && read line && echo "$line" >&2; exit 7`)
	cmd := exec.Command(filepath.Join(h.Commands(), args[0]), args[1:]...)
	cmd.Stdin = strings.NewReader("typed\n")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if cmd.ProcessState.ExitCode() != 7 || out.String() != "out\n" || errs.String() != "typed\n" {
		t.Fatalf("%v: %q %q", err, out.String(), errs.String())
	}
	if text, err := os.ReadFile(root + "/tmp/a"); err != nil || string(text) != "in\n" {
		t.Errorf("the jail's tmpfs: %v, %q", err, text)
	}
}

func TestAProgramInAJailIsConfined(t *testing.T) {
	h, _ := withJail(t)
	for script, want := range map[string]int{
		`: >/x`: 2, `: >/bin/x`: 2, `: >/tmp/x`: 0, `: >/dev/null`: 0, `: >/dev/x`: 2, `cd /tmp && cd ../.. && test -e bin/probe && test ! -e /usr/bin`: 0,
		`test "$(ulimit -n)" -gt 5`: 0,
	} {
		if _, status, errs := h.Run(user("/bin/sh", "-c", script)...); status != want {
			t.Errorf("%s: status %d, want %d: %s", script, status, want, errs)
		}
	}
}

// start starts a program in jail x that says when it runs, and is waited for at the end.
func start(t *testing.T, h *Host, script string) *exec.Cmd {
	t.Helper()
	args := user("/bin/sh", "-c", "echo; "+script)
	cmd := exec.Command(filepath.Join(h.Commands(), args[0]), args[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // its status says nothing
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestProcessesAreListedWithRealNumbersAndIds(t *testing.T) {
	h, _ := withJail(t)
	cmd := start(t, h, "while :; do read x; done")
	list := []string{"ps", "-J", "x"}
	for _, k := range []string{"pid", "ppid", "uid", "ruid", "svuid", "gid", "rgid", "svgid", "jid", "f2", "state"} {
		list = append(list, "-o", k+"=")
	}
	out := h.Must(list...)
	want := fmt.Sprintf("%d %d 1000 1000 1000 1000 1000 1000 1 00008000 ", cmd.Process.Pid, os.Getpid())
	if !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 1 {
		t.Errorf("%q, want %q", out, want)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); !strings.Contains(h.Must(list...), "ZJ"); {
		if time.Now().After(deadline) {
			t.Fatal("a process that nobody waited for is not listed as such")
		}
	}
	_ = cmd.Wait() // it was killed
	if out, status, _ := h.Run(list...); status != 1 || out != "" {
		t.Errorf("an empty list: %d, %q", status, out)
	}
}

func TestRemovingAJailEndsWhatDetachedItself(t *testing.T) {
	h, _ := withJail(t)
	cmd := start(t, h, `(trap "" TERM HUP; while :; do read x </dev/zero; done) >/dev/null 2>&1 & (while :; do :; done) >/dev/null 2>&1 & exit`)
	_ = cmd.Wait() // only what it left is of interest
	if out := h.Must("ps", "-J", "x", "-o", "pid="); strings.Count(out, "\n") != 2 {
		t.Fatalf("two processes were left: %q", out)
	}
	h.Must("jail", "-R", "x")
	if out, status, errs := h.Run("ps", "-J", "x", "-o", "pid="); status != 1 || !strings.Contains(errs, "Invalid jail id: x") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	resources := h.Resources()
	if slices.ContainsFunc(resources, func(s string) bool { return strings.HasPrefix(s, "process") || strings.HasPrefix(s, "jail") }) {
		t.Errorf("%v", resources)
	}
}

func TestTasksAndMemoryAreBoundedWhereTheMachineCan(t *testing.T) {
	h, _ := withJail(t)
	if len(groupRoots()) == 0 {
		testenv.Missing(t, "control groups for the simulator", "start the host with the controllers memory and pids")
	}
	h.Must("rctl", "-a", "jail:x:maxproc:deny=5", "jail:x:memoryuse:sigkill=64M")
	if _, status, errs := h.Run(user("/bin/probe", "memory", "268435456")...); status == 0 {
		t.Errorf("it got four times its memory: %d %s", status, errs)
	}
	if out, status, errs := h.Run(user("/bin/probe", "memory", "1048576")...); status != 0 {
		t.Errorf("it got not even a little: %d %s %s", status, out, errs)
	}
	h.Must("rctl", "-a", "jail:x:maxproc:deny=1")
	if _, status, errs := h.Run(user("/bin/sh", "-c", "/bin/probe; exit 0")...); status == 0 {
		t.Errorf("it got a process more than it may: %d %s", status, errs)
	}
}

func TestAnEphemeralJailEndsWithItsCommand(t *testing.T) {
	h, root := withJail(t)
	h.Must("jail", "-R", "x")
	base := []string{"jail", "-c", "path=" + root, "host.hostname=h", "ip4=disable", "exec.clean"}
	out, status, errs := h.Run(append(base, "command=/bin/sh", "-c", "echo $HOME; exit 3")...)
	if out != "/root\n" || status != 1 || errs != "jail: /bin/sh -c echo $HOME; exit 3: failed\n" {
		t.Errorf("%q %d %q", out, status, errs)
	}
	if out := h.Must("jls", "-d", "name"); out != "" {
		t.Errorf("it is still there: %q", out)
	}
	// A process that it leaves running keeps the jail.
	h.Must(append(base, "name=e", "command=/bin/sh", "-c", "(read x </dev/zero) >/dev/null 2>&1 &")...)
	if out := h.Must("jls", "name"); out != "e\n" {
		t.Errorf("%q", out)
	}
	h.Must("jail", "-R", "e")
}

func TestTwentyCommandsAtOnceDoNotLoseEachOther(t *testing.T) {
	h := New(t)
	done := make(chan string)
	for range 20 {
		go func() {
			text, err := exec.Command(filepath.Join(h.Commands(), "ifconfig"), "epair", "create").Output()
			if err != nil {
				text = []byte(err.Error())
			}
			done <- string(text)
		}()
	}
	seen := map[string]bool{}
	for range 20 {
		seen[<-done] = true
	}
	if len(seen) != 20 || strings.Count(h.Must("ifconfig", "-l"), "epair") != 40 {
		t.Errorf("%v", seen)
	}
}

func TestADatasetBecomesReadOnlyWhileAFileIsOpen(t *testing.T) {
	h, root := withJail(t)
	h.Must("zfs", "set", "readonly=off", "zroot/cj/jails/x")
	file, err := os.Create(root + "/left")
	if err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(200*time.Millisecond, func() { _ = file.Close() }).Stop()
	h.Must("zfs", "set", "readonly=on", "zroot/cj/jails/x")
	if err := os.WriteFile(root+"/more", nil, 0o600); err == nil {
		t.Error("a file was made in a dataset that is read-only")
	}
}
