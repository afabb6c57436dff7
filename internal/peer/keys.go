package peer

import (
	"context"
	"crypto/ed25519"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store"
)

// voucherDomain is what a voucher is a signature of, besides a key.
const voucherDomain = "clawjail audit key v1"

// AuditKeys are the public keys with which nodes sign what they remove of the audit log, in a database that all of them can write to.
// A key is believed only with a voucher, which takes the secret that all nodes share.
type AuditKeys interface {
	PutAuditKey(ctx context.Context, k store.AuditKey) error
	ListAuditKeys(ctx context.Context) ([]store.AuditKey, error)
}

// ShareKeys makes keys of this node known to the others.
func (p *Peers) ShareKeys(ctx context.Context, db AuditKeys, keys checkpoint.Keys) error {
	for id, public := range keys {
		voucher := ed25519.Sign(p.authority.key, vouched(id, public))
		if err := db.PutAuditKey(ctx, store.AuditKey{ID: id, Public: public, Voucher: voucher}); err != nil {
			return err
		}
	}
	return nil
}

// KnownKeys are the keys of all nodes, also of those that are gone.
func (p *Peers) KnownKeys(ctx context.Context, db AuditKeys) (checkpoint.Keys, error) {
	rows, err := db.ListAuditKeys(ctx)
	if err != nil {
		return nil, err
	}
	public, out := p.authority.key.Public().(ed25519.PublicKey), checkpoint.Keys{}
	for _, k := range rows {
		if ed25519.Verify(public, vouched(k.ID, k.Public), k.Voucher) {
			out[k.ID] = k.Public
		} else if p.told(k.ID) {
			p.o.Log.Warn("a public key of the audit log was not put into the database by a node with this admin key", "key", k.ID)
		}
	}
	return out, nil
}

// told says whether a key that is not believed is to be logged, which is once.
func (p *Peers) told(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := !p.strange[id]
	p.strange[id] = true
	return first
}

func vouched(id string, public ed25519.PublicKey) []byte {
	return checkpoint.Encode(nil, []byte(voucherDomain), []byte(id), public)
}
