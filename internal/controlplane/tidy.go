package controlplane

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// reapedEvery is how often the host daemon is asked what it has reaped, tidyEvery how often what is too old goes. That begins
	// a while after the start: a machine may start with a wrong clock, until NTP has set it.
	reapedEvery = 5 * time.Second
	tidyEvery   = time.Hour
	tidyFirst   = 10 * time.Minute
	// reserveBytes is what the database can still write when others have filled its disk. It is taken a while after the start,
	// and what was used up is replaced.
	reserveBytes = 64 << 20
	reserveFirst = time.Minute
	reserveEvery = 10 * time.Minute
	// recordsOfGone is the duty to tidy the records of nodes that are gone. A node that does it looks every goneEvery, and when a node
	// comes or goes.
	recordsOfGone = "records of nodes that are gone"
	goneEvery     = time.Minute
	// system is the actor of what clawjail does by itself, without a request.
	system = "system"
)

// tidy removes what is too old, and records what the host daemon has reaped by itself, until ctx ends.
func (p *plane) tidy(ctx context.Context) error {
	reaping, old, reserving := time.NewTicker(reapedEvery), time.NewTimer(tidyFirst), time.NewTimer(reserveFirst)
	gone := time.NewTicker(goneEvery)
	defer reaping.Stop()
	defer gone.Stop()
	defer old.Stop()
	defer reserving.Stop()
	var seen reaped
	seen.ask(ctx, p)
	for {
		select {
		case <-reaping.C:
			seen.ask(ctx, p)
		case <-old.C:
			p.removeOld(ctx)
			p.tidyGone(ctx, true)
			old.Reset(tidyEvery)
		case <-gone.C:
			p.tidyGone(ctx, false)
		case <-p.goneLook:
			p.tidyGone(ctx, false)
		case <-reserving.C:
			p.reserve(ctx)
			reserving.Reset(reserveEvery)
		case <-ctx.Done():
			return nil
		}
	}
}

// reserve keeps room for an embedded database, and with it for the audit log, on a disk that others fill. It counts anew what
// tenants hold of it.
func (p *plane) reserve(ctx context.Context) {
	// Other nodes write records, too.
	if err := p.audit.Recount(ctx); err != nil && ctx.Err() == nil {
		p.Log.Warn("count the records of the audit log", "error", err)
	}
	db, embedded := p.store.(interface {
		Reserve(ctx context.Context, bytes int64) error
	})
	if !embedded {
		return
	}
	if err := db.Reserve(ctx, reserveBytes); err != nil && ctx.Err() == nil {
		p.Log.Warn("reserve room on the disk for the database", "error", err)
	}
}

// removeOld removes what was decided about the way out and has expired, grants that expired long ago, sign-ins that are over,
// recordings and audit rows that need not be kept.
func (p *plane) removeOld(ctx context.Context) {
	// A database that does not answer must not keep what the host daemon says from being recorded for ever.
	ctx, cancel := context.WithTimeout(ctx, tidyEvery)
	defer cancel()
	if err := p.book.Tidy(ctx); err != nil && ctx.Err() == nil {
		p.Log.Warn("remove what was decided and has expired", "error", err)
	}
	if n, err := p.grants.Tidy(ctx); err != nil {
		p.Log.Warn("remove old grants, and sign permissions", "error", err)
	} else if n > 0 {
		p.Log.Info("old grants removed", "grants", n)
	}
	if n, err := p.signin.Purge(ctx); err != nil {
		p.Log.Warn("remove old sign-ins", "error", err)
	} else if n > 0 {
		p.Log.Info("old sign-ins removed", "sign_ins", n)
	}
	p.sessions.TidyRecordings()
	if _, err := p.store.DeleteNodesSilent(ctx, nodeKept); err != nil {
		p.Log.Warn("remove nodes that are gone", "error", err)
	}
	keys, err := p.auditKeys(ctx)
	if err != nil {
		p.Log.Warn("read the audit keys of other nodes", "error", err)
	}
	gone, err := p.audit.Trim(ctx, audit.Retention{Keys: keys, OlderThan: p.Now().Add(-p.Config.Audit.Keep), Actor: system, Why: "audit.keep"})
	if err != nil {
		p.Log.Warn("remove old audit rows", "error", err)
	} else if gone.Rows > 0 {
		p.Log.Info("old audit rows removed", "rows", gone.Rows, "from", gone.From, "to", gone.To)
	}
}

// tidyGone closes the intents of nodes that are lost or have stopped and, when old says so, removes old records of those that are not
// listed any more. One node does it for all.
func (p *plane) tidyGone(ctx context.Context, old bool) {
	if p.Config.Database == "" && !old {
		return // a database file has one control plane
	}
	ctx, cancel := context.WithTimeout(ctx, tidyEvery)
	defer cancel()
	duty, err := p.store.TakeDuty(ctx, recordsOfGone, p.node, p.nodeRun, 2*goneEvery)
	if errors.Is(err, store.ErrExists) {
		return
	}
	nodes, listErr := p.store.ListNodes(ctx)
	names, namesErr := p.store.AuditNodes(ctx)
	keys, keysErr := p.auditKeys(ctx)
	if err := errors.Join(err, listErr, namesErr, keysErr); err != nil {
		p.Log.Warn("look for records of nodes that are gone", "error", err)
		return
	}
	for _, name := range names {
		at := slices.IndexFunc(nodes, func(n store.Node) bool { return n.Name == name })
		listed := at >= 0
		if name == p.node || listed && nodes[at].StoppedAt.IsZero() && nodes[at].LostAt.IsZero() {
			continue
		}
		if !listed && !p.silentForLong(ctx, name) {
			continue // of a version that did not say that it is there
		}
		if closed, err := p.audit.CloseIntents(ctx, name); err != nil {
			p.Log.Warn("close the intents of a node that is gone", "node", name, "error", err)
		} else if closed > 0 {
			p.Log.Info("intents of a node that is gone were closed", "node", name, "count", closed)
		}
		if listed || !old {
			continue // it trims its own records when it comes back
		}
		if _, err := p.audit.Trim(ctx, audit.Retention{Node: name, Duty: duty, Keys: keys, OlderThan: p.Now().Add(-p.Config.Audit.Keep), Actor: system, Why: "audit.keep"}); err != nil {
			p.Log.Warn("remove old audit rows of a node that is gone", "node", name, "error", err)
		}
	}
}

// silentForLong says whether the last record of a node is older than a node is listed.
func (p *plane) silentForLong(ctx context.Context, node string) bool {
	last, err := p.store.LastAudit(ctx, node)
	return err == nil && p.Now().Sub(last.Time) > nodeKept
}

// reaped brings what the host daemon has removed by itself into the audit log. The zero value has seen nothing.
type reaped struct {
	instance string
	after    uint64
}

// ask records new entries. Its next call acknowledges them, so none is lost when this
// process dies in between; they are recorded twice then.
func (r *reaped) ask(ctx context.Context, p *plane) {
	ctx, cancel := context.WithTimeout(ctx, hostLimit)
	defer cancel()
	found, err := p.host.Reaped(ctx, r.after)
	if err != nil {
		// While the host daemon is away, everything that needs it says so.
		p.Log.Debug("ask what was reaped", "error", err)
		return
	}
	if found.Instance != r.instance {
		*r = reaped{instance: found.Instance}
	}
	if found.Dropped > 0 && len(found.Entries) > 0 {
		p.audit.Note(audit.Event{Action: "jail.reap", Result: audit.Unknown, Actor: system,
			Detail: audit.NewDetail(audit.Fields{"lost_count": int64(found.Dropped)})})
		r.after = found.Entries[0].Seq - 1
	}
	for _, e := range found.Entries {
		if e.Seq <= r.after {
			continue
		}
		fields := audit.Fields{"reason": string(e.Reason), "what": e.What, "reaped_at": e.At.UTC().Format("2006-01-02T15:04:05.000Z07:00")}
		result := audit.OK
		if e.Error != "" {
			result, fields["error"] = audit.Failed, e.Error
		}
		err := p.audit.Event(ctx, audit.Event{Action: "jail.reap", Result: result, Actor: system, Jail: string(e.Jail), Detail: audit.NewDetail(fields)})
		if err != nil {
			p.Log.Warn("record what was reaped", "jail", e.Jail, "error", err)
			return // asked again
		}
		r.after = e.Seq
	}
}
