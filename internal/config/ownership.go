//go:build unix

package config

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/clawjail/clawjail/internal/problem"
)

// CheckOwnership refuses a file that anybody but root could write or replace: the file and every folder above it must
// belong to root and not be writable by group or others. A folder with the sticky bit, as /tmp, may be writable,
// because there other users cannot replace root's files. The path must be absolute and without symbolic links.
func CheckOwnership(path string) error { return checkOwnership(path, os.Lstat, 0) }

// CheckOwnedBy is CheckOwnership for what may belong to one more user than root.
func CheckOwnedBy(path string, owner uint32) error { return checkOwnership(path, os.Lstat, owner) }

// checkOwnership takes the owner and lstat, so that the decision can be tested by users who are not root.
func checkOwnership(path string, lstat func(string) (os.FileInfo, error), owner uint32) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return problem.New(problem.BadConfig, "name it by its absolute path", "the path %q is not absolute and plain", path)
	}
	for at := path; ; at = filepath.Dir(at) {
		info, err := lstat(at)
		if err != nil {
			return cannotRead(at, err)
		}
		if err := checkOne(at, info, owner); err != nil {
			return err
		}
		if at == "/" {
			return nil
		}
	}
}

func checkOne(path string, info os.FileInfo, owner uint32) error {
	const writable = 0o022
	if info.Mode()&os.ModeSymlink != 0 {
		return problem.New(problem.BadConfig, "name the file itself", "%s is a symbolic link", path)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return problem.New(problem.BadConfig, "", "the owner of %s is not known", path)
	}
	who, hint := "root alone", "sudo chown root "+path
	if owner != 0 {
		who = fmt.Sprintf("root or user %d", owner)
		hint = "use a folder in one that belongs to " + who
	}
	if stat.Uid != owner && stat.Uid != 0 {
		return problem.New(problem.BadConfig, hint, "%s belongs to user %d; the host daemon uses only what %s can write", path, stat.Uid, who)
	}
	sticky := info.IsDir() && info.Mode()&os.ModeSticky != 0
	if info.Mode().Perm()&writable != 0 && !sticky {
		return problem.New(problem.BadConfig, "sudo chmod go-w "+path,
			"%s can be written by others (mode %04o); the host daemon uses only what %s can write", path, info.Mode().Perm(), who)
	}
	return nil
}
