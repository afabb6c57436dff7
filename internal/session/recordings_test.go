package session

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/store"
)

// noTenants is an authority for which no tenant exists.
type noTenants struct{ Authority }

func (noTenants) AuthorizeWith(context.Context, identity.Principal, identity.Operation, identity.Object) error {
	return problem.New(problem.NotFound, "", "there is no tenant of that name")
}

// A recording can be removed before its week is over: by an admin of the tenant, on record, when the session has ended.
func TestARecordingIsRemovedByWhoMay(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *fixture, s *Service) {
		of := func(kind identity.Kind, tenant string, role identity.Role) identity.Principal {
			return identity.Principal{Kind: kind, ID: "x", Tenant: tenant, Role: role}
		}
		tenant := of(identity.KindOperator, store.DefaultTenant, identity.RoleAdmin)
		out, other := mustOpen(t, s, OpenRequest{Record: RecordAudit}), mustOpen(t, s, OpenRequest{Record: RecordAudit})
		wantCode(t, s.RemoveRecording(t.Context(), tenant, out.ID), problem.Conflict)
		for _, id := range []string{out.ID, other.ID} {
			if _, err := s.Close(t.Context(), admin, id); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		before := s.Held(quota.Holder{Tenant: store.DefaultTenant})[1].Held.Tenant
		all, err := s.ListRecordings(t.Context(), tenant, "")
		if err != nil || len(all) != 2 || all[0].Bytes+all[1].Bytes != before || all[0].Live || all[0].EndedAt == nil {
			t.Errorf("%+v of %d bytes, %v", all, before, err)
		}
		// Those of a tenant that does not exist any more are there still.
		authority := s.Authority
		s.Authority = noTenants{authority}
		if of, err := s.ListRecordings(t.Context(), admin, store.DefaultTenant); err != nil || len(of) != 2 {
			t.Errorf("of a tenant that was removed: %+v, %v", of, err)
		}
		_, err = s.ListRecordings(t.Context(), admin, "rival")
		wantCode(t, err, problem.NotFound)
		s.Authority = authority
		for _, who := range []identity.Principal{
			of(identity.KindOperator, store.DefaultTenant, identity.RoleOperator), of(identity.KindOperator, store.DefaultTenant, identity.RoleViewer),
			of(identity.KindAgent, store.DefaultTenant, ""),
		} {
			wantCode(t, s.RemoveRecording(t.Context(), who, out.ID), problem.Forbidden)
		}
		rival := of(identity.KindOperator, "rival", identity.RoleAdmin)
		for _, id := range []string{out.ID, "s_aaaaaaaaaaaaaaaa", "../../x", ""} {
			wantCode(t, s.RemoveRecording(t.Context(), rival, id), problem.NotFound)
		}
		if all, err := s.ListRecordings(t.Context(), rival, ""); err != nil || len(all) != 0 {
			t.Errorf("others see %+v, %v", all, err)
		}
		w.failOnce("record recording.remove", problem.New(problem.AuditUnavailable, "", "the log is full"))
		wantCode(t, s.RemoveRecording(t.Context(), tenant, out.ID), problem.AuditUnavailable)
		if err := s.WriteRecording(t.Context(), admin, out.ID, io.Discard); err != nil {
			t.Errorf("it is gone without a record: %v", err)
		}
		if err := s.RemoveRecording(t.Context(), tenant, out.ID); err != nil {
			t.Fatal(err)
		}
		wantCode(t, s.RemoveRecording(t.Context(), tenant, out.ID), problem.NotFound)
		if err := s.WriteRecording(t.Context(), admin, other.ID, io.Discard); err != nil {
			t.Errorf("the other one: %v", err)
		}
		if after := s.Held(quota.Holder{Tenant: store.DefaultTenant})[1].Held.Tenant; after != before/2 {
			t.Errorf("%d bytes are counted, of %d before", after, before)
		}
		if trail := strings.Join(w.trail, "\n"); strings.Count(trail, "outcome recording.remove ok") != 1 || !strings.Contains(trail, "outcome recording.remove refused") {
			t.Errorf("on record is\n%s", trail)
		}
	})
}
