package template

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// startHelper starts this test binary as another process (see TestMain), and returns its lines.
func startHelper(t *testing.T, mode string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), helperVariable+"="+mode)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill() // fails when the test has done it
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(stdout)
}

// waitFor reads lines until one of them is want.
func waitFor(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	var seen []string
	for lines.Scan() {
		if lines.Text() == want {
			return
		}
		seen = append(seen, lines.Text())
	}
	t.Fatalf("%q was never said, but:\n%s", want, strings.Join(seen, "\n"))
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	must(t, cmd.Process.Signal(unix.SIGKILL))
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Fatalf("the helper was not killed: %v", err)
	}
}

// TestKilledBuildLeavesNothing kills a builder at every stage that a build goes through, as the build itself tells them.
func TestKilledBuildLeavesNothing(t *testing.T) {
	testenv.Need(t, testenv.Root)
	source := sourceTree(t)
	ctx := context.Background()
	complete := testStore(t)
	var stages []string
	_, err := complete.Build(ctx, BuildOptions{Name: "victim", From: "dir:" + source, Progress: func(p Progress) {
		if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
			stages = append(stages, p.Stage)
		}
	}})
	must(t, err)
	if len(stages) < 4 {
		t.Fatalf("the stages are %v", stages)
	}
	for _, stage := range stages {
		for _, replace := range []bool{false, true} {
			s := testStore(t)
			want := []string{storeLockName}
			if replace {
				_, err := s.Build(ctx, BuildOptions{Name: "victim", From: "dir:" + source})
				must(t, err)
				want = append(want, "victim")
			}
			cmd, lines := startHelper(t, "build", s.dir, "dir:"+source, stage)
			waitFor(t, lines, "waiting")
			if removed, err := s.Sweep(ctx); err != nil || len(removed) != 0 {
				t.Errorf("%s: a build that is at work was swept: %v, %v", stage, removed, err)
			}
			kill(t, cmd)
			if got := names(t, s.dir); len(got) != len(want)+1 {
				t.Errorf("%s: before sweeping there is %v: nothing was interrupted", stage, got)
			}
			if _, err := s.List(ctx); err != nil {
				t.Errorf("%s: %v", stage, err)
			}
			if diff := cmp.Diff(want, names(t, s.dir)); diff != "" {
				t.Errorf("%s: %s", stage, diff)
			}
			if replace {
				if _, err := s.Verify(ctx, "victim", VerifyOptions{}); err != nil {
					t.Errorf("%s: the old template: %v", stage, err)
				}
			}
		}
	}
}

// marked returns the processes whose command line has the marker.
func marked(t *testing.T, marker string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	var out []string
	for _, file := range files {
		// A process that has ended meanwhile has no command line.
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), marker) && !strings.Contains(string(data), ".test") {
			out = append(out, filepath.Base(filepath.Dir(file)))
		}
	}
	return out
}

func TestKilledBuilderTakesItsProgramsAndMountsAlong(t *testing.T) {
	testenv.Need(t, testenv.Root)
	s := testStore(t)
	marker := "marker-" + filepath.Base(filepath.Dir(filepath.Dir(s.dir))) + "-" + time.Now().Format("150405.000000000")
	cmd, lines := startHelper(t, "command", s.dir, marker)
	waitFor(t, lines, "waiting")
	if len(marked(t, marker)) == 0 {
		t.Fatal("the program does not run, or the test does not see it")
	}
	if mounts, err := mountsBelow(s.dir); err != nil || len(mounts) > 0 {
		t.Errorf("mounts of the build are seen on the host: %v, %v", mounts, err)
	}
	kill(t, cmd)
	testenv.Eventually(t, 10*time.Second, func() bool { return len(marked(t, marker)) == 0 }, "the program outlives its builder")
	if removed, err := s.Sweep(context.Background()); err != nil || len(removed) != 1 {
		t.Errorf("swept %v, %v", removed, err)
	}
	if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

func TestCancelledBuildLeavesNothing(t *testing.T) {
	testenv.Need(t, testenv.Root)
	s := testStore(t)
	source := sourceTree(t)
	for _, stage := range []string{StageCopy, StageFinish, StageManifest, StagePublish} {
		ctx, cancel := context.WithCancel(context.Background())
		_, err := s.Build(ctx, BuildOptions{Name: "mine", From: "dir:" + source, Progress: func(p Progress) {
			if p.Stage == stage {
				cancel()
			}
		}})
		cancel()
		wantCode(t, err, problem.Canceled)
		if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
			t.Errorf("%s: %s", stage, diff)
		}
	}
}

func TestCancelledProgramIsKilledWithItsChildren(t *testing.T) {
	testenv.Need(t, testenv.Root)
	rootfs := t.TempDir()
	must(t, hostTree(rootfs))
	marker := "marker-" + time.Now().Format("150405.000000000")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := newOutput(func(p Progress) {
		if p.Line == "waiting" {
			cancel()
		}
	})
	err := out.run(ctx, command{argv: []string{"/bin/sh", "-c", "sleep 1000000 & echo waiting; wait # " + marker}, env: chrootEnv(), chroot: rootfs})
	wantCode(t, err, problem.Canceled)
	testenv.Eventually(t, 10*time.Second, func() bool { return len(marked(t, marker)) == 0 }, "the program outlives the cancellation")
}

// TestSweepNeverRemovesThroughAMount plants what must not happen: a folder of the host mounted into an abandoned build.
func TestSweepNeverRemovesThroughAMount(t *testing.T) {
	testenv.Need(t, testenv.Root)
	s := testStore(t)
	host := t.TempDir()
	put(t, host, map[string]string{"precious": "x", "deeper/": ""})
	inside := filepath.Join(s.dir, ".building-dead-1/rootfs/with space")
	must(t, os.MkdirAll(inside, 0o755))
	must(t, unix.Mount(host, inside, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(inside, unix.MNT_DETACH) }) // fails when Sweep has done it
	must(t, unix.Mount("tmpfs", filepath.Join(inside, "deeper"), "tmpfs", 0, ""))
	if removed, err := s.Sweep(context.Background()); err != nil || len(removed) != 1 {
		t.Fatalf("swept %v, %v", removed, err)
	}
	if _, err := os.Stat(filepath.Join(host, "precious")); err != nil {
		t.Error(err)
	}
	if mounts, err := mountsBelow(host); err != nil || len(mounts) > 0 {
		t.Errorf("still mounted: %v, %v", mounts, err)
	}
	if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

func TestProgramsOfATreeRunWithoutPrivilegesAndWithoutNetwork(t *testing.T) {
	testenv.Need(t, testenv.Root)
	rootfs := t.TempDir()
	must(t, hostTree(rootfs))
	must(t, os.Chmod(rootfs, 0o755))
	script := "id; cat /proc/self/status; echo interfaces; cat /proc/net/dev; echo end; ls /dev; echo >/dev/null; echo pid=$$"
	lines, err := runIn(context.Background(), rootfs, "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	wantLine(t, lines, "uid=1000 gid=1000 groups=1000")
	wantLine(t, lines, "CapEff:\t0000000000000000")
	wantLine(t, lines, "CapPrm:\t0000000000000000")
	wantLine(t, lines, "NoNewPrivs:\t1")
	interfaces := lines[slices.Index(lines, "interfaces")+1 : slices.Index(lines, "end")]
	// Two lines of heading, and the loopback interface.
	if len(interfaces) != 3 || !strings.HasPrefix(interfaces[2], "lo:") {
		t.Errorf("there is a network:\n%s", strings.Join(interfaces, "\n"))
	}
	// The same as the build's own user: what makes the difference is the flag.
	var own []string
	out := newOutput(nil)
	out.stage("test", "", 0, func(line string, _ *Progress) bool { own = append(own, line); return true })
	must(t, out.run(context.Background(), command{argv: []string{"/bin/sh", "-c", script}, env: chrootEnv(), chroot: rootfs}))
	wantLine(t, own, "uid=0 gid=0")
	if left := names(t, filepath.Join(rootfs, "dev")); len(left) > 0 {
		t.Errorf("in /dev is left %v", left)
	}
}

func TestFailedProgramSaysWhyInItsLastLines(t *testing.T) {
	testenv.Need(t, testenv.Root)
	rootfs := t.TempDir()
	must(t, hostTree(rootfs))
	must(t, os.Chmod(rootfs, 0o755))
	_, err := runIn(context.Background(), rootfs, "/bin/sh", "-c", "echo the reason; exit 7")
	var tool *toolError
	if !errors.As(err, &tool) || !strings.Contains(err.Error(), "exit status 7") {
		t.Fatalf("got %v", err)
	}
}
