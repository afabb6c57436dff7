package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/clawjail/clawjail/internal/jail"
)

// The file of the template tiny.
const sampleFile, sampleText = "was-here", "as it was built\n"

// openSample makes a template of one file, and returns its tree.
func (t *trial) openSample() (string, error) {
	s, err := t.storage.get()
	if err != nil {
		return "", err
	}
	templates := filepath.Join(t.data, "templates", tiny)
	tree := filepath.Join(templates, "rootfs")
	if err := os.Mkdir(templates, 0o755); err != nil {
		return "", fmt.Errorf("make a template: %w", err)
	}
	if err := s.Trees().Make(tree); err != nil {
		return "", fmt.Errorf("make a template: %w", err)
	}
	if err := os.WriteFile(filepath.Join(tree, sampleFile), []byte(sampleText), 0o644); err != nil {
		return "", fmt.Errorf("make a template: %w", err)
	}
	return tree, nil
}

// tryStorage clones a template of one file.
func (t *trial) tryStorage(ctx context.Context) (_ Facts, err error) {
	tree, err := t.sample.get()
	if err != nil {
		return nil, err
	}
	s, err := t.storage.get()
	if err != nil {
		return nil, err
	}
	name := t.name(1)
	root, err := s.Clone(ctx, name, jail.Spec{Template: tiny})
	if err != nil {
		return nil, err
	}
	defer func() {
		undo := context.WithoutCancel(ctx)
		err = errors.Join(err, s.Unmount(undo, name, true), s.Destroy(undo, name))
	}()
	if text, err := os.ReadFile(filepath.Join(root, sampleFile)); err != nil || string(text) != sampleText {
		return nil, fmt.Errorf("read the clone's copy of a file: %q, %w", text, err)
	}
	const new = "written"
	if err := os.WriteFile(filepath.Join(root, new), nil, 0o644); err != nil {
		return nil, fmt.Errorf("write to the clone: %w", err)
	}
	if _, err := os.Lstat(filepath.Join(tree, new)); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("what was written to the clone is in the template")
	}
	return Facts{"kind": s.Kind()}, nil
}
