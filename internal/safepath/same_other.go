//go:build !linux

package safepath

import (
	"errors"

	"golang.org/x/sys/unix"
)

// enterSame opens a folder of one element, unless something is mounted on it: every mount has a number of its own.
func (f *Folder) enterSame(name string) (*Folder, error) {
	dir, err := f.enter(name)
	if err != nil {
		return nil, err
	}
	var here, there unix.Stat_t
	err = errors.Join(unix.Fstat(f.fd, &here), unix.Fstat(dir.fd, &there))
	if err == nil && here.Dev != there.Dev {
		err = failed("open for removal", dir.path, ErrMounted)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}
