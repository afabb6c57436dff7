package vault

import (
	"context"
	"fmt"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/quota"
)

// Bounds of a vault, across all tenants: accounts, secrets, and bytes of their ciphertexts. A list of accounts opens all of one tenant,
// and a rotation encrypts everything anew.
const (
	maxAccounts = 4096
	maxSecrets  = 16384
	maxBytes    = 512 << 20
)

// room divides what a vault has room for.
type room struct {
	quotas   config.Quotas
	tenants  func() int
	accounts int64
	secrets  int64
	bytes    int64
}

func newRoom(o Options) room {
	r := room{quotas: o.Quotas, tenants: o.Tenants, accounts: maxAccounts, secrets: maxSecrets, bytes: maxBytes}
	if r.quotas == (config.Quotas{}) {
		r.quotas = config.Default().Quotas
	}
	if r.tenants == nil {
		r.tenants = func() int { return 1 }
	}
	return r
}

// held is how much is in the vault: of all, of one tenant, and of one agent of it.
type held struct{ accounts, secrets, bytes quota.Held }

func (r row) holder() quota.Holder {
	of := quota.Holder{Tenant: r.place.tenant}
	if r.place.kind == kindSecret {
		of.Agent = r.place.name[0]
	}
	return of
}

func countRows(rows []row, asks quota.Holder) (h held) {
	for _, r := range rows {
		if r.place.kind == kindSecret {
			h.secrets.Count(asks, r.holder(), 1)
		} else {
			h.accounts.Count(asks, r.holder(), 1)
		}
		h.bytes.Count(asks, r.holder(), r.bytes)
	}
	return h
}

// fits is an error when there is no room for an entry. An entry that it replaces is not counted, so one that grows no larger always
// fits. The caller has the lock.
func (v *Vault) fits(ctx context.Context, next row) error {
	rows, err := v.rows(ctx)
	if err != nil {
		return err
	}
	more, bytes := int64(1), next.bytes
	for _, r := range rows {
		if r.place.row == next.place.row && r.place.kind == next.place.kind {
			more, bytes = 0, bytes-r.bytes
		}
	}
	asks := next.holder()
	h := countRows(rows, asks)
	divide := func(whole int64) quota.Bounds { return quota.Divide(v.room.quotas, whole, v.room.tenants()) }
	if more > 0 {
		kind, whole, counted := quota.Accounts(), v.room.accounts, h.accounts
		if next.place.kind == kindSecret {
			kind, whole, counted = quota.Secrets(), v.room.secrets, h.secrets
		}
		if err := divide(whole).Check(kind, asks, counted, more); err != nil {
			return fmt.Errorf("store %s: %w", next.place, err)
		}
	}
	if bytes > 0 {
		if err := divide(v.room.bytes).Check(quota.VaultBytes(), asks, h.bytes, bytes); err != nil {
			return fmt.Errorf("store %s: %w", next.place, err)
		}
	}
	return nil
}

// Held is how much is in the vault: of all, of a tenant and of an agent.
func (v *Vault) Held(ctx context.Context) func(asks quota.Holder) []quota.Amount {
	rows, err := v.rows(ctx)
	if err != nil {
		return func(quota.Holder) []quota.Amount { return nil } // the database says so elsewhere
	}
	return func(asks quota.Holder) []quota.Amount {
		h := countRows(rows, asks)
		return []quota.Amount{
			{Kind: quota.Accounts(), Whole: v.room.accounts, Held: h.accounts},
			{Kind: quota.Secrets(), Whole: v.room.secrets, Held: h.secrets},
			{Kind: quota.VaultBytes(), Whole: v.room.bytes, Held: h.bytes},
		}
	}
}
