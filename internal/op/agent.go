package op

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
)

// AgentRequest is the body that makes an agent.
type AgentRequest struct {
	Name   string `json:"name" doc:"1 to 40 of a-z, 0-9 and -; unique in its tenant" arg:"1"`
	Tenant string `json:"tenant,omitempty" doc:"whose it is; the caller's own, or default, when it is left out" flag:"tenant"`
	Life   string `json:"life,omitempty" doc:"how long the token is valid, such as 30d, or never, the default" flag:"expires" usage:"how long the key is valid, such as 30d, or never" is:"life" offer:"24h,30d,never"`
}

// Agent is an identity of programs in jails.
type Agent struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Tenant    string    `json:"tenant"`
	CreatedAt time.Time `json:"created_at"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	// The rest is there where a jail is declared for it.
	Declares   bool       `json:"is_declared,omitempty" doc:"whether a jail is declared for the agent; without one it has only an identity"`
	Jail       *AgentJail `json:"jail,omitempty" doc:"the agent's jail, which clawjail keeps running"`
	Unwatched  bool       `json:"is_unwatched,omitempty" doc:"whether the state of its declared jail is unknown, because the host daemon does not answer"`
	Node       string     `json:"node,omitempty" doc:"the control plane whose machine has its jail, where that is another one"`
	Unfinished bool       `json:"is_unfinished,omitempty" doc:"whether its latest declaration is being carried out, or was not carried out to the end; declaring it again finishes that"`
	Over       bool       `json:"is_over,omitempty" doc:"whether its ttl is over, so that it was stopped; declaring a longer one starts it again"`
	Processes  int        `json:"processes,omitempty" doc:"number of programs that were started for the agent and still run"`
}

// Agents is the answer to a listing.
type Agents struct {
	Agents []Agent `json:"agents" nullable:"false"`
	// JailsUnknown is there when nobody could say what jails there are.
	JailsUnknown *Problem `json:"jails_unknown,omitempty" doc:"why the state of jails is unknown; missing when it is known"`
}

// AgentDetails is an agent with everything that is known of it.
type AgentDetails struct {
	Agent
	MCP      []string     `json:"mcp,omitempty" nullable:"false" doc:"MCP servers that the agent's settings offer, beside those that it declares"`
	Declared *Declaration `json:"declared,omitempty" doc:"the latest declaration; missing for an agent that has only an identity"`
	Exposes  []string     `json:"exposes,omitempty" doc:"folders of the host that the jail can read or change, and those without a size limit, in words"`
}

// IssuedAgent is a new agent with its first token, which is told once. It prints without the token.
type IssuedAgent struct {
	Key       string    `json:"key" doc:"the agent's token; shown only once"`
	Agent     Agent     `json:"agent"`
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"when the token expires; missing when it never does"`
}

// Format implements fmt.Formatter, for every verb.
func (i IssuedAgent) Format(f fmt.State, _ rune) { WithoutKey(f, "agent "+i.Agent.ID) }

// LogValue implements slog.LogValuer.
func (i IssuedAgent) LogValue() slog.Value { return slog.StringValue("agent " + i.Agent.ID) }

type (
	// NewAgent is an agent to be made.
	NewAgent struct{ Body[AgentRequest] }

	// AgentRemoved is an agent to be removed.
	AgentRemoved struct {
		OneAgent
		KeepState     bool `query:"keep_state" doc:"keep the volume of its /state"`
		KeepWorkspace bool `query:"keep_workspace" default:"true" doc:"false also removes the folder that clawjail made for it as its workspace, or in a shared one; folders of the operator's stay"`
	}
)

func agentOf(g identity.Agent) Agent {
	return Agent{ID: g.ID, Name: g.Name, Tenant: g.Tenant, CreatedAt: g.CreatedAt, RevokedAt: g.RevokedAt}
}

// statusOf is an agent as the service has it.
func statusOf(s agent.Status, now time.Time) Agent {
	out := Agent{ID: s.ID, Name: s.Name, Tenant: s.Tenant, CreatedAt: s.CreatedAt, RevokedAt: s.RevokedAt, Declares: s.Declared != nil,
		Node: s.Node, Unwatched: s.Unwatched, Unfinished: s.Unfinished, Over: s.Over, Processes: s.Processes}
	if s.Jail != nil {
		kept := JailOf(*s.Jail, now)
		out.Jail = &kept
	}
	return out
}

// state is in a word how it is with an agent.
func (a Agent) state() string {
	switch {
	case !a.RevokedAt.IsZero():
		return "revoked"
	case a.Over:
		return "its ttl is over"
	case a.Jail != nil && a.Jail.Crashes > 0:
		return a.Jail.CrashLoop()
	case a.Jail != nil:
		return string(a.Jail.Phase)
	case a.Node != "":
		return agent.StateElsewhere
	case a.Unwatched:
		return agent.StateUnwatched
	case a.Unfinished:
		return agent.StateUnfinished
	case a.Declares:
		return "not running"
	}
	return agent.StateNoJail
}

// ListAgents lists agents with what is kept for them. When nobody can say that, the agents are listed all the same.
func ListAgents() Op[OfTenant, Agents] {
	return Op[OfTenant, Agents]{Method: http.MethodGet, Path: "/v1/agents", ID: "list-agents", Summary: "List agents", Right: identity.AgentList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Short: "List agents, and what their jails do"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OfTenant) (Agents, error) {
			tenant := by.Among(in.Tenant)
			all, err := s.People.Agents(ctx, by, tenant)
			out := Agents{Agents: listOf(all, agentOf)}
			if err != nil || s.Agents == nil {
				return out, err
			}
			type key struct{ tenant, name string }
			at, tenants := make(map[key]int, len(all)), []string{by.TenantOr(tenant)}
			for n, g := range all {
				at[key{g.Tenant, g.Name}] = n
				if tenant == "" { // of all, for a caller of all who names none
					tenants = append(tenants, g.Tenant)
				}
			}
			slices.Sort(tenants)
			for _, t := range slices.Compact(tenants) {
				statuses, err := s.Agents.List(ctx, by, t)
				if err != nil && out.JailsUnknown == nil {
					out.JailsUnknown, _ = s.Failed(ctx, "List the jails of agents", err).(*Problem) // it is always one
				}
				for _, status := range statuses {
					one := statusOf(status, s.Now())
					if n, ok := at[key{one.Tenant, one.Name}]; ok {
						one.ID, one.CreatedAt, one.RevokedAt = all[n].ID, all[n].CreatedAt, all[n].RevokedAt
						out.Agents[n] = one
						continue
					}
					// A jail whose agent is gone: an end that did not come to its end.
					out.Agents = append(out.Agents, one)
				}
			}
			return out, nil
		},
		Warns: func(all Agents) string {
			if all.JailsUnknown == nil {
				return ""
			}
			return "it is not known which jails there are: " + all.JailsUnknown.Detail
		},
		View: func(all Agents) []Block {
			jails := slices.ContainsFunc(all.Agents, func(a Agent) bool { return a.Jail != nil || a.Declares })
			heading := []any{"NAME", "TENANT", "STATE", "MADE", "ID"}
			if jails {
				heading = []any{"NAME", "TENANT", "STATE", "DRIVER", "RESTARTS", "SINCE", "MADE", "ID"}
			}
			out := table(all.Agents, heading, func(a Agent) []any {
				row := []any{a.Name, a.Tenant, a.state()}
				if j := a.Jail; j != nil {
					row = append(row, j.Driver, j.Restarts, Age(j.Since))
				} else if jails {
					row = append(row, "", "", "")
				}
				return append(row, a.CreatedAt, a.ID)
			})
			out.Folds = 2
			return []Block{out}
		}}
}

// ShowAgent shows an agent, its jail, and what is declared of it.
func ShowAgent() Op[OneAgent, AgentDetails] {
	return Op[OneAgent, AgentDetails]{Method: http.MethodGet, Path: "/v1/agents/{name}", ID: "get-agent", Summary: "Show an agent and its jail", Right: identity.AgentList,
		Command: Command{Use: "show NAME", Short: "Show an agent, its jail, and what is declared of it"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OneAgent) (AgentDetails, error) {
			a, err := s.Agents.Get(ctx, by, by.TenantOr(in.Tenant), in.Name)
			if err != nil {
				return AgentDetails{}, err
			}
			out := AgentDetails{Agent: statusOf(a, s.Now())}
			if a.Declared != nil {
				out.Declared, out.Exposes = DeclarationOf(*a.Declared), clawbots.Exposes(*a.Declared)
			}
			if a.ID != "" {
				_, settings, err := s.Egress.ShowSettings(ctx, by, a.Tenant, a.Name)
				if err != nil {
					return AgentDetails{}, err
				}
				out.MCP = settings.MCP
			}
			return out, nil
		},
		View: func(a AgentDetails) []Block {
			pairs := [][2]any{{"name", a.Name}, {"tenant", a.Tenant}, {"id", a.ID}, {"state", a.state()}, {"made", a.CreatedAt}, {"revoked", when(a.RevokedAt)}}
			if a.Jail != nil {
				pairs = append(pairs, a.Jail.pairs()...)
			}
			if a.Over {
				pairs = append(pairs, [2]any{"to start it", agent.MoreTime(a.Tenant, a.Name)})
			}
			if a.Processes > 0 {
				pairs = append(pairs, [2]any{"processes", a.Processes})
			}
			if a.Declared != nil {
				pairs = append(pairs, a.Declared.pairs()...)
			}
			pairs = append(pairs, [2]any{"mcp, by settings", commas(a.MCP)})
			for _, text := range a.Exposes {
				pairs = append(pairs, [2]any{"exposes", text})
			}
			return []Block{{Pairs: pairs}}
		}}
}

// CreateAgent makes an agent. Its first token is in the answer, and in no other. Its command can also offer it MCP servers.
func CreateAgent() Op[NewAgent, IssuedAgent] {
	return Op[NewAgent, IssuedAgent]{Method: http.MethodPost, Path: "/v1/agents", ID: "create-agent", Summary: "Make an agent", Right: identity.AgentCreate,
		Status: http.StatusCreated,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewAgent) (IssuedAgent, error) {
			long, err := Life(in.Of.Life)
			if err != nil {
				return IssuedAgent{}, err
			}
			if err := CheckTenant(in.Of.Tenant); err != nil {
				return IssuedAgent{}, err
			}
			key, g, err := s.People.CreateAgent(ctx, by, by.TenantOr(in.Of.Tenant), in.Of.Name, long)
			out := IssuedAgent{Key: key.Reveal(), Agent: agentOf(g)}
			if long != identity.NeverExpires {
				out.ExpiresAt = g.CreatedAt.Add(long)
			}
			return out, err
		},
		View: func(i IssuedAgent) []Block { return keyOf(i.Key, "the agent "+i.Agent.Name, i.ExpiresAt) }}
}

// RemoveAgent ends an agent's jail and removes the agent, with its tokens and its own secrets. Its command asks first.
func RemoveAgent() Op[AgentRemoved, None] {
	return Op[AgentRemoved, None]{Method: http.MethodDelete, Path: "/v1/agents/{name}", ID: "delete-agent", Summary: "Remove an agent", Right: identity.AgentDelete,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in AgentRemoved) (None, error) {
			tenant := by.TenantOr(in.Tenant)
			if s.Agents == nil {
				return None{}, s.People.DeleteAgent(ctx, by, tenant, in.Name)
			}
			return None{}, s.Agents.RemoveAgent(ctx, by, tenant, in.Name, agent.RemoveOptions{KeepState: in.KeepState, RemoveWorkspace: !in.KeepWorkspace})
		}}
}

// RestartAgent ends an agent's jail and makes a new one.
func RestartAgent() Op[OneAgent, None] {
	return Op[OneAgent, None]{Method: http.MethodPost, Path: "/v1/agents/{name}/restart", ID: "restart-agent", Summary: "End an agent's jail, and make a new one",
		Right: identity.AgentRestart,
		Command: Command{Use: "restart NAME…", Short: "End the jails of agents, and make new ones",
			Long: "Ends the jails of agents and makes new ones at once. What is in /state and in workspaces stays, and so do the log and the token."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OneAgent) (None, error) {
			return None{}, s.Agents.RestartAgent(ctx, by, by.TenantOr(in.Tenant), in.Name)
		}}
}

// RevokeAgent ends what is open for an agent. Its tokens are not good until [RestoreAgent].
func RevokeAgent() Op[OneAgent, None] {
	return Op[OneAgent, None]{Method: http.MethodPost, Path: "/v1/agents/{name}/revoke", ID: "revoke-agent", Summary: "Revoke an agent", Right: identity.AgentRevoke,
		Command: Command{Use: "revoke NAME…", Short: "Revoke agents, and end what is open for them",
			Long: "Revokes agents: none of their tokens is valid until `clawjail agent restore`."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OneAgent) (None, error) {
			return None{}, s.People.RevokeAgent(ctx, by, by.TenantOr(in.Tenant), in.Name)
		}}
}

// RestoreAgent takes a revocation back.
func RestoreAgent() Op[OneAgent, None] {
	return Op[OneAgent, None]{Method: http.MethodPost, Path: "/v1/agents/{name}/restore", ID: "restore-agent", Summary: "Take an agent's revocation back",
		Right: identity.AgentRestore,
		Command: Command{Use: "restore NAME…", Aliases: []string{"unrevoke"}, Short: "Take the revocation of agents back",
			Long: "Takes the revocation of agents back. Their tokens are valid again, unless they have expired or were revoked themselves."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in OneAgent) (None, error) {
			return None{}, s.People.RestoreAgent(ctx, by, by.TenantOr(in.Tenant), in.Name)
		}}
}
