//go:build linux

package linux

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// A program that joins a jail is started by two files, in a folder of a name that cannot be guessed. It lies in the jail's own
// stage, which is outside of the jail and read-only in it: no program of the jail changes anything there, or is in the way.
//
// The host daemon may be told another folder of the jail instead. The jail's programs may have put anything on the way there,
// and may change what lies there: so it is worked in by descriptor alone, nothing that exists is opened for writing, and no
// link is followed.

// maxStaged is how many leftovers are looked at in one go.
const maxStaged = 4096

// maxStagedFile is more than the scripts of any program have: its arguments and environment are bounded, and a quoted quote
// takes four bytes (jail.Program).
const maxStagedFile = 1 << 20

// openStage opens the folder that programs are staged in, and says where the jail sees it.
func (r *Runtime) openStage(name jail.Name, proc jail.Process, uid int) (_ *safepath.Folder, at string, err error) {
	if r.o.StageDir != "" {
		f, err := openStageInside(proc, r.o.StageDir, uid)
		return f, r.o.StageDir, err
	}
	running, err := openProcess(proc)
	if gone(err) {
		return nil, "", errEnded(err)
	}
	if err != nil {
		return nil, "", err
	}
	running.Close()
	f, err := r.ownStage(name)
	return f, jail.StageDir, err
}

// ownStage is what the jail sees as its stage.
func (r *Runtime) ownStage(name jail.Name) (*safepath.Folder, error) {
	return r.bundles.Folder(filepath.Join(string(name), bundleStage))
}

func errEnded(err error) error {
	return problem.Wrap(err, problem.Conflict, "start it first", "the jail does not run any more")
}

// newStageID is 128 random bits: no name that could be waited for.
func newStageID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

func validStageID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == ""
}

// stageProgram writes what the program is started by, into a folder that nobody else has made.
func (x *execution) stageProgram(prog jail.Program, at, home string, uid int) error {
	err := unix.Mkdirat(x.stage.FD(), x.id, safepath.Unfinished)
	if errors.Is(err, unix.EEXIST) {
		return problem.Wrap(err, problem.Conflict, "try again", "something lies in the jail where the program was to be staged")
	}
	if err != nil {
		return planted(&os.PathError{Op: "mkdir", Path: at, Err: err}, x.id, "the stage of the jail")
	}
	x.staged = true
	dir, err := x.stage.Give(x.id, 0o700, uid)
	if err != nil {
		return planted(err, x.id, "the stage of the jail")
	}
	return errors.Join(
		dir.Create(jail.StageEnv, prog.EnvScript(), 0o600, uid),
		dir.Create(jail.StageLaunch, prog.ExecScript(at, home), 0o700, uid),
		dir.Close())
}

// full says that it is the jail's disk that is full, not the host's.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return problem.Wrap(err, problem.LimitDisk, "remove something there, or give the agent more", "the home directory of the jail is full")
	}
	return err
}

// openStageInside opens a folder as the jail sees it, and makes it for the jail's user. No link is followed: the jail's
// programs may have put anything there.
func openStageInside(proc jail.Process, dir string, uid int) (*safepath.Folder, error) {
	running, err := openProcess(proc)
	if gone(err) {
		return nil, errEnded(err)
	}
	if err != nil {
		return nil, err
	}
	defer running.Close()
	root, err := running.rootFolder()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	rel := strings.TrimPrefix(dir, "/")
	stage, err := root.Give(rel, 0o700, uid)
	return stage, full(planted(err, rel, "the root of the jail"))
}

// rootFolder opens the root of a process, from which no name leads into the host.
func (p *process) rootFolder() (*safepath.Folder, error) {
	fd, err := unix.Openat(int(p.dir.Fd()), "root", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, p.failed("root", err)
	}
	return safepath.At(fd, "/"), nil
}

// unstage removes what stageProgram made. The jail's programs may have changed it: no link is followed, and what they put
// there themselves is left to them.
func unstage(stage *safepath.Folder, id string) error {
	dir, err := stage.Folder(id)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, safepath.ErrPlanted):
		return stage.Remove(id)
	case err != nil:
		return err
	}
	var errs []error
	for _, name := range []string{jail.StageEnv, jail.StageLaunch} {
		wipe(dir, name)
		if err := dir.Remove(name); err != nil && !errors.Is(err, unix.EISDIR) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, dir.Close())
	if err := stage.RemoveFolder(id); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOTDIR) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// wipe writes zeros over a staged file, to the disk: what is only removed stays in the image of the agent's state once it
// was written there, and may be a secret. The jail's programs may have put something of theirs in its place: a link is not
// followed, nothing is waited for, and a file with a second name or of another size than ours can have is left alone.
func wipe(dir *safepath.Folder, name string) {
	fd, err := dir.Open(name, unix.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return // it is not there, or nothing of ours
	}
	defer func() { _ = unix.Close(fd) }() // synced
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Size > maxStagedFile {
		return
	}
	if _, err := unix.Pwrite(fd, make([]byte, st.Size), 0); err == nil {
		_ = unix.Fdatasync(fd) // a disk that fails keeps what it has
	}
}

// forgetStaged removes what a killed host daemon staged for programs in an earlier jail. No program is started in one that
// does not run yet, so all that is there is left over.
func (s *Storage) forgetStaged(state *safepath.Folder) {
	// Earlier versions staged in the home folder.
	rel, ok := strings.CutPrefix(cmp.Or(s.o.StageDir, path.Join(jail.StateDir, ".cache/clawjail/stage")), jail.StateDir+"/")
	if !ok {
		return
	}
	stage, err := state.Folder(rel)
	if err != nil {
		return // never used, or no folder of ours: nothing is staged in it
	}
	defer func() { _ = stage.Close() }() // opened for reading
	names, err := stage.Names(maxStaged)
	for _, n := range names {
		if validStageID(n) {
			err = errors.Join(err, unstage(stage, n))
		}
	}
	if err != nil {
		s.o.Log.Warn("remove what was staged for an earlier jail", "error", err)
	}
}
