package op

import (
	"context"
	"errors"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// OfTenant is a request about all that a tenant has of something.
type OfTenant struct {
	Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own when it is left out; of a caller of all tenants, all" flag:"tenant"`
}

// InTenant is the tenant of one thing.
type InTenant struct {
	Tenant string `query:"tenant" pattern:"^[a-z0-9-]{1,40}$" doc:"the caller's own, or default, when it is left out" flag:"tenant"`
}

// Whose says for whom something is decided. Of all tenants only an admin of the installation decides.
type Whose struct {
	Tenant     string `json:"tenant,omitempty" doc:"the caller's own, or default, when it is left out" flag:"tenant"`
	AllTenants bool   `json:"all_tenants,omitzero" doc:"for everybody, instead of one tenant" flag:"all-tenants" usage:"for all tenants; only an admin of the installation may" alone:"tenant,agent"`
	Agent      string `json:"agent,omitempty" doc:"the name of an agent of the tenant; for all of them when it is left out" flag:"agent" value:"name" usage:"name of the agent whom it is for; without it, all agents of the tenant" complete:"agents"`
}

// Of is whom an entry is for: the tenant, empty for all of them, and the id of the agent.
func (w Whose) Of(ctx context.Context, people People, by identity.Principal, right identity.Operation) (tenant, agent string, err error) {
	if err := errors.Join(CheckTenant(w.Tenant), CheckName("agent", w.Agent)); err != nil {
		return "", "", err
	}
	if w.AllTenants {
		if w.Tenant != "" || w.Agent != "" {
			return "", "", problem.New(problem.BadRequest, "leave tenant and agent out, or all_tenants", "all_tenants excludes tenant and agent")
		}
		return "", "", nil
	}
	tenant = by.TenantOr(w.Tenant)
	if w.Agent == "" {
		return tenant, "", nil
	}
	found, err := AgentNamed(ctx, people, by, right, tenant, w.Agent)
	return tenant, found.ID, err
}

// removalByName is the command that removes what `add` has made with the same flags.
func removalByName(what string) Command {
	return Command{Use: "rm NAME…", Aliases: []string{"remove"}, Short: "Remove " + what + "s; their secrets stay", Example: "  clawjail " + what + " rm NAME --agent writer",
		Long: "Removes " + what + "s by name: those of the tenant that are for all its agents; with --agent those of one agent alone, and with " +
			"--all-tenants those of all tenants. What others have of the name stays. An id, as `ls --json` has it, is enough by itself."}
}

// AgentNamed finds an agent by its name, for somebody who may do the operation with what is its tenant's: others are told
// that they may not, before they are told whether it exists.
func AgentNamed(ctx context.Context, people People, by identity.Principal, right identity.Operation, tenant, name string) (identity.Agent, error) {
	if err := people.Authorize(ctx, by, right, tenant); err != nil {
		return identity.Agent{}, err
	}
	all, err := people.Agents(ctx, by, tenant)
	if err != nil {
		return identity.Agent{}, err
	}
	for _, g := range all {
		if g.Name == name {
			return g, nil
		}
	}
	return identity.Agent{}, problem.New(problem.NotFound, "list them: clawjail agent ls", "there is no agent %q", name)
}

// AgentNames are the names of agents by their ids, for an answer. One that has been removed has none.
func AgentNames(ctx context.Context, people People, by identity.Principal, tenant string) (map[string]string, error) {
	if by.Kind == identity.KindAgent {
		return map[string]string{by.ID: by.Name}, nil // there are no others for it
	}
	all, err := people.Agents(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(all))
	for _, g := range all {
		out[g.ID] = g.Name
	}
	return out, nil
}

// named lists what a tenant has of something, with the names of the agents that it is for.
func named[A, B any](ctx context.Context, s Backend, by identity.Principal, in OfTenant,
	list func(ctx context.Context, by identity.Principal, tenant string) ([]A, error), of func(A, map[string]string) B) ([]B, error) {
	tenant := by.Among(in.Tenant)
	all, err := list(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	names, err := AgentNames(ctx, s.People, by, tenant)
	return listOf(all, func(a A) B { return of(a, names) }), err
}

// CheckTenant refuses a tenant of a body that none can be called. Those of addresses are checked by their pattern.
func CheckTenant(name string) error {
	valid := len(name) <= 40
	for _, c := range name {
		valid = valid && (c == '-' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9')
	}
	if !valid {
		return problem.New(problem.BadName, "use 1 to 40 of a-z, 0-9 and -", "the name of the tenant is not valid")
	}
	return nil
}

// CheckName refuses what cannot be written down.
func CheckName(field, text string) error {
	const limit = 100
	valid := len(text) <= limit
	for _, c := range []byte(text) {
		valid = valid && c > ' ' && c < 0x7f
	}
	if !valid {
		return problem.New(problem.BadRequest, "use at most 100 letters, digits and signs", "%s is not a name", field)
	}
	return nil
}

// Never is the life of a key that is good until it is revoked.
const Never = "never"

// Life reads how long a key is to be good.
func Life(text string) (time.Duration, error) {
	if text == "" || text == Never {
		return identity.NeverExpires, nil
	}
	d, err := texts.Duration(text)
	if err != nil || d <= 0 { // below zero there is a number that means never
		return 0, problem.New(problem.BadLimit, "give a time such as 30d, or never", "the life %s is not a positive duration", quote(text))
	}
	return d, nil
}

// quote is a text of the caller's in a message.
func quote(s string) string { return texts.Quote(s, 80) }
