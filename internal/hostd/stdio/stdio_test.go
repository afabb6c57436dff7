package stdio_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/hostd/stdio"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

const (
	helperVariable = "CLAWJAIL_CONSOLE_TEST"
	name           = jail.Name("atest00001")
	patience       = 20 * time.Second
)

func TestMain(m *testing.M) {
	if what := os.Getenv(helperVariable); what != "" {
		helper(what)
		return
	}
	goleak.VerifyTestMain(m)
}

func bot() jail.Agent { return jail.Agent{Tenant: "default", Name: "bot"} }

func options(dir string) stdio.Options {
	return stdio.Options{Installation: "test", Dir: filepath.Join(dir, "console"), Logs: filepath.Join(dir, "logs"), Keep: 64 << 20,
		Patience: time.Minute}
}

func newConsole(t *testing.T, dir string, change func(*stdio.Options)) *stdio.Console {
	t.Helper()
	o := options(dir)
	if change != nil {
		change(&o)
	}
	c, err := stdio.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func begin(t *testing.T, c *stdio.Console) [3]*os.File {
	t.Helper()
	ends, err := c.Open(t.Context(), name, bot())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range ends {
			_ = f.Close() // the test may have closed it
		}
	})
	return ends
}

// logged is all that is kept of one stream.
func logged(t *testing.T, c *stdio.Console, s jail.Stream) string {
	t.Helper()
	var all []byte
	for {
		chunk, err := c.ReadLog(t.Context(), jail.LogRequest{Tenant: "default", Name: "bot", Stream: s, Offset: int64(len(all)), Limit: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if len(chunk.Data) == 0 {
			return string(all)
		}
		if chunk.Offset != int64(len(all)) {
			t.Fatalf("what is at %d is not kept any more", len(all))
		}
		all = append(all, chunk.Data...)
	}
}

func TestWhatIsPrintedIsKeptOverJails(t *testing.T) {
	dir := t.TempDir()
	c := newConsole(t, dir, nil)
	for i := range 2 {
		ends := begin(t, c)
		fmt.Fprintf(ends[1], "out %d\n", i)
		fmt.Fprintf(ends[2], "err %d\n", i)
		for _, f := range ends {
			_ = f.Close()
		}
		if resources, err := c.List(t.Context()); err != nil || len(resources) != 1 || resources[0].Name != name || resources[0].Kind != jail.ResourceStaged {
			t.Errorf("the traces are %v, %v", resources, err)
		}
		for range 2 { // may be repeated
			if err := c.Finish(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		if resources, err := c.List(t.Context()); err != nil || len(resources) != 0 {
			t.Errorf("left are %v, %v", resources, err)
		}
	}
	if out, err := logged(t, c, jail.Stdout), logged(t, c, jail.Stderr); out != "out 0\nout 1\n" || err != "err 0\nerr 1\n" {
		t.Errorf("kept are %q and %q", out, err)
	}
	info, err := os.Stat(filepath.Join(dir, "logs", "bot", "stdout"))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder of the log is %v, %v", info, err)
	}
	for what, r := range map[string]jail.LogRequest{
		problem.NotFound: {Tenant: "default", Name: "nobody", Stream: jail.Stdout}, problem.BadName: {Tenant: "..", Name: "bot", Stream: jail.Stdout},
		problem.BadRequest: {Tenant: "default", Name: "bot", Stream: "../x"},
	} {
		if _, err := c.ReadLog(t.Context(), r); problem.CodeOf(err) != what {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for _, r := range []jail.LogRequest{{Limit: -1}, {Limit: 5 << 20}, {Wait: time.Hour}, {Wait: -1}} {
		r.Tenant, r.Name, r.Stream = "default", "bot", jail.Stdout
		if _, err := c.ReadLog(t.Context(), r); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for range 2 {
		if err := c.RemoveLog(t.Context(), bot()); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "logs")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestTypeReachesTheProgramAndDoesNotWaitForever(t *testing.T) {
	c := newConsole(t, t.TempDir(), func(o *stdio.Options) { o.Patience = 50 * time.Millisecond })
	ends := begin(t, c)
	if n, err := c.Type(t.Context(), name, []byte("hello\n")); n != 6 || err != nil {
		t.Fatal(n, err)
	}
	r := bufio.NewReader(ends[0])
	if line, err := r.ReadString('\n'); line != "hello\n" {
		t.Fatal(line, err)
	}
	much := bytes.Repeat([]byte("x"), 1<<20)
	n, err := c.Type(t.Context(), name, much)
	if problem.CodeOf(err) != problem.Timeout || n <= 0 || n >= len(much) {
		t.Fatalf("%d fit, %v", n, err)
	}
	if p, _ := problem.As(err); p.Details["written"] != n {
		t.Errorf("the error says %v of %d", p.Details, n)
	}
	// Not a byte of the rest comes later, and stdin does not end.
	if _, err := c.Type(t.Context(), name, []byte("\n")); problem.CodeOf(err) != problem.Timeout {
		t.Fatal(err)
	}
	got := make([]byte, n)
	if _, err := r.Read(got[:1]); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Type(ended, name, much); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone: %v", err)
	}
	if _, err := c.Type(t.Context(), "atest00002", nil); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("one that does not run: %v", err)
	}
	if _, err := c.Type(t.Context(), "../../etc", nil); problem.CodeOf(err) != problem.BadName {
		t.Errorf("a name that is none: %v", err)
	}
}

// The folder of the pipes is root's alone; were it not, nothing would be followed, read or removed all the same.
func TestPlantedThingsAreNotFollowed(t *testing.T) {
	dir := t.TempDir()
	c := newConsole(t, dir, nil)
	outside := filepath.Join(dir, "outside")
	if err := errors.Join(os.Mkdir(outside, 0o700), os.WriteFile(filepath.Join(outside, "out"), []byte("mine"), 0o600),
		unix.Mkfifo(filepath.Join(outside, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "console", string(name))
	if err := os.Symlink(outside, folder); err != nil {
		t.Fatal(err)
	}
	ends := begin(t, c)
	fmt.Fprintln(ends[1], "hello")
	if info, err := os.Lstat(folder); err != nil || !info.IsDir() {
		t.Errorf("the folder is %v, %v", info, err)
	}
	testenv.Eventually(t, patience, func() bool { return logged(t, c, jail.Stdout) == "hello\n" }, "nothing is kept")
	for _, f := range ends {
		_ = f.Close()
	}
	if err := c.Finish(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for what, plant := range map[string]func(path string) error{
		"link":           func(path string) error { return os.Symlink(filepath.Join(outside, "out"), path) },
		"link to a pipe": func(path string) error { return os.Symlink(filepath.Join(outside, "pipe"), path) },
		"hard link":      func(path string) error { return os.Link(filepath.Join(outside, "out"), path) },
		"folder":         func(path string) error { return os.Mkdir(path, 0o700) },
		"nothing":        func(string) error { return nil },
	} {
		for _, pipe := range []string{"out", "err", "in"} {
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			for _, p := range []string{"in", "out", "err"} {
				make := func(path string) error { return unix.Mkfifo(path, 0o600) }
				if p == pipe {
					make = plant
				}
				if err := make(filepath.Join(folder, p)); err != nil {
					t.Fatal(err)
				}
			}
			if pipe == "in" {
				if n, err := c.Type(t.Context(), name, []byte("x")); err == nil || n > 0 {
					t.Errorf("%s for in: %d bytes were typed, %v", what, n, err)
				}
			} else if err := c.Resume(t.Context(), name, bot()); err == nil {
				t.Errorf("%s for %s: it was gone on with", what, pipe)
			}
			if err := c.Finish(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if data, err := os.ReadFile(filepath.Join(outside, "out")); err != nil || string(data) != "mine" {
		t.Errorf("the file outside has %q, %v", data, err)
	}
	for _, bad := range []jail.Name{"", "../x", "axxxx00001"} {
		if _, err := c.Open(t.Context(), bad, bot()); err == nil {
			t.Errorf("%q was opened", bad)
		}
		if err := c.Finish(t.Context(), bad); err == nil {
			t.Errorf("%q was finished", bad)
		}
	}
	if _, err := c.Open(t.Context(), name, jail.Agent{Tenant: "default", Name: "../x"}); err == nil {
		t.Error("a log outside was opened")
	}
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was half made is left: %v", err)
	}
}

// A process that holds a pipe open does not hold up the end of a jail.
func TestFinishDoesNotWaitForWhoHoldsThePipes(t *testing.T) {
	c := newConsole(t, t.TempDir(), func(o *stdio.Options) { o.Patience = 20 * time.Millisecond })
	ends := begin(t, c)
	fmt.Fprintln(ends[1], "hello")
	testenv.Eventually(t, patience, func() bool { return logged(t, c, jail.Stdout) == "hello\n" }, "nothing is kept")
	if err := c.Finish(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

func TestWritersShareTheLogs(t *testing.T) {
	c := newConsole(t, t.TempDir(), nil)
	w, err := c.Writer(bot(), jail.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	for range 4 {
		working.Go(func() {
			for range 100 {
				if _, err := w.Write([]byte("0123456789\n")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ends := begin(t, c) // and its end closes the logs below the writers
	for _, f := range ends {
		_ = f.Close()
	}
	if err := c.Finish(t.Context(), name); err != nil {
		t.Error(err)
	}
	working.Wait()
	if got := logged(t, c, jail.Stderr); got != strings.Repeat("0123456789\n", 400) || w.End() != int64(len(got)) {
		t.Errorf("%d bytes are kept, the end is %d", len(got), w.End())
	}
	if err := c.RemoveLog(t.Context(), bot()); err != nil {
		t.Error(err)
	}
}

// helper is another process: a program that prints, or the owner of its console.
func helper(what string) {
	switch what, dir, _ := strings.Cut(what, ":"); what {
	case "printer":
		count, err := strconv.Atoi(dir)
		if err != nil {
			panic(err)
		}
		for i := range count { // one write each
			if _, err := fmt.Fprintf(os.Stdout, "line %d\n", i); err != nil {
				panic(err)
			}
		}
	case "owner", "heir":
		c, err := stdio.New(options(dir))
		if err != nil {
			panic(err)
		}
		if what == "heir" {
			err = c.Resume(context.Background(), name, bot())
		} else {
			var ends [3]*os.File
			if ends, err = c.Open(context.Background(), name, bot()); err == nil {
				printer := exec.Command(os.Args[0])
				printer.Env = append(os.Environ(), helperVariable+"=printer:"+strconv.Itoa(printed))
				printer.Stdin, printer.Stdout, printer.Stderr = ends[0], ends[1], ends[2]
				err = printer.Start() // it outlives this process
			}
			for _, f := range ends {
				_ = f.Close()
			}
		}
		if err != nil {
			panic(err)
		}
		fmt.Println("ready")
		if line, _ := bufio.NewReader(os.Stdin).ReadString('\n'); line == "finish\n" {
			if err := c.Finish(context.Background(), name); err != nil {
				panic(err)
			}
		}
	}
}

const printed = 400_000

// The process that keeps the lines is killed in the middle of a flood, again and again: no line is lost, and none is there
// twice.
func TestKilledOwnerLosesNoLine(t *testing.T) {
	dir := t.TempDir()
	reader, err := stdio.New(options(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	end := func() int64 {
		chunk, err := reader.ReadLog(t.Context(), jail.LogRequest{Tenant: "default", Name: "bot", Stream: jail.Stdout, Offset: -1})
		if problem.CodeOf(err) == problem.NotFound {
			return 0
		}
		if err != nil {
			t.Fatal(err)
		}
		return chunk.End
	}
	const rounds = 6
	for i := range rounds {
		what := "heir"
		if i == 0 {
			what = "owner"
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), helperVariable+"="+what+":"+dir)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill() }() // when the test fails
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if i == rounds-1 {
			fmt.Fprintln(in, "finish")
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			break
		}
		from := end()
		testenv.Eventually(t, patience, func() bool { return end() > from+100_000 }, "nothing more is kept")
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	lines := strings.Split(strings.TrimSuffix(logged(t, reader, jail.Stdout), "\n"), "\n")
	if len(lines) != printed {
		t.Fatalf("%d lines are kept of %d", len(lines), printed)
	}
	for i, line := range lines {
		if line != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if stderr := logged(t, reader, jail.Stderr); stderr != "" {
		t.Errorf("it complained: %s", stderr)
	}
}

// Logs of agents that are gone do not grow without an end.
func TestLogsOfAgentsAreBounded(t *testing.T) {
	c := newConsole(t, t.TempDir(), nil)
	leave := func(prefix string, n int) {
		t.Helper()
		for i := range n {
			if err := os.Mkdir(filepath.Join(c.Logs, fmt.Sprintf("%sgone-%d", prefix, i)), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	leave("", 3276)
	if _, err := c.Writer(bot(), jail.Stdout); problem.CodeOf(err) != problem.PoolExhausted {
		t.Errorf("one more of the tenant: %v", err)
	}
	// Logs that one tenant has left do not keep another from a log.
	if _, err := c.Writer(jail.Agent{Tenant: "acme", Name: "bot"}, jail.Stdout); err != nil {
		t.Errorf("one of another tenant: %v", err)
	}
	leave("rival.", 4096-3276-1)
	if _, err := c.Writer(jail.Agent{Tenant: "acme", Name: "two"}, jail.Stdout); problem.CodeOf(err) != problem.PoolExhausted {
		t.Errorf("one more than there may be: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(c.Logs, bot().Key())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
	if _, err := c.Writer(jail.Agent{Tenant: "default", Name: "gone-7"}, jail.Stdout); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	if err := c.RemoveLog(t.Context(), jail.Agent{Tenant: "default", Name: "gone-8"}); err != nil {
		t.Error(err)
	}
	if _, err := c.Writer(bot(), jail.Stdout); err != nil {
		t.Errorf("when one was removed: %v", err)
	}
}
