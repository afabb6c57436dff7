//go:build linux

package operators

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/selftest/website"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// TestAFullDiskStopsActionsAndNoEnding fills the disk of the database while a session is open.
func TestAFullDiskStopsActionsAndNoEnding(t *testing.T) {
	b := testkit.Prepare(t, instance.Options{Settings: testkit.NoPool})
	dir := hostd.DatabaseDir(b.Config)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b.Up()
	id := b.Open(session.OpenRequest{})

	full := filepath.Join(dir, "full")
	f, err := os.Create(full)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if closed := f.Close(); closed != nil || !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err, closed)
	}
	// Free room inside the database's own file is used up first.
	testenv.Eventually(t, 60*time.Second, func() bool {
		s, err := b.API.Open(t.Context(), session.OpenRequest{})
		if err == nil {
			b.Close(s.ID)
			return false
		}
		code := problem.CodeOf(err)
		return code == problem.AuditUnavailable || code == problem.DiskFull || code == problem.DatabaseUnavailable
	}, "sessions are opened on a full disk")
	_, err = b.API.Open(t.Context(), session.OpenRequest{})
	testkit.ExpectCode(t, err, problem.AuditUnavailable)
	b.Close(id)
	b.Clean(20 * time.Second)

	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		s, err := b.API.Open(t.Context(), session.OpenRequest{})
		if err == nil {
			b.Close(s.ID)
		}
		return err == nil
	}, "no session is opened after the disk has room again")
	// The ending is on record all the same.
	testenv.Eventually(t, 20*time.Second, func() bool {
		list := b.Rows("--session", id, "--action", "session.close")
		return len(list) == 2 && list[1].Result == "ok"
	}, "closing on a full disk is not in the audit log")
	if _, err := b.Run(t.Context(), "audit", "verify"); err != nil {
		t.Error(err)
	}
}

// TestPostgreSQLIsAllThatChanges runs an operator's day on the other database.
func TestPostgreSQLIsAllThatChanges(t *testing.T) {
	v := visiting(t, instance.Options{Settings: testkit.NoPool + testkit.OnPostgreSQL(t)})
	v.run("cookies", "import", v.storageState("carol"), "--domain", website.Domain)
	s, err := v.operator()
	if err != nil {
		t.Fatalf("%v\n%s", err, v.Log())
	}
	page, err := v.API.Navigate(t.Context(), s.ID, browser.Navigate{URL: v.site.URL("/account")})
	if err != nil || page.Title != website.TitleOf("carol") {
		t.Errorf("the site does not know the browser: %+v, %v", page, err)
	}
	v.Close(s.ID)
	v.run("audit", "verify")
	entries, err := os.ReadDir(hostd.DatabaseDir(v.Config))
	if err != nil || len(entries) != 0 {
		t.Errorf("there is a database of its own beside it: %v, %v", entries, err)
	}
}

// TestAChangedLogIsFound cuts a row out of an exported log, and changes another.
func TestAChangedLogIsFound(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool})
	for range 3 {
		b.Close(b.Open(session.OpenRequest{}))
	}
	run := func(args ...string) (string, error) { return b.Run(t.Context(), args...) }
	export := func(file string) []string {
		t.Helper()
		if _, err := run("audit", "export", "--jsonl", "-o", file); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	known := len(export(filepath.Join(t.TempDir(), "before.jsonl")))
	testenv.Eventually(t, 10*time.Second, func() bool {
		for n, err := range checkpoint.ReadFile(hostd.CheckpointsPath(b.Config)) {
			if err == nil && n.Seq >= int64(known) {
				return true
			}
		}
		return false
	}, "no checkpoint vouches for the last of %d rows", known)
	now, file := time.Now().UTC().Format(time.RFC3339Nano), filepath.Join(t.TempDir(), "log.jsonl")
	lines := export(file)
	if out, err := run("audit", "verify", "--export", file, "--as-of", now); err != nil {
		t.Fatalf("an export as it is: %v %s", err, out)
	}
	if known < 12 || len(lines) < known {
		t.Fatalf("there were %d rows, and the export has %d", known, len(lines))
	}
	for name, change := range map[string]func([]string) []string{
		"edited": func(l []string) []string {
			return append(append(append([]string{}, l[:4]...), strings.Replace(l[4], "session", "sessiom", 1)), l[5:]...)
		},
		"removed":   func(l []string) []string { return append(append([]string{}, l[:4]...), l[5:]...) },
		"reordered": func(l []string) []string { return append([]string{l[1], l[0]}, l[2:]...) },
		"truncated": func(l []string) []string { return l[:known-1] },
	} {
		bad := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(bad, []byte(strings.Join(change(lines), "")), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := run("audit", "verify", "--export", bad, "--as-of", now); err == nil {
			t.Errorf("a log that was %s is good: %s", name, out)
		}
	}
	// The checkpoints are root's, and the control plane reads them.
	info, err := os.Stat(hostd.CheckpointsPath(b.Config))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the checkpoints: %v, %v", info, err)
	}
	var owned unix.Stat_t
	if err := unix.Stat(hostd.CheckpointsPath(b.Config), &owned); err != nil || owned.Uid != 0 {
		t.Errorf("the checkpoints belong to user %d: %v", owned.Uid, err)
	}
	owner, err := user.Lookup(b.Config.User)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{hostd.DatabaseDir(b.Config), hostd.ControlDir(b.Config)} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || strconv.Itoa(int(st.Uid)) != owner.Uid || st.Mode&0o777 != 0o700 {
			t.Errorf("%s belongs to user %d with mode %o: %v", dir, st.Uid, st.Mode&0o777, err)
		}
	}
}
