package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

const (
	helperVariable = "CLAWJAIL_TEST_HELPER"
	patience       = 20 * time.Second
)

func TestMain(m *testing.M) {
	switch os.Getenv(helperVariable) {
	case "child":
		os.Exit(child())
	case "parent":
		os.Exit(parent())
	case "whoami":
		fmt.Println(os.Getuid())
		os.Exit(0)
	}
	// As the program that Up starts; its second half gets no variable of the tests'.
	if len(os.Args) > 1 && (os.Args[1] == "hostd" || os.Args[1] == "serve") {
		os.Exit(pretend(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// child appends what happens to it to a file. Arguments: the file, its name, what it does.
func child() int {
	file, name, does := os.Args[1], os.Args[2], os.Args[3]
	say := func(what string) {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(f, name, what, os.Getpid())
		_ = f.Close()
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM)
	fmt.Printf("this is %s\n", name)
	if does == "fails" {
		fmt.Println("it cannot be")
		return 3
	}
	say("begins")
	if does == "stubborn" {
		<-ends
		select {}
	}
	<-ends
	say("ends")
	return 0
}

// log is what children have said.
type journal struct {
	t    *testing.T
	file string
}

func newJournal(t *testing.T) journal { return journal{t, filepath.Join(t.TempDir(), "said")} }

func (j journal) lines() []string {
	data, err := os.ReadFile(j.file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		j.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// said lists "name what" without the process ids.
func (j journal) said() (out []string) {
	for _, line := range j.lines() {
		name, rest, _ := strings.Cut(line, " ")
		what, _, _ := strings.Cut(rest, " ")
		out = append(out, name+" "+what)
	}
	return out
}

func (j journal) count(what string) (n int) {
	for _, s := range j.said() {
		if s == what {
			n++
		}
	}
	return n
}

// pids are the processes that said something.
func (j journal) pids(what string) (out []int) {
	for _, line := range j.lines() {
		if rest, ok := strings.CutPrefix(line, what+" "); ok {
			pid, err := strconv.Atoi(rest)
			if err != nil {
				j.t.Fatal(err)
			}
			out = append(out, pid)
		}
	}
	return out
}

func (j journal) child(name, does string) Child {
	self, err := os.Executable()
	if err != nil {
		j.t.Fatal(err)
	}
	return Child{
		Name: name, Code: problem.HostdUnreachable, Grace: patience,
		Command: func() *exec.Cmd {
			cmd := exec.Command(self, j.file, name, does)
			cmd.Env = append(os.Environ(), helperVariable+"=child")
			return cmd
		},
		Ready: func(ctx context.Context, pid int) error {
			return poll(ctx, func(context.Context) error {
				for _, p := range j.pids(name + " begins") {
					if p == pid {
						return nil
					}
				}
				return errors.New("it has not begun")
			})
		},
	}
}

// output is safe to be read while it is written to.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start runs children until the test ends. up is closed when all are ready.
func start(t *testing.T, o Options) (stop func() error, up chan struct{}) {
	t.Helper()
	up = make(chan struct{})
	o.Up = func() { close(up) }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() }) // its error is the test's to look at
	return stop, up
}

func await(t *testing.T, up chan struct{}) {
	t.Helper()
	select {
	case <-up:
	case <-time.After(patience):
		t.Fatal("the children are not ready")
	}
}

func TestChildrenStartInOrderAndEndInTheOppositeOne(t *testing.T) {
	j, out := newJournal(t), &output{}
	stop, up := start(t, Options{Children: []Child{j.child("first", ""), j.child("second", "")}, Output: out})
	await(t, up)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	want := "first begins, second begins, second ends, first ends"
	if got := strings.Join(j.said(), ", "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, line := range []string{"first: this is first\n", "second: this is second\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not in the output %q", line, out)
		}
	}
}

func TestAChildThatDiesIsStartedAgain(t *testing.T) {
	j := newJournal(t)
	stop, up := start(t, Options{Children: []Child{j.child("first", ""), j.child("second", "")}, Output: &output{},
		FirstPause: time.Millisecond})
	await(t, up)
	for n := 1; n <= 3; n++ {
		if err := syscall.Kill(j.pids("first begins")[n-1], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, patience, func() bool { return j.count("first begins") == n+1 }, "it is not started again")
	}
	if n := j.count("second begins"); n != 1 {
		t.Errorf("the other was started %d times", n)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if j.count("first ends") != 1 || j.count("second ends") != 1 {
		t.Errorf("not both were ended: %v", j.said())
	}
}

func TestAChildThatDiesAgainAndAgainIsGivenUp(t *testing.T) {
	j := newJournal(t)
	steady, dying := j.child("steady", ""), j.child("dying", "")
	ready := dying.Ready
	dying.Ready = func(ctx context.Context, pid int) error {
		if err := ready(ctx, pid); err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- Run(t.Context(), Options{Children: []Child{steady, dying}, Output: &output{}, FirstPause: time.Millisecond,
			LongestPause: 2 * time.Millisecond, Failures: 4})
	}()
	select {
	case err := <-ended:
		if problem.CodeOf(err) != problem.HostdUnreachable || !strings.Contains(err.Error(), "dying does not keep running") {
			t.Errorf("the error is %v", err)
		}
	case <-time.After(patience):
		t.Fatal("it is never given up")
	}
	if n := j.count("dying begins"); n != 4 {
		t.Errorf("it was started %d times, want 4", n)
	}
	if j.count("steady ends") != 1 {
		t.Error("the other runs on")
	}
}

func TestOldFailuresAreForgotten(t *testing.T) {
	j := newJournal(t)
	stop, up := start(t, Options{Children: []Child{j.child("first", "")}, Output: &output{}, FirstPause: time.Millisecond,
		Failures: 2, Lasting: time.Nanosecond})
	await(t, up)
	for n := 1; n <= 4; n++ {
		if err := syscall.Kill(j.pids("first begins")[n-1], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, patience, func() bool { return j.count("first begins") == n+1 }, "it is not started again")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestAnErrorAtTheFirstStartIsToldOnce(t *testing.T) {
	j, out := newJournal(t), &output{}
	err := Run(t.Context(), Options{Children: []Child{j.child("broken", "fails")}, Output: out, FirstPause: time.Hour})
	if problem.CodeOf(err) != problem.HostdUnreachable {
		t.Errorf("the error is %v", err)
	}
	if n := strings.Count(out.String(), "broken: it cannot be\n"); n != 1 {
		t.Errorf("it was started, or its own words were told, %d times: %q", n, out)
	}
}

func TestAChildThatDoesNotEndIsKilled(t *testing.T) {
	j := newJournal(t)
	c := j.child("stubborn", "stubborn")
	c.Grace = 50 * time.Millisecond
	stop, up := start(t, Options{Children: []Child{c}, Output: &output{}})
	await(t, up)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(j.pids("stubborn begins")[0], 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("it lives: %v", err)
	}
}

func TestAStartThatTakesTooLongIsAFailure(t *testing.T) {
	j := newJournal(t)
	c := j.child("slow", "")
	c.Ready = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	err := Run(t.Context(), Options{Children: []Child{c}, Output: &output{}, ReadyWithin: 50 * time.Millisecond,
		FirstPause: time.Millisecond, Failures: 2})
	if err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("the error is %v", err)
	}
}

// TestAStartThatTakesTooLongIsAFailure is the same on an ordinary machine.
func TestASlowMachinesChildHasMoreTime(t *testing.T) {
	j := newJournal(t)
	c := j.child("slow", "")
	late := make(chan struct{}) // closed when an ordinary machine's time is up
	c.Ready = func(ctx context.Context, _ int) error { <-late; return ctx.Err() }
	stop, up := start(t, Options{Children: []Child{c}, Output: &output{}, ReadyWithin: 500 * time.Millisecond, Failures: 1,
		Pace: func(context.Context) pace.Pace { close(late); return pace.Max }})
	await(t, up)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// parent supervises one child until it is killed. Arguments: the child's file.
func parent() int {
	cmd := func() *exec.Cmd {
		c := UpOptions{Executable: os.Args[0]}.command(nil, append(os.Environ(), helperVariable+"=child"), os.Args[1], "orphan", "")
		return c
	}
	err := Run(context.Background(), Options{Output: os.Stdout, Children: []Child{{
		Name: "orphan", Command: cmd, Grace: time.Second, Ready: func(context.Context, int) error { return nil },
	}}})
	fmt.Println(err)
	return 1
}

func TestChildrenEndWithAKilledParent(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "freebsd" {
		t.Skip("SKIPPED: this kernel does not tell a process that its parent is gone")
	}
	j := newJournal(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, j.file)
	cmd.Env = append(os.Environ(), helperVariable+"=parent")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool { return j.count("orphan begins") == 1 }, "the child has not begun")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	testenv.Eventually(t, patience, func() bool { return j.count("orphan ends") == 1 }, "the child outlives its parent")
}

func TestTheRelayWritesWholeLines(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	r := &relay{out: &out, mu: &mu, prefix: "a: "}
	for _, part := range []string{"one\ntw", "o\n\nthree", "", strings.Repeat("x", longestLine), "y\nlast"} {
		if n, err := r.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
	}
	r.flush()
	want := "a: one\na: two\na: \na: three" + strings.Repeat("x", longestLine-5) + "\na: xxxxxy\na: last\n"
	if got := out.String(); got != want {
		t.Errorf("got %d bytes, want %d: %.60q … %.60q", len(got), len(want), got, got[max(0, len(got)-60):])
	}
	if _, err := (&relay{out: brokenWriter{}, mu: &mu}).Write([]byte("a\nb\n")); err != nil {
		t.Errorf("a broken output ends the child: %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, net.ErrClosed }
