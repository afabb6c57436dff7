package safepath

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is what a folder and everything below it take of its file system.
type Usage struct {
	Bytes int64
	Files int64 // files, folders and whatever else has a name
	// Cut says that there is more than was looked at: too many files, or folders that are too deep.
	Cut bool
}

// usageBlock is what the blocks of stat(2) are counted in, on every system.
const usageBlock = 512

// Usage adds up what is in the folder, of up to limit files. It follows no link and enters no mount. A file that changes meanwhile is
// counted or not.
func (f *Folder) Usage(ctx context.Context, limit int64) (u Usage, err error) {
	return u, f.usage(ctx, &u, limit, deepest)
}

func (f *Folder) usage(ctx context.Context, u *Usage, limit int64, depth int) (err error) {
	fd, err := f.openat(".", folderFlags, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), f.path)
	defer func() { err = errors.Join(err, file.Close()) }()
	for {
		const some = 1024
		names, err := file.Readdirnames(some)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err := errors.Join(err, context.Cause(ctx)); err != nil {
			return err
		}
		for _, name := range names {
			if u.Cut = u.Cut || u.Files >= limit; u.Cut {
				return nil
			}
			if err := f.usageOf(ctx, name, u, limit, depth); err != nil {
				return err
			}
		}
	}
}

func (f *Folder) usageOf(ctx context.Context, name string, u *Usage, limit int64, depth int) error {
	var st unix.Stat_t
	err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil // somebody has removed it meanwhile
	}
	if err != nil {
		return failed("look at", f.path+"/"+name, err)
	}
	u.Files++
	bytes := int64(st.Blocks) * usageBlock
	if uint32(st.Mode)&unix.S_IFMT != unix.S_IFDIR {
		u.Bytes += bytes / max(1, int64(st.Nlink)) // under each of its names
		return nil
	}
	u.Bytes += bytes
	if depth == 0 {
		u.Cut = true
		return nil
	}
	dir, err := f.enterSame(name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, ErrMounted) || errors.Is(err, ErrPlanted) {
		return nil // it has just been replaced, or is another file system
	}
	if err != nil {
		return err
	}
	return errors.Join(dir.usage(ctx, u, limit, depth-1), dir.Close())
}
