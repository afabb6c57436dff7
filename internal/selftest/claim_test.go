package selftest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// One self-test at a time has the folder, and what an instance has left in it stays.
func TestSelfTestsShareNoFolder(t *testing.T) {
	dir := folder(t.TempDir())
	first, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim(dir); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a second one at once: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	first()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty folder stays: %v", err)
	}
	second, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "private-1", "data")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	second()
	if _, err := os.Stat(left); err != nil {
		t.Errorf("the rest of an instance went: %v", err)
	}
}

func TestASelfTestWithoutAnInstanceLeavesNothing(t *testing.T) {
	testenv.Need(t, testenv.Root)
	c := config.Default()
	c.DataDir, c.Storage = t.TempDir(), "none"
	claimed := false
	report, err := Run(t.Context(), Options{Cycles: 1, Config: c, Now: time.Now, Verify: func(context.Context) error {
		_, err := os.Stat(folder(c.DataDir))
		claimed = err == nil
		return nil
	}})
	if err != nil || report.OK || len(report.Failures) != 1 || !claimed {
		t.Fatalf("the report is %+v, %v", report, err)
	}
	if _, err := os.Stat(folder(c.DataDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder stays: %v", err)
	}

	release, err := claim(folder(c.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := Run(t.Context(), Options{Cycles: 1, Config: c}); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("beside another: %v", err)
	}
	if err := Demo(t.Context(), Options{Config: c}, "", ""); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("a demo beside another: %v", err)
	}
}
