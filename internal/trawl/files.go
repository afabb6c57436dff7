package trawl

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// DefaultMaxUnpacked is the most bytes that one packed file may hold, unless told otherwise.
	DefaultMaxUnpacked = 4 << 30
	// DefaultMaxFiles is the most files, folders and links of one search, unless told otherwise.
	DefaultMaxFiles = 10_000_000
	// sizeless is how much is read of a file that says that it is empty, as those of /proc do.
	sizeless = 16 << 20
	// mostErrors bounds what one search reports as unread.
	mostErrors = 20
)

// FileOptions say what of a tree is searched.
type FileOptions struct {
	// OtherMounts searches what is mounted below the roots too.
	OtherMounts bool
	// Skip leaves out a file, or a folder with all that is in it. May be nil.
	Skip func(path string) bool
	// MaxUnpacked is the most bytes that are unpacked of one file; more is an error. Zero is DefaultMaxUnpacked.
	MaxUnpacked int64
	// MaxFiles is the most files, folders and links; more is an error. Zero is DefaultMaxFiles.
	MaxFiles int
}

func (o *FileOptions) fill() error {
	if o.MaxUnpacked == 0 {
		o.MaxUnpacked = DefaultMaxUnpacked
	}
	if o.MaxFiles == 0 {
		o.MaxFiles = DefaultMaxFiles
	}
	if o.MaxUnpacked < 0 || o.MaxFiles < 0 {
		return errors.New("a limit of the search is negative")
	}
	return nil
}

// Files searches trees: the names in them, the content of regular files, where symbolic links point, and extended
// attributes. A file that is packed with gzip is searched packed and unpacked. Links are not followed, except the roots.
//
// A file that vanishes meanwhile is no error. One that cannot be read is: everything else is searched all the same, and
// what was found and looked at is returned with the error. A file is read up to the size that it has when it is opened.
// A root that is not there is an error, because a search of nothing proves nothing.
func (s *Set) Files(ctx context.Context, roots []string, o FileOptions) ([]Hit, Stats, error) {
	w := s.walk(ctx, o)
	if err := w.options.fill(); err != nil {
		return nil, Stats{}, err
	}
	for _, root := range roots {
		resolved, err := filepath.EvalSymlinks(root)
		if err != nil {
			w.fail("find", root, err)
			continue
		}
		if err := w.tree(resolved); err != nil {
			w.errs = append(w.errs, err)
			break
		}
	}
	return w.hits, w.stats, w.err()
}

// walk is one search of files or processes.
type walk struct {
	ctx     context.Context
	set     *Set
	options FileOptions
	stream  stream
	hits    []Hit
	stats   Stats
	errs    []error
	unread  int
}

func (s *Set) walk(ctx context.Context, o FileOptions) *walk {
	return &walk{ctx: ctx, set: s, options: o, stream: stream{set: s}}
}

// fail notes what could not be searched. The path in the error of the system is replaced by a clean one.
func (w *walk) fail(doing, where string, err error) {
	if gone(err) && doing != "find" {
		w.stats.Vanished++
		return
	}
	if w.unread++; w.unread > mostErrors {
		return
	}
	var inPath *fs.PathError
	var inCall *os.SyscallError
	if errors.As(err, &inPath) {
		err = inPath.Err
	} else if errors.As(err, &inCall) {
		err = inCall.Err
	}
	w.errs = append(w.errs, fmt.Errorf("%s %s: %w", doing, w.set.clean(where), err))
}

func (w *walk) err() error {
	if w.unread > mostErrors {
		w.errs = append(w.errs, fmt.Errorf("%d more could not be searched", w.unread-mostErrors))
	}
	return errors.Join(w.errs...)
}

// gone says whether something is no longer there.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) || errors.Is(err, syscall.ESRCH)
}

// tree walks one root. Its errors end the search.
func (w *walk) tree(root string) error {
	home, err := mountOf(root)
	if err != nil {
		w.fail("find", root, err)
		return nil
	}
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if ctxErr := w.ctx.Err(); ctxErr != nil {
			return context.Cause(w.ctx)
		}
		if err != nil {
			w.fail("list", path, err)
			return nil
		}
		skip := error(nil)
		if entry.IsDir() {
			skip = fs.SkipDir
		}
		if w.options.Skip != nil && w.options.Skip(path) {
			return skip
		}
		if path != root && !w.options.OtherMounts {
			if mount, err := mountOf(path); err != nil {
				w.fail("look at", path, err)
				return skip
			} else if mount != home {
				w.stats.OtherMounts++
				return skip
			}
		}
		if w.stats.Names >= w.options.MaxFiles {
			return fmt.Errorf("more than %d files; search fewer trees at a time", w.options.MaxFiles)
		}
		w.entry(path, entry.Type())
		return context.Cause(w.ctx)
	})
}

// entry searches all that there is about one file, folder or link.
func (w *walk) entry(path string, kind fs.FileMode) {
	w.stats.Names++
	w.name(path)
	w.attributes(path)
	switch {
	case kind.IsRegular():
		w.file(path, path, nil)
	case kind&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			w.fail("read the link", path, err)
			return
		}
		w.stats.Links++
		w.bytes(path+" (target of the link)", []byte(target))
	}
}

// name searches a path for values that end in its last element: those that end before are reported of the folder.
func (w *walk) name(path string) {
	folder := strings.LastIndexByte(path, '/') + 1
	seen := map[[2]int]bool{}
	w.set.find([]byte(path), len(path), func(v *variant, start, end int) {
		key := [2]int{v.needle, v.form}
		if end <= folder || seen[key] {
			return
		}
		seen[key] = true
		w.hits = append(w.hits, Hit{
			Needle: w.set.names[v.needle], Form: w.set.forms[v.form].name,
			Where: w.set.clean(path) + " (name)", Offset: int64(start),
		})
	})
}

func (w *walk) bytes(where string, data []byte) {
	w.stats.Bytes += int64(len(data))
	w.hits = append(w.hits, w.set.In(where, data)...)
}

func (w *walk) attributes(path string) {
	err := eachAttribute(path, func(name string, value []byte) {
		w.stats.Attributes++
		w.bytes(path+" (name of an attribute)", []byte(name))
		w.bytes(path+" (attribute "+name+")", value)
	})
	if err != nil {
		w.fail("read the attributes of", path, err)
	}
}

// contextReader ends reading with the context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

// file searches a regular file. The path is what is opened; accept may refuse what was opened, and may be nil.
func (w *walk) file(path, where string, accept func(fs.FileInfo) bool) {
	flags := os.O_RDONLY | syscall.O_NONBLOCK // a FIFO that takes the file's place must not block
	if accept == nil {
		flags |= syscall.O_NOFOLLOW
	}
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, syscall.ELOOP) && accept == nil {
		w.stats.Vanished++ // a link has taken its place
		return
	}
	if err != nil {
		w.fail("open", where, err)
		return
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		w.fail("look at", where, err)
		return
	}
	if !info.Mode().IsRegular() || accept != nil && !accept(info) || info.Size() == 0 && isNamespace(f) {
		return
	}
	if err := w.content(f, where, info.Size()); err != nil {
		w.fail("read", where, err)
		return
	}
	w.stats.Files++
}

// content searches what is in a file. Holes are not read: of each only as many zeros are searched as a value can have.
func (w *walk) content(f *os.File, where string, size int64) error {
	w.stream.reset(where)
	defer func() { w.hits = append(w.hits, w.stream.hits...) }()
	limited, margin := size, int64(w.set.longest)
	if size == 0 {
		limited = sizeless
	}
	for at := int64(0); at < limited; {
		from, to := at, limited
		if size > 0 {
			from, to = dataAfter(f, at, limited)
		}
		if from-at > 2*margin {
			if err := w.read(f, at, at+margin); err != nil {
				return err
			}
			w.stream.skip(from - margin)
			at = from - margin
		}
		if err := w.read(f, at, to); err != nil {
			return err
		}
		at = to
	}
	w.stream.found()
	magic := make([]byte, 2)
	if n, err := f.ReadAt(magic, 0); n < len(magic) || magic[0] != 0x1f || magic[1] != 0x8b {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return w.unpacked(io.LimitReader(f, limited), where+" (unpacked)")
}

// read searches the bytes between two offsets, or up to the end of the file.
func (w *walk) read(f *os.File, from, to int64) error {
	counted := &counter{r: contextReader{w.ctx, io.NewSectionReader(f, from, to-from)}}
	defer func() { w.stats.Bytes += counted.n }()
	return w.stream.readFrom(counted, to-from)
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// unpacked searches what gzip has packed. A file may be written at this moment, or only look like a packed one, so
// data that is damaged is counted and no error.
func (w *walk) unpacked(r io.Reader, where string) error {
	packed, err := gzip.NewReader(bufio.NewReader(contextReader{w.ctx, r}))
	if err != nil {
		w.stats.Damaged++
		return context.Cause(w.ctx)
	}
	st := stream{set: w.set, where: where}
	// One byte more than allowed is read, to tell that there is one.
	counted := &counter{r: packed}
	err = st.readFrom(counted, w.options.MaxUnpacked+1)
	w.hits = append(w.hits, st.found()...)
	w.stats.Bytes += counted.n
	w.stats.Unpacked++
	switch {
	case w.ctx.Err() != nil:
		return context.Cause(w.ctx)
	case counted.n > w.options.MaxUnpacked:
		return fmt.Errorf("it holds more than %d bytes unpacked", w.options.MaxUnpacked)
	case err != nil:
		w.stats.Damaged++
	}
	return nil
}
