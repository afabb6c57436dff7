package secretscan

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Files searches trees, with what is mounted in them: the paths, the content of regular files, where symbolic links point, and
// extended attributes. A file that is packed with gzip is searched packed and unpacked, as far as it is whole. Links are
// not followed, except the roots. Skip leaves out a file, or a folder with all that is in it; it may be nil.
//
// A file that vanishes meanwhile is no error. One that cannot be read is: everything else is searched all the same, and
// what was found is returned with the error, and with how many files were read. A root that is not there is an error, because
// a search of nothing proves nothing.
func (s *Set) Files(roots []string, skip func(path string) bool) (hits []Hit, files int, err error) {
	var errs []error
	buffer := s.buffer()
	for _, root := range roots {
		top, err := filepath.EvalSymlinks(root)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if skip != nil && skip(path) {
				if entry.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			if err == nil {
				var found []Hit
				found, err = s.entry(buffer, path, entry.Type())
				hits = append(hits, found...)
			}
			if err == nil && entry.Type().IsRegular() {
				files++
			}
			if !gone(err) {
				errs = append(errs, err)
			}
			return nil
		}))
	}
	return hits, files, errors.Join(errs...)
}

// gone says whether something is no longer there, or a link has taken its place.
func gone(err error) bool {
	return slices.ContainsFunc([]error{fs.ErrNotExist, syscall.ESRCH, syscall.ESTALE, syscall.ELOOP, syscall.ENODATA},
		func(e error) bool { return errors.Is(err, e) })
}

// entry searches all that there is about one file, folder or link.
func (s *Set) entry(buffer []byte, path string, kind fs.FileMode) ([]Hit, error) {
	hits, err := s.attributes(path)
	hits = append(hits, s.In(path+" (name)", []byte(path))...)
	switch {
	case err != nil:
	case kind.IsRegular():
		var found []Hit
		found, err = s.file(buffer, path)
		hits = append(hits, found...)
	case kind == fs.ModeSymlink:
		var target string
		target, err = os.Readlink(path)
		hits = append(hits, s.In(path+" (target of the link)", []byte(target))...)
	}
	return hits, err
}

// attributes searches the extended attributes of a file itself, not of what it links to.
func (s *Set) attributes(path string) ([]Hit, error) {
	if size, err := unix.Llistxattr(path, nil); size <= 0 {
		if errors.Is(err, unix.ENOTSUP) {
			err = nil
		}
		return nil, err
	}
	names, value := make([]byte, 64<<10), make([]byte, 64<<10) // the most that Linux allows
	size, err := unix.Llistxattr(path, names)
	if size <= 0 {
		return nil, err // an overlay counts names that it does not list
	}
	names = names[:size]
	hits := s.In(path+" (names of attributes)", names)
	for name := range bytes.SplitSeq(bytes.TrimSuffix(names, []byte{0}), []byte{0}) {
		if size, err = unix.Lgetxattr(path, string(name), value); err != nil {
			break
		}
		hits = append(hits, s.In(path+" (attribute "+string(name)+")", value[:size])...)
	}
	return hits, err
}

// file searches the content of a regular file.
func (s *Set) file(buffer []byte, path string) ([]Hit, error) {
	// A FIFO or a link that has taken the file's place is not waited for or followed.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &system); err != nil || system.Type == unix.NSFS_MAGIC {
		return nil, err // a namespace has no content
	}
	hits, err := s.reader(buffer, path, f)
	if err != nil {
		return hits, err
	}
	if packed, err := gzip.NewReader(io.NewSectionReader(f, 0, math.MaxInt64)); err == nil {
		found, _ := s.reader(buffer, path+" (unpacked)", packed) // what is still written ends with an error
		hits = append(hits, found...)
	}
	return hits, nil
}

// Processes searches the arguments, the environment and the name of processes, and says how many there were. Their memory is not
// searched: values are there while they are used. For a moment while it starts a program, a process shows neither arguments
// nor an environment. One that ends meanwhile is no error; one that may not be read is, and the others are searched all the same.
func (s *Set) Processes(pids []int) (hits []Hit, processes int, err error) {
	var errs []error
	for _, pid := range pids {
		for _, part := range []string{"environ", "cmdline", "comm"} {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, part))
			hits = append(hits, s.In(fmt.Sprintf("process %d (%s)", pid, part), data)...)
			if !gone(err) { // kernel threads and zombies have a name alone
				errs = append(errs, err)
			}
			if err == nil && part == "comm" {
				processes++
			}
		}
	}
	return hits, processes, errors.Join(errs...)
}

// AllProcesses are the numbers of all processes that this one sees.
func AllProcesses() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}
