package trawl

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mountOf is a number of the mount that a path is on. The device does not tell: a bind mount has that of its source,
// and a subvolume of btrfs has one of its own though nothing is mounted.
func mountOf(path string) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	if err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 { // before Linux 5.8
		return unix.Mkdev(st.Dev_major, st.Dev_minor), nil
	}
	return st.Mnt_id, nil
}

// isNamespace says whether a file stands for a namespace, as those of ip-netns do: it has no content, and cannot be read.
func isNamespace(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && st.Type == unix.NSFS_MAGIC
}

// dataAfter is the next piece of a file that is not a hole, up to size. Where the system does not know, all is data.
func dataAfter(f *os.File, at, size int64) (from, to int64) {
	from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size // the rest is a hole, or cut off
	}
	if err != nil {
		return at, size
	}
	if from >= size { // the file grows
		return size, size
	}
	to, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
	if err != nil || to <= from {
		return from, size
	}
	return from, min(to, size)
}

// attributeSize is the most bytes of an attribute, and of a list of their names.
const attributeSize = 64 << 10

// eachAttribute reads the extended attributes of a file itself, not of what it links to.
func eachAttribute(path string, found func(name string, value []byte)) error {
	size, err := unix.Llistxattr(path, nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && size == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	names := make([]byte, attributeSize)
	// An overlay counts names that it then does not list.
	if size, err = unix.Llistxattr(path, names); err != nil || size == 0 {
		return err
	}
	value := make([]byte, attributeSize)
	for _, name := range strings.Split(strings.TrimSuffix(string(names[:size]), "\x00"), "\x00") {
		n, err := unix.Lgetxattr(path, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		found(name, value[:n])
	}
	return nil
}
