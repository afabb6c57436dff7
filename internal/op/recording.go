package op

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session"
)

// RecordingList is the answer to a listing.
type RecordingList struct {
	Recordings []session.Recording `json:"recordings" nullable:"false"`
}

// RecordingNamed names what was recorded of a session.
type RecordingNamed struct {
	ID string `path:"id" maxLength:"64" doc:"the session's id" arg:"1" complete:"recordings"`
}

// ListRecordings lists what was recorded, the largest first.
func ListRecordings() Op[OfTenant, RecordingList] {
	return Op[OfTenant, RecordingList]{Method: http.MethodGet, Path: "/v1/recordings", ID: "list-recordings", Summary: "List what was recorded, the largest first",
		Right:   identity.SessionList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Short: "List recordings, the largest first"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OfTenant) (RecordingList, error) {
			all, err := s.Sessions.ListRecordings(ctx, by, in.Tenant)
			return RecordingList{all}, err
		},
		View: func(all RecordingList) []Block {
			return []Block{table(all.Recordings, []any{"SESSION", "TENANT", "OPENED BY", "LABEL", "RECORD", "SIZE", "BEGAN", "ENDED"}, func(r session.Recording) []any {
				var ended any = ""
				if r.EndedAt != nil {
					ended = *r.EndedAt
				} else if r.Live {
					ended = "live"
				}
				return []any{r.Session, r.Tenant, r.OpenedBy, r.Label, r.Record, Bytes(r.Bytes), r.CreatedAt, ended}
			})}
		}}
}

// RemoveRecording removes what was recorded of a session that has ended.
func RemoveRecording() Op[RecordingNamed, None] {
	return Op[RecordingNamed, None]{Method: http.MethodDelete, Path: "/v1/sessions/{id}/recording", ID: "remove-recording",
		Summary: "Remove what was recorded of a session that has ended", Right: identity.RecordingRemove,
		Command: Command{Use: "rm SESSION…", Aliases: []string{"remove"}, Short: "Remove recordings of sessions that have ended",
			Long: "Removes what was recorded of sessions that have ended, for good. Only an admin of the tenant may, and it is logged: a recording is " +
				"evidence of what was done. The recording of a session that is still recorded is refused.",
			Example: "  clawjail recording rm s_abcdefgh23456789"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in RecordingNamed) (None, error) {
			return None{}, s.Sessions.RemoveRecording(ctx, by, in.ID)
		}}
}
