package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/clawjail/clawjail/internal/base/keyfile"
	"github.com/clawjail/clawjail/internal/problem"
)

// Output is a file that is not there before it is whole. It is its owner's alone.
type Output struct {
	*os.File
	path string
	temp string // empty where the file has no name yet
}

// NewOutput starts a file. A file that has the name already is never replaced.
func NewOutput(path string) (*Output, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, exists(path)
	}
	o, err := newOutput(path)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	return o, nil
}

func exists(path string) error {
	return problem.New(problem.Conflict, "name another file, or move it away", "%s is there already", path)
}

// named makes a file with another name first, for where files must have one. A process that is killed leaves it.
func named(path string) (*Output, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return nil, err
	}
	return &Output{File: f, path: path, temp: f.Name()}, nil
}

// Keep gives the file its name, when it is on the disk.
func (o *Output) Keep() error {
	if err := o.Sync(); err != nil {
		return noSpace(err)
	}
	var err error
	if o.temp == "" {
		err = o.link()
	} else {
		err = os.Link(o.temp, o.path)
	}
	if errors.Is(err, fs.ErrExist) {
		return exists(o.path)
	}
	if err != nil {
		return fmt.Errorf("name the file %s: %w", o.path, err)
	}
	return keyfile.SyncFolder(filepath.Dir(o.path))
}

// Close ends it; without Keep nothing stays.
func (o *Output) Close() error {
	err := o.File.Close()
	if o.temp != "" {
		err = errors.Join(err, os.Remove(o.temp))
	}
	return err
}
