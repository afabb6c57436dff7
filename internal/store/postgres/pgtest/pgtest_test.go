package pgtest_test

import (
	"bufio"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// where finds the folder and the process of a server.
func where(t *testing.T, s *pgtest.Server) (dir string, pid int) {
	t.Helper()
	u, err := url.Parse(s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	dir = u.Query().Get("host")
	data, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(data), "\n")
	if pid, err = strconv.Atoi(first); err != nil {
		t.Fatal(err)
	}
	return dir, pid
}

func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

func TestServerGoesWithItsTest(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	var dir string
	var pid int
	t.Run("test", func(t *testing.T) {
		s := pgtest.Start(t)
		dir, pid = where(t, s)
		if gone(pid) {
			t.Error("the server does not run")
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("others can enter the folder of the server: %v, %v", info.Mode(), err)
		}
	})
	if pid == 0 {
		t.Skip("SKIPPED: no server")
	}
	if !gone(pid) {
		t.Errorf("process %d still runs", pid)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

const child = "CLAWJAIL_TEST_PGTEST_CHILD"

// TestServerGoesWithAKilledTest: also when no cleanup runs; its folder goes with the next test.
func TestServerGoesWithAKilledTest(t *testing.T) {
	if os.Getenv(child) != "" {
		s := pgtest.Start(t)
		dir, pid := where(t, s)
		if _, err := os.Stdout.WriteString("\nSERVER " + dir + " " + strconv.Itoa(pid) + "\n"); err != nil {
			t.Fatal(err)
		}
		select {} // until it is killed
	}
	if testing.Short() {
		t.Skip("SKIPPED: needs PostgreSQL, and -short leaves those tests out; run `make test`")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	var pid int
	lines := bufio.NewScanner(out)
	for pid == 0 && lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == "SERVER" {
			dir = fields[1]
			if pid, err = strconv.Atoi(fields[2]); err != nil {
				t.Fatal(err)
			}
		}
	}
	killed := cmd.Process.Kill()
	ended := cmd.Wait()
	if pid == 0 {
		testenv.Missing(t, "PostgreSQL", "run `make setup`")
	}
	if killed != nil || ended == nil {
		t.Fatalf("kill: %v, %v", killed, ended)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return gone(pid) }, "the server %d ends", pid)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "in-use"), old, old); err != nil {
		t.Fatal(err)
	}
	t.Run("next", func(t *testing.T) { pgtest.Start(t) })
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}
