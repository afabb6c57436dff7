package op

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// AuditFilter is the part of a query that listings and tails share on the command line. Empty fields match all.
type AuditFilter struct {
	Tenant  string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own when it is left out; of a caller of all tenants, all" flag:"tenant"`
	Action  string `query:"action" maxLength:"128" doc:"such as grant.issue; with a dot at its end, all that begin so: session." flag:"action" value:"action" usage:"rows of this action only, such as grant.issue; session. stands for all that begin so"`
	Actor   string `query:"actor" maxLength:"128" doc:"admin, system, operator:ID or agent:ID" flag:"actor" value:"actor" usage:"rows of this actor only: admin, system, operator:ID or agent:ID"`
	Session string `query:"session" maxLength:"128" flag:"session" value:"session" usage:"rows about this session only" complete:"sessions"`
	Jail    string `query:"jail" maxLength:"128"`
	Phase   string `query:"phase" enum:"intent,outcome,event,tombstone"`
	Result  string `query:"result" enum:"ok,refused,failed,unknown" flag:"result" usage:"rows with this result only: ok, refused, failed or unknown"`
	Ref     string `query:"ref" maxLength:"128" doc:"the id of an intent: its outcome"`
	Node    string `query:"node" maxLength:"128" flag:"node" value:"node" usage:"rows of this node only"`
}

// AuditQuery selects records.
type AuditQuery struct {
	AuditFilter
	Since    time.Time `query:"since" doc:"not before this time (RFC 3339)" flag:"since" value:"time" usage:"rows from this time on"`
	Until    time.Time `query:"until" doc:"before this time (RFC 3339)" flag:"until" value:"time" usage:"rows before this time"`
	AfterSeq int64     `query:"after_seq" minimum:"0" doc:"with a node: the first rows behind this one, instead of the newest"`
	Limit    int       `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many rows" flag:"limit" value:"number" usage:"number of rows to show, at most 1000" is:"positive"`
	Follow   bool      `query:"follow" doc:"in a tail: go on with rows as they are written"`
}

// AuditRow is one record of the audit log.
type AuditRow struct {
	Node    string    `json:"node"`
	Seq     int64     `json:"seq" doc:"from 1, without gaps, per node"`
	Time    time.Time `json:"time"`
	ID      string    `json:"id"`
	Ref     string    `json:"ref,omitempty" doc:"in an outcome, the id of its intent"`
	Phase   string    `json:"phase" doc:"intent, outcome, event or tombstone"`
	Action  string    `json:"action" doc:"session.open, grant.issue and so on"`
	Result  string    `json:"result,omitempty" doc:"ok, refused, failed or unknown; missing in an intent"`
	Tenant  string    `json:"tenant,omitempty"`
	Actor   string    `json:"actor,omitempty" doc:"admin, system, operator:ID or agent:ID"`
	Session string    `json:"session,omitempty"`
	Jail    string    `json:"jail,omitempty"`
	Target  string    `json:"target,omitempty" doc:"the object of the action"`
	// Detail is an object; a text when the row was changed into something that is none.
	Detail   json.RawMessage `json:"detail,omitempty" doc:"further facts"`
	PrevHash string          `json:"prev_hash" doc:"hash of the row before, in hex"`
	Hash     string          `json:"hash"`
}

// AuditRows is the answer to a search, oldest first.
type AuditRows struct {
	Rows []AuditRow `json:"rows" nullable:"false"`
}

// AuditRowOf is a record as it is answered.
func AuditRowOf(r audit.Row) AuditRow {
	out := AuditRow{
		Node: r.Node, Seq: r.Seq, Time: r.Time, ID: r.ID, Ref: r.Ref, Phase: r.Phase, Action: r.Action, Result: r.Result, Tenant: r.Tenant,
		Actor: r.Actor, Session: r.Session, Jail: r.Jail, Target: r.Target, PrevHash: hex.EncodeToString(r.PrevHash), Hash: hex.EncodeToString(r.Hash),
	}
	switch {
	case json.Valid(r.Detail):
		out.Detail = r.Detail
	case len(r.Detail) > 0:
		// Somebody changed it. The row is shown all the same.
		out.Detail, _ = json.Marshal(string(r.Detail)) // a text can always be written
	}
	return out
}

// Cells are the columns of a row as people read it.
func (r AuditRow) Cells() []any {
	detail := string(r.Detail)
	if detail == "{}" {
		detail = "" // nothing to say
	}
	return []any{r.Time, r.Action, cmp.Or(r.Result, r.Phase), r.Actor, r.Tenant, r.Session, r.Target, detail} // an intent has no result
}

// Filter is what a query selects for a caller: of the records of one tenant, for a caller of one.
func (q AuditQuery) Filter(ctx context.Context, s Audit, by identity.Principal) (audit.Filter, error) {
	tenant, err := s.Selection(ctx, by, q.Tenant)
	if err != nil {
		return audit.Filter{}, err
	}
	if q.AfterSeq > 0 && q.Node == "" {
		return audit.Filter{}, problem.New(problem.BadRequest, "name the node: every node has numbers of its own", "after_seq needs node")
	}
	out := audit.Filter{
		Node: q.Node, Tenant: tenant, Actor: q.Actor, Session: q.Session, Jail: q.Jail, Phase: q.Phase, Result: q.Result, Ref: q.Ref,
		Since: q.Since, Until: q.Until, AfterSeq: q.AfterSeq, Limit: q.Limit, Newest: q.AfterSeq == 0,
	}
	if strings.HasSuffix(q.Action, ".") {
		out.ActionPrefix = q.Action
	} else {
		out.Action = q.Action
	}
	return out, nil
}

// ListAudit finds the newest records that a query selects, oldest first.
func ListAudit() Op[AuditQuery, AuditRows] {
	return Op[AuditQuery, AuditRows]{Method: http.MethodGet, Path: "/v1/audit", ID: "list-audit", Summary: "Search the audit log", Right: identity.AuditRead,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Short: "Find rows",
			Long: "Finds rows, and shows the newest of them, oldest first. A time is a duration before now, such as 1h, or written " +
				"as 2026-01-02T15:04:05Z.",
			Example: "  clawjail audit ls --since 1h --result refused\n  clawjail audit ls --session s_abcdefgh23456789 --json"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in AuditQuery) (AuditRows, error) {
			if in.Follow {
				return AuditRows{}, problem.New(problem.BadRequest, "use /v1/audit/tail", "follow works with the tail only")
			}
			filter, err := in.Filter(ctx, s.Audit, by)
			if err != nil {
				return AuditRows{}, err
			}
			rows, err := s.Audit.List(ctx, filter)
			return AuditRows{listOf(rows, AuditRowOf)}, err
		},
		View: func(all AuditRows) []Block {
			out := table(all.Rows, []any{"TIME", "ACTION", "RESULT", "ACTOR", "TENANT", "SESSION", "TARGET", "DETAIL"}, AuditRow.Cells)
			out.Folds = 5
			return []Block{out}
		}}
}

// VerifyAudit compares the log with its checkpoints. The report says what is wrong with the log; an error says that it
// could not be verified.
func VerifyAudit() Op[None, audit.Report] {
	return Op[None, audit.Report]{Method: http.MethodPost, Path: "/v1/audit/verify", ID: "verify-audit", Summary: "Verify that no record was changed", Right: identity.AuditVerify,
		Call: func(ctx context.Context, s Backend, by identity.Principal, _ None) (audit.Report, error) {
			report, err := s.Audit.Verify(ctx, by)
			report.Nodes = listOf(report.Nodes, same)
			return report, err
		}}
}
