package firefox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// parts are the files that make a database, by what follows its name. The log is what matters: Firefox writes to it
// first, and back into the database much later.
func parts() []string { return []string{"", "-wal", "-shm", "-journal"} }

// snapshot copies a database into a private folder, and returns the path of the copy and how to remove it. The parts
// belong together, so when one changes while they are copied, all are copied again.
func snapshot(ctx context.Context, path, tempDir string) (private string, remove func() error, err error) {
	// MkdirTemp makes the folder 0700.
	folder, err := os.MkdirTemp(tempDir, "clawjail-firefox-")
	if err != nil {
		return "", nil, fmt.Errorf("make a private folder: %w", err)
	}
	remove = func() error {
		if err := os.RemoveAll(folder); err != nil {
			return fmt.Errorf("remove the private copy: %w", err)
		}
		return nil
	}
	private = filepath.Join(folder, Database)
	const tries = 5
	for range tries {
		var same bool
		if same, err = copyOnce(ctx, path, private); err != nil {
			return "", nil, errors.Join(err, remove())
		}
		if same {
			return private, remove, nil
		}
	}
	return "", nil, errors.Join(ErrChanging, remove())
}

// stamp tells one state of a file from another.
type stamp struct {
	there bool
	size  int64
	time  int64
}

func stamps(path string) (map[string]stamp, error) {
	out := map[string]stamp{}
	for _, part := range parts() {
		info, err := os.Stat(path + part)
		switch {
		case errors.Is(err, fs.ErrNotExist) && part != "":
			continue
		case err != nil:
			return nil, fmt.Errorf("look at the database: %w", err)
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a file: %w", filepath.Base(path+part), ErrNotFirefox)
		case info.Size() > maxFile:
			return nil, ErrTooLarge
		}
		out[part] = stamp{true, info.Size(), info.ModTime().UnixNano()}
	}
	return out, nil
}

// copyOnce copies all parts, and says whether they were the same before and afterwards.
func copyOnce(ctx context.Context, path, private string) (same bool, err error) {
	before, err := stamps(path)
	if err != nil {
		return false, err
	}
	for _, part := range parts() {
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("copy the database: %w", err)
		}
		if err := os.RemoveAll(private + part); err != nil {
			return false, fmt.Errorf("copy the database again: %w", err)
		}
		if !before[part].there {
			continue
		}
		switch err := copyFile(path+part, private+part); {
		case errors.Is(err, fs.ErrNotExist):
			return false, nil
		case err != nil:
			return false, err
		}
	}
	after, err := stamps(path)
	if err != nil {
		return false, err
	}
	for _, part := range parts() {
		// The index of the log is memory that is mapped; its content follows from the log.
		if part != "-shm" && before[part] != after[part] {
			return false, nil
		}
	}
	return true, nil
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy the database: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("copy the database: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if n, err := io.Copy(out, io.LimitReader(in, maxFile+1)); err != nil {
		return fmt.Errorf("copy the database: %w", err)
	} else if n > maxFile {
		return ErrTooLarge
	}
	return nil
}
