package template

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// The names by which a layer says that something of the layers below is gone (OCI image specification, layer.md).
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh." // bookkeeping of old storage drivers
)

// extractor unpacks one layer of an image over those that are there already. Everything happens beneath the tree: the
// operations of os.Root refuse to follow a link out of it, and an absolute link is never followed, only kept.
// Device nodes, pipes, sockets, setuid and setgid bits and extended attributes are dropped.
type extractor struct {
	root *os.Root
	// made are the paths of this layer, which its own whiteouts do not concern.
	made map[string]bool
	// folders get their times at the end: unpacking into them changes them.
	folders []madeFolder
}

type madeFolder struct {
	name    string
	changed time.Time
}

func newExtractor(root *os.Root) *extractor {
	return &extractor{root: root, made: map[string]bool{}}
}

// layer unpacks the tar stream of a layer.
func (x *extractor) layer(ctx context.Context, stream io.Reader) error {
	if err := eachEntry(ctx, stream, func(header *tar.Header, content io.Reader) error {
		if header.Typeflag == tar.TypeXGlobalHeader {
			return nil
		}
		name, err := entryName(header.Name)
		if err != nil {
			return err
		}
		if name == "." {
			return nil
		}
		if err := x.entry(name, header, content); err != nil {
			return badEntry(header.Name, err)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, folder := range slices.Backward(x.folders) {
		if info, err := x.root.Lstat(folder.name); err != nil || !info.IsDir() {
			continue // a later entry of this layer has taken its place
		}
		if err := x.root.Chtimes(folder.name, folder.changed, folder.changed); err != nil {
			return badEntry(folder.name, err)
		}
	}
	return nil
}

// entryName is the path of an entry, relative to the tree.
func entryName(name string) (string, error) {
	if slices.Contains(strings.Split(name, "/"), "..") || strings.ContainsRune(name, 0) {
		return "", badEntry(name, errors.New("the path leads out of the image"))
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return ".", nil
	}
	return clean, nil
}

// badEntry is an entry that cannot be unpacked. An error that the disk or the caller is to blame for keeps its own code.
func badEntry(name string, err error) error {
	if _, ok := problem.As(err); ok || isHostError(err) {
		return err
	}
	return problem.Wrap(err, problem.BadTemplate, "build the image again, with another tool", "the image has an entry that cannot be unpacked: %s", name)
}

func (x *extractor) entry(name string, header *tar.Header, content io.Reader) error {
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	if strings.HasPrefix(base, whiteoutPrefix) {
		return x.whiteout(dir, base)
	}
	if err := x.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	uid, gid := header.Uid, header.Gid
	const maxID = 1<<32 - 2 // the last number means "do not change"
	if uid < 0 || gid < 0 || int64(uid) > maxID || int64(gid) > maxID {
		return fmt.Errorf("the owner %d:%d is out of range", uid, gid)
	}
	mode := header.FileInfo().Mode() & (fs.ModePerm | fs.ModeSticky)
	info, err := x.root.Lstat(name)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if header.Typeflag == tar.TypeDir && exists && info.IsDir() {
		return x.folder(name, uid, gid, mode, header.ModTime)
	}
	if header.Typeflag == tar.TypeLink {
		return x.hardLink(name, header.Linkname, exists)
	}
	if exists {
		if err := x.root.RemoveAll(name); err != nil {
			return err
		}
	}
	x.made[name] = true
	switch header.Typeflag {
	case tar.TypeDir:
		if err := x.root.Mkdir(name, 0o755); err != nil {
			return err
		}
		return x.folder(name, uid, gid, mode, header.ModTime)
	case tar.TypeReg, tar.TypeGNUSparse:
		return x.file(name, uid, gid, mode, header, content)
	case tar.TypeSymlink:
		if err := x.root.Symlink(header.Linkname, name); err != nil {
			return err
		}
		return x.root.Lchown(name, uid, gid)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return nil
	default:
		return fmt.Errorf("the entry is of the unknown kind %q", header.Typeflag)
	}
}

func (x *extractor) folder(name string, uid, gid int, mode fs.FileMode, changed time.Time) error {
	x.made[name] = true
	x.folders = append(x.folders, madeFolder{name, changed})
	if err := x.root.Lchown(name, uid, gid); err != nil {
		return err
	}
	return x.root.Chmod(name, mode)
}

func (x *extractor) file(name string, uid, gid int, mode fs.FileMode, header *tar.Header, content io.Reader) error {
	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Chown(uid, gid)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return x.root.Chtimes(name, header.ModTime, header.ModTime)
}

// hardLink makes a second name for a file of the tree.
func (x *extractor) hardLink(name, target string, exists bool) error {
	target, err := entryName(target)
	if err != nil {
		return err
	}
	info, err := x.root.Lstat(target)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return errors.New("it is a second name for a folder")
	}
	if target == name {
		x.made[name] = true
		return nil
	}
	if exists {
		if err := x.root.RemoveAll(name); err != nil {
			return err
		}
	}
	x.made[name] = true
	return x.root.Link(target, name)
}

// whiteout removes what the layers below have put there.
func (x *extractor) whiteout(dir, base string) error {
	switch {
	case base == opaqueName:
		return x.empty(dir)
	case strings.HasPrefix(base, whiteoutMeta):
		return nil
	}
	hidden := strings.TrimPrefix(base, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return errors.New("it removes what is no file of its folder")
	}
	name := path.Join(dir, hidden)
	if x.made[name] {
		return nil
	}
	err := x.root.RemoveAll(name)
	if missing(err) {
		return nil
	}
	return err
}

// empty removes what a folder has from the layers below, and leaves what this layer has put there.
func (x *extractor) empty(dir string) error {
	info, err := x.root.Lstat(dir)
	if missing(err) || err == nil && !info.IsDir() {
		return nil
	}
	if err != nil {
		return err
	}
	entries, err := fs.ReadDir(x.root.FS(), dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		if !x.made[name] && !x.madeBelow(name) {
			if err := x.root.RemoveAll(name); err != nil {
				return err
			}
			continue
		}
		if entry.IsDir() {
			if err := x.empty(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// madeBelow reports whether this layer has put something below a folder that it does not name itself.
func (x *extractor) madeBelow(dir string) bool {
	for name := range x.made {
		if strings.HasPrefix(name, dir+"/") {
			return true
		}
	}
	return false
}
