package agent

import (
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// mayHave says whether a principal may give a jail of a tenant that folder of the host. The host's folders are nobody's: a
// tenant has those beneath ROOT/TENANT, which the host daemon sees to as well. What lies elsewhere is for the default
// tenant, and only admins of the installation name it: who works for one tenant only, or as an agent, does not.
func mayHave(by identity.Principal, key string, roots []string, tenant, path string) error {
	g, err := jail.GrantFor(key, roots, tenant, path)
	if err != nil || by.Tenant == "" || g.Of(tenant) {
		return err
	}
	return problem.New(problem.Forbidden, "ask an admin of the installation to do it, or use a folder beneath "+g.Root+"/"+tenant,
		"you may not give a jail the folder %s", clip(path, 200))
}

// mayHaveWorkspace is mayHave for the workspace that is declared of an agent.
func (s *Service) mayHaveWorkspace(by identity.Principal, tenant string, a clawbots.Agent) error {
	if a.Workspace == "" {
		return nil
	}
	return mayHave(by, "workspace_roots", s.o.Agents.WorkspaceRoots, tenant, a.Workspace)
}

// mayPlace is mayHave for all that the jail of a program would have of the host.
func (p *processes) mayPlace(by identity.Principal, spec jail.Spec) error {
	if spec.Root != "" {
		if err := mayHave(by, "jail_roots", p.with.Agents.JailRoots, spec.Agent.Tenant, spec.Root); err != nil {
			return err
		}
	}
	for _, m := range spec.Mounts {
		if err := mayHave(by, "workspace_roots", p.with.Agents.WorkspaceRoots, spec.Agent.Tenant, m.Source); err != nil {
			return err
		}
	}
	return nil
}
