package template

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// entry is one file, folder or link of a tree.
type entry struct {
	path string // relative to the tree; "." is the tree itself
	kind byte   // 'f' file, 'd' folder, 'l' link, '?' anything else, which no template has
	mode uint32 // permission, setuid, setgid and sticky bits
	uid  uint32
	gid  uint32
	size int64  // of files
	sum  string // SHA-256 of a file's content, hexadecimal; "-" for the others
	attr string // SHA-256 of the extended attributes, hexadecimal; "-" when there are none
	link string // target of a link

	// stamp is what the filesystem says of it. It is not part of the digest: it is how a quick look finds what was touched.
	stamp stamp

	dev, nlink uint64 // not written: to read hard-linked files once
}

// stamp changes whenever a file is touched: not even root sets a ctime at will.
type stamp struct {
	mtime, ctime int64 // nanoseconds
	inode        uint64
}

// statTree lists a tree, ordered by path, without opening any file.
func statTree(ctx context.Context, rootfs string) ([]entry, error) {
	top, err := statEntry(unix.AT_FDCWD, rootfs, ".")
	if err != nil {
		return nil, err
	}
	entries := []entry{top}
	if err := statFolder(ctx, unix.AT_FDCWD, rootfs, "", &entries); err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return entries, nil
}

// statFolder lists what is in a folder. Each name is looked up in its folder and not from the root: paths are long, and files many.
func statFolder(ctx context.Context, parent int, name, relative string, entries *[]entry) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: cmp.Or(relative, name), Err: err}
	}
	folder := os.NewFile(uintptr(fd), cmp.Or(relative, name))
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		e, err := statEntry(fd, name, path.Join(relative, name))
		if err != nil {
			return err
		}
		*entries = append(*entries, e)
		if e.kind == 'd' {
			if err := statFolder(ctx, fd, name, e.path, entries); err != nil {
				return err
			}
		}
	}
	return nil
}

// statEntry is what the filesystem says of a name in an open folder.
func statEntry(folder int, name, relative string) (entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(folder, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, &fs.PathError{Op: "lstat", Path: relative, Err: err}
	}
	e := entry{
		path: relative, kind: '?', mode: uint32(st.Mode) & 0o7777, uid: st.Uid, gid: st.Gid, sum: "-", attr: "-",
		stamp: stamp{mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(), inode: st.Ino},
		dev:   uint64(st.Dev), nlink: uint64(st.Nlink),
	}
	switch uint32(st.Mode) & unix.S_IFMT {
	case unix.S_IFREG:
		e.kind, e.size = 'f', st.Size
	case unix.S_IFDIR:
		e.kind = 'd'
	case unix.S_IFLNK:
		e.kind = 'l'
		target := make([]byte, st.Size+1)
		n, err := unix.Readlinkat(folder, name, target)
		if err == nil && int64(n) != st.Size {
			err = errors.New("the link is being changed")
		}
		if err != nil {
			return entry{}, &fs.PathError{Op: "readlink", Path: relative, Err: err}
		}
		e.link = string(target[:n])
	}
	return e, nil
}

// every is the indexes of a list of n entries.
func every(n int) []int {
	which := make([]int, n)
	for i := range which {
		which[i] = i
	}
	return which
}

// readContents fills in sum and attr of the entries with the given indexes. There are as many workers as processors. A file that changes meanwhile is an error.
func readContents(ctx context.Context, rootfs string, entries []entry, which []int, advance func(int64)) error {
	group, ctx := errgroup.WithContext(ctx)
	var next, done atomic.Int64
	var linked sums
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error {
			buffer := make([]byte, 256<<10)
			for {
				i := next.Add(1) - 1
				if i >= int64(len(which)) {
					return nil
				}
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				e := &entries[which[i]]
				if err := readEntry(filepath.Join(rootfs, e.path), e, &linked, buffer); err != nil {
					return err
				}
				if n := done.Add(1); advance != nil && (n%512 == 0 || n == int64(len(which))) {
					advance(n)
				}
			}
		})
	}
	return group.Wait()
}

// sums remembers the contents of files that have more than one name.
type sums struct {
	mu    sync.Mutex
	known map[[2]uint64]string
}

func readEntry(name string, e *entry, linked *sums, buffer []byte) error {
	attr, err := attributes(name)
	if err != nil {
		return err
	}
	e.attr = attr
	if e.kind != 'f' {
		return nil
	}
	key := [2]uint64{e.dev, e.stamp.inode}
	if e.nlink > 1 {
		linked.mu.Lock()
		sum, ok := linked.known[key]
		linked.mu.Unlock()
		if ok {
			e.sum = sum
			return nil
		}
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	hash := sha256.New()
	// Hidden behind a plain reader: the copy uses the buffer, which is large and is used again.
	n, err := io.CopyBuffer(hash, struct{ io.Reader }{f}, buffer)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if n != e.size {
		return &fs.PathError{Op: "read", Path: name, Err: errors.New("the file is being changed")}
	}
	e.sum = hex.EncodeToString(hash.Sum(nil))
	if e.nlink > 1 {
		linked.mu.Lock()
		if linked.known == nil {
			linked.known = map[[2]uint64]string{}
		}
		linked.known[key] = e.sum
		linked.mu.Unlock()
	}
	return nil
}

// attributes is the checksum of a file's extended attributes, or "-". Labels of SELinux are the host's business and
// change when it is relabelled.
func attributes(name string) (string, error) {
	names, err := listAttributes(name)
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "-", nil
	}
	hash := sha256.New()
	for _, attribute := range names {
		value, err := getAttribute(name, attribute)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%q=%q\n", attribute, value)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// listAttributes are the names of a file's extended attributes that belong to it and not to its host, in order.
func listAttributes(name string) ([]string, error) {
	for {
		size, err := unix.Llistxattr(name, nil)
		if err != nil && noAttribute(err) || err == nil && size == 0 {
			return nil, nil
		}
		if err != nil {
			return nil, &fs.PathError{Op: "list attributes", Path: name, Err: err}
		}
		buffer := make([]byte, size)
		size, err = unix.Llistxattr(name, buffer)
		if errors.Is(err, unix.ERANGE) { // one was added meanwhile
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "list attributes", Path: name, Err: err}
		}
		var names []string
		for attribute := range strings.SplitSeq(string(buffer[:size]), "\x00") {
			if attribute != "" && attribute != "security.selinux" && !strings.HasPrefix(attribute, "trusted.overlay.") {
				names = append(names, attribute)
			}
		}
		slices.Sort(names)
		return names, nil
	}
}

func getAttribute(name, attribute string) ([]byte, error) {
	for {
		size, err := unix.Lgetxattr(name, attribute, nil)
		if err != nil {
			return nil, &fs.PathError{Op: "read attribute " + attribute, Path: name, Err: err}
		}
		if size == 0 {
			return nil, nil
		}
		buffer := make([]byte, size)
		size, err = unix.Lgetxattr(name, attribute, buffer)
		if errors.Is(err, unix.ERANGE) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "read attribute " + attribute, Path: name, Err: err}
		}
		return buffer[:size], nil
	}
}

// promised is the part of an entry that the digest covers, as one line.
func (e *entry) promised(b []byte) []byte {
	b = append(b, e.kind, ' ')
	b = strconv.AppendUint(b, uint64(e.mode), 8)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(e.uid), 10)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(e.gid), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, e.size, 10)
	b = append(b, ' ')
	b = append(b, e.sum...)
	b = append(b, ' ')
	b = append(b, e.attr...)
	b = append(b, ' ')
	b = strconv.AppendQuote(b, e.path)
	b = append(b, ' ')
	return strconv.AppendQuote(b, e.link)
}

// digestOf is the digest of a tree: of the lines of its entries, ordered by path.
func digestOf(entries []entry) string {
	hash := sha256.New()
	var line []byte
	for i := range entries {
		line = append(entries[i].promised(line[:0]), '\n')
		hash.Write(line)
	}
	return "sha256:" + hex.EncodeToString(hash.Sum(nil))
}

// sizeOf is the sum of the sizes of the files, each hard-linked file once.
func sizeOf(entries []entry) int64 {
	type key struct{ dev, inode uint64 }
	seen := map[key]bool{}
	var total int64
	for _, e := range entries {
		if e.kind != 'f' {
			continue
		}
		if e.nlink > 1 {
			k := key{e.dev, e.stamp.inode}
			if seen[k] {
				continue
			}
			seen[k] = true
		}
		total += e.size
	}
	return total
}
