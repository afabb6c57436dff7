package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/swap"
)

// Owner is a user of the system.
type Owner struct{ UID, GID int }

// RestoreOptions say what becomes of a backup.
type RestoreOptions struct {
	Config config.Config
	Now    func() time.Time
	// Control is the user of the control plane.
	Control Owner
	// VaultKey is the vault's key, when it is not in the file. May be nil.
	VaultKey []byte
	// Replace moves what is there aside. Without it, data that is there is left, and nothing is done.
	Replace bool
	// KeepGrants keeps the key that grants are signed with. Without it, grants that have not been used are void, as some may
	// have been used since, and permissions are signed with a new one.
	KeepGrants bool
	// BrokenAudit restores an audit log that does not hold together as well.
	BrokenAudit bool
	// WithoutDatabase is for a PostgreSQL database, which has tools of its own.
	WithoutDatabase bool
	Keys            Keys
	Progress        Progress
	// Step is called before every change to what is there. Tests end the process in it. May be nil.
	Step func(string)
}

// Restored is what a restore did.
type Restored struct {
	Manifest Manifest
	// Finished says that an earlier restore had been interrupted, and was finished first.
	Finished bool
	// Aside is the folder of what was replaced; empty when there was nothing.
	Aside string
	// VaultKey says where the vault's key has come from: "backup", "file", "kept" from what was replaced, or "" for nowhere.
	VaultKey string
	// Config is the file that the configuration of the backup was put into; empty when it has none.
	Config string
	// StateKept says that the states of agents that are there stay, because the backup has none.
	StateKept bool
	Audit     *audit.Report
	SignIns   int // that were ended
	// Permissions are good also with keys that are new.
	Permissions Permissions
}

// Restore makes the installation of a backup. Nothing of clawjail may run. It needs root.
func Restore(ctx context.Context, r io.Reader, o RestoreOptions) (out Restored, err error) {
	c := o.Config
	if err := os.MkdirAll(c.DataDir, 0o755); err != nil {
		return out, err
	}
	release, err := still(c)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, release()) }()
	if out.Finished, err = swap.Finish(c.DataDir); err != nil {
		return out, err
	}
	present, err := occupied(c.DataDir)
	if err != nil {
		return out, err
	}
	if err := replaceable(c, present, o.Replace); err != nil {
		return out, err
	}
	stage := filepath.Join(c.DataDir, swap.Stage)
	fresh := filepath.Join(stage, swap.New)
	if err := os.Mkdir(stage, 0o700); err != nil {
		return out, noSpace(err)
	}
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return out, err
	}
	defer func() {
		switch { // once decided, the next process completes the restore; before that, the stage is removed
		case !swap.Decided(c.DataDir):
			err = errors.Join(noSpace(err), os.RemoveAll(stage))
		case err != nil:
			err = problem.Wrap(err, problem.Internal, "mend what it says, then start the host daemon, or restore again: either ends it first",
				"the restore is half done")
		}
	}()
	s, err := newShelf(fresh, func(string) bool { return true })
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.root.Close()) }()
	begin := func(m Manifest) error { return suits(m, o) }
	step := o.Step
	if step == nil {
		step = func(string) {}
	}
	unpack := func(f File, r io.Reader) error {
		step("unpack " + f.Name)
		return s.receive(f, r)
	}
	if out.Manifest, err = read(ctx, r, o.Keys, o.Progress, begin, unpack); err != nil {
		return out, err
	}
	step("verify")
	m := out.Manifest
	if err := sameInstallation(m, fresh); err != nil {
		return out, err
	}
	if m.Database.Included {
		o.Progress.say("verify the database and the audit log", 0, 0)
		report, err := verify(ctx, fresh)
		if err != nil {
			return out, err
		}
		out.Audit = &report
		if bad := report.Bad(); bad != nil && !o.BrokenAudit {
			return out, problem.New(problem.AuditBroken, "use another backup, or say --accept-broken-audit and find out what happened",
				"the audit log in the backup is not as it was written: %s", bad)
		}
		if out.SignIns, err = endSignIns(ctx, fresh); err != nil {
			return out, err
		}
	}
	aside := hostd.ReplacedDir(c.DataDir, o.Now())
	plan := swap.Plan{Aside: aside}
	if out.VaultKey, plan.Outside, err = placeVaultKey(m, o, fresh, aside); err != nil {
		return out, err
	}
	defer func() {
		for _, outside := range plan.Outside {
			if !swap.Decided(c.DataDir) {
				err = errors.Join(err, outside.Drop())
			}
		}
	}()
	if out.Permissions, err = permissions(ctx, fresh, m, !o.KeepGrants, o.Now); err != nil {
		return out, err
	}
	step("arrange")
	items, err := arrange(fresh, m)
	if err != nil {
		return out, err
	}
	if slices.ContainsFunc(items, func(i string) bool { return slices.Contains(present, i) }) {
		out.Aside = filepath.Join(c.DataDir, aside)
	}
	if err := leaveMark(filepath.Join(fresh, "control"), m, out.Aside, c, o.Now()); err != nil {
		return out, err
	}
	if m.has(configName) {
		out.Config = filepath.Join(c.DataDir, hostd.RestoredConfig)
	}
	out.StateKept = !m.AgentState && slices.Contains(present, stateDir)
	if err := settle(ctx, fresh, o.Control); err != nil {
		return out, err
	}
	if err := oneFileSystem(c.DataDir, items); err != nil {
		return out, err
	}
	if err := ctx.Err(); err != nil {
		return out, err
	}
	// A control plane that has started since writes into what would be moved aside.
	if err := controlRests(c); err != nil {
		return out, err
	}
	step("commit")
	plan.Items = items
	return out, swap.Commit(c.DataDir, plan, o.Step)
}

// belongings are the entries of a data directory that a restore replaces.
var belongings = []string{hostd.InstallationFile, "control", open.Folder, "audit", "agents", stateDir, hostd.RestoredConfig}

// occupied are those of them that are there and not empty.
func occupied(dir string) (present []string, err error) {
	for _, name := range belongings {
		info, err := os.Lstat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			entries, err := os.ReadDir(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			if len(entries) == 0 {
				continue
			}
		}
		present = append(present, name)
	}
	return present, nil
}

// replaceable refuses what is in a data directory without the word for it, and what is not an installation even with it: other
// programs have a folder named database, too.
func replaceable(c config.Config, present []string, word bool) error {
	if len(present) == 0 {
		return nil
	}
	switch _, found, err := hostd.FindInstallation(c); {
	case err == nil && !found && onlyTheKey(c, present):
		return nil // put there for the restore
	case err == nil && !found:
		return problem.New(problem.Conflict, "if it is clawjail's, move it away; else name another data_dir",
			"%s has %s, but no %s: it may belong to another program", c.DataDir, strings.Join(present, ", "), hostd.InstallationFile)
	case !word:
		return problem.New(problem.Conflict, "say --replace: it is moved into a folder beside, and nothing is removed",
			"there is an installation in %s already", c.DataDir)
	}
	return nil // also one whose file is damaged: that is a reason to restore
}

// onlyTheKey says whether a folder of a control plane is there, and has the vault's key alone.
func onlyTheKey(c config.Config, present []string) bool {
	if len(present) != 1 || present[0] != filepath.Base(hostd.ControlDir(c)) {
		return false
	}
	entries, err := os.ReadDir(hostd.ControlDir(c))
	return err == nil && len(entries) == 1 && filepath.Join(hostd.ControlDir(c), entries[0].Name()) == VaultKeyPath(c)
}

// suits looks whether a backup goes with the configuration.
func suits(m Manifest, o RestoreOptions) error {
	kind := kindOf(o.Config)
	if m.Database.Kind == Postgres || kind == Postgres {
		if err := needWithout(o.WithoutDatabase, "the backup is of an installation with PostgreSQL, or this one has it"); err != nil {
			return err
		}
	}
	if m.Database.Kind != kind {
		return problem.New(problem.BadConfig, "set database: in the configuration as it was when the backup was made",
			"the backup has a database of kind %s, and the configuration one of kind %s", m.Database.Kind, kind)
	}
	if m.AgentState && !stateInFiles {
		return problem.New(problem.Unsupported, "make a backup without --agent-state", "the state of agents is in ZFS datasets here, and in files in the backup")
	}
	return nil
}

// shelf is a folder that a backup is unpacked into.
type shelf struct {
	root *os.Root
	want func(name string) bool
}

func newShelf(dir string, want func(string) bool) (*shelf, error) {
	root, err := os.OpenRoot(dir)
	return &shelf{root: root, want: want}, err
}

// receive writes one file. Blocks of zeros become holes: volumes are mostly that.
func (s *shelf) receive(f File, r io.Reader) error {
	if !s.want(f.Name) {
		_, err := io.Copy(io.Discard, r)
		return err
	}
	name := filepath.FromSlash(f.Name)
	if err := s.root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	to, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, os.FileMode(0o600))
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(onlyWriter{&sparse{f: to}}, r, make([]byte, 64<<10))
	if err == nil {
		err = to.Truncate(f.Size)
	}
	return errors.Join(err, to.Chmod(os.FileMode(f.Mode)), to.Sync(), to.Close())
}

type onlyWriter struct{ io.Writer }

// sparse writes what is not zero.
type sparse struct {
	f  *os.File
	at int64
}

func (s *sparse) Write(p []byte) (int, error) {
	if slices.ContainsFunc(p, func(b byte) bool { return b != 0 }) {
		if _, err := s.f.WriteAt(p, s.at); err != nil {
			return 0, err
		}
	}
	s.at += int64(len(p))
	return len(p), nil
}

// sameInstallation looks whether the file of the installation that was unpacked can be read, and is the manifest's.
func sameInstallation(m Manifest, dir string) error {
	in, found, err := hostd.FindInstallation(config.Config{DataDir: filepath.Join(dir, "data")})
	if err == nil && (!found || string(in.ID) != m.Installation) {
		err = fmt.Errorf("its installation is %q, and the manifest says %q", in.ID, m.Installation)
	}
	if err != nil {
		return damaged(err)
	}
	return nil
}

// verify looks at a database that was unpacked: whether it is whole and of a schema that this program knows, and whether the audit log in
// it is the one that its checkpoints speak of. Its schema is brought up to date.
func verify(ctx context.Context, dir string) (audit.Report, error) {
	folder := filepath.Join(dir, "data", open.Folder)
	if _, err := sqlite.Inspect(ctx, folder); err != nil {
		return audit.Report{}, err
	}
	key, err := checkpoint.LoadKey(filepath.Join(dir, "data/control/audit.key"))
	if err != nil {
		return audit.Report{}, damaged(err)
	}
	notes := filepath.Join(dir, "data/audit/checkpoints")
	var all audit.Notes
	if _, err := os.Lstat(notes); err == nil {
		all = checkpoint.ReadFile(notes)
	}
	var report audit.Report
	err = withDatabase(ctx, folder, func(db *sqlite.DB) (err error) {
		report, err = audit.Verify(ctx, db, all, key.Keys())
		return err
	})
	return report, err
}

func withDatabase(ctx context.Context, dir string, use func(*sqlite.DB) error) error {
	db, err := sqlite.Open(ctx, dir)
	if err != nil {
		return err
	}
	return errors.Join(use(db), db.Close())
}

// endSignIns ends what browsers were signed in to the console: some may have signed out since.
func endSignIns(ctx context.Context, dir string) (n int, err error) {
	err = withDatabase(ctx, filepath.Join(dir, "data", open.Folder), func(db *sqlite.DB) (err error) {
		all := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
		n, err = db.DeleteSignInsBefore(ctx, all, all)
		return err
	})
	return n, err
}

// placeVaultKey puts the vault's key where the configuration has it, among what is swapped or beside the file that it replaces.
// One that is there already stays when no other is given.
func placeVaultKey(m Manifest, o RestoreOptions, fresh, aside string) (from string, outside []swap.Outside, err error) {
	path := VaultKeyPath(o.Config)
	var key []byte
	switch {
	case o.VaultKey != nil:
		from, key = "file", o.VaultKey
	case m.VaultKey:
		if key, err = os.ReadFile(filepath.Join(fresh, filepath.FromSlash(vaultName))); err != nil {
			return "", nil, err
		}
		from = "backup"
	default:
		key, err = readKeyFile(VaultKeyPath(o.Config))
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil, nil
		}
		if err != nil {
			return "", nil, planted(err)
		}
		from = "kept"
	}
	// A key in a folder that is swapped goes with it.
	if rel, err := filepath.Rel(o.Config.DataDir, path); err == nil && filepath.IsLocal(rel) {
		if top, _, _ := strings.Cut(filepath.ToSlash(rel), "/"); slices.Contains(belongings, top) {
			staged := filepath.Join(fresh, "data", rel)
			return from, nil, errors.Join(os.MkdirAll(filepath.Dir(staged), 0o700), writeNew(staged, key))
		}
	}
	// It is elsewhere. A key there that is another is kept beside it.
	dir, name, err := safepath.Reach(path)
	if err != nil {
		return "", nil, planted(err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	path = filepath.Join(dir.Path(), name)
	var old []byte
	f, err := dir.OpenBelieved(name)
	if err == nil {
		old, err = readKey(f)
		err = errors.Join(err, f.Close())
	}
	switch {
	case err == nil && slices.Equal(old, key):
		return from, nil, nil
	case err == nil && !o.Replace:
		return "", nil, problem.New(problem.Conflict, "say --replace: it is kept beside", "there is another key in %s", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", nil, planted(err)
	}
	next := name + swap.Suffix
	if err := dir.Remove(next); err != nil {
		return "", nil, err
	}
	if err := placeNew(dir, next, key, o.Control); err != nil {
		return "", nil, errors.Join(err, dir.Remove(next))
	}
	return from, []swap.Outside{{Path: path, Aside: path + "." + aside}}, nil
}

// placeNew writes a new file of an owner's, down to the disk.
func placeNew(dir *safepath.Folder, name string, data []byte, owner Owner) error {
	fd, err := dir.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir.Path(), name))
	_, err = f.Write(data)
	return errors.Join(err, f.Chown(owner.UID, owner.GID), f.Sync(), f.Close(), unix.Fsync(dir.FD()))
}

// remove removes a file, if there is one.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func writeNew(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// arrange makes of what was unpacked the entries of a data directory.
func arrange(fresh string, m Manifest) (items []string, err error) {
	for _, name := range []string{"control", open.Folder, "audit", "agents"} {
		if err := os.MkdirAll(filepath.Join(fresh, "data", name), 0o700); err != nil {
			return nil, err
		}
	}
	if m.has(configName) {
		if err := os.Rename(filepath.Join(fresh, configName), filepath.Join(fresh, hostd.RestoredConfig)); err != nil {
			return nil, err
		}
	}
	entries, err := os.ReadDir(filepath.Join(fresh, "data"))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := os.Rename(filepath.Join(fresh, "data", e.Name()), filepath.Join(fresh, e.Name())); err != nil {
			return nil, err
		}
	}
	for _, gone := range []string{"data", "config", "key"} {
		if err := os.RemoveAll(filepath.Join(fresh, gone)); err != nil {
			return nil, err
		}
	}
	if entries, err = os.ReadDir(fresh); err != nil {
		return nil, err
	}
	for _, e := range entries {
		items = append(items, e.Name())
	}
	// The installation's file is the last: what has it is whole.
	slices.SortFunc(items, func(a, b string) int {
		last := func(s string) int {
			if s == hostd.InstallationFile {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(last(a), last(b)), strings.Compare(a, b))
	})
	return items, nil
}

// settle gives everything its owner and mode, and has it on the disk.
func settle(ctx context.Context, fresh string, control Owner) error {
	return filepath.WalkDir(fresh, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == fresh {
			return errors.Join(err, ctx.Err())
		}
		rel, err := filepath.Rel(fresh, path)
		if err != nil {
			return err
		}
		top, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
		uid, gid := os.Geteuid(), os.Getegid()
		if top == "control" || top == open.Folder {
			uid, gid = control.UID, control.GID
		}
		if err := os.Lchown(path, uid, gid); err != nil {
			return err
		}
		if !d.IsDir() {
			return ctx.Err()
		}
		mode := os.FileMode(0o700)
		if rel == "audit" {
			mode = 0o755 // everybody may read the checkpoints
		}
		return errors.Join(os.Chmod(path, mode), keyfile.SyncFolder(path), ctx.Err())
	})
}

// oneFileSystem refuses where an entry cannot be moved, before anything is.
func oneFileSystem(dir string, items []string) error {
	var own, other unix.Stat_t
	if err := unix.Stat(dir, &own); err != nil {
		return err
	}
	for _, name := range items {
		path := filepath.Join(dir, name)
		if err := unix.Lstat(path, &other); errors.Is(err, unix.ENOENT) {
			continue
		} else if err != nil {
			return err
		}
		if own.Dev != other.Dev || other.Mode&unix.S_IFMT == unix.S_IFLNK {
			return problem.New(problem.Unsupported, "unmount it, or replace the link by a folder, restore, and move it back",
				"%s is a mount or a link, and cannot be replaced as a whole", path)
		}
	}
	return nil
}

// Check reads a whole backup, and looks at everything in it that Restore looks at. temp is a folder for the database, which
// is removed again.
func Check(ctx context.Context, r io.Reader, k Keys, temp string, progress Progress) (m Manifest, report *audit.Report, p Permissions, err error) {
	dir, err := os.MkdirTemp(temp, "clawjail-check-")
	if err != nil {
		return m, nil, p, err
	}
	defer func() { err = errors.Join(noSpace(err), os.RemoveAll(dir)) }()
	s, err := newShelf(dir, func(name string) bool {
		return name == databaseName || name == dataPrefix+"audit/checkpoints" || name == dataPrefix+"control/audit.key" ||
			name == grantKeys || name == dataPrefix+hostd.InstallationFile
	})
	if err != nil {
		return m, nil, p, err
	}
	defer func() { err = errors.Join(err, s.root.Close()) }()
	if m, err = read(ctx, r, k, progress, func(Manifest) error { return nil }, s.receive); err != nil {
		return m, nil, p, err
	}
	if err := sameInstallation(m, dir); err != nil || !m.Database.Included {
		return m, nil, p, err
	}
	progress.say("verify the database and the audit log", 0, 0)
	found, err := verify(ctx, dir)
	if err != nil {
		return m, nil, p, err
	}
	if bad := found.Bad(); bad != nil {
		return m, &found, p, problem.New(problem.AuditBroken, "use another backup, and find out what happened", "the audit log in the backup is not as it was written: %s", bad)
	}
	p, err = permissions(ctx, dir, m, false, nil)
	return m, &found, p, err
}
