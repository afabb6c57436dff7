package jail

import (
	"strings"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// DefaultTenant is the tenant when none is named. Its folders lie directly beneath the roots.
const DefaultTenant = "default"

// Grant is one of the folders of the host that the configuration names under Key, and a path beneath it.
type Grant struct {
	Key, Root string
	Rel       string // "." is the root itself
}

// GrantFor decides whether a jail of a tenant may have a folder of the host, and finds the root that it lies beneath: the
// longest, where there are several. Both the control plane and the host daemon ask it, each with its own roots. The
// folders of a tenant lie beneath ROOT/TENANT, for every caller. Folders of the default tenant may lie anywhere: only
// an admin of the installation names folders for it outside of ROOT/default.
func GrantFor(key string, roots []string, tenant, path string) (Grant, error) {
	g := Grant{Key: key}
	for _, root := range roots {
		if rest, ok := strings.CutPrefix(path+"/", root+"/"); ok && len(root) > len(g.Root) {
			g.Root, g.Rel = root, strings.TrimSuffix(rest, "/")
		}
	}
	if g.Rel == "" {
		g.Rel = "."
	}
	if g.Root == "" {
		hint := "add a folder that holds it to " + key + " in the configuration of the host daemon"
		if len(roots) > 0 {
			hint += ", or use one beneath " + strings.Join(roots, ", ")
		}
		if key == "workspace_roots" && tenant == DefaultTenant {
			hint += "; for a folder beside clawbots.yml root is asked: sudo clawjail agent sync"
		}
		return g, problem.New(problem.Forbidden, hint, "%s does not lie beneath one of the %s", texts.Clip(path, 200), key)
	}
	if err := ValidAgentName(tenant); err != nil {
		return g, err
	}
	if tenant != DefaultTenant && !g.Of(tenant) {
		return g, problem.New(problem.Forbidden, "use a folder beneath "+g.Root+"/"+tenant, "the tenant %s may not have the folder %s", tenant, texts.Clip(path, 200))
	}
	return g, nil
}

// Of reports whether the path is the folder of a tenant, or lies beneath it.
func (g Grant) Of(tenant string) bool {
	return g.Rel == tenant || strings.HasPrefix(g.Rel, tenant+"/")
}

// Tenant is the tenant that the jail belongs to, empty for none.
func (s Spec) Tenant() string {
	if s.Agent == nil {
		return s.For
	}
	return s.Agent.Tenant
}
