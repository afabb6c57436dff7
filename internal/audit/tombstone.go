package audit

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store"
)

const tombstoneDomain = "clawjail audit tombstone v1"

// tombstone says that the rows of a node up to one were removed on purpose. It is signed, because it excuses missing rows: an
// attacker who can write to the database but has no key cannot make one.
type tombstone struct {
	// Node may be another one than that whose chain the tombstone stands in: one that no longer runs.
	Node string `json:"node"`
	// From is the first row that is gone, counting earlier tombstones: 1.
	From int64  `json:"from"`
	To   int64  `json:"to"`
	Hash string `json:"hash"` // of row To, in hex
	Why  string `json:"why"`
	Kid  string `json:"kid"`
	Sig  string `json:"sig"`
}

func (t tombstone) fields(actor string) [][]byte {
	return [][]byte{
		[]byte(t.Node), checkpoint.Number(t.From), checkpoint.Number(t.To), []byte(t.Hash), []byte(actor), []byte(t.Why), []byte(t.Kid),
	}
}

func (t tombstone) signed(key *checkpoint.Key, actor string) tombstone {
	t.Kid = key.ID()
	t.Sig = base64.StdEncoding.EncodeToString(key.Sign(tombstoneDomain, t.fields(actor)...))
	return t
}

func (t tombstone) detail() Detail {
	return encodeDetail(map[string]any{
		"node": t.Node, "from": t.From, "to": t.To, "hash": t.Hash, "why": t.Why, "kid": t.Kid, "sig": t.Sig,
	})
}

// readTombstone reads and checks one.
func readTombstone(row store.AuditRow, keys checkpoint.Keys) (tombstone, error) {
	var t tombstone
	if err := json.Unmarshal(row.Detail, &t); err != nil {
		return tombstone{}, fmt.Errorf("read the tombstone: %w", err)
	}
	hash, err := hex.DecodeString(t.Hash)
	if err != nil || len(hash) != checkpoint.HashSize || t.Node == "" || t.From < 1 || t.To < t.From {
		return tombstone{}, errors.New("the tombstone does not say which rows it is for")
	}
	sig, err := base64.StdEncoding.DecodeString(t.Sig)
	if err != nil {
		return tombstone{}, checkpoint.ErrBadSignature
	}
	return t, keys.Verify(t.Kid, tombstoneDomain, sig, t.fields(row.Actor)...)
}
