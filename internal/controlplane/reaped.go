package controlplane

import (
	"context"
	"log/slog"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/hostd"
)

// reaped brings what the host daemon has removed by itself into the audit log. The zero value has seen nothing.
type reaped struct {
	instance string
	after    uint64
	dropped  uint64
}

// ask records what is new. What it has recorded is acknowledged with the next question, so nothing is lost when this
// process dies in between; it is recorded twice then.
func (r *reaped) ask(ctx context.Context, host *hostd.Client, records *audit.Log, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, hostLimit)
	defer cancel()
	found, err := host.Reaped(ctx, r.after)
	if err != nil {
		// While the host daemon is away, everything that needs it says so.
		log.Debug("ask what was reaped", "error", err)
		return
	}
	if found.Instance != r.instance {
		*r = reaped{instance: found.Instance}
	}
	if lost := found.Dropped - r.dropped; lost > 0 {
		records.Note(audit.Event{Action: "jail.reap", Result: audit.Unknown, Actor: system,
			Detail: audit.NewDetail(audit.Fields{"lost_count": int64(lost)})})
		r.dropped = found.Dropped
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
		err := records.Event(ctx, audit.Event{Action: "jail.reap", Result: result, Actor: system, Jail: string(e.Jail), Detail: audit.NewDetail(fields)})
		if err != nil {
			log.Warn("record what was reaped", "jail", e.Jail, "error", err)
			return // asked again
		}
		r.after = e.Seq
	}
}
