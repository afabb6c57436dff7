package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/backup"
	"github.com/clawjail/clawjail/internal/problem"
)

// writeWhole makes a file of what is written to it, whole or not at all.
func writeWhole(path string, mode os.FileMode, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := write(f); err != nil {
		return errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	err = errors.Join(f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// output writes to what -o names, and says whether that is a file that it has made, whole or not at all. Standard output, which is
// also -, a device and a pipe are written to as they are, and stay what they are.
func output(cmd *cobra.Command, path string, mode os.FileMode, write func(io.Writer) error) (made bool, err error) {
	if path == standardInput {
		return false, write(cmd.OutOrStdout())
	}
	at, info, err := destination(path)
	if err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	if out, ok := cmd.OutOrStdout().(*os.File); ok && info != nil {
		if open, err := out.Stat(); err == nil && os.SameFile(open, info) { // /dev/stdout, also when it is a file
			return false, write(out)
		}
	}
	if info == nil || info.Mode().IsRegular() {
		return true, writeWhole(at, mode, write)
	}
	f, err := os.OpenFile(at, os.O_WRONLY, 0)
	if err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	if open, err := f.Stat(); err != nil || !os.SameFile(open, info) { // something else is there since it was looked at
		return false, errors.Join(fmt.Errorf("write %s: it was replaced meanwhile", path), err, f.Close())
	}
	return false, errors.Join(write(f), f.Close())
}

// destination is where a path leads, and what is there; nil where a file is to be made, or takes the place of what is there. A link is
// followed, and a pipe written to, when root or the caller has made it. The reader of any other one was chosen by a user who may write to the folder.
func destination(path string) (at string, info os.FileInfo, err error) {
	info, err = os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil, nil
	}
	if err != nil || info.Mode()&(fs.ModeSymlink|fs.ModeNamedPipe) == 0 {
		return path, info, err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
		return path, nil, nil
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		return path, info, nil
	}
	info, err = os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil, nil
	}
	if err == nil && info.Mode().IsRegular() {
		path, err = filepath.EvalSymlinks(path)
	}
	return path, info, err
}

// keyFile gives a command that prints a key the flag -o. The file is its owner's alone, and is there whole or not at all. One
// that is there already is refused before anybody is asked: it may be the only copy of another key.
func (p *program) keyFile(cmd *cobra.Command) {
	file, run := "", cmd.RunE
	cmd.Flags().StringVarP(&file, "output", "o", standardInput, "`file` to write, which must not be there yet, and which nobody else can read")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		switch file {
		case standardInput:
			return run(cmd, args)
		case "":
			return usage(cmd, "--output has no name of a file")
		}
		out, err := backup.NewOutput(file)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
		if err := p.giveToCaller(out.File, filepath.Dir(file)); err != nil {
			return fmt.Errorf("make %s: %w", file, err)
		}
		cmd.SetOut(out)
		if err := run(cmd, args); err != nil {
			return err
		}
		if info, err := out.Stat(); err != nil || info.Size() == 0 { // a token that was put into the agent's jail is not printed
			return err
		}
		if err := out.Keep(); err != nil {
			return problem.Wrap(err, problem.CodeOf(err), "make another one; an agent's: clawjail agent token rotate NAME", "the key is made, and is in no file")
		}
		return nil
	}
}

// giveToCaller makes a file that root has made with sudo that of who has asked for it, in a folder of theirs: as one of their shell
// would be. In folders of others it stays root's.
func (p *program) giveToCaller(f *os.File, dir string) error {
	uid, uidErr := strconv.Atoi(p.getenv("SUDO_UID"))
	gid, gidErr := strconv.Atoi(p.getenv("SUDO_GID"))
	if os.Geteuid() != 0 || uidErr != nil || gidErr != nil {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != uid {
		return nil
	}
	return f.Chown(uid, gid)
}
