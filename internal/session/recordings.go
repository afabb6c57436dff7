package session

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session/recording"
)

// Recording is what was recorded of a session.
type Recording struct {
	Session   string         `json:"session"`
	Tenant    string         `json:"tenant"`
	Agent     string         `json:"agent,omitempty" doc:"the id of the agent that opened the session"`
	OpenedBy  string         `json:"opened_by"`
	Label     string         `json:"label,omitempty"`
	Record    recording.Kind `json:"record" enum:"transient,audit"`
	CreatedAt time.Time      `json:"created_at"`
	EndedAt   *time.Time     `json:"ended_at,omitempty"`
	Live      bool           `json:"live" doc:"the session is still recorded"`
	Bytes     int64          `json:"bytes" doc:"bytes that the recording takes on the disk"`
}

// ListRecordings lists the recordings of a tenant, or all that the caller may see, the largest first.
func (s *Service) ListRecordings(ctx context.Context, by identity.Principal, tenant string) ([]Recording, error) {
	tenant = by.Among(tenant)
	refused := s.Authority.AuthorizeWith(ctx, by, identity.SessionList, identity.Object{Tenant: tenant, Agent: by.AgentID()})
	if refused != nil && !by.LacksTenant(refused) {
		return nil, refused
	}
	all, err := s.shelf.List(tenant)
	if err != nil {
		return nil, err
	}
	out := []Recording{}
	for _, m := range all {
		if identity.CanWith(by, identity.SessionList, objectOf(m)) != nil {
			continue
		}
		out = append(out, Recording{Session: m.Session, Tenant: m.Tenant, Agent: m.Agent, OpenedBy: m.OpenedBy, Label: m.Label, Record: m.Kind,
			CreatedAt: m.Created, EndedAt: m.Ended, Live: s.shelf.Live(m), Bytes: s.shelf.Bytes(m)})
	}
	if refused != nil && len(out) == 0 { // those of a tenant that was removed are there for a while
		return nil, refused
	}
	slices.SortStableFunc(out, func(a, b Recording) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out, nil
}

func objectOf(m recording.Meta) identity.Object {
	return identity.Object{Tenant: m.Tenant, Agent: m.Agent, Session: m.Session}
}

// recorded is the recording of a session, for somebody who may do something with it. The code is not_found for one of others',
// as for one that does not exist.
func (s *Service) recorded(ctx context.Context, by identity.Principal, op identity.Operation, id string) (recording.Meta, error) {
	meta, err := s.shelf.Find(id)
	object := identity.Object{Tenant: by.TenantOr(""), Agent: by.AgentID(), Session: id}
	if err == nil {
		object = objectOf(meta)
	}
	// The difference between "may not" and "is not" must not tell that it exists.
	if refused := s.Authority.AuthorizeWith(ctx, by, op, object); refused != nil && problem.CodeOf(refused) != problem.NotFound {
		return meta, refused
	} else if refused != nil || err != nil {
		return meta, problem.New(problem.NotFound, "list them: clawjail recording ls; only those with record audit are kept",
			"there is no recording of session %s", quote(id))
	}
	return meta, nil
}

// RemoveRecording removes what was recorded of a session that has ended. It is on record who did, and of whose.
func (s *Service) RemoveRecording(ctx context.Context, by identity.Principal, id string) error {
	meta, err := s.recorded(ctx, by, identity.RecordingRemove, id)
	if err != nil {
		return err
	}
	pending, err := s.Records.Begin(ctx, audit.Intent{Action: string(identity.RecordingRemove), Tenant: meta.Tenant, Actor: by.Actor(), Session: meta.Session,
		Target: meta.Session, Detail: audit.NewDetail(audit.Fields{"opened_by": clip(meta.OpenedBy), "bytes": s.shelf.Bytes(meta)})})
	if err != nil {
		return err
	}
	err = s.shelf.Remove(meta)
	out := audit.OutcomeOf(err, nil)
	if problem.CodeOf(err) == problem.Conflict {
		out.Result = audit.Refused
	}
	pending.End(out)
	return err
}
