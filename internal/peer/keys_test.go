package peer

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store"
)

// keyTable is what the database has of keys.
type keyTable []store.AuditKey

func (k *keyTable) PutAuditKey(_ context.Context, one store.AuditKey) error {
	*k = append(*k, one)
	return nil
}

func (k *keyTable) ListAuditKeys(context.Context) ([]store.AuditKey, error) { return *k, nil }

func TestNodesKnowTheAuditKeysOfEachOtherAndNobodyElses(t *testing.T) {
	with := func(secret byte) *Peers {
		p, err := New(Options{Node: "n", Secret: key(secret), Log: slog.New(slog.DiscardHandler), Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	var db keyTable
	var keys []*checkpoint.Key
	for n, p := range []*Peers{with(1), with(1), with(2)} { // the last one has another admin key
		k, err := checkpoint.LoadKey(filepath.Join(t.TempDir(), "audit.key"))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.ShareKeys(t.Context(), &db, k.Keys()); err != nil || len(db) != n+1 {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	forged := slices.Clone(db[:2])
	forged[0].ID = "another"                      // whose signature it is of
	forged[1].Public = slices.Clone(db[2].Public) // under the name of a key that is known
	forged = append(forged, store.AuditKey{ID: "no voucher", Public: bytes.Repeat([]byte{1}, 32)})
	known := func(rows keyTable) checkpoint.Keys {
		t.Helper()
		out, err := with(1).KnownKeys(t.Context(), &rows)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := known(forged); len(got) != 0 {
		t.Errorf("of forged rows %v is believed", got)
	}
	got := known(append(forged, db...))
	for n, k := range keys {
		err := got.Verify(k.ID(), "purpose", k.Sign("purpose", []byte("field")), []byte("field"))
		if (err == nil) != (n < 2) {
			t.Errorf("what node %d has signed: %v", n, err)
		}
	}
	if len(got) != 2 {
		t.Errorf("%d keys are known", len(got))
	}
}
