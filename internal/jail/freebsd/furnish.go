//go:build linux || freebsd

package freebsd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/safepath"
)

const (
	execFolder  = "exec"  // of <run>/jails/NAME: <id>/ is what a program that joins is started by
	marksFolder = "execs" // of the same: <id> is the number of its process
	// execPlace is where the former is in the jail, read-only.
	execPlace = jail.StageDir + "/exec"
)

// furnish puts everything into the clone that the jail sees, and makes it read-only: what its program is started by, the
// places that things are mounted at, its memory file systems, and the folder by which others join.
func (r *Runtime) furnish(ctx context.Context, p jail.Placement, own *safepath.Folder) error {
	root, err := r.storage.clones.Folder(string(p.Name))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for reading
	if root.Path() != p.Root {
		return fmt.Errorf("the clone is at %s, not at %s", root.Path(), p.Root)
	}
	if err := stage(root, p); err != nil {
		return err
	}
	// Only the host writes here: what a jail's program could change could be used against the next that joins.
	joins, err := own.Ensure(execFolder, 0o755, -1)
	if err != nil {
		return err
	}
	defer func() { _ = joins.Close() }()
	for _, place := range append([]string{"/dev", execPlace}, tmpfsPlaces(p.Profile)...) {
		point, err := jail.MountPoint(root, place)
		if err == nil {
			err = point.Close()
		}
		if err != nil {
			return err
		}
	}
	if err := r.storage.data.Set(ctx, dataset(p.Name), "readonly", "on"); err != nil {
		return err
	}
	for _, t := range p.Profile.Tmpfs {
		if _, err := r.o.Commands.Run(ctx, "mount", "-t", "tmpfs", "-o", tmpfsOptions(t, p.Profile), "tmpfs", root.Path()+t.Path); err != nil {
			return fmt.Errorf("mount %s: %w", t.Path, err)
		}
	}
	return r.storage.nullfs(ctx, joins, root, execPlace, "ro")
}

func tmpfsPlaces(p jail.Profile) (out []string) {
	for _, t := range p.Tmpfs {
		out = append(out, t.Path)
	}
	return out
}

// tmpfsOptions are those of one, of whole pages: the kernel rounds up.
func tmpfsOptions(t jail.Tmpfs, p jail.Profile) string {
	var uid, gid uint32
	if t.Owned {
		uid, gid = p.UID, p.GID
	}
	page := int64(os.Getpagesize())
	options := fmt.Sprintf("size=%d,mode=%o,uid=%d,gid=%d,nosuid", max(t.Size/page, 1)*page, t.Mode, uid, gid)
	if t.NoExec {
		options += ",noexec"
	}
	return options
}

// stage writes what the program is started by into the clone.
func stage(root *safepath.Folder, p jail.Placement) (err error) {
	uid := int(p.Profile.UID)
	dir, err := root.Ensure(jail.StageDir, 0o755, -1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	home := p.Spec.Kind.Home()
	if err := errors.Join(
		dir.Create(jail.StageEnv, p.Spec.Program.EnvScript(), 0o400, uid),
		dir.Create(jail.StageLaunch, p.Spec.Program.LaunchScript(home, len(p.Spec.HomeFiles) > 0, false), 0o500, uid),
		gate(dir, uid)); err != nil {
		return err
	}
	if len(p.Spec.HomeFiles) == 0 {
		return nil
	}
	files, err := dir.Ensure(jail.StageHome, 0o755, -1)
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }() // opened for reading
	for _, f := range p.Spec.HomeFiles {
		in := files
		if parent := path.Dir(f.Path); parent != "." {
			if in, err = files.Ensure(parent, 0o755, -1); err != nil {
				return err
			}
		}
		err := in.Create(path.Base(f.Path), f.Data, 0o600, uid)
		if in != files {
			err = errors.Join(err, in.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// gate makes the FIFO that launch.sh waits at. Only the host has been in the folder.
func gate(f *safepath.Folder, uid int) error {
	at := filepath.Join(f.Path(), jail.StageGate)
	if err := unix.Mkfifo(at, 0o400); err != nil {
		return &os.PathError{Op: "make gate", Path: at, Err: err}
	}
	if err := errors.Join(os.Lchown(at, uid, uid), os.Chmod(at, 0o400)); err != nil {
		return err
	}
	return nil
}
