package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/store/postgres/pgtest"
	"github.com/clawjail/clawjail/internal/swap"
)

// run runs the test binary as one that kills itself, and says whether it did.
func (h *house) run(variable, value, file, home string) (killed bool) {
	h.t.Helper()
	self, err := os.Executable()
	h.must(err)
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, file, home)
	cmd.Env = append(os.Environ(), variable+"="+value)
	text, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !state.Signaled() || state.Signal() != syscall.SIGKILL {
		h.t.Fatalf("%s: %v\n%s", value, err, text)
	}
	return true
}

func TestARestoreNeverMovesWhatIsNotClawjails(t *testing.T) {
	h := newHouse(t)
	data := h.backup(nil)
	o := restoring(t.TempDir())
	o.Replace = true
	others := filepath.Join(o.Config.DataDir, "database", "of-another-program")
	h.must(os.MkdirAll(filepath.Dir(others), 0o755))
	h.must(os.WriteFile(others, nil, 0o644))
	_, err := Restore(t.Context(), bytes.NewReader(data), o)
	code(t, err, problem.Conflict)
	if !there(others) {
		t.Error("it was moved")
	}
	// The vault's key alone is there for the restore, and stays.
	h.must(os.RemoveAll(o.Config.DataDir))
	key := filepath.Join(hostd.ControlDir(o.Config), "vault.key")
	h.must(os.MkdirAll(filepath.Dir(key), 0o700))
	h.must(os.WriteFile(key, []byte("put there"), 0o600))
	o.Replace = false
	done, err := Restore(t.Context(), bytes.NewReader(data), o)
	if err != nil || done.VaultKey != "kept" {
		t.Fatalf("%q, %v", done.VaultKey, err)
	}
	if got, err := os.ReadFile(key); string(got) != "put there" {
		t.Errorf("the key is %q, %v", got, err)
	}
}

func TestABackupNeverClearsAFolderThatItDidNotMake(t *testing.T) {
	h := newHouse(t)
	h.write(hostd.BackupDir+"/mine", "mine")
	h.must(os.Chmod(filepath.Join(h.c.DataDir, hostd.BackupDir), 0o755))
	var b bytes.Buffer
	_, err := Create(t.Context(), &b, h.options())
	code(t, err, problem.Conflict)
	elsewhere := t.TempDir()
	h.must(os.Chmod(elsewhere, 0o700))
	h.must(os.WriteFile(filepath.Join(elsewhere, "theirs"), []byte("theirs"), 0o600))
	h.must(os.Rename(filepath.Join(h.c.DataDir, hostd.BackupDir), filepath.Join(h.home, "moved")))
	h.must(os.Symlink(elsewhere, filepath.Join(h.c.DataDir, hostd.BackupDir)))
	if _, err = Create(t.Context(), &b, h.options()); err == nil {
		t.Error("a link is followed")
	}
	for _, path := range []string{filepath.Join(h.home, "moved", "mine"), filepath.Join(elsewhere, "theirs")} {
		if !there(path) {
			t.Errorf("%s is gone", path)
		}
	}
}

func TestABackupThatIsKilledLeavesNothingThatOthersRead(t *testing.T) {
	h := newHouse(t)
	h.write("control/sessions/s1/events", "recorded")
	h.must(os.Chmod(filepath.Join(h.c.DataDir), 0o755))
	dir := t.TempDir()
	if !h.run(killBackupVariable, "1", filepath.Join(dir, "b.tar.gz"), h.home) {
		t.Fatal("it was not killed")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("where the file goes are %v, %v", left, err)
	}
	work := filepath.Join(h.c.DataDir, hostd.BackupDir)
	copied := filepath.Join(work, "data", "control", "admin.key")
	if !there(copied) {
		t.Fatal("there is nothing that others could read: the test would show nothing")
	}
	h.must(filepath.WalkDir(work, func(path string, d fs.DirEntry, err error) error {
		if info, infoErr := d.Info(); infoErr != nil || d.IsDir() && info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), infoErr)
		}
		return err
	}))
	cat := exec.CommandContext(t.Context(), "cat", copied)
	cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cat.CombinedOutput(); err == nil {
		t.Errorf("another user reads %q", out)
	}
	h.backup(nil)
	if there(work) {
		t.Error("the next backup has not removed it")
	}
}

// TestAVaultKeyElsewhereIsSwappedWithTheRest kills a restore before each step: the key that is configured elsewhere opens the
// database that is there.
func TestAVaultKeyElsewhereIsSwappedWithTheRest(t *testing.T) {
	h := newHouse(t)
	h.write("agents/default.bot.json", "new")
	h.write("control/vault.key", "new")
	file := filepath.Join(t.TempDir(), "backup")
	h.must(os.WriteFile(file, h.backup(func(o *Options) { o.WithKey = true }), 0o600))
	seen := map[string]int{}
	for step := 0; ; step++ {
		if step > 100 {
			t.Fatal("it has no end")
		}
		g := newHouse(t)
		g.write("agents/default.bot.json", "old")
		key := outsideKey(g.home)
		h.must(os.MkdirAll(filepath.Dir(key), 0o700))
		h.must(os.WriteFile(key, []byte("old"), 0o600))
		killed := g.run(killVariable, fmt.Sprint(step), file, g.home)
		if _, err := swap.Finish(g.c.DataDir); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(key)
		if data := g.read("agents/default.bot.json"); err != nil || string(got) != data {
			t.Errorf("step %d: the data is %q, and the key %q, %v", step, data, got, err)
		}
		seen[string(got)]++
		if kept, _ := filepath.Glob(key + ".replaced-*"); (len(kept) == 1) != (string(got) == "new") { // the pattern is good
			t.Errorf("step %d: kept are %v", step, kept)
		}
		if !killed {
			break
		}
	}
	if seen["old"] < 5 || seen["new"] < 5 {
		t.Errorf("seen: %v", seen)
	}
}

func TestAVaultKeyInAFolderThatIsSwappedStaysInItsPlace(t *testing.T) {
	h := newHouse(t)
	name := filepath.Join(h.c.DataDir, "database", "keys", "mine.key")
	h.write("database/keys/mine.key", "mine")
	data := h.backup(nil)
	if _, err := restore(h, data, func(o *RestoreOptions) { o.Replace = true; o.Config.Vault.KeyFile = name }); err != nil {
		t.Fatal(err)
	}
	if got := h.read("database/keys/mine.key"); got != "mine" {
		t.Errorf("the key is %q", got)
	}
}

func TestRootReadsNoFileForAControlPlaneThatPutALinkThere(t *testing.T) {
	h := newHouse(t)
	data := h.backup(nil)
	secret := filepath.Join(h.home, "roots-alone")
	h.must(os.WriteFile(secret, []byte("secret"), 0o600))
	key := filepath.Join(hostd.ControlDir(h.c), "vault.key")
	h.must(os.Chown(filepath.Dir(key), 1234, 1234))
	h.must(os.Remove(key))
	h.must(os.Symlink(secret, key))
	if _, err := restore(h, data, replacing); err == nil {
		t.Errorf("the new key is %q", h.read("control/vault.key"))
	}
	var b bytes.Buffer
	o := h.options()
	o.WithKey = true
	if _, err := Create(t.Context(), &b, o); err == nil {
		t.Error("it is in a backup")
	}
}

// The control plane's user has the folder of the vault's key, and puts there what root is to read or to replace.
func TestRootTouchesNothingThroughWhatTheControlPlaneHasPutAtItsKey(t *testing.T) {
	const theirs = 1234
	for name, c := range map[string]struct {
		plant   func(h *house, dir, victim string) error
		refused bool
	}{
		"nothing":      {func(*house, string, string) error { return nil }, false},
		"a link":       {func(h *house, dir, victim string) error { return os.Symlink(victim, filepath.Join(dir, "vault.key")) }, true},
		"another name": {func(h *house, dir, victim string) error { return os.Link(victim, filepath.Join(dir, "vault.key")) }, true},
		"a link elsewhere": {func(h *house, dir, victim string) error {
			return os.Symlink("nowhere", filepath.Join(dir, "vault.key"))
		}, true},
		"another folder": {func(h *house, dir, victim string) error {
			return errors.Join(os.Rename(dir, dir+".away"), os.Symlink(filepath.Dir(victim), dir))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			above := filepath.Join(h.home, "control-planes")
			dir, victim := filepath.Join(above, "keys"), filepath.Join(h.home, "roots", "vault.key")
			for _, made := range []string{above, dir, filepath.Dir(victim)} {
				h.must(os.Mkdir(made, 0o755))
			}
			key := filepath.Join(dir, "vault.key")
			h.must(os.WriteFile(victim, []byte("of root's"), 0o600))
			h.must(os.WriteFile(key, []byte("the key"), 0o600))
			for _, given := range []string{above, dir, key} {
				h.must(os.Chown(given, theirs, theirs))
			}
			h.c.Vault.KeyFile = key
			withKey := func(o *Options) { o.WithKey = true }
			data := h.backup(withKey)
			h.must(os.Remove(key))
			h.must(c.plant(h, dir, victim))
			if c.refused {
				o := h.options()
				o.WithKey = true
				if _, err := Create(t.Context(), io.Discard, o); problem.CodeOf(err) != problem.Conflict && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a backup with it: %v", err)
				}
			}
			_, err := restore(h, data, func(o *RestoreOptions) {
				o.Replace, o.Config.Vault.KeyFile, o.Control = true, key, Owner{theirs, theirs}
			})
			if (err != nil) != c.refused || err != nil && problem.CodeOf(err) != problem.Conflict {
				t.Errorf("restored: %v", err)
			}
			var st unix.Stat_t
			h.must(unix.Stat(victim, &st))
			if got, err := os.ReadFile(victim); err != nil || string(got) != "of root's" || st.Uid != 0 {
				t.Errorf("root's file is %q of user %d: %v", got, st.Uid, err)
			}
			left, err := filepath.Glob(filepath.Join(filepath.Dir(victim), "*.restored"))
			if err != nil || len(left) > 0 {
				t.Errorf("beside it: %v, %v", left, err)
			}
			if !c.refused {
				h.must(unix.Lstat(key, &st))
				if got, err := os.ReadFile(key); err != nil || string(got) != "the key" || st.Uid != theirs || st.Mode&0o777 != 0o600 {
					t.Errorf("the key is %q of user %d with mode %o: %v", got, st.Uid, st.Mode&0o777, err)
				}
			}
		})
	}
}

// A link that root has put where nobody else could have is as good as a file.
func TestTheVaultsKeyMayBeALinkOfRoots(t *testing.T) {
	h := newHouse(t)
	etc, run := filepath.Join(h.home, "etc"), filepath.Join(h.home, "secrets")
	h.must(os.Mkdir(etc, 0o755))
	h.must(os.Mkdir(run, 0o755))
	h.must(os.WriteFile(filepath.Join(run, "vault.key"), []byte("the key"), 0o600))
	h.must(os.Symlink("../secrets/vault.key", filepath.Join(etc, "vault.key")))
	h.c.Vault.KeyFile = filepath.Join(etc, "vault.key")
	data := h.backup(func(o *Options) { o.WithKey = true })
	h.must(os.WriteFile(filepath.Join(run, "vault.key"), []byte("another"), 0o600))
	if _, err := restore(h, data, func(o *RestoreOptions) { o.Replace, o.Config.Vault.KeyFile = true, h.c.Vault.KeyFile }); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(h.c.Vault.KeyFile)
	aside, _ := filepath.Glob(filepath.Join(run, "vault.key.replaced-*")) // the pattern is good
	if err != nil || string(got) != "the key" || len(aside) != 1 {
		t.Errorf("the key is %q, %v, and beside it is %v", got, err, aside)
	}
	if info, err := os.Lstat(h.c.Vault.KeyFile); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v", err)
	}
}

func TestRecordingsAreInABackupOnlyWhenAskedFor(t *testing.T) {
	h := newHouse(t)
	h.write("control/sessions/s1/events", "recorded")
	without, with := h.backup(nil), h.backup(func(o *Options) { o.Recordings = true })
	for _, c := range []struct {
		data []byte
		want bool
	}{{without, false}, {with, true}} {
		o := restoring(t.TempDir())
		o.Control = Owner{1234, 1235}
		_, err := Restore(t.Context(), bytes.NewReader(c.data), o)
		h.must(err)
		var st unix.Stat_t
		err = unix.Lstat(filepath.Join(o.Config.DataDir, "control/sessions/s1/events"), &st)
		if (err == nil) != c.want || c.want && (st.Uid != 1234 || st.Gid != 1235 || st.Mode&0o777 != 0o600) {
			t.Errorf("restored: %v, %d:%d %o", err, st.Uid, st.Gid, st.Mode)
		}
	}
	taking := h.options()
	taking.Recordings = true
	var b bytes.Buffer
	h.must(os.Chown(filepath.Join(h.c.DataDir, "control/sessions/s1/events"), 1234, 1235))
	if _, err := Create(t.Context(), &b, taking); err == nil || !strings.Contains(err.Error(), "belongs to user 1234") {
		t.Errorf("the file of another is taken: %v", err)
	}
	h.must(os.RemoveAll(filepath.Join(h.c.DataDir, "control/sessions/s1")))
	h.write("control/sessions/an odd name", "x")
	if _, err := Create(t.Context(), &b, taking); err == nil || !strings.Contains(err.Error(), "an odd name") {
		t.Errorf("a name that cannot be restored is taken: %v", err)
	}
}

// A session that ends removes its folder while the others are walked.
func TestAFolderThatGoesAwayTakesNoOtherRecordingAlong(t *testing.T) {
	dir := t.TempDir()
	for _, session := range []string{"s1", "s2", "s3"} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, session), 0o700), os.WriteFile(filepath.Join(dir, session, "events"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var taken []string
	walk := func(dir string, remove ...string) error {
		taken = nil
		return new(collection).tree(recordingsDir, dir, func(name, _ string) error {
			taken = append(taken, strings.TrimPrefix(name, dataPrefix+recordingsDir+"/"))
			for _, session := range remove {
				if err := os.RemoveAll(filepath.Join(dir, session)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := walk(dir); err != nil || !slices.Equal(taken, []string{"s1/events", "s2/events", "s3/events"}) {
		t.Errorf("of three: %q, %v", taken, err)
	}
	if err := walk(dir, "s2"); err != nil || !slices.Equal(taken, []string{"s1/events", "s3/events"}) {
		t.Errorf("of three, one of which goes away: %q, %v", taken, err)
	}
	if err := walk(filepath.Join(dir, "none")); err != nil || len(taken) > 0 {
		t.Errorf("of none: %q, %v", taken, err)
	}
	broken := fmt.Errorf("where it goes: %w", fs.ErrNotExist)
	if err := new(collection).tree(recordingsDir, dir, func(string, string) error { return broken }); err != broken {
		t.Errorf("a file that cannot be taken: %v", err)
	}
}

func TestARecipientOpensABackupAndNobodyElse(t *testing.T) {
	h := newHouse(t)
	var keys [2]*age.X25519Identity
	for i := range keys {
		var err error
		keys[i], err = age.GenerateX25519Identity()
		h.must(err)
	}
	data := h.backup(func(o *Options) { o.Keys.Recipients = []string{keys[0].Recipient().String()} })
	with := func(k *age.X25519Identity) Keys { return Keys{Identities: strings.NewReader(k.String())} }
	_, _, _, err := Check(t.Context(), bytes.NewReader(data), with(keys[1]), t.TempDir(), nil)
	code(t, err, problem.BadRequest)
	if _, err := restore(h, data, func(o *RestoreOptions) { o.Replace, o.Keys = true, with(keys[0]) }); err != nil {
		t.Error(err)
	}
	var b bytes.Buffer
	o := h.options()
	o.Keys.Recipients = []string{"age1wrong"}
	_, err = Create(t.Context(), &b, o)
	code(t, err, problem.BadRequest)
}

func TestAPostgreSQLDatabaseIsLeftToItsToolsWhenThatIsSaid(t *testing.T) {
	h := newHouse(t)
	sqlite := h.backup(nil)
	h.c.Database = config.DatabaseURL(pgtest.Start(t).Database(t))
	var b bytes.Buffer
	o := h.options()
	_, err := Create(t.Context(), &b, o)
	code(t, err, problem.Unsupported)
	o.WithoutDatabase = true
	m, err := Create(t.Context(), &b, o)
	if err != nil || m.Database.Included || m.Database.Kind != Postgres {
		t.Fatalf("%+v, %v", m.Database, err)
	}
	again := func(o *RestoreOptions) { o.Replace, o.Config = true, h.c }
	_, err = restore(h, b.Bytes(), again)
	code(t, err, problem.Unsupported)
	_, err = restore(h, sqlite, func(o *RestoreOptions) { again(o); o.WithoutDatabase = true })
	code(t, err, problem.BadConfig)
	if done, err := restore(h, b.Bytes(), func(o *RestoreOptions) { again(o); o.WithoutDatabase = true }); err != nil || done.Audit != nil {
		t.Errorf("%+v, %v", done, err)
	}
}

func TestTwoRestoresInOneSecondKeepBothOfWhatTheyReplace(t *testing.T) {
	h := newHouse(t)
	data := h.backup(nil)
	now := time.Now()
	seen := map[string]bool{}
	for range 3 {
		done, err := restore(h, data, func(o *RestoreOptions) { o.Replace = true; o.Now = func() time.Time { return now } })
		h.must(err)
		seen[done.Aside] = true
		if !hostd.IsReplaced(filepath.Base(done.Aside)) {
			t.Errorf("nobody knows %s again", done.Aside)
		}
	}
	if len(seen) != 3 {
		t.Errorf("set aside: %v", seen)
	}
}

func TestAControlPlaneThatStartsDuringARestoreKeepsItsFiles(t *testing.T) {
	h := newHouse(t)
	data, before := h.backup(nil), h.listing()
	var spill *os.File
	_, err := restore(h, data, func(o *RestoreOptions) {
		o.Replace = true
		o.Step = func(s string) {
			if s == "arrange" {
				var err error
				spill, _, err = exclusively(filepath.Join(hostd.ControlDir(h.c), "audit.spill"))
				h.must(err)
			}
		}
	})
	code(t, err, problem.Conflict)
	h.must(spill.Close())
	if after := h.listing(); after != before {
		t.Errorf("changed from\n%s\nto\n%s", before, after)
	}
}

func TestSignInsEndWithARestore(t *testing.T) {
	h := newHouse(t)
	all := func(use func(store.SignIns) error) (n int) {
		db, err := open.Open(t.Context(), "", h.c.DataDir)
		h.must(err)
		h.must(use(db))
		found, err := db.ListSignIns(t.Context(), store.SignInFilter{Limit: 9})
		h.must(errors.Join(err, db.Close()))
		return len(found)
	}
	none := func(store.SignIns) error { return nil }
	if n := all(func(s store.SignIns) error {
		now := time.Now()
		return s.CreateSignIn(t.Context(), store.SignIn{ID: "i1", Hash: make([]byte, 32), Owner: store.Owner{AdminKey: strings.Repeat("a", 64)}, Method: "key", CreatedAt: now, UsedAt: now,
			ExpiresAt: now.Add(time.Hour)})
	}); n != 1 {
		t.Fatalf("%d are signed in: the test would show nothing", n)
	}
	done, err := restore(h, h.backup(nil), replacing)
	if n := all(none); err != nil || n != 0 || done.SignIns != 1 {
		t.Errorf("after it %d are signed in, and %d ended, %v", n, done.SignIns, err)
	}
}

func TestALinkIsNotReplacedByARestore(t *testing.T) {
	h := newHouse(t)
	data := h.backup(nil)
	agents, moved := hostd.AgentsDir(h.c), filepath.Join(h.home, "elsewhere")
	h.must(os.Rename(agents, moved))
	h.must(os.Symlink(moved, agents))
	before := h.listing()
	_, err := restore(h, data, replacing)
	code(t, err, problem.Unsupported)
	if after := h.listing(); after != before {
		t.Errorf("changed from\n%s\nto\n%s", before, after)
	}
}

func TestAManifestNamesOnlyWhatABackupHas(t *testing.T) {
	good := func() Manifest {
		m := Manifest{Format: Format, Node: "n", Installation: "abcd", Database: Database{Kind: SQLite}}
		for _, name := range []string{"data/installation.json", "data/control/audit.key", "data/agents/a.json"} {
			m.Files = append(m.Files, File{Name: name, SHA256: strings.Repeat("0", 64), Mode: 0o600})
		}
		return m
	}
	if err := good().validate(); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*File){
		"a way out":       func(f *File) { f.Name = "data/agents/../../etc/passwd" },
		"an absolute one": func(f *File) { f.Name = "/etc/passwd" },
		"another owner's": func(f *File) { f.Name = "data/templates/x" },
		"twice":           func(f *File) { f.Name = "data/control/audit.key" },
		"setuid":          func(f *File) { f.Mode = 0o4755 },
		"writable":        func(f *File) { f.Mode = 0o666 },
		"negative":        func(f *File) { f.Size = -1 },
		"huge":            func(f *File) { f.Size = 1 << 60 },
		"no sum":          func(f *File) { f.SHA256 = "" },
	} {
		m := good()
		change(&m.Files[2])
		if m.validate() == nil {
			t.Errorf("%s: it is accepted", what)
		}
	}
}
