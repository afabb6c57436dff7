package hostd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// SocketPath is the socket of the host daemon of a configuration.
func SocketPath(c config.Config) string { return filepath.Join(c.RunDir, "hostd.sock") }

// ControlDir is the folder of the control plane: its keys, and what it keeps of sessions.
func ControlDir(c config.Config) string { return filepath.Join(c.DataDir, "control") }

// AdminKeyPath is the file of the key that the control plane makes for the administrator.
func AdminKeyPath(c config.Config) string { return filepath.Join(ControlDir(c), "admin.key") }

const relayKeyName = "relay.key"

// podsKeyName is the file, in the data directory, of the key by which pods know the host daemon.
const podsKeyName = "pods.key"

// RelayKeyPath is the file of the key with which the relay of containers proves itself to the control plane.
func RelayKeyPath(c config.Config) string { return filepath.Join(ControlDir(c), relayKeyName) }

// DatabaseDir is the folder of the SQLite database. It is not in ControlDir, so that a backup of the one does not hold
// the other: the keys open what the database keeps encrypted.
func DatabaseDir(c config.Config) string { return filepath.Join(c.DataDir, "database") }

// CheckpointsPath is the file of the audit log's signed notes, which everybody may read.
func CheckpointsPath(c config.Config) string { return filepath.Join(auditDir(c), "checkpoints") }

// AgentsDir is the folder of what is declared of agents, with their tokens.
func AgentsDir(c config.Config) string { return filepath.Join(c.DataDir, "agents") }

// LogsDir is the folder of what agents printed.
func LogsDir(c config.Config) string { return filepath.Join(c.DataDir, "logs") }

func consolesDir(c config.Config) string { return filepath.Join(c.RunDir, "console") }
func containerJournalPath(c config.Config) string {
	return filepath.Join(c.DataDir, "container-journal")
}

func auditDir(c config.Config) string { return filepath.Join(c.DataDir, "audit") }

func lockPath(c config.Config) string    { return filepath.Join(c.RunDir, "hostd.lock") }
func journalPath(c config.Config) string { return filepath.Join(c.DataDir, "journal") }

// folder is one folder of an installation.
type folder struct {
	path     string
	mode     os.FileMode
	uid, gid int
	// once leaves the mode of a folder that is there: the operator may let others look into it.
	once bool
}

// makeFolders makes the folders of an installation, or gives those that are there their owner and mode. Only the
// control plane's own folders are not root's, and everything above them is.
func makeFolders(c config.Config, control account) error {
	self := os.Geteuid()
	all := []folder{
		{path: c.DataDir, mode: 0o755, uid: self, gid: -1},
		{path: ControlDir(c), mode: 0o700, uid: control.uid, gid: control.gid},
		{path: DatabaseDir(c), mode: 0o700, uid: control.uid, gid: control.gid},
		{path: auditDir(c), mode: 0o755, uid: self, gid: -1},
		{path: journalPath(c), mode: 0o700, uid: self, gid: -1},
		{path: containerJournalPath(c), mode: 0o700, uid: self, gid: -1},
		{path: AgentsDir(c), mode: 0o700, uid: self, gid: -1},
		{path: LogsDir(c), mode: 0o700, uid: self, gid: -1},
		{path: c.TemplatesDir, mode: 0o700, uid: self, gid: -1},
		{path: c.RunDir, mode: 0o750, uid: self, gid: control.gid},
		{path: consolesDir(c), mode: 0o700, uid: self, gid: -1},
	}
	// Files that agents make there may belong to a user of this host with the number 1000, who is not asked: only root looks into it.
	if slices.Contains(c.Agents.WorkspaceRoots, c.Workspaces()) {
		all = append(all, folder{path: c.Workspaces(), mode: 0o700, uid: self, gid: -1, once: true})
	}
	for _, f := range all {
		if err := f.make(); err != nil {
			return err
		}
	}
	return nil
}

func (f folder) make() error {
	if err := makeParents(filepath.Dir(f.path)); err != nil {
		return err
	}
	made := os.Mkdir(f.path, 0o700)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return fullDisk(fmt.Errorf("make a folder: %w", made))
	}
	d, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return problem.Wrap(err, problem.BadConfig, "name a folder, not a link to one", "%s cannot be used as a folder", f.path)
	}
	defer d.Close() // nothing is written through it
	info, err := d.Stat()
	if err != nil {
		return fmt.Errorf("look at a folder: %w", err)
	}
	if owner, ok := ownerOf(info); !ok || (int(owner) != f.uid && int(owner) != os.Geteuid()) {
		return problem.New(problem.BadConfig, "move it away, or name another folder in the configuration",
			"the folder %s belongs to user %d", f.path, owner)
	}
	if f.once && made != nil {
		return nil
	}
	if err := errors.Join(d.Chown(f.uid, f.gid), d.Chmod(f.mode)); err != nil {
		return fmt.Errorf("give %s its owner and mode: %w", f.path, err)
	}
	return nil
}

// makeParents makes what is missing above a folder. The mode is set, because the process hides its files.
func makeParents(path string) error {
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeParents(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o755)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = os.Chmod(path, 0o755)
	}
	if err != nil {
		return fullDisk(fmt.Errorf("make a folder: %w", err))
	}
	return nil
}
