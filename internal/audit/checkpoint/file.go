package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/base/keyfile"
)

// File appends notes to a file that belongs to one user, root mostly, and is never shortened or rotated: one note a
// line. Where the system can, the file is marked append-only, which binds root as well.
//
// A note has about 280 bytes, so a log that has something new every second of a day adds 24 MB.
type File struct {
	mu        sync.Mutex
	file      *os.File
	torn      bool // the file may not end with the end of a line
	protected bool
}

// fileMode lets everybody read the notes: there is no secret in them, and any user can verify the log with them.
const fileMode = 0o644

// OpenFile opens the file, and makes it where it is missing: everybody may read it, and only its owner write. It is
// refused when it is not a regular file of this process's user, has a second name, or can be written by others.
func OpenFile(path string) (_ *File, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the checkpoints: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("look at the checkpoints: %w", err)
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("the checkpoints %s are not a regular file", path)
	case int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 || stat.Nlink != 1:
		return nil, fmt.Errorf("the checkpoints %s must belong to the user that writes them, be written by nobody else, and have one name", path)
	}
	// The umask may have taken the readers away. The mode of a file that is append-only cannot be set, not even to
	// what it is.
	if stat.Mode&0o7777 != fileMode {
		if err := f.Chmod(fileMode); err != nil {
			return nil, fmt.Errorf("let everybody read the checkpoints: %w", err)
		}
	}
	out := &File{file: f}
	if stat.Size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, stat.Size-1); err != nil {
			return nil, fmt.Errorf("read the checkpoints: %w", err)
		}
		out.torn = last[0] != '\n'
	}
	if err := keyfile.SyncFolder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("open the checkpoints: %w", err)
	}
	out.protected = appendOnly(f) == nil // not every file system can, and it takes a privilege
	return out, nil
}

// Protected says whether the system refuses to change what is in the file.
func (f *File) Protected() bool { return f.protected }

// Unprotect makes the file one that can be changed and removed again. Uninstalling needs it: an
// append-only file cannot be removed, even by root. There is nothing to do where the file is missing or not protected,
// or where the file system has no such files.
func Unprotect(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the checkpoints: %w", err)
	}
	defer f.Close() // nothing is written through it
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at the checkpoints: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("the checkpoints %s are not a regular file", path)
	}
	if err := changeable(f); err != nil && !unsupported(err) {
		return fmt.Errorf("make the checkpoints removable: %w", err)
	}
	return nil
}

// unsupported says that the file system, or the system, has no append-only files.
func unsupported(err error) bool {
	for _, known := range []error{unix.ENOTTY, unix.EOPNOTSUPP, unix.ENOTSUP, unix.ENOSYS, unix.EINVAL} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// Append adds a note, and returns when it is on the disk. Data that is no note is refused; signatures are for the
// verifier. A note that was written in part, because the disk was full, is made a line of its own by the next one.
func (f *File) Append(ctx context.Context, note []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := Parse(note); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	line := make([]byte, 0, len(note)+2)
	if f.torn {
		line = append(line, '\n')
	}
	line = append(append(line, note...), '\n')
	if n, err := f.file.Write(line); err != nil {
		f.torn = f.torn || n > 0
		return fmt.Errorf("append a checkpoint: %w", err)
	}
	f.torn = false
	if err := f.file.Sync(); err != nil {
		return fmt.Errorf("append a checkpoint: %w", err)
	}
	return nil
}

// Close gives the file up.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}

// LineError is a line that is not a note: one that was being written when the machine lost its power, or something
// that somebody else wrote.
type LineError struct {
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns what is wrong with the line.
func (e *LineError) Unwrap() error { return e.Err }

// Read yields the notes of a file in their order. A line that is not a note is yielded as a *LineError, and reading
// goes on; any other error is the last thing yielded.
func Read(r io.Reader) iter.Seq2[Note, error] {
	return func(yield func(Note, error) bool) {
		lines := bufio.NewReaderSize(r, MaxNote+2)
		for number := 1; ; number++ {
			line, err := lines.ReadSlice('\n')
			long := errors.Is(err, bufio.ErrBufferFull)
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			if err != nil && !errors.Is(err, io.EOF) {
				yield(Note{}, fmt.Errorf("read the checkpoints: %w", err))
				return
			}
			ended := err != nil
			if len(line) > 0 || long {
				var note Note
				err = errors.New("the line is too long")
				if !long {
					note, err = Parse(trimEnd(line))
				}
				if err != nil {
					err = &LineError{Line: number, Err: err}
				}
				if !yield(note, err) {
					return
				}
			}
			if ended {
				return
			}
		}
	}
}

func trimEnd(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\n' {
		return line[:n-1]
	}
	return line
}

// ReadFile is [Read] of a file, which is opened each time that the sequence is used.
func ReadFile(path string) iter.Seq2[Note, error] {
	return func(yield func(Note, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(Note{}, fmt.Errorf("read the checkpoints: %w", err))
			return
		}
		defer f.Close() // only read from
		Read(f)(yield)
	}
}
