package hostd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// agentsConfig is a whole installation in a folder, with the machine's templates.
func agentsConfig(dir string) config.Config {
	c := runConfig(dir, "nobody")
	c.UIDBase = 1879700000
	c.TemplatesDir = cmp.Or(os.Getenv("CLAWJAIL_TEST_TEMPLATES"), filepath.Join(config.Default().DataDir, "templates"))
	c.Agents.WorkspaceRoots = []string{filepath.Join(dir, "work")}
	return c
}

// helperAgents is a host daemon with the machine's own driver. Arguments: the folder, and "end" when jails end with it.
func helperAgents(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return Run(ctx, RunOptions{
		Config: agentsConfig(args[0]), EndJails: args[1] == "end", Version: "test", Now: time.Now, Substrate: ThisHost(),
		Log:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Templates: func(context.Context) ([]Template, error) { return nil, nil },
		Notify:    func(state string) error { fmt.Println(state); return nil },
	})
}

// clawbot is the template of agents, or the test is skipped.
func clawbot(t testing.TB) {
	t.Helper()
	testenv.Need(t, testenv.Root)
	testenv.TemplateNamed(t, "clawbot")
}

// agentsFolder is on a disk, as the data of an installation is.
func agentsFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(config.Default().DataDir), "cjtest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unprotect(t, CheckpointsPath(agentsConfig(dir)))
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(filepath.Join(dir, "work"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func clawbotKept(name, script string) jail.Kept {
	k := keptSpec(name, script)
	k.Spec.Template, k.Spec.Program.Dir = "clawbot", ""
	k.Spec.Limits.Memory, k.Spec.Limits.Disk, k.Spec.Agent.State = 512<<20, 100<<20, 64<<20
	return k
}

// end asks a host daemon to end, and waits until it has.
func (p *process) end(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	for p.lines.Scan() {
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the host daemon ended by %v", err)
	}
}

// The real thing: an agent in a jail of this host, through a kill of the host daemon.
func TestAgentsOfThisHostOutliveTheHostDaemon(t *testing.T) {
	clawbot(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := agentsFolder(t)
	conf := agentsConfig(dir)
	first := startHelper(t, self, "agents", nil, dir, "stay")
	first.expect(t, "READY=1")
	t.Cleanup(func() { // whatever happens, nothing is left
		last := startHelper(t, self, "agents", nil, dir, "end")
		last.expect(t, "READY=1")
		last.end(t)
	})
	c := NewClient(SocketPath(conf), nil)
	k := clawbotKept("bot", `trap 'exit 0' TERM; echo run >>/state/runs; cat /run/hermit/token; echo; i=0; while :; do echo line $i; i=$((i+1)); done`)
	k.Spec.Mounts = []jail.Mount{{Source: filepath.Join(dir, "work", "bot"), Target: jail.WorkspaceDir}}
	s := keep(t, c, k)
	read := func(offset int64) jail.LogChunk {
		chunk, err := c.ReadLog(t.Context(), jail.LogRequest{Tenant: "default", Name: "bot", Stream: jail.Stdout, Offset: offset, Wait: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return chunk
	}
	begin := fmt.Sprintf("%s\nline 0\nline 1\n", agentToken)
	testenv.Eventually(t, patience, func() bool { return len(read(0).Data) > len(begin) }, "it prints nothing")
	if got := string(read(0).Data[:len(begin)]); got != begin {
		t.Fatalf("it begins with %q", got)
	}
	first.kill()
	second := startHelper(t, self, "agents", nil, dir, "stay")
	second.expect(t, "READY=1")
	testenv.Eventually(t, patience, func() bool { return keptStatus(t, c, "bot").Phase == jail.PhaseRunning }, "it does not run")
	if now := keptStatus(t, c, "bot"); now.Jail != s.Jail || now.Restarts != 0 {
		t.Errorf("jail %s became %s", s.Jail, now.Jail)
	}
	end := read(-1).End
	testenv.Eventually(t, patience, func() bool { return read(-1).End > end+1<<20 }, "nothing more is kept")
	// The lines follow one another over the kill.
	chunk, want := read(end-200_000), -1
	lines := splitLines(chunk.Data)
	for _, line := range lines[1 : len(lines)-1] {
		var n int
		if _, err := fmt.Sscanf(line, "line %d", &n); err != nil {
			t.Fatalf("a line is %q", line)
		}
		if want >= 0 && n != want {
			t.Fatalf("after line %d came line %d", want-1, n)
		}
		want = n + 1
	}
	r := execIn(t, c, keptStatus(t, c, "bot").Jail, "cat /state/runs; id -u; touch /workspace/made; exit 3")
	if out, err := readAll(r.Stdio.Out); out != "run\n1000\n" || err != nil {
		t.Errorf("in the jail: %q, %v", out, err)
	}
	if x, err := r.Wait(t.Context()); x.Code != 3 || err != nil {
		t.Errorf("it ended by %+v, %v", x, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "work", "bot", "made")); err != nil {
		t.Error(err)
	}
	if err := c.RestartKept(t.Context(), "default", "bot"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		r, err := c.ExecIn(t.Context(), keptStatus(t, c, "bot").Jail, jail.Program{Argv: []string{"/bin/cat", "/state/runs"}, Wire: jail.WireStdio})
		if err != nil {
			return false
		}
		defer r.End()
		defer r.Stdio.Close()
		out, _ := readAll(r.Stdio.Out)
		return out == "run\nrun\n"
	}, "/state did not go on")
	if err := c.Drop(t.Context(), "default", "bot", jail.DropOptions{}); err != nil {
		t.Fatal(err)
	}
	resources, err := c.HostResources(t.Context())
	for _, resource := range resources {
		if resource.Name != "" {
			t.Errorf("left is %+v", resource)
		}
	}
	if err != nil {
		t.Error(err)
	}
	second.end(t)
}

// BenchmarkTwentyAgentsOfThisHost declares twenty new agents at once. The floor is 2 s.
func BenchmarkTwentyAgentsOfThisHost(b *testing.B) {
	clawbot(b)
	dir := agentsFolder(b)
	ctx, cancel := context.WithCancel(b.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Run(ctx, RunOptions{
			Config: agentsConfig(dir), EndJails: true, Version: "test", Now: time.Now, Substrate: ThisHost(),
			Log:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
			Templates: func(context.Context) ([]Template, error) { return nil, nil },
			Notify: func(state string) error {
				if state == "READY=1" {
					close(ready)
				}
				return nil
			},
		})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}()
	select {
	case <-ready:
	case err := <-done:
		done <- err
		b.Fatal(err)
	}
	c := NewClient(SocketPath(agentsConfig(dir)), nil)
	each := func(do func(name string) error) {
		var working sync.WaitGroup
		for i := range 20 {
			working.Go(func() {
				if err := do(fmt.Sprintf("n%d", i)); err != nil {
					b.Error(err)
				}
			})
		}
		working.Wait()
	}
	for b.Loop() {
		each(func(name string) error {
			return c.Keep(b.Context(), clawbotKept(name, "trap 'exit 0' TERM; while :; do sleep 0.1; done"), agentToken)
		})
		b.StopTimer()
		each(func(name string) error { return c.Drop(b.Context(), "default", name, jail.DropOptions{}) })
		b.StartTimer()
	}
}

func splitLines(data []byte) []string { return strings.Split(string(data), "\n") }

func readAll(r io.Reader) (string, error) {
	data, err := io.ReadAll(r)
	return string(data), err
}
