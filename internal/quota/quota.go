// Package quota bounds what one tenant, and one agent, may hold of what an installation has once: places for sessions, room
// for recordings. The package that gives such a thing away counts it, and asks here.
//
// While an installation has one tenant, that one may hold everything. Once there are more, each may hold quotas.tenant of the
// whole: no tenant takes the rest from the others. An agent may always hold quotas.agent of what its tenant may, so that people
// find something left. Shares are rounded down, to one at least.
package quota

import (
	"context"
	"fmt"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// Kind is one of the things that are divided.
type Kind struct {
	Name  string // in the plural, as people read it
	Bytes bool   // it is counted in bytes
	Code  string // of a refusal
	Hint  string // what a holder of too much can do
	Key   string // where the configuration has the whole; empty where it does not
}

// Sessions are those that are open.
func Sessions() Kind {
	return Kind{Name: "sessions", Code: problem.TooManySessions, Hint: "close one: clawjail session ls", Key: "sessions.max"}
}

// ClosingSessions are those whose jails are being removed.
func ClosingSessions() Kind {
	return Kind{Name: "sessions that are still being removed", Code: problem.TooManySessions, Hint: "wait a moment and try again", Key: "sessions.max"}
}

// Recordings are what is on the disk of sessions that are recorded.
func Recordings() Kind {
	return Kind{Name: "recordings", Bytes: true, Code: problem.DiskFull, Key: "quotas.recordings",
		Hint: "close the session; those for audit go after a week, or with clawjail recording rm"}
}

// Records are those of the audit log. A holder without room for them does nothing that has to be recorded.
func Records() Kind {
	return Kind{Name: "records of audit", Bytes: true, Code: problem.AuditUnavailable, Key: "quotas.audit",
		Hint: "ask an admin of the installation to shorten audit.keep"}
}

// Accounts are cookie sets in the vault.
func Accounts() Kind {
	return Kind{Name: "accounts", Code: problem.PoolExhausted, Hint: "remove some: clawjail cookies ls"}
}

// Secrets are those in the vault.
func Secrets() Kind {
	return Kind{Name: "secrets", Code: problem.PoolExhausted, Hint: "remove some: clawjail secret ls"}
}

// VaultBytes are what accounts and secrets take together.
func VaultBytes() Kind {
	return Kind{Name: "accounts and secrets", Bytes: true, Code: problem.DiskFull, Hint: "remove accounts that nobody needs: clawjail cookies ls"}
}

// Connections are requests and streams of the API, of MCP and of the console.
func Connections() Kind {
	return Kind{Name: "requests under way", Code: problem.RateLimited, Hint: "end some of them first"}
}

// KeptConnections are those to the API that stay open for the next request.
func KeptConnections() Kind {
	return Kind{Name: "connections to the API", Code: problem.RateLimited, Hint: "close connections that are not needed"}
}

// Bodies are the bodies of requests and answers that the gateway, or the API, holds in memory.
func Bodies() Kind {
	return Kind{Name: "large requests under way", Bytes: true, Code: problem.RateLimited,
		Hint: "Wait until the large requests that are under way have ended, or ask for less at once"}
}

// Answers are answers of models that the gateway keeps in memory, so that the next request can refer to them.
func Answers() Kind {
	return Kind{Name: "answers of models in memory", Bytes: true, Code: problem.RateLimited, Hint: "the oldest are forgotten"}
}

// Messages are the messages of DevTools clients that are in memory: those that wait to be read, and large ones under way.
func Messages() Kind {
	return Kind{Name: "messages of DevTools clients", Bytes: true, Code: problem.RateLimited,
		Hint: "read what waits, or end clients that do not read"}
}

// ServerMessages are the large messages of MCP servers that are in memory while they are read.
func ServerMessages() Kind {
	return Kind{Name: "large answers of MCP servers", Bytes: true, Code: problem.RateLimited, Hint: "ask for less at once"}
}

// Servers are MCP servers that run.
func Servers() Kind {
	return Kind{Name: "MCP servers", Code: problem.PoolExhausted, Hint: "wait until some have ended by themselves, or lower idle"}
}

// WaysOut are the connections of jails to the gateway.
func WaysOut() Kind {
	return Kind{Name: "connections to the gateway", Code: problem.RateLimited, Hint: "Close connections that are not needed, then retry"}
}

// AgentCalls are requests that wait for an agent: until it prints, reads what is typed, answers a webhook, or is measured.
func AgentCalls() Kind {
	return Kind{Name: "requests that wait for an agent", Code: problem.RateLimited, Hint: "end some of them first"}
}

// Agents are those that have a jail kept for them.
func Agents() Kind {
	return Kind{Name: "kept agents", Code: problem.PoolExhausted, Hint: "remove some: clawjail agent remove NAME"}
}

// State is what agents may write to their volumes at /state.
func State() Kind {
	return Kind{Name: "state of agents", Bytes: true, Code: problem.DiskFull,
		Hint: "give agents a smaller limits.state, or remove what agents have left: clawjail agent remove NAME"}
}

// Workspaces are what agents have on the disk in folders of the host, and WorkspaceFiles how many files that is.
func Workspaces() Kind {
	return Kind{Name: "files in workspaces", Bytes: true, Code: problem.DiskFull, Hint: "remove some of what is in its workspaces"}
}

// WorkspaceFiles are the files of [Workspaces] by number.
func WorkspaceFiles() Kind {
	k := Workspaces()
	k.Bytes = false
	return k
}

// Memory is what jails may take of memory, as their limits say, together.
func Memory() Kind {
	return Kind{Name: "memory of jails, as declared", Bytes: true, Code: problem.PoolExhausted, Key: "quotas.memory",
		Hint: "end jails that are not needed, or give them a smaller limits.memory"}
}

// Holder holds a part of something shared: a tenant, or an agent of it.
type Holder struct {
	Tenant string
	Agent  string // empty: people of the tenant
}

// Held is how much is held: in all, by a tenant, and by an agent of it.
type Held struct{ All, Tenant, Agent int64 }

// Count adds n of one holder to the sums that another one asks for.
func (h *Held) Count(asks, holds Holder, n int64) {
	h.All += n
	if asks.Tenant == holds.Tenant {
		h.Tenant += n
		if asks.Agent == holds.Agent {
			h.Agent += n
		}
	}
}

// Bounds are the most that may be held.
type Bounds Held

// Divide says what a tenant, and an agent of it, may hold of a whole.
func Divide(q config.Quotas, whole int64, tenants int) Bounds {
	b := Bounds{All: whole, Tenant: whole}
	if tenants > 1 {
		b.Tenant = part(whole, q.Tenant)
	}
	b.Agent = part(b.Tenant, q.Agent)
	return b
}

// part is some percent of a whole. It does not overflow.
func part(whole int64, percent int) int64 {
	return max(1, whole/100*int64(percent)+whole%100*int64(percent)/100)
}

// Check is an error when the holder asks may not hold more.
func (b Bounds) Check(k Kind, asks Holder, held Held, more int64) error {
	switch {
	case asks.Agent != "" && held.Agent+more > b.Agent:
		return b.refuse(k, "this agent", held.Agent, b.Agent, "quotas.agent")
	case held.Tenant+more > b.Tenant && b.Tenant < b.All:
		return b.refuse(k, "tenant "+asks.Tenant, held.Tenant, b.Tenant, "quotas.tenant")
	case held.All+more > b.All:
		return b.refuse(k, "this installation", held.All, b.All, k.Key)
	}
	return nil
}

func (b Bounds) refuse(k Kind, who string, held, limit int64, key string) error {
	text := fmt.Sprintf("%s has %s of %s %s", who, k.Text(held), k.Text(limit), k.Name)
	if limit != b.All {
		text += fmt.Sprintf(", its share of %s", k.Text(b.All))
	}
	hint := k.Hint
	if key != "" {
		hint += "; or raise " + key + " in the configuration"
	}
	return problem.New(k.Code, hint, "%s", text).With("held", held).With("most", limit)
}

// Text is an amount as people read it.
func (k Kind) Text(n int64) string {
	if k.Bytes {
		return fmt.Sprintf("%.1f MiB", float64(n)/float64(config.MiB))
	}
	return fmt.Sprint(n)
}

// Amount is how much of a kind is held, of a whole, as one holder asked.
type Amount struct {
	Kind  Kind
	Whole int64
	Held  Held
}

// Look looks at what is held, once for all who are asked about.
type Look func(ctx context.Context) func(asks Holder) []Amount

// Always is a look at what is known at any time.
func Always(held func(asks Holder) []Amount) Look {
	return func(context.Context) func(Holder) []Amount { return held }
}

// Use is how much of a kind a tenant holds, for people and programs to see.
type Use struct {
	Tenant   string `json:"tenant"`
	Kind     string `json:"kind" doc:"such as sessions"`
	Unit     string `json:"unit" enum:"count,bytes"`
	Held     int64  `json:"held" doc:"how much the tenant holds"`
	Max      int64  `json:"most" doc:"how much the tenant may hold"`
	MaxAgent int64  `json:"most_of_an_agent" doc:"how much one agent of the tenant may hold"`
	All      int64  `json:"all" doc:"total for all tenants"`
}

// UseOf is an amount as a tenant's, in an installation of so many.
func UseOf(q config.Quotas, a Amount, tenant string, tenants int) Use {
	b := Divide(q, a.Whole, tenants)
	out := Use{Tenant: tenant, Kind: a.Kind.Name, Unit: "count", Held: a.Held.Tenant, Max: b.Tenant, MaxAgent: b.Agent, All: b.All}
	if a.Kind.Bytes {
		out.Unit = "bytes"
	}
	return out
}

// UsedUp says whether nothing, or next to nothing, is left.
func (u Use) UsedUp() bool {
	if u.Unit == "bytes" {
		return u.Held >= u.Max-u.Max/20
	}
	return u.Held >= u.Max
}
