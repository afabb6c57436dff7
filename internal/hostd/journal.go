package hostd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// FileJournal is the jail.Journal of the host daemon: one file per jail, <name>.json, in a folder of its own.
//
// A record is written under another name and renamed, so that a reader finds the one before or the one after,
// whenever the process dies. A jail of LifetimeOwner needs that the death of the process loses nothing,
// and the kernel keeps what was written; its record is not forced to the disk, because no process, mount or
// interface of such a jail survives a reboot either, and its clone is found by its name. A jail of LifetimeKeep
// comes back after a reboot, so its record is on the disk when Put returns.
//
// Staged files are left out of a record: they can be large, and nothing reads them after the start.
type FileJournal struct {
	root *os.Root
	dir  *os.File // the same folder: what is locked and synced
	id   jail.Installation
	log  *slog.Logger
	seq  atomic.Uint64
}

const (
	recordSuffix = ".json"
	tempPrefix   = "."
	tempSuffix   = ".tmp"
	// maxRecord is more than any record without its staged files has.
	maxRecord = 1 << 20
)

// OpenJournal opens the journal of an installation, making the folder where it is missing. There is one at a time:
// a second one, by whatever process, gets the code conflict. log may be nil.
func OpenJournal(path string, id jail.Installation, log *slog.Logger) (_ *FileJournal, err error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fullDisk(fmt.Errorf("make the journal: %w", err))
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	j := &FileJournal{root: root, id: id, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.Close())
		}
	}()
	if j.dir, err = root.Open("."); err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	info, err := j.dir.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at the journal: %w", err)
	}
	if err := privateDir(path, info, 0o077); err != nil {
		return nil, err
	}
	if err := flock(j.dir); err != nil {
		return nil, fmt.Errorf("lock the journal %s: %w", path, err)
	}
	return j, j.sweep()
}

// Close gives the journal up.
func (j *FileJournal) Close() error {
	var err error
	if j.dir != nil {
		err = j.dir.Close()
	}
	return errors.Join(err, j.root.Close())
}

// sweep removes what a process left that died while it wrote. There is no other writer: the journal is locked.
func (j *FileJournal) sweep() error {
	entries, err := fs.ReadDir(j.root.FS(), ".")
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) && strings.HasSuffix(e.Name(), tempSuffix) && e.Type().IsRegular() {
			if err := j.root.Remove(e.Name()); err != nil {
				return fmt.Errorf("sweep the journal: %w", err)
			}
		}
	}
	return nil
}

// Put implements jail.Journal. On error the record before is as it was.
func (j *FileJournal) Put(ctx context.Context, r jail.Record) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !r.Name.Belongs(j.id) {
		return fmt.Errorf("journal: %q is not a jail of installation %s", r.Name, j.id)
	}
	// Nothing of a jail that runs is done with these, and there may be secrets in them.
	r.Spec.HomeFiles, r.Spec.Program.Env = nil, nil
	data, err := json.Marshal(r, durations())
	if err != nil {
		return fmt.Errorf("encode the record: %w", err)
	}
	defer func() { err = fullDisk(err) }()
	temp := fmt.Sprintf("%s%s.%d%s", tempPrefix, r.Name, j.seq.Add(1), tempSuffix)
	if err := j.write(temp, data, r.Spec.Lifetime == jail.LifetimeKeep); err != nil {
		return errors.Join(err, absent(j.root.Remove(temp)))
	}
	if err := j.root.Rename(temp, string(r.Name)+recordSuffix); err != nil {
		return errors.Join(err, absent(j.root.Remove(temp)))
	}
	if r.Spec.Lifetime == jail.LifetimeKeep {
		return j.dir.Sync()
	}
	return nil
}

func (j *FileJournal) write(name string, data []byte, sync bool) error {
	f, err := j.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Delete implements jail.Journal. It does not reach the disk at once: a record that comes back with a reboot
// names a jail that is gone, and is removed again by the next Reap.
func (j *FileJournal) Delete(ctx context.Context, name jail.Name) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !name.Belongs(j.id) {
		return fmt.Errorf("journal: %q is not a jail of installation %s", name, j.id)
	}
	return absent(j.root.Remove(string(name) + recordSuffix))
}

// Load implements jail.Journal. Files that are not records of this installation are left alone and logged.
func (j *FileJournal) Load(ctx context.Context) (records []jail.Record, damaged []jail.Name, err error) {
	entries, err := fs.ReadDir(j.root.FS(), ".")
	if err != nil {
		return nil, nil, fmt.Errorf("read the journal: %w", err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		stem, isRecord := strings.CutSuffix(e.Name(), recordSuffix)
		name, nameErr := jail.ParseName(stem, j.id)
		if !isRecord || nameErr != nil {
			if !strings.HasSuffix(e.Name(), tempSuffix) { // of a Put that is under way
				j.log.Warn("a file in the journal that is no record", "file", e.Name())
			}
			continue
		}
		r, err := j.read(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
		case err != nil:
			j.log.Error("read a record", "jail", name, "error", err)
			damaged = append(damaged, name)
		default:
			records = append(records, r)
		}
	}
	return records, damaged, nil
}

func (j *FileJournal) read(name jail.Name) (jail.Record, error) {
	// A pipe in the place of the record must not make the host daemon wait.
	f, err := j.root.OpenFile(string(name)+recordSuffix, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return jail.Record{}, err
	}
	defer f.Close() // only read from
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return jail.Record{}, errors.Join(err, errors.New("not a regular file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return jail.Record{}, err
	}
	if len(data) > maxRecord {
		return jail.Record{}, fmt.Errorf("larger than %d bytes", maxRecord)
	}
	var r jail.Record
	if err := json.Unmarshal(data, &r, strict()); err != nil {
		return jail.Record{}, err
	}
	switch {
	case r.Name != name:
		return jail.Record{}, fmt.Errorf("it speaks of jail %q", r.Name)
	case r.Version != recordVersion:
		return jail.Record{}, fmt.Errorf("its version is %d, not %d", r.Version, recordVersion)
	case r.State == "":
		return jail.Record{}, errors.New("it has no state")
	}
	return r, nil
}

// recordVersion is the version of jail.Record that this program reads.
const recordVersion = 1

// fullDisk gives the errors of a full disk their code.
func fullDisk(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return problem.Wrap(err, problem.DiskFull, "free some space: du -xh --max-depth=2 shows who has it",
			"the disk of the data directory is full")
	}
	return err
}

// absent ignores that what is removed was not there.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
