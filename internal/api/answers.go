package api

import (
	"encoding/json"
	"time"
)

// list is never null in JSON.
func list[T any](all []T) []T { return append([]T{}, all...) }

// AuditRow is one record of the audit log.
type AuditRow struct {
	Node    string    `json:"node"`
	Seq     int64     `json:"seq" doc:"from 1, without gaps, per node"`
	Time    time.Time `json:"time"`
	ID      string    `json:"id"`
	Ref     string    `json:"ref,omitempty" doc:"of an outcome, the id of its intent"`
	Phase   string    `json:"phase" doc:"intent, outcome, event or tombstone"`
	Action  string    `json:"action" doc:"session.open, grant.issue and so on"`
	Result  string    `json:"result,omitempty" doc:"ok, refused, failed or unknown; missing in an intent"`
	Tenant  string    `json:"tenant,omitempty"`
	Actor   string    `json:"actor,omitempty" doc:"admin, system, operator:ID or agent:ID"`
	Session string    `json:"session,omitempty"`
	Jail    string    `json:"jail,omitempty"`
	Target  string    `json:"target,omitempty" doc:"what it was done to"`
	// Detail is an object; a text when the row was changed into something that is none.
	Detail   json.RawMessage `json:"detail,omitempty" doc:"further facts"`
	PrevHash string          `json:"prev_hash" doc:"of the row before, in hex"`
	Hash     string          `json:"hash"`
}

// AuditRows is the answer to a search, oldest first.
type AuditRows struct {
	Rows []AuditRow `json:"rows" nullable:"false"`
}
