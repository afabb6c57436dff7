package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// buildDir makes the tree from a folder, with owners, modes, times, hard links and extended attributes. Where the
// filesystem can share blocks between files, nothing is copied. Mounts below the folder are not part of it.
func (b *build) buildDir(ctx context.Context) error {
	source, err := filepath.EvalSymlinks(b.source.value)
	if errors.Is(err, fs.ErrNotExist) {
		return problem.New(problem.BadTemplate, "give the path of a folder with a root filesystem in it", "there is no folder %s", b.source.value)
	}
	if err != nil {
		return fmt.Errorf("look at the folder: %w", err)
	}
	templates, err := filepath.EvalSymlinks(b.store.dir)
	if err != nil {
		return fmt.Errorf("look at the folder of templates: %w", err)
	}
	if source == "/" || strings.HasPrefix(templates+"/", source+"/") || strings.HasPrefix(source, filepath.Dir(b.rootfs)+"/") {
		return problem.New(problem.BadTemplate, "give a folder of its own, with a root filesystem in it",
			"the folder %s has the templates themselves in it", b.source.value)
	}
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("look at the folder: %w", err)
	}
	if !info.IsDir() {
		return problem.New(problem.BadTemplate, "give the path of a folder with a root filesystem in it", "%s is not a folder", b.source.value)
	}
	if err := b.copyTree(ctx, source); err != nil {
		return err
	}
	b.template.Source = "dir:" + source
	return nil
}

// copyTree copies a folder, without what is mounted below it.
func (b *build) copyTree(ctx context.Context, source string) error {
	mounts, err := b.store.mountsIn(ctx, source)
	if err != nil {
		return err
	}
	b.out.stage(StageCopy, "files", 0, nil)
	c, err := newCopier(source, b.rootfs, mounts)
	if err != nil {
		return err
	}
	err = c.copy(ctx, b.out)
	if err := errors.Join(err, c.close()); err != nil {
		return fmt.Errorf("copy %s: %w", source, err)
	}
	return nil
}

// copier copies one tree into another, empty one.
type copier struct {
	source   string
	from, to *os.Root
	toPath   string
	mounts   map[string]bool
	linked   map[[2]uint64]string // files with several names → the first one
	folders  []string
}

func newCopier(source, target string, mounts []string) (*copier, error) {
	from, err := os.OpenRoot(source)
	if err != nil {
		return nil, fmt.Errorf("open the folder: %w", err)
	}
	to, err := os.OpenRoot(target)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the new tree: %w", err), from.Close())
	}
	c := &copier{source: source, from: from, to: to, toPath: target, mounts: map[string]bool{}, linked: map[[2]uint64]string{}}
	for _, mount := range mounts {
		c.mounts[strings.TrimPrefix(mount, source+"/")] = true
	}
	return c, nil
}

func (c *copier) close() error { return errors.Join(c.from.Close(), c.to.Close()) }

func (c *copier) copy(ctx context.Context, out *output) error {
	var done int64
	err := fs.WalkDir(c.from.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if done++; done%512 == 0 {
			out.advance(done)
		}
		if c.mounts[name] && !entry.IsDir() {
			return nil
		}
		if err := c.entry(name); err != nil {
			return err
		}
		if c.mounts[name] {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return err
	}
	out.advance(done)
	// Folders last, the deepest first: copying into them has changed their times.
	for _, name := range slices.Backward(c.folders) {
		info, err := c.from.Lstat(name)
		if err != nil {
			return err
		}
		if err := c.to.Chtimes(name, info.ModTime(), info.ModTime()); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) entry(name string) error {
	info, err := c.from.Lstat(name)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return &fs.PathError{Op: "lstat", Path: name, Err: errors.ErrUnsupported}
	}
	uid, gid := int(st.Uid), int(st.Gid)
	mode := info.Mode() & (fs.ModePerm | fs.ModeSticky)
	switch info.Mode().Type() {
	case fs.ModeDir:
		if name != "." {
			if err := c.to.Mkdir(name, 0o755); err != nil {
				return err
			}
		}
		c.folders = append(c.folders, name)
		if err := errors.Join(c.to.Lchown(name, uid, gid), c.to.Chmod(name, mode)); err != nil {
			return err
		}
		return c.attributes(name)
	case fs.ModeSymlink:
		target, err := c.from.Readlink(name)
		if err != nil {
			return err
		}
		return errors.Join(c.to.Symlink(target, name), c.to.Lchown(name, uid, gid))
	case 0:
		key := [2]uint64{uint64(st.Dev), st.Ino}
		if first, ok := c.linked[key]; ok {
			return c.to.Link(first, name)
		}
		if st.Nlink > 1 {
			c.linked[key] = name
		}
		return c.file(name, uid, gid, mode)
	default: // devices, pipes and sockets
		return nil
	}
}

func (c *copier) file(name string, uid, gid int, mode fs.FileMode) error {
	in, err := c.from.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "copy", Path: name, Err: errors.New("the file is being changed")}
	}
	out, err := c.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = clone(out, in); err != nil {
		_, err = io.Copy(out, in) // whatever the reason: copying tells a real one
	}
	if err := errors.Join(err, out.Chown(uid, gid), out.Chmod(mode), out.Close()); err != nil {
		return err
	}
	if err := c.attributes(name); err != nil {
		return err
	}
	return c.to.Chtimes(name, info.ModTime(), info.ModTime())
}

// attributes copies extended attributes, but not what would give privileges.
func (c *copier) attributes(name string) error {
	from, to := filepath.Join(c.source, name), filepath.Join(c.toPath, name)
	names, err := listAttributes(from)
	if err != nil {
		return err
	}
	for _, attribute := range names {
		if attribute == fileCapabilities {
			continue
		}
		value, err := getAttribute(from, attribute)
		if err != nil {
			return err
		}
		if err := unix.Lsetxattr(to, attribute, value, 0); err != nil && !noAttribute(err) {
			return &fs.PathError{Op: "set attribute " + attribute, Path: path.Join("/", name), Err: err}
		}
	}
	return nil
}
