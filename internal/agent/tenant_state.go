package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/store"
)

// tenantState is a tenant as it is: everything that a declaration joins, read from the services that have it, once for a plan.
type tenantState struct {
	tenant     string
	identities map[string]store.Agent
	declared   map[string]*declaration // of agents of this machine
	elsewhere  map[string]*store.Node  // of which others are
	kept       map[string]jail.KeptStatus
	everyone   []jail.KeptStatus // of all tenants
	// rules and settings are those of agents, by their ids. Of rules there are only those that a declaration made.
	rules    map[string][]egress.Rule
	settings map[string]egress.Settings
	surfaces surfaces
	// permissions are those to use accounts, by the ids of agents.
	permissions map[string][]grant.Permission
}

// surfaces are what a tenant's agents may have of services and models.
type surfaces struct {
	services  []egress.Service
	providers []egress.Provider
}

// read looks at a tenant. adopt says which agents of machines that are gone are to be taken over.
func (s *Service) read(ctx context.Context, by identity.Principal, tenant string, adopt func(name string) bool) (*tenantState, error) {
	w := &tenantState{tenant: tenant, identities: map[string]store.Agent{}, rules: map[string][]egress.Rule{}, settings: map[string]egress.Settings{}}
	agents, err := s.o.Identity.Agents(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	for _, a := range agents {
		w.identities[a.Name] = a
	}
	if w.declared, err = s.declarations(ctx, tenant); err != nil {
		return nil, err
	}
	nodes, err := s.otherNodes(ctx)
	if err != nil {
		return nil, err
	}
	w.leaveOthers(nodes, adopt)
	if w.everyone, err = s.allKept(ctx); err != nil {
		return nil, err
	}
	w.kept = ofTenant(w.everyone, tenant)
	rules, err := s.o.Book.Rules(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if r.Tenant == tenant && r.Agent != "" && declaredRule(r) {
			w.rules[r.Agent] = append(w.rules[r.Agent], r)
		}
	}
	settings, err := s.o.Book.AllSettings(ctx, by, tenant)
	if err != nil {
		return nil, err
	}
	for _, set := range settings {
		if set.Agent != "" {
			w.settings[set.Agent] = set
		}
	}
	if err := s.readAccounts(ctx, by, w); err != nil {
		return nil, err
	}
	w.surfaces, err = s.surfacesOf(ctx, by, tenant)
	return w, err
}

func (s *Service) surfacesOf(ctx context.Context, by identity.Principal, tenant string) (out surfaces, err error) {
	if out.services, err = s.o.Book.ListServices(ctx, by, tenant); err != nil {
		return surfaces{}, err
	}
	out.providers, err = s.o.Book.ListProviders(ctx, by, tenant)
	return out, err
}

// keptOf are the jails that are kept for a tenant, by the agent's name.
func (s *Service) keptOf(ctx context.Context, tenant string) (map[string]jail.KeptStatus, error) {
	all, err := s.allKept(ctx)
	return ofTenant(all, tenant), err
}

// allKept are the jails that are kept, of all tenants.
func (s *Service) allKept(ctx context.Context) ([]jail.KeptStatus, error) {
	_, all, err := s.o.Keeper.Kept(ctx, 0, false)
	if err != nil {
		return nil, fmt.Errorf("ask which jails are kept: %w", err)
	}
	return all, nil
}

func ofTenant(all []jail.KeptStatus, tenant string) map[string]jail.KeptStatus {
	out := map[string]jail.KeptStatus{}
	for _, k := range all {
		if a := k.Spec.Agent; a != nil && a.Tenant == tenant {
			out[a.Name] = k
		}
	}
	return out
}

// declaredRule says whether a rule was made by a declaration.
func declaredRule(r egress.Rule) bool {
	return strings.HasPrefix(r.Name, rulePrefix) && strings.HasPrefix(r.Note, ruleNote)
}

func jailName(name string) bool { return jail.ValidAgentName(name) == nil }
