package instance

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestRemoveTakesTheAppendOnlyFileToo(t *testing.T) {
	testenv.Need(t, testenv.Root)
	parent := t.TempDir()
	i, err := New(Options{Parent: parent, Templates: filepath.Join(parent, "templates")})
	if err != nil {
		t.Fatal(err)
	}
	notes := hostd.CheckpointsPath(i.Config)
	t.Cleanup(func() {
		if err := checkpoint.Unprotect(notes); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(filepath.Dir(notes), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := checkpoint.OpenFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	protected := f.Protected()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(notes); protected && !errors.Is(err, fs.ErrPermission) {
		t.Fatalf("the file can be removed as it is: %v", err)
	}
	if err := i.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
