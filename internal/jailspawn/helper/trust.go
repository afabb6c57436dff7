package helper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Trusted refuses a path that anybody but root could write or replace: it and every folder above it must be root's and not
// writable by group or others. A folder with the sticky bit may be, because there other users cannot replace root's files. A
// symbolic link is refused anywhere.
func Trusted(path string) error { return trusted(path, os.Lstat) }

func trusted(path string, lstat func(string) (os.FileInfo, error)) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%q is no plain absolute path", path)
	}
	for at := path; ; at = filepath.Dir(at) {
		info, err := lstat(at)
		if err != nil {
			return err
		}
		if err := rootAlone(at, info); err != nil {
			return err
		}
		if at == "/" {
			return nil
		}
	}
}

func rootAlone(path string, info os.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return fmt.Errorf("the owner of %s is not known", path)
	case info.Mode()&os.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link", path)
	case stat.Uid != 0:
		return fmt.Errorf("%s belongs to user %d, not to root", path, stat.Uid)
	case info.Mode().Perm()&0o022 != 0 && (!info.IsDir() || info.Mode()&os.ModeSticky == 0):
		return fmt.Errorf("%s can be written by others (mode %04o)", path, info.Mode().Perm())
	}
	return nil
}

// LoadConfig reads a configuration that only root can have written.
func LoadConfig(path string) (c Config, err error) {
	if err := Trusted(path); err != nil {
		return c, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat() // of what was opened, whatever the name stands for by now
	if err != nil {
		return c, err
	}
	if !info.Mode().IsRegular() {
		return c, fmt.Errorf("%s is no plain file", path)
	}
	if err := rootAlone(path, info); err != nil {
		return c, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	if err != nil {
		return c, err
	}
	if c, err = ParseConfig(data); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
