package hostd

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// helperVariable makes this test binary be another process: one of helpers.
const helperVariable = "CLAWJAIL_TEST_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperVariable); name != "" {
		os.Exit(runHelper(name))
	}
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err) // the flag is the testing package's
	}
	goleak.VerifyTestMain(m)
}

// atOnce is how many host daemons are killed side by side: they mostly wait.
const atOnce = "8"

// patience is for conditions that become true soon, on a machine that is busy.
const patience = 20 * time.Second

// fixture is a host daemon in this process, on a host in memory whose programs are real.
type fixture struct {
	host   *jailtest.Host
	socket string
	stop   func() error // ends Serve and waits for it
}

// startServer runs Serve until the test ends. Several may run on one host, one after the other.
func startServer(t testing.TB, host *jailtest.Host, socket string, change func(*Options)) *fixture {
	t.Helper()
	ready := make(chan struct{})
	m := jailtest.NewMemory(host)
	lo := m.Options()
	o := Options{
		Socket: socket, Group: -1, ControlUID: uint32(os.Geteuid()),
		Installation: lo.Installation, Pool: lo.Pool, Parts: Parts{Parts: lo.Parts}, Journal: lo.Journal,
		Checkpoints: filepath.Join(filepath.Dir(socket), "checkpoints"), Keep: keepIn(filepath.Dir(socket)),
		HasTemplate: func(_ context.Context, name string) error {
			if !slices.Contains(host.Templates, name) {
				return problem.New(problem.TemplateMissing, "build it", "there is no template %s", name)
			}
			return nil
		},
		Templates: func(context.Context) ([]Template, error) {
			return []Template{{Name: "tiny", Digest: "sha256:0", Programs: map[string]TemplateProgram{"sh": {Path: "/bin/sh"}}}}, nil
		},
		Version: "test",
		Grace:   50 * time.Millisecond,
		// The programs are real: a test that leaves a jail must not leave its process.
		EndJails: true,
		Notify: func(state string) error {
			if state == "READY=1" {
				close(ready)
			}
			return nil
		},
	}
	if change != nil {
		change(&o)
	}
	t.Cleanup(func() { unprotect(t, o.Checkpoints) })
	ctx, cancel := context.WithCancel(context.Background()) // it is needed while other things are cleaned up
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, o) }()
	f := &fixture{host: host, socket: socket}
	f.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := f.stop(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("serve ended: %v", err)
	case <-time.After(patience):
		t.Fatal("the host daemon is not ready")
	}
	return f
}

// keepIn keeps agents in a folder.
func keepIn(dir string) KeepOptions {
	return KeepOptions{Agents: filepath.Join(dir, "agents"), Logs: filepath.Join(dir, "logs"), Consoles: filepath.Join(dir, "console"),
		LogBytes: 1 << 20, FirstPause: 5 * time.Millisecond}
}

// newSocket is in a short folder of its own: the path of a socket has little room.
func newSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Those of a host daemon that is another process, whose test does not know when it made them.
		unprotect(t, filepath.Join(dir, "checkpoints"), CheckpointsPath(runConfig(dir, "nobody")))
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "hostd.sock")
}

// unprotect makes files of checkpoints removable, those that are there.
func unprotect(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := checkpoint.Unprotect(path); err != nil {
			t.Error(err)
		}
	}
}

// runConfig is the configuration of a whole host daemon in a folder.
func runConfig(dir, user string) config.Config {
	c := config.Default()
	c.DataDir, c.RunDir, c.User = filepath.Join(dir, "data"), filepath.Join(dir, "run"), user
	c.TemplatesDir = filepath.Join(c.DataDir, "templates")
	return c
}

func newFixture(t *testing.T, change func(*Options)) *fixture {
	t.Helper()
	return startServer(t, jailtest.NewHost(), newSocket(t), change)
}

// client makes a client with a hold.
func (f *fixture) client(t *testing.T) *Client {
	t.Helper()
	c := NewClient(f.socket, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Hold(ctx); err != nil {
		t.Fatalf("hold: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// spec is a jail whose program echoes its stdin.
func spec(script string) jail.Spec {
	return jailtest.Subject{Template: "tiny"}.Spec(script)
}

func create(t *testing.T, c *Client, s jail.Spec) *jail.Jail {
	t.Helper()
	j, err := c.Create(t.Context(), s)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(j.Stdio.Close)
	return j
}

// empty waits until nothing is on the host.
func (f *fixture) empty(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool { return len(f.host.Resources()) == 0 }, "left on the host: %v", f.host.Resources())
}

// raw sends one request as it stands and returns the connection.
func (f *fixture) raw(t *testing.T, body string) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: f.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(frameOf(body)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func frameOf(body string) []byte {
	n := len(body)
	return append([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

// code is the code of a hand-written request's answer.
func (f *fixture) code(t *testing.T, body string) string {
	t.Helper()
	conn := f.raw(t, body)
	answer, err := readFrame(conn, maxAnswer)
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	if rest, err := io.ReadAll(conn); len(rest) > 0 || err != nil {
		t.Fatalf("after the answer came %q, %v", rest, err)
	}
	a := decodeAnswer(t, answer)
	if a.Error == nil {
		return ""
	}
	return a.Error.Code
}

// hasCode looks for a code in a tree of joined errors.
func hasCode(err error, code string) bool {
	var p *problem.Error
	return errors.As(err, &p) && p.Code == code
}

// debugLog says everything.
func debugLog(to io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
