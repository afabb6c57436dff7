package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/backup"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/vault"
)

const (
	// openLimit bounds opening the database and all that stands on it. A schema that is brought up to date can take long.
	openLimit = 5 * time.Minute
	// recordLimit bounds writing the last records at the end.
	recordLimit = 10 * time.Second
	// reapedEvery is how often the host daemon is asked what it has reaped, tidyEvery how often what is too old goes.
	reapedEvery = 5 * time.Second
	tidyEvery   = time.Hour
	// reserveBytes is what the database can still write when others have filled its disk. It is taken a while after the start,
	// and what was used up is replaced.
	reserveBytes = 64 << 20
	reserveFirst = time.Minute
	reserveEvery = 10 * time.Minute
	// issuer stands in grants. Their keys tell installations apart.
	issuer = "clawjail"
	// system is who does what nobody asked for.
	system = "system"
)

// ring are the keys of an installation and what they open: its database, its audit log, its accounts, and who may.
type ring struct {
	node     string
	keep     time.Duration // of the audit log
	store    store.Store
	log      *audit.Log
	key      *checkpoint.Key
	vault    *vault.Vault
	keyring  *grant.Keyring
	grants   *grant.Issuer
	identity *identity.Service
	signin   *signin.Service
	// counts is identity once it is open: the log is open before it.
	counts atomic.Pointer[identity.Service]
}

// openRing opens everything that the control plane has of identity. The audit log comes first, so that nothing is done
// without it.
func openRing(ctx context.Context, o Options, host *hostd.Client, info hostd.Info) (_ *ring, err error) {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	r := &ring{node: o.Config.Node, keep: o.Config.Audit.Keep}
	if r.node == "" {
		r.node = string(info.Installation)
	}
	own := func(name string) string { return filepath.Join(hostd.ControlDir(o.Config), name) }
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(ctx))
		}
	}()
	if r.key, err = checkpoint.LoadKey(own("audit.key")); err != nil {
		return nil, fmt.Errorf("read the key of the audit log: %w", err)
	}
	if r.store, err = open.Open(ctx, o.Config.Database.Reveal(), o.Config.DataDir); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	room, err := roomForRecords(o.Config)
	if err != nil {
		return nil, err
	}
	r.log, err = audit.Open(ctx, audit.Options{Store: r.store, Node: r.node, SpillPath: own("audit.spill"), Key: r.key,
		Checkpoints: host.Checkpoints(), Room: room, Quotas: o.Config.Quotas, Tenants: r.tenants, Now: o.Now, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	if err := backup.Record(ctx, r.log, o.Config); err != nil {
		return nil, err
	}
	// This process has just started, so it has no sessions.
	if err := r.store.ReleaseNodeLeases(ctx, r.node); err != nil {
		return nil, fmt.Errorf("give back the accounts of sessions that are gone: %w", err)
	}
	if r.vault, err = vault.Open(ctx, vault.Options{KeyFile: backup.VaultKeyPath(o.Config), Store: r.store, Now: o.Now,
		Quotas: o.Config.Quotas, Tenants: r.tenants}); err != nil {
		return nil, fmt.Errorf("open the vault: %w", err)
	}
	if r.keyring, err = grant.OpenKeyring(own("grants.key"), o.Now); err != nil {
		return nil, fmt.Errorf("read the keys of grants: %w", err)
	}
	limits := grant.DefaultLimits()
	limits.DefaultTTL, limits.MaxTTL = o.Config.Grants.TTL, o.Config.Grants.MaxTTL
	r.grants, err = grant.New(grant.Options{Store: r.store, Keys: r.keyring, Installation: issuer,
		RegistrableDomain: cookies.RegistrableDomain, Limits: limits, Now: o.Now, Audit: Records{r.log}.Grant, Begin: Records{r.log}.BeginGrant})
	if err != nil {
		return nil, err
	}
	admin, err := identity.LoadAdminKey(hostd.AdminKeyPath(o.Config))
	if err != nil {
		return nil, err
	}
	r.identity, err = identity.Open(ctx, identity.Options{Store: r.store, Admin: admin, Quotas: o.Config.Quotas, Now: o.Now, Audit: Records{r.log}.Identity, Begin: Records{r.log}.BeginIdentity,
		Recheck: identity.DefaultRecheck, Brake: identity.DefaultBrake()})
	if err != nil {
		return nil, fmt.Errorf("open what is known of operators and agents: %w", err)
	}
	r.counts.Store(r.identity)
	r.signin, err = signin.Open(ctx, signin.Options{Store: r.store, Identity: r.identity, Idle: o.Config.Console.Idle, Life: o.Config.Console.Life, Now: o.Now})
	if err != nil {
		return nil, fmt.Errorf("open what is known of who is signed in: %w", err)
	}
	return r, nil
}

// roomForRecords is how much of the database all records may take; 0 leaves it to the log.
func roomForRecords(c config.Config) (int64, error) {
	if c.Quotas.Audit > 0 || c.Database != "" {
		return int64(c.Quotas.Audit), nil
	}
	size, _, err := quota.Disk(hostd.DatabaseDir(c))
	return size / 4, err
}

// tenants is how many tenants there are, as far as it is known.
func (r *ring) tenants() int {
	if s := r.counts.Load(); s != nil {
		return s.Counted()
	}
	return 1
}

// close ends what is there, the database last.
func (r *ring) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	var errs []error
	if r.signin != nil {
		r.signin.Close()
	}
	if r.identity != nil {
		r.identity.Close()
	}
	if r.log != nil {
		if err := r.log.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close the audit log: %w", err))
		}
	}
	if r.store != nil {
		if err := r.store.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the database: %w", err))
		}
	}
	return errors.Join(errs...)
}

// verify compares the audit log with the checkpoints that the host daemon keeps.
func (r *ring) verify(checkpoints string) func(context.Context) (audit.Report, error) {
	return func(ctx context.Context) (audit.Report, error) {
		return audit.Verify(ctx, r.store, checkpoint.ReadFile(checkpoints), r.key.Keys())
	}
}

// tidy removes what is too old, and records what the host daemon has reaped by itself, until ctx ends.
func (r *ring) tidy(ctx context.Context, host *hostd.Client, book *egress.Book, now func() time.Time, log *slog.Logger) {
	reaping, old, reserving := time.NewTicker(reapedEvery), time.NewTicker(tidyEvery), time.NewTimer(reserveFirst)
	defer reaping.Stop()
	defer old.Stop()
	defer reserving.Stop()
	var seen reaped
	seen.ask(ctx, host, r.log, log)
	r.removeOld(ctx, book, now(), log)
	for {
		select {
		case <-reaping.C:
			seen.ask(ctx, host, r.log, log)
		case <-old.C:
			r.removeOld(ctx, book, now(), log)
		case <-reserving.C:
			r.reserve(ctx, log)
			reserving.Reset(reserveEvery)
		case <-ctx.Done():
			return
		}
	}
}

// reserve keeps room for an embedded database, and with it for the audit log, on a disk that others fill. It counts anew what
// tenants hold of it.
func (r *ring) reserve(ctx context.Context, log *slog.Logger) {
	// Other nodes write records, too.
	if err := r.log.Recount(ctx); err != nil && ctx.Err() == nil {
		log.Warn("count the records of the audit log", "error", err)
	}
	db, embedded := r.store.(interface {
		Reserve(ctx context.Context, bytes int64) error
	})
	if !embedded {
		return
	}
	if err := db.Reserve(ctx, reserveBytes); err != nil && ctx.Err() == nil {
		log.Warn("reserve room on the disk for the database", "error", err)
	}
}

// removeOld removes what was decided about the way out and has expired, grants that expired long ago, sign-ins that are over, and
// audit rows that need not be kept.
func (r *ring) removeOld(ctx context.Context, book *egress.Book, now time.Time, log *slog.Logger) {
	if err := book.Tidy(ctx); err != nil && ctx.Err() == nil {
		log.Warn("remove what was decided and has expired", "error", err)
	}
	if n, err := r.grants.Purge(ctx); err != nil {
		log.Warn("remove old grants", "error", err)
	} else if n > 0 {
		log.Info("old grants removed", "grants", n)
	}
	if n, err := r.signin.Purge(ctx); err != nil {
		log.Warn("remove old sign-ins", "error", err)
	} else if n > 0 {
		log.Info("old sign-ins removed", "sign_ins", n)
	}
	gone, err := r.log.Trim(ctx, audit.Retention{OlderThan: now.Add(-r.keep), Actor: system, Why: "audit.keep"})
	if err != nil {
		log.Warn("remove old audit rows", "error", err)
	} else if gone.Rows > 0 {
		log.Info("old audit rows removed", "rows", gone.Rows, "from", gone.From, "to", gone.To)
	}
}

// Records is the audit log as sessions, grants, identity, tasks and MCP servers write it.
type Records struct{ *audit.Log }

// Begin implements session.Records.
func (r Records) Begin(ctx context.Context, i audit.Intent) (session.Record, error) {
	p, err := r.Log.Begin(ctx, i)
	if err != nil {
		return nil, err // and no record: a nil *Pending would be one
	}
	return p, nil
}

// BeginEnding implements session.Records.
func (r Records) BeginEnding(i audit.Intent) session.Record { return r.Log.BeginEnding(i) }

// pending writes an intent down for who has its outcome later.
func (r Records) pending(ctx context.Context, in audit.Intent) (end func(audit.Outcome), err error) {
	p, err := r.Log.Begin(ctx, in)
	return p.End, err
}

// Grant writes an event of a grant down. A refusal is a no whether it is written or not, so nobody waits for it.
func (r Records) Grant(ctx context.Context, e grant.Event) error {
	return r.event(ctx, e.Action == "grant.revoke", ofGrant(e))
}

// BeginGrant writes down what is about to be done with a grant.
func (r Records) BeginGrant(ctx context.Context, e grant.Event) (func(string), error) {
	return r.begin(ctx, ofGrant(e))
}

func ofGrant(e grant.Event) audit.Event {
	fields := audit.Fields{"domains": audit.Names(e.Domains), "domain_count": len(e.Domains)}
	if e.Code != "" {
		fields["code"] = e.Code
	}
	if e.Access != "" {
		fields["access"], fields["expires_at"] = e.Access, e.ExpiresAt.UTC().Format(time.RFC3339)
		fields["egress_domains"], fields["egress_domain_count"] = audit.Names(e.EgressDomains), len(e.EgressDomains)
	}
	return audit.Event{Action: e.Action, Result: audit.Result(e.Result), Tenant: e.Tenant,
		Actor: e.Actor, Session: e.Session, Target: e.Grant, Detail: audit.NewDetail(fields)}
}

// Identity writes an event about who may down.
func (r Records) Identity(ctx context.Context, e identity.Event) error {
	return r.event(ctx, e.Ending, ofIdentity(e))
}

// BeginIdentity writes down what is about to be done about who may.
func (r Records) BeginIdentity(ctx context.Context, e identity.Event) (func(string), error) {
	return r.begin(ctx, ofIdentity(e))
}

func ofIdentity(e identity.Event) audit.Event {
	fields := audit.Fields{}
	for name, value := range e.Facts {
		if value != "" {
			fields[name] = value
		}
	}
	for name, value := range map[string]string{"reason": e.Reason, "presented": e.KeyHint} {
		if value != "" {
			fields[name] = value
		}
	}
	if e.Remote.IsValid() {
		fields["remote"] = e.Remote.String()
	}
	return audit.Event{Action: e.Action, Result: audit.Result(e.Result), Tenant: e.Tenant,
		Actor: e.Actor, Target: e.Target, Detail: audit.NewDetail(fields)}
}

// begin writes an intent down, and end its outcome.
func (r Records) begin(ctx context.Context, e audit.Event) (end func(result string), err error) {
	pending, err := r.pending(ctx, intentOf(e))
	return func(result string) { pending(audit.Outcome{Result: audit.Result(result)}) }, err
}

func intentOf(e audit.Event) audit.Intent {
	return audit.Intent{Action: e.Action, Tenant: e.Tenant, Actor: e.Actor, Session: e.Session, Jail: e.Jail, Target: e.Target, Detail: e.Detail}
}

// event writes an event down. An ending happens in any case, so its record finds a place in any case; a refusal is a no
// whether it is written or not.
func (r Records) event(ctx context.Context, ending bool, e audit.Event) error {
	switch {
	case e.Result == audit.Refused:
		r.Log.Note(e)
		return nil
	case ending:
		r.Log.BeginEnding(intentOf(e)).End(audit.Outcome{Result: e.Result})
		return nil
	}
	return r.Log.Event(ctx, e)
}
