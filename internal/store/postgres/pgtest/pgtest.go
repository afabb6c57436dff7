// Package pgtest starts a PostgreSQL server for tests: a new cluster of its own, reachable over a Unix
// socket only, and gone with the test.
//
// The programs are those of Debian's package postgresql, or of the PATH. The server refuses to run as root, so as root
// it is started as the user nobody.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/testenv"
)

const (
	user     = "clawjail"
	prefix   = "clawjail-pg-"
	lockName = "in-use"
	patience = time.Minute
)

// Server is a running server.
type Server struct {
	dir     string
	bin     string
	durable bool
	run     *run
	made    atomic.Int64
}

// run is one life of the server's process.
type run struct {
	process *os.Process
	done    chan struct{}
	err     error // once done is closed
}

// Start starts a server that trades safety for speed: a crash of the machine would damage it, one of the server does
// not. It is stopped and removed when the test ends, however it ends.
func Start(t testing.TB) *Server { return start(t, false) }

// StartDurable starts a server that writes through to the disk, as one of an operator does.
func StartDurable(t testing.TB) *Server { return start(t, true) }

func start(t testing.TB, durable bool) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: needs PostgreSQL, and -short leaves those tests out; run `make test`")
	}
	s := &Server{bin: programs(t), durable: durable}
	removeOld(t)
	s.dir = folder(t)
	initdb := s.command("initdb", "--pgdata", s.data(), "--username", user, "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	t.Cleanup(func() { s.Stop(t) })
	s.Go(t)
	return s
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) log() string {
	data, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// programs is the folder of initdb and postgres, of the newest version.
func programs(t testing.TB) string {
	t.Helper()
	testenv.Fresh()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		t.Fatal(err)
	}
	version := func(path string) int {
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if err != nil {
			return 0
		}
		return n
	}
	if len(found) > 0 {
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) }))
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		testenv.Missing(t, "PostgreSQL", "run `make setup`")
	}
	return filepath.Dir(path)
}

// folder makes the server's folder. A lock in it says that its test still runs; it goes with the process.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(lock.Close(), os.RemoveAll(dir)); err != nil {
			t.Errorf("remove the server's folder: %v", err)
		}
	})
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if c := credential(); c != nil {
		if err := os.Chown(dir, int(c.Uid), int(c.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// removeOld removes what tests left that were killed. Their servers have ended with them.
func removeOld(t testing.TB) {
	t.Helper()
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*", lockName))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range locks {
		// A test may just be about to lock its new folder.
		if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			continue // it is being removed, or is somebody else's
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
				t.Logf("remove what an older test left: %v", err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// credential is nobody's for root, and nil for all others.
func credential() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534}
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	// Nothing of the tester's own PostgreSQL settings.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = attributes(credential())
	return cmd
}

// Go starts the server's process again after Stop or Crash, and waits until it answers.
func (s *Server) Go(t testing.TB) {
	t.Helper()
	logFile, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-D", s.data(), "-k", s.dir, "-c", "listen_addresses=", "-c", "max_connections=200", "-c", "shared_buffers=32MB"}
	if !s.durable {
		args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off")
	}
	cmd := s.command("postgres", args...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	life := &run{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(life.done)
		// The kernel ends the server with the thread that started it, so that thread stays until the server has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			life.process = cmd.Process
		}
		started <- err
		if err == nil {
			life.err = cmd.Wait()
		}
	}()
	err = errors.Join(<-started, logFile.Close())
	if err != nil {
		t.Fatalf("start postgres: %v", err)
	}
	s.run = life
	testenv.Eventually(t, patience, func() bool {
		if wake.Closed(life.done) {
			t.Fatalf("postgres ended: %v\n%s", life.err, s.log())
		}
		return s.exec(t.Context(), "postgres", "SELECT 1") == nil
	}, "postgres answers")
}

// Stop ends the server as an operator does, and returns when it has ended.
func (s *Server) Stop(t testing.TB) { s.end(t, syscall.SIGINT) }

// Crash ends the server without a shutdown: it recovers when it starts again.
func (s *Server) Crash(t testing.TB) { s.end(t, syscall.SIGQUIT) }

func (s *Server) end(t testing.TB, signal syscall.Signal) {
	t.Helper()
	life := s.run
	if life == nil {
		return
	}
	s.run = nil
	if err := life.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	select {
	case <-life.done:
	case <-time.After(patience):
		t.Errorf("postgres did not end on %v: %v\n%s", signal, life.process.Kill(), s.log())
		<-life.done
	}
}

// URL is the address of one of the server's databases.
func (s *Server) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(user), Path: "/" + database, RawQuery: url.Values{"host": {s.dir}}.Encode()}
	return u.String()
}

// Database makes an empty database, and returns its address.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test%d", s.made.Add(1))
	if err := s.exec(t.Context(), "postgres", "CREATE DATABASE "+name); err != nil {
		t.Fatalf("make a database: %v\n%s", err, s.log())
	}
	return s.URL(name)
}

func (s *Server) exec(ctx context.Context, database, statement string) error {
	return Exec(ctx, s.URL(database), statement)
}

// Exec runs a statement on a connection of its own.
func Exec(ctx context.Context, databaseURL, statement string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}
