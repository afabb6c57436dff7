package sqlite_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
)

func modes(t *testing.T, dir string) map[string]os.FileMode {
	t.Helper()
	out := map[string]os.FileMode{}
	for _, name := range []string{".", sqlite.FileName, sqlite.FileName + "-wal", sqlite.FileName + "-shm", sqlite.FileName + ".lock"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		out[name] = info.Mode().Perm()
	}
	return out
}

func TestOnlyTheOwnerCanReadTheDatabase(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	// A folder whose name would be something else in a URI.
	dir := filepath.Join(t.TempDir(), "new", "a?b=c#d%41 é")
	check := func(what string) {
		t.Helper()
		for name, mode := range modes(t, dir) {
			want := os.FileMode(0o600)
			if name == "." {
				want = 0o700
			}
			if mode != want {
				t.Errorf("%s: %s has the mode %o, want %o", what, name, mode, want)
			}
		}
	}
	first := open(t, dir)
	check("new")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Join(dir, sqlite.FileName), 0o644)); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	check("opened again, after somebody opened it to all")
}

func TestWhatRootMakesBelongsToTheOwnerOfTheFolder(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	if err := os.Chown(dir, 1234, 2345); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	for _, name := range []string{sqlite.FileName, sqlite.FileName + "-wal", sqlite.FileName + "-shm", sqlite.FileName + ".lock"} {
		var at unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, name), &at); err != nil || at.Uid != 1234 || at.Gid != 2345 {
			t.Errorf("%s belongs to %d:%d (%v)", name, at.Uid, at.Gid, err)
		}
	}
}

// TestAFileThatIsNoDatabaseIsKept: it is refused, and not a byte of it changes.
func TestAFileThatIsNoDatabaseIsKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, sqlite.FileName)
	content := bytes.Repeat([]byte("a diary, and not a database. "), 400)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.Open(t.Context(), dir)
	if err == nil {
		t.Fatal(errors.Join(errors.New("it is opened"), db.Close()))
	}
	if problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("got %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the file has changed (%v)", err)
	}
}

func TestALinkIsNotFollowed(t *testing.T) {
	for _, name := range []string{sqlite.FileName, sqlite.FileName + "-wal", sqlite.FileName + ".lock"} {
		dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "elsewhere")
		if err := os.WriteFile(elsewhere, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if db, err := sqlite.Open(t.Context(), dir); err == nil {
			t.Errorf("%s: a link is followed (%v)", name, db.Close())
		}
		if info, err := os.Stat(elsewhere); err != nil || info.Size() > 0 || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: the target of the link has %d bytes and the mode %v, %v", name, info.Size(), info.Mode(), err)
		}
	}
}

// TestOpeningWaitsForTheOneWhoIsOpening and gives up with its context.
func TestOpeningWaitsForTheOneWhoIsOpening(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.Create(filepath.Join(dir, sqlite.FileName+".lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if db, err := sqlite.Open(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, %v", db, err)
	}
	done := make(chan error)
	go func() {
		db, err := sqlite.Open(t.Context(), dir)
		if err == nil {
			err = db.Close()
		}
		done <- err
	}()
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestFullDisk fills a small file system. Rows that were confirmed stay, a refused row leaves no trace, and the database works
// again as soon as there is space.
func TestFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	mount, umount := testenv.Tool(t, "mount"), testenv.Tool(t, "umount")
	dir := t.TempDir()
	command := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	command(mount, "-t", "tmpfs", "-o", "size=2m", "clawjail-test", dir)
	t.Cleanup(func() { command(umount, dir) })

	db, err := sqlite.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	confirmed := int64(0)
	large := row("n1", 1)
	for ; confirmed < 1000 && err == nil; confirmed++ {
		large = row("n1", confirmed+1)
		large.Detail = make([]byte, 64<<10)
		if err = db.AppendAudit(t.Context(), []store.AuditRow{large}); err != nil {
			break
		}
	}
	if !errors.Is(err, store.ErrUnavailable) || problem.CodeOf(err) != problem.DiskFull {
		t.Fatalf("after %d rows: %v", confirmed, err)
	}
	if err := db.AppendAudit(t.Context(), []store.AuditRow{large}); problem.CodeOf(err) != problem.DiskFull {
		t.Errorf("the same again: %v", err)
	}
	if last, err := db.LastAudit(t.Context(), "n1"); err != nil || last.Seq != confirmed {
		t.Errorf("the newest row is %d, %v; %d were confirmed", last.Seq, err, confirmed)
	}
	command(mount, "-o", "remount,size=8m", dir)
	if err := db.AppendAudit(t.Context(), []store.AuditRow{large}); err != nil {
		t.Errorf("with space again: %v", err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLibcIsTheOneOfTheDriver: SQLite's generated code works with the version of modernc.org/libc that it was
// generated for, and go.mod could ask for another one. See https://gitlab.com/cznic/sqlite/-/issues/177.
func TestLibcIsTheOneOfTheDriver(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "go"), "list", "-m", "-json", "modernc.org/sqlite", "modernc.org/libc")
	cmd.Dir = testenv.Repository(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var driver, libc struct{ Version, GoMod string }
	decoder := json.NewDecoder(bytes.NewReader(out))
	if err := errors.Join(decoder.Decode(&driver), decoder.Decode(&libc)); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(driver.GoMod)
	if err != nil {
		t.Fatal(err)
	}
	wanted := regexp.MustCompile(`(?m)^\s*modernc\.org/libc (v\S+)`).FindSubmatch(file)
	if wanted == nil || libc.Version != string(wanted[1]) {
		t.Errorf("go.mod asks for libc %s, and modernc.org/sqlite %s for %s", libc.Version, driver.Version, wanted)
	}
}
