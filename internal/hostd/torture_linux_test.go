package hostd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// helperJournal writes records until it is killed. Arguments: the folder.
func helperJournal(args []string) error {
	j, err := OpenJournal(args[0], "test", nil)
	if err != nil {
		return err
	}
	fmt.Println("writing")
	ctx := context.Background()
	for i := 0; ; i++ {
		name, err := jail.NewName(jail.KindBrowser, "test", i%20)
		if err != nil {
			return err
		}
		r := record(name)
		r.Process.PID = i
		r.Root = strings.Repeat("x", i%5000)
		if i%3 == 0 {
			r.Spec.Lifetime = jail.LifetimeKeep
		}
		if err := j.Put(ctx, r); err != nil {
			return err
		}
		if i%7 == 0 {
			if err := j.Delete(ctx, name); err != nil {
				return err
			}
		}
	}
}

func TestAKilledWriterLeavesWholeRecords(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "journal")
	limit := 0
	for i := range 25 {
		p := startHelper(t, self, "journal", nil, dir)
		p.expect(t, "writing")
		for deadline := time.Now().Add(time.Duration(i) * time.Millisecond); time.Now().Before(deadline); {
			// the moment of the kill differs from round to round
		}
		if i == 24 {
			testenv.Eventually(t, 10*time.Second, func() bool {
				whole, err := filepath.Glob(filepath.Join(dir, "*.json"))
				return err == nil && len(whole) >= 2
			}, "the writer does not write")
		}
		p.kill()
		j, err := OpenJournal(dir, "test", nil)
		if err != nil {
			t.Fatal(err)
		}
		records, damaged := load(t, j)
		if len(damaged) > 0 {
			t.Fatalf("round %d: damaged %v", i, damaged)
		}
		limit = max(limit, len(records))
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != len(records) {
			t.Fatalf("round %d: %d files for %d records, %v", i, len(entries), len(records), err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if limit < 2 {
		t.Errorf("at most %d records were ever there: the writer does not write", limit)
	}
}
