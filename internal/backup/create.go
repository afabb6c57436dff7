package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

// Options are what a backup is made of.
type Options struct {
	Config config.Config
	// ConfigFile is the configuration's file; empty when there is none.
	ConfigFile string
	Version    string
	Now        func() time.Time
	// Recordings takes those of sessions, AgentState what agents keep in /state. The second needs clawjail to be stopped.
	Recordings, AgentState bool
	// WithKey takes the vault's key. KeyTo gets it as a file of its own.
	WithKey bool
	KeyTo   io.Writer
	// WithoutDatabase is for a PostgreSQL database, which has tools of its own.
	WithoutDatabase bool
	Keys            Keys
	Progress        Progress
}

// Create writes a backup of an installation. It may run meanwhile: the database is taken as it is at one moment, and
// everything that stands before it in the file is not newer. Create needs root.
func Create(ctx context.Context, w io.Writer, o Options) (m Manifest, err error) {
	c := o.Config
	kind := kindOf(c)
	if kind == Postgres {
		if err := needWithout(o.WithoutDatabase, "the database is PostgreSQL, and a backup does not have it"); err != nil {
			return m, err
		}
	}
	in, err := installation(c.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return m, problem.New(problem.NotFound, "start it once: sudo clawjail up", "there is no installation in %s", c.DataDir)
	}
	if err != nil {
		return m, err
	}
	if o.AgentState {
		if !stateInFiles {
			return m, problem.New(problem.Unsupported, "take them with zfs snapshot and zfs send", "the state of agents is in ZFS datasets here")
		}
		release, err := still(c)
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	work := filepath.Join(c.DataDir, hostd.BackupDir)
	release, err := takeWork(work)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(noSpace(err), release()) }()

	m = Manifest{Format: Format, Version: o.Version, Created: o.Now().UTC().Truncate(time.Second), Node: c.Node, Installation: string(in.ID),
		Database: Database{Kind: kind}, Recordings: o.Recordings, AgentState: o.AgentState, VaultKey: o.WithKey}
	if m.Node == "" {
		m.Node = m.Installation
	}
	b := &collection{ctx: ctx, o: o, work: work, manifest: &m}
	if err := b.collect(); err != nil {
		return m, err
	}
	sources := b.sources
	for i := range sources {
		o.Progress.say("read the files", int64(i), int64(len(sources)))
		if err := sources[i].measure(ctx); err != nil {
			return m, err
		}
		m.Files = append(m.Files, sources[i].File)
	}
	if err := m.validate(); err != nil {
		return m, fmt.Errorf("the backup would not be good: %w", err)
	}
	if o.KeyTo != nil {
		if _, err := o.KeyTo.Write(b.key); err != nil {
			return m, fmt.Errorf("write the vault's key: %w", err)
		}
	}
	return m, write(ctx, w, m, sources, o.Keys, o.Progress)
}

func installation(dir string) (in hostd.Installation, err error) {
	data, err := os.ReadFile(filepath.Join(dir, hostd.InstallationFile))
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return in, fmt.Errorf("read %s: %w", hostd.InstallationFile, err)
	}
	return in, nil
}

// takeWork makes the folder of copies anew, for one backup at a time. Leftovers of a backup that was killed are removed. A folder that
// is not the user's own, or that others may enter, is not one of a backup.
func takeWork(dir string) (release func() error, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	locked, taken, err := exclusively(dir)
	if taken {
		return nil, problem.New(problem.Conflict, "wait for it", "another backup is being made")
	}
	if err != nil {
		return nil, err
	}
	if err := ownFolder(locked); err != nil {
		return nil, errors.Join(err, locked.Close())
	}
	clear := func() error {
		entries, err := os.ReadDir(dir)
		errs := []error{err}
		for _, e := range entries {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
		return errors.Join(errs...)
	}
	if err := clear(); err != nil {
		return nil, errors.Join(err, locked.Close())
	}
	return func() error { return errors.Join(clear(), os.Remove(dir), locked.Close()) }, nil
}

// collection is what a backup is made of, while it is being found.
type collection struct {
	ctx      context.Context
	o        Options
	work     string
	manifest *Manifest
	sources  []source
	key      []byte
}

// collect copies what changes, and notes where the rest is. The order matters: checkpoints speak of rows that are in the
// database already, and what the spill file loses is in the database before, so both come before it.
func (b *collection) collect() error {
	c := b.o.Config
	control := hostd.ControlDir(c)
	steps := []func() error{
		func() error {
			return b.copied(dataPrefix+"installation.json", filepath.Join(c.DataDir, hostd.InstallationFile))
		},
		func() error { return b.copied(dataPrefix+"audit/checkpoints", hostd.CheckpointsPath(c)) },
		func() error { return b.copied(dataPrefix+"control/audit.spill", filepath.Join(control, "audit.spill")) },
		b.declared,
		func() error {
			if b.o.ConfigFile == "" {
				return nil
			}
			return b.copiedBy(openRegular, configName, b.o.ConfigFile) // the caller has named this file, so its owner is not checked
		},
		b.database,
		b.recordings,
		b.agentState,
	}
	for _, name := range []string{"audit.key", "audit.key.pub", "admin.key", "relay.key"} {
		steps = slices.Insert(steps, 3, func() error { return b.copied(dataPrefix+"control/"+name, filepath.Join(control, name)) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
		if err := b.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// place is where the copy of a file is made.
func (b *collection) place(name string) (string, error) {
	path := filepath.Join(b.work, filepath.FromSlash(name))
	return path, os.MkdirAll(filepath.Dir(path), 0o700)
}

func (b *collection) add(name, path string) {
	b.sources = append(b.sources, source{File: File{Name: name}, path: path})
}

// copied takes a copy of a file as it is now; one that is missing is left out.
func (b *collection) copied(name, path string) error { return b.copiedBy(openBelieved, name, path) }

func (b *collection) copiedBy(open func(string) (*os.File, error), name, path string) error {
	from, err := open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer from.Close() // only read from
	info, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := b.place(name)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.LimitReader(reading{b.ctx, from}, info.Size()))
	if err := errors.Join(err, f.Chmod(info.Mode().Perm()&0o644), f.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", name, err)
	}
	b.add(name, to)
	return nil
}

// declared takes what is declared of agents, with their tokens. A file that goes away meanwhile is left out.
func (b *collection) declared() error {
	return b.tree("agents", hostd.AgentsDir(b.o.Config), b.copied)
}

// tree takes the files of a folder of the data directory. A hidden one is half written, and left out. A file or
// folder that goes away meanwhile is left out alone.
func (b *collection) tree(below, dir string, take func(name, path string) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || path == dir {
			return err
		}
		if d.Name()[0] == '.' {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name := dataPrefix + below + "/" + filepath.ToSlash(rel)
		if !knownName(name) {
			return fmt.Errorf("%s has a name that no backup takes: move it away", path)
		}
		return take(name, path)
	})
}

// database copies the database, and reads the keys of the vault and of grants on both sides of that: a rotation between the two would
// leave a database that no key opens, or permissions that none has signed.
func (b *collection) database() error {
	c := b.o.Config
	if b.manifest.Database.Kind == Postgres {
		keys, err := b.readKeys()
		if err != nil {
			return err
		}
		return b.takeKeys(keys)
	}
	dir := filepath.Join(b.work, "data", "database")
	to := filepath.Join(dir, sqlite.FileName)
	const tries = 5
	for range tries {
		before, err := b.readKeys()
		if err != nil {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		b.o.Progress.say("copy the database", 0, 0)
		if err := sqlite.Snapshot(b.ctx, hostd.DatabaseDir(c), to); err != nil {
			return fmt.Errorf("copy the database: %w", err)
		}
		after, err := b.readKeys()
		if err != nil {
			return err
		}
		if slices.EqualFunc(before, after, bytes.Equal) {
			if b.manifest.Database.Schema, err = sqlite.Inspect(b.ctx, dir); err != nil {
				return err
			}
			b.manifest.Database.Included = true
			b.add(databaseName, to)
			return b.takeKeys(after)
		}
	}
	return problem.New(problem.VaultRotating, "make the backup when the rotation has ended: clawjail vault status",
		"the key of the vault, or that of grants, is being rotated")
}

// readKeys reads the key of the vault and that of grants; nil where there is none.
func (b *collection) readKeys() ([][]byte, error) {
	vault, err := readKeyFile(VaultKeyPath(b.o.Config))
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || b.o.WithKey || b.o.KeyTo != nil) {
		return nil, planted(err)
	}
	grants, err := readKeyFile(filepath.Join(hostd.ControlDir(b.o.Config), "grants.key"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return [][]byte{vault, grants}, err
}

// takeKeys takes those of readKeys that a backup has.
func (b *collection) takeKeys(keys [][]byte) error {
	b.key = keys[0]
	for i, name := range []string{vaultName, grantKeys} {
		if keys[i] == nil || name == vaultName && !b.o.WithKey {
			continue
		}
		to, err := b.place(name)
		if err == nil {
			err = writeNew(to, keys[i])
		}
		if err != nil {
			return err
		}
		b.add(name, to)
	}
	return nil
}

// readKeyFile reads a key that is in a folder of the control plane.
func readKeyFile(path string) ([]byte, error) {
	f, err := openBelieved(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	return readKey(f)
}

func readKey(f *os.File) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	if err == nil && len(data) > maxKey {
		err = fmt.Errorf("%s is too long for a key", f.Name())
	}
	return data, err
}

// openBelieved opens a file that is in a folder of the control plane's user, who could have root read any other.
func openBelieved(path string) (*os.File, error) {
	dir, name, err := safepath.Reach(path)
	if err != nil {
		return nil, err
	}
	f, err := dir.OpenBelieved(name)
	return f, errors.Join(err, dir.Close())
}

// planted says what to do about a key that is not believed.
func planted(err error) error {
	if !errors.Is(err, safepath.ErrPlanted) {
		return err
	}
	return problem.Wrap(err, problem.Conflict, "see who put it there: outside root's folders it must be a file of the folder's owner, with one name",
		"the vault's key file is a link, or belongs to somebody else")
}

// maxKey bounds what is read of a key, which is a few lines.
const maxKey = 64 << 10

// recordings takes those that are there. Each is held by a second name, so that retention cannot remove it meanwhile; of
// one that grows, what is there now is taken.
func (b *collection) recordings() error {
	if !b.o.Recordings {
		return nil
	}
	return b.tree(recordingsDir, filepath.Join(b.o.Config.DataDir, recordingsDir), func(name, path string) error {
		to, err := b.place(name)
		if err != nil {
			return err
		}
		err = os.Link(path, to)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return b.copied(name, path) // another file system, or one without such names
		}
		// Only the control plane has files there; a folder that was exchanged meanwhile leads to another's.
		var own, file unix.Stat_t
		if err := errors.Join(unix.Stat(hostd.ControlDir(b.o.Config), &own), unix.Lstat(to, &file)); err != nil {
			return err
		}
		if file.Uid != own.Uid {
			return fmt.Errorf("%s belongs to user %d, and is no recording: move it away", path, file.Uid)
		}
		b.add(name, to)
		return nil
	})
}

func (b *collection) agentState() error {
	if !b.o.AgentState {
		return nil
	}
	return b.tree(stateDir, filepath.Join(b.o.Config.DataDir, stateDir), func(name, path string) error {
		b.add(name, path)
		return nil
	})
}
