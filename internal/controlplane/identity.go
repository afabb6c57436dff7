package controlplane

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/backup"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/vault"
)

const (
	// recordLimit bounds writing the last records at the end.
	recordLimit = 10 * time.Second
	// issuer stands in grants. Their keys tell installations apart.
	issuer = "clawjail"
)

// own is the path of a file of the control plane's. The host daemon has made the folder.
func (p *plane) own(name string) string { return filepath.Join(hostd.ControlDir(p.Config), name) }

// openStore reads the key of the audit log first: a database that is brought up to date is no more one of before.
func (p *plane) openStore(ctx context.Context) (err error) {
	if p.key, err = checkpoint.LoadKey(p.own("audit.key")); err != nil {
		return fmt.Errorf("read the key of the audit log: %w", err)
	}
	if p.store, err = open.Open(ctx, p.Config.Database.Reveal(), p.Config.DataDir); err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	return nil
}

// openAudit opens the log before the rest, so that nothing is done without it.
func (p *plane) openAudit(ctx context.Context) (err error) {
	room, err := p.roomForRecords()
	if err != nil {
		return err
	}
	p.audit, err = audit.Open(ctx, audit.Options{Store: p.store, Node: p.node, SpillPath: p.own("audit.spill"), Key: p.key,
		Checkpoints: p.host.Checkpoints(), Room: room, Quotas: p.Config.Quotas, Tenants: p.tenants, Now: p.Now, Log: p.Log})
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	return nil
}

func (p *plane) closeAudit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	return p.audit.Close(ctx)
}

// openVault opens what is secret, once a backup that was put back is on record, and accounts that an earlier run held are free.
func (p *plane) openVault(ctx context.Context) (err error) {
	if err := backup.Record(ctx, p.audit, p.Config); err != nil {
		return err
	}
	// This process has just started, so it has no sessions.
	if err := p.store.ReleaseNodeLeases(ctx, p.node); err != nil {
		return fmt.Errorf("give back the accounts of sessions that are gone: %w", err)
	}
	if p.vault, err = vault.Open(ctx, vault.Options{KeyFile: backup.VaultKeyPath(p.Config), Store: p.store, Now: p.Now,
		Quotas: p.Config.Quotas, Tenants: p.tenants}); err != nil {
		return fmt.Errorf("open the vault: %w", err)
	}
	return nil
}

func (p *plane) openGrants(context.Context) (err error) {
	if p.keyring, err = grant.OpenKeyring(p.own("grants.key"), p.Now); err != nil {
		return fmt.Errorf("read the keys of grants: %w", err)
	}
	limits := grant.DefaultLimits()
	limits.DefaultTTL, limits.MaxTTL = p.Config.Grants.TTL, p.Config.Grants.MaxTTL
	p.grants, err = grant.New(grant.Options{Store: p.store, Keys: p.keyring, Installation: issuer,
		RegistrableDomain: cookies.RegistrableDomain, Limits: limits, Now: p.Now, Audit: p.audit})
	return err
}

func (p *plane) openIdentity(ctx context.Context) error {
	admin, err := identity.LoadAdminKey(hostd.AdminKeyPath(p.Config))
	if err != nil {
		return err
	}
	guesses, _ := p.store.(store.Guesses)
	p.identity, err = identity.Open(ctx, identity.Options{Store: p.store, Guesses: guesses, Admin: admin, Quotas: p.Config.Quotas, Now: p.Now,
		Audit: p.audit, Recheck: identity.DefaultRecheck, RateLimit: identity.DefaultRateLimit()})
	if err != nil {
		return fmt.Errorf("open what is known of operators and agents: %w", err)
	}
	p.counts.Store(p.identity)
	p.nodesSecret = admin.ForNodes()
	return nil
}

func (p *plane) openSignIns(ctx context.Context) (err error) {
	p.signin, err = signin.Open(ctx, signin.Options{Store: p.store, Identity: p.identity, Tag: store.NodeTag(p.node), Idle: p.Config.Console.Idle, Life: p.Config.Console.Life, Now: p.Now})
	if err != nil {
		return fmt.Errorf("open what is known of who is signed in: %w", err)
	}
	return nil
}

// roomForRecords is how much of the database all records may take; 0 leaves it to the log.
func (p *plane) roomForRecords() (int64, error) {
	if p.Config.Quotas.Audit > 0 || p.Config.Database != "" {
		return int64(p.Config.Quotas.Audit), nil
	}
	size, _, err := quota.Disk(hostd.DatabaseDir(p.Config))
	return size / 4, err
}

// tenants is how many tenants there are, as far as it is known.
func (p *plane) tenants() int {
	if s := p.counts.Load(); s != nil {
		return s.Counted()
	}
	return 1
}

// verify compares the audit log with the checkpoints that the host daemon keeps.
func (p *plane) verify(ctx context.Context) (audit.Report, error) {
	keys, err := p.auditKeys(ctx)
	if err != nil {
		return audit.Report{}, err
	}
	return audit.Verify(ctx, p.store, checkpoint.ReadFile(hostd.CheckpointsPath(p.Config)), keys)
}

// auditKeys are those of all nodes.
func (p *plane) auditKeys(ctx context.Context) (checkpoint.Keys, error) {
	keys := checkpoint.Keys{}
	if p.peers != nil {
		var err error
		if keys, err = p.peers.KnownKeys(ctx, p.store); err != nil {
			return nil, err
		}
	}
	maps.Copy(keys, p.key.Keys())
	return keys, nil
}
