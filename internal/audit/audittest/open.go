package audittest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store"
)

// Open opens the log of a node n1 whose checkpoints are kept nowhere, and closes it when the test ends.
func Open(t testing.TB, rows store.Audit) (*audit.Log, *checkpoint.Key) {
	t.Helper()
	dir := t.TempDir()
	key, err := checkpoint.LoadKey(filepath.Join(dir, "audit.key"))
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(t.Context(), audit.Options{Store: rows, Node: "n1", SpillPath: filepath.Join(dir, "spill"), Key: key, Checkpoints: nowhere{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return log, key
}

type nowhere struct{}

func (nowhere) Append(context.Context, []byte) error { return nil }
