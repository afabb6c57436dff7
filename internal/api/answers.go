package api

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/vault"
)

// list is never null in JSON.
func list[T any](all []T) []T { return append([]T{}, all...) }

// CookieSets is the answer to a listing, and to a capture.
type CookieSets struct {
	Sets []vault.CookieSet `json:"sets" nullable:"false"`
}

// Agent is an identity of programs in jails.
type Agent struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Tenant    string    `json:"tenant"`
	CreatedAt time.Time `json:"created_at"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	// The rest is there where a jail is declared for it.
	Declares  bool       `json:"is_declared,omitempty" doc:"whether a jail is declared for it; without one it is an identity alone"`
	Jail      *AgentJail `json:"jail,omitempty" doc:"the jail that is kept for it"`
	Unwatched bool       `json:"is_unwatched,omitempty" doc:"whether a jail is declared for it that nobody watches, because the host daemon does not answer"`
	Processes int        `json:"processes,omitempty" doc:"programs that were started for it and have not ended"`
}

// Agents is the answer to a listing.
type Agents struct {
	Agents []Agent `json:"agents" nullable:"false"`
	// JailsUnknown is there when nobody could say what jails there are.
	JailsUnknown *Problem `json:"jails_unknown,omitempty" doc:"why it is not known what jails are kept; missing when it is"`
}

// IssuedAgent is a new agent with its first token, which is told once. It prints without the token.
type IssuedAgent struct {
	Key       string    `json:"key" doc:"its token; it is told once"`
	Agent     Agent     `json:"agent"`
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"when the token ends; missing when it does not"`
}

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

// Format implements fmt.Formatter, for every verb.
func (i IssuedAgent) Format(f fmt.State, _ rune) { op.WithoutKey(f, "agent "+i.Agent.ID) }

// LogValue implements slog.LogValuer.
func (i IssuedAgent) LogValue() slog.Value { return slog.StringValue("agent " + i.Agent.ID) }
