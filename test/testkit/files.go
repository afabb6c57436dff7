//go:build linux

package testkit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
)

// CopyFile copies a file that can be run.
func CopyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

// RemoveTrees removes the folder of a test. Templates may be subvolumes, which a plain removal does not take.
func RemoveTrees(t *testing.T, dir string) {
	t.Helper()
	roots, err := filepath.Glob(filepath.Join(dir, "templates", "*", "rootfs"))
	if err != nil {
		t.Error(err)
	}
	trees, err := hostd.Trees(config.Config{DataDir: dir})
	if err != nil {
		t.Error(err)
		return
	}
	for _, r := range roots {
		if err := trees.Remove(r); err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// WriteFile writes a text that all may read.
func WriteFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
