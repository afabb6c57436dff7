package host

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/host/hosttest"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// keepVariable makes this program keep a browser until it is killed, for a test that kills it.
const keepVariable = "CLAWJAIL_TEST_KEEP"

func TestMain(m *testing.M) {
	if dir := os.Getenv(keepVariable); dir != "" {
		keepForEver(dir)
	}
	goleak.VerifyTestMain(m)
}

func keepForEver(dir string) {
	k, err := New(options(dir))
	if err == nil {
		err = k.Start(context.Background(), nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(k.Status().PID)
	select {}
}

func settings() config.HostBrowser { return config.Default().HostBrowser }

func noVariables(string) string { return "" }

// options are those of a user without a display.
func options(dir string) Options {
	return Options{
		Settings: settings(), Dir: dir, Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Environment: config.Environment{GOOS: runtime.GOOS, Home: dir, Getenv: noVariables},
	}
}

func keeper(t *testing.T, o Options) *Keeper {
	t.Helper()
	k, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return k
}

// started is a keeper whose browser runs.
func started(t *testing.T, o Options) *Keeper {
	t.Helper()
	testenv.ChromiumFull(t)
	k := keeper(t, o)
	if err := k.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return k
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	if problem.CodeOf(err) != code {
		t.Errorf("got %v (%s), want the code %s", err, problem.CodeOf(err), code)
	}
}

func processRuns(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if runtime.GOOS != "linux" {
		return alive(pid)
	}
	return err == nil && !strings.Contains(string(data), ") Z ")
}

func TestStartIsWhatStatusSaysAndStopEndsAllOfIt(t *testing.T) {
	home, ok := hosttest.AsUser(t)
	if !ok {
		return
	}
	k := started(t, options(filepath.Join(home, "data")))
	s := k.Status()
	if !s.Running || !s.CDPReady || s.PID == 0 || !strings.Contains(s.Version, "Chrome/") || s.Profile != "clawd" || s.Transport != "cdp" {
		t.Errorf("status %+v", s)
	}
	if !s.Headless || s.HeadlessSource != byFallback {
		t.Errorf("without a display: headless %v by %s", s.Headless, s.HeadlessSource)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.PID))
	if err != nil && runtime.GOOS == "linux" {
		t.Fatal(err)
	}
	for _, never := range []string{"remote-debugging-port", "no-sandbox", "9222"} {
		if strings.Contains(string(line), never) {
			t.Errorf("the browser runs with %s", never)
		}
	}
	if err := k.Start(t.Context(), nil); err != nil || k.Status().PID != s.PID {
		t.Errorf("a second start: %v, and the process %d", err, k.Status().PID)
	}
	for _, dir := range []string{k.dir, k.Profile(), k.Files()} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
	if stopped, err := k.Stop(t.Context()); !stopped || err != nil {
		t.Errorf("stop: %v, %v", stopped, err)
	}
	if s := k.Status(); s.Running || s.Ended != "" {
		t.Errorf("after a stop: %+v", s)
	}
	if processRuns(s.PID) {
		t.Error("the browser runs after a stop")
	}
	// A child is there until somebody has taken note of its end.
	testenv.Eventually(t, 5*time.Second, func() bool { return syscall.Kill(-s.PID, 0) != nil }, "the end of the browser's children")
	if stopped, err := k.Stop(t.Context()); stopped || err != nil {
		t.Errorf("a second stop: %v, %v", stopped, err)
	}
}

func TestOnlyWhatOpensAPageStartsTheBrowser(t *testing.T) {
	home, ok := hosttest.AsUser(t)
	if !ok {
		return
	}
	testenv.ChromiumFull(t)
	k := keeper(t, options(filepath.Join(home, "data")))
	answer, err := k.Drive(t.Context(), &browser.Tabs{})
	if r, ok := answer.(browser.TabsResult); err != nil || !ok || r.Running || r.Tabs == nil || len(r.Tabs) != 0 {
		t.Errorf("tabs of no browser: %+v, %v", answer, err)
	}
	for _, op := range []browser.Operation{
		&browser.FocusTab{TargetID: "t1"}, &browser.CloseTab{TargetID: "t1"}, &browser.Eval{JS: "1"},
		&browser.TabAction{Action: "select", TargetID: "t1"},
	} {
		_, err := k.Drive(t.Context(), op)
		wantCode(t, err, problem.BrowserNotRunning)
	}
	if _, err := k.Drive(t.Context(), &browser.OpenTab{URL: "file:///etc/passwd"}); err == nil || k.Status().Running {
		t.Errorf("a bad address: %v, and the browser runs: %v", err, k.Status().Running)
	}
	if _, err := k.Drive(t.Context(), &browser.OpenTab{URL: "about:blank"}); err != nil || !k.Status().Running {
		t.Errorf("open: %v, and the browser runs: %v", err, k.Status().Running)
	}
	answer, err = k.Drive(t.Context(), &browser.Eval{JS: "6*7"})
	if err != nil || !strings.Contains(fmt.Sprint(answer), "42") {
		t.Errorf("eval: %+v, %v", answer, err)
	}
}

func TestACrashIsNoticedAndItsLockDoesNotStay(t *testing.T) {
	home, ok := hosttest.AsUser(t)
	if !ok {
		return
	}
	k := started(t, options(filepath.Join(home, "data")))
	pid := k.Status().PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return strings.Contains(k.Status().Ended, "killed") }, "notice the end")
	if k.Status().Running {
		t.Error("it runs")
	}
	_, err := k.Drive(t.Context(), &browser.CloseTab{TargetID: "t1"})
	if p, ok := problem.As(err); !ok || p.Code != problem.BrowserNotRunning || p.Details["ended"] == nil {
		t.Errorf("got %v", err)
	}
	lock := filepath.Join(k.Profile(), singletonLock)
	if _, err := os.Readlink(lock); err != nil {
		t.Fatalf("the killed browser left no lock, so this test shows nothing: %v", err)
	}
	// A lock of another machine is not ours to judge.
	other := fmt.Sprintf("elsewhere-%d", pid)
	relink(t, lock, other)
	err = k.Start(t.Context(), nil)
	wantCode(t, err, problem.BrowserFailed)
	if now, _ := os.Readlink(lock); now != other || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("the lock is %q after %v", now, err)
	}
	// The same lock, when it is on record that this machine had that name: its process is gone.
	data, err := json.Marshal(owner{Lock: other, Machine: k.machine})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(k.ownerPath(), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if k.machine.ID != "" {
		if err := k.Start(t.Context(), nil); err != nil {
			t.Fatalf("with a lock of the old name of this machine: %v", err)
		}
	}
	if _, err := k.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A lock of a process that runs is respected.
	relink(t, lock, fmt.Sprintf("%s-%d", k.machine.Host, os.Getpid()))
	wantCode(t, k.Start(t.Context(), nil), problem.BrowserFailed)
	relink(t, lock, fmt.Sprintf("%s-%d", k.machine.Host, pid))
	if err := k.Start(t.Context(), nil); err != nil {
		t.Errorf("with the lock of a process that is gone: %v", err)
	}
}

func relink(t *testing.T, path, target string) {
	t.Helper()
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func TestABrowserThatHangsIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves out what waits for a browser that hangs; run `make test`")
	}
	home, ok := hosttest.AsUser(t)
	if !ok {
		return
	}
	k := started(t, options(filepath.Join(home, "data")))
	pid := k.Status().PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if stopped, err := k.Stop(t.Context()); !stopped || err != nil {
		t.Errorf("stop: %v, %v", stopped, err)
	}
	if processRuns(pid) {
		t.Error("it is still there")
	}
}

func TestTheBrowserEndsWithItsKeeper(t *testing.T) {
	home, ok := hosttest.AsUser(t)
	if !ok {
		return
	}
	testenv.ChromiumFull(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), keepVariable+"="+filepath.Join(home, "data"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !processRuns(pid) {
		t.Fatalf("the browser %q does not run: %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	testenv.Eventually(t, 10*time.Second, func() bool { return !processRuns(pid) }, "the end of the browser %d", pid)
}

func TestTheReasonOfAFailedStartIsTold(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "browser")
	script := "#!/bin/sh\nfor n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo \"line $n\" >&2; done\nprintf 'last \\033[31mwords\\n' >&2\nexit 7\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	o := options(filepath.Join(dir, "data"))
	o.Settings.Executable = program
	k := keeper(t, o)
	err := k.Start(t.Context(), nil)
	wantCode(t, err, problem.BrowserFailed)
	p, _ := problem.As(err)
	if !strings.Contains(p.Message, "exit status 7") || !strings.Contains(p.Message, "line 12\nlast \uFFFD[31mwords") ||
		strings.Contains(p.Message, "line 1\n") || p.Details["exitCode"] != 7 {
		t.Errorf("got %q with %v", p.Message, p.Details)
	}
	if k.Status().Running {
		t.Error("it runs")
	}
}

func TestWhatTheSettingsForbidIsNotStarted(t *testing.T) {
	touched := filepath.Join(t.TempDir(), "touched")
	program := filepath.Join(t.TempDir(), "browser")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ntouch "+touched+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	make := func(change func(*Options)) *Keeper {
		o := options(t.TempDir())
		o.Settings.Executable = program
		change(&o)
		return keeper(t, o)
	}
	open := &browser.OpenTab{URL: "about:blank"}

	off := make(func(o *Options) { o.Settings.Enabled = false })
	err := off.Start(t.Context(), nil)
	wantCode(t, err, problem.BrowserDisabled)
	if err == nil || err.Error() != "Browser disabled in settings" {
		t.Errorf("got %v", err)
	}
	_, err = off.Drive(t.Context(), open)
	wantCode(t, err, problem.BrowserDisabled)
	_, err = off.Attach(t.Context())
	wantCode(t, err, problem.BrowserDisabled)

	only := make(func(o *Options) { o.Settings.AttachOnly = true })
	wantCode(t, only.Start(t.Context(), nil), problem.BadRequest)
	_, err = only.Drive(t.Context(), open)
	wantCode(t, err, problem.BrowserNotRunning)

	window := make(func(o *Options) { o.Settings.Headless = config.HeadlessNo; o.Environment.GOOS = "linux" })
	err = window.Start(t.Context(), nil)
	wantCode(t, err, problem.NoDisplay)
	if p, ok := problem.As(err); !ok || p.Details["headlessSource"] != byConfig || p.Details["displayPresent"] != false {
		t.Errorf("got %v", err)
	}

	missing := make(func(o *Options) { o.Settings.Executable = "/nowhere/browser" })
	wantCode(t, missing.Start(t.Context(), nil), problem.BrowserMissing)
	if s := missing.Status(); s.DetectError == "" || s.Running {
		t.Errorf("status %+v", s)
	}

	if _, err := os.Stat(touched); !os.IsNotExist(err) {
		t.Errorf("the program was started: %v", err)
	}
	// The same program is started where nothing forbids it.
	allowed := make(func(*Options) {})
	wantCode(t, allowed.Start(t.Context(), nil), problem.BrowserFailed)
	if _, err := os.Stat(touched); err != nil {
		t.Errorf("the program was not started: %v", err)
	}
	if err := os.Remove(touched); err != nil {
		t.Fatal(err)
	}
	// And the person at the desktop may start it by hand.
	wantCode(t, only.StartByHand(t.Context(), nil), problem.BrowserFailed)
	if _, err := os.Stat(touched); err != nil {
		t.Errorf("the program was not started by hand: %v", err)
	}
}

func TestRootIsRefused(t *testing.T) {
	o := options(filepath.Join(t.TempDir(), "data"))
	o.Environment.Root = true
	_, err := New(o)
	wantCode(t, err, problem.Forbidden)
	if p, ok := problem.As(err); !ok || !strings.Contains(p.Hint, "sudo -u") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(o.Dir); !os.IsNotExist(err) {
		t.Error("a folder of root's was made")
	}
}

func TestAFolderHasOneKeeper(t *testing.T) {
	o := options(t.TempDir())
	k := keeper(t, o)
	_, err := New(o)
	wantCode(t, err, problem.Conflict)
	_ = k
}
