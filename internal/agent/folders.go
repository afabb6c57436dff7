package agent

import (
	"context"
	"fmt"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// mayHave says whether a principal may give a jail of a tenant that folder of the host. The host's folders belong to no tenant: a
// tenant has those beneath ROOT/TENANT, which the host daemon sees to as well. Folders elsewhere are for the default
// tenant, and only admins of the installation name them: a principal of one tenant, or an agent, does not.
func mayHave(by identity.Principal, key string, roots []string, tenant, path string) error {
	g, err := jail.GrantFor(key, roots, tenant, path)
	if err != nil || by.Tenant == "" || g.Of(tenant) {
		return err
	}
	return problem.New(problem.Forbidden, "ask an admin of the installation to do it, or use a folder beneath "+g.Root+"/"+tenant,
		"you may not give a jail the folder %s", texts.Clip(path, 200))
}

// mayShare is mayHave for a folder beneath workspace_roots. In the one that is there by default, which nobody has divided among
// the tenants, folders of the default tenant may have the name of another tenant: there no two tenants come to have the same.
func (o *Options) mayShare(ctx context.Context, by identity.Principal, tenant, path string) error {
	roots, err := jail.RootsFor(tenant, o.Agents.WorkspaceRoots, o.AddedRoots)
	if err != nil {
		return err
	}
	if err := mayHave(by, "workspace_roots", roots, tenant, path); err != nil || o.Workspaces == "" || !within(path, o.Workspaces) {
		return err
	}
	_, all, err := o.Keeper.Kept(ctx, 0, false)
	if err != nil {
		return fmt.Errorf("ask who has which folder: %w", err)
	}
	for _, k := range all {
		if k.Spec.Agent == nil || k.Spec.Agent.Tenant == tenant {
			continue
		}
		for _, m := range k.Spec.Mounts {
			if within(m.Source, path) || within(path, m.Source) {
				return problem.New(problem.Forbidden, "name another folder", "the folder %s overlaps one of another tenant's agents", texts.Clip(path, 200))
			}
		}
	}
	return nil
}

// mayHaveWorkspace is mayShare for the workspace that is declared of an agent.
func (s *Service) mayHaveWorkspace(ctx context.Context, by identity.Principal, tenant string, a clawbots.Agent) error {
	if a.Workspace == "" {
		return nil
	}
	return s.o.mayShare(ctx, by, tenant, a.Workspace)
}

// mayPlace is mayHave for all that the jail of a program would have of the host.
func (p *processes) mayPlace(ctx context.Context, by identity.Principal, spec jail.Spec) error {
	if spec.Root != "" {
		if err := mayHave(by, "jail_roots", p.with.Agents.JailRoots, spec.Agent.Tenant, spec.Root); err != nil {
			return err
		}
	}
	for _, m := range spec.Mounts {
		if err := p.with.mayShare(ctx, by, spec.Agent.Tenant, m.Source); err != nil {
			return err
		}
	}
	return nil
}
