package controlplane

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session"
)

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
