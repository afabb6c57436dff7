package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// validateAgents looks at what agents' jails are made from.
func (c Config) validateAgents(v *validation) {
	oneOf(v, "agents.driver", c.Agents.Driver, AgentDriverAuto, AgentDriverLinux, AgentDriverDocker)
	for key, roots := range map[string][]string{"workspace_roots": c.Agents.WorkspaceRoots, "jail_roots": c.Agents.JailRoots} {
		for i, path := range roots {
			field := fmt.Sprintf("%s[%d]", key, i)
			if slices.Index(roots, path) < i {
				v.flaw(field, "name it once", "%s is there already", path)
			}
			c.validateFolder(v, field, path)
		}
	}
	l := c.Agents.Limits
	atLeast(v, "agents.limits.memory", l.Memory, 16*MiB)
	atLeast(v, "agents.limits.tmp", l.Tmp, MiB)
	atLeast(v, "agents.limits.state", l.State, 8*MiB)
	atLeast(v, "agents.log", c.Agents.Log, MiB)
	if !(l.CPU >= 0.01 && l.CPU <= 1024) {
		v.flaw("agents.limits.cpu", "write a number of cores, such as 0.5", "%v is not between 0.01 and 1024", l.CPU)
	}
	if l.Tasks < 4 || l.Tasks > 4_000_000 {
		v.flaw("agents.limits.tasks", "zero does not mean unlimited", "%d is not between 4 and 4000000", l.Tasks)
	}
	if l.Files < 64 || l.Files > 1<<20 {
		v.flaw("agents.limits.files", "zero does not mean unlimited", "%d is not between 64 and 1048576", l.Files)
	}
	v.path("docker.socket", c.Docker.Socket)
	if c.Docker.Compose && !c.Docker.Subnet.IsValid() {
		v.flaw("docker.subnet", "write something like 10.214.0.0/24", "docker.compose needs the network of the containers: the file of docker-compose names it")
	}
	if c.Docker.Compose && c.Gateway.Placement == PlacementContainer {
		v.flaw("docker.compose", "leave it out", "it is for a gateway that listens at the containers' bridge, and not for gateway.placement: container")
	}
	if n := c.Docker.Subnet; n != (netip.Prefix{}) {
		switch {
		case !n.Addr().Is4() || !n.Addr().IsPrivate() || n.Bits() < 16 || n.Bits() > 24:
			v.flaw("docker.subnet", "write something like 10.214.0.0/24, or leave it out", "%s is not a private IPv4 network between /16 and /24", n)
		case c.Subnet.IsValid() && c.Subnet.Overlaps(n):
			v.flaw("docker.subnet", "use another network", "%s overlaps the subnet of the jails", n)
		}
	}
}

// CheckWorkspaceRoot says why agents cannot be given folders beneath one, as if the file named it in workspace_roots.
func CheckWorkspaceRoot(c Config, path string) error {
	var v validation
	v.Code = problem.BadConfig
	c.validateFolder(&v, "workspace_roots", path)
	for _, root := range c.Agents.JailRoots {
		if within(root, path) || within(path, root) {
			v.flaw("workspace_roots", "name another folder", "%s and %s of jail_roots overlap: an agent could change what jails are made of", path, root)
		}
	}
	return v.Err()
}

// validateFolder looks at one folder beneath which jails may have some of the host.
func (c Config) validateFolder(v *validation, field, path string) {
	if path != c.Workspaces() { // what is wrong with that one is wrong with data_dir
		v.path(field, path)
	}
	if path == "/" {
		v.flaw(field, "name a folder of its own", "must not be the root of the file system")
		return
	}
	c.validateRoot(v, field, path)
}

// validateRoot keeps what agents can write to apart from what clawjail and other jails are made of: from within data_dir the
// control plane could give an agent the volumes, templates and declarations of all. One folder there is made for workspaces.
func (c Config) validateRoot(v *validation, field, root string) {
	for _, dir := range []string{c.DataDir, c.RunDir, c.TemplatesDir} {
		if dir == "" || dir == c.DataDir && root == c.Workspaces() && strings.HasPrefix(field, "workspace_roots") {
			continue
		}
		if within(dir, root) || within(root, dir) {
			v.flaw(field, "name another folder", "%s is, holds or lies in %s, which is clawjail's own", root, dir)
			return
		}
	}
	if strings.HasPrefix(field, "jail_roots") {
		for _, shared := range c.Agents.WorkspaceRoots {
			if within(shared, root) || within(root, shared) {
				v.flaw(field, "name another folder", "%s and %s of workspace_roots overlap: an agent could change what jails are made of", root, shared)
			}
		}
	}
}

// within reports whether a path is another one or lies beneath it.
func within(path, above string) bool {
	return path == above || strings.HasPrefix(path, strings.TrimSuffix(above, "/")+"/")
}

func atLeast(v *validation, field string, is, minimum Bytes) {
	if is < minimum || is > 1<<40 {
		v.flaw(field, "zero does not mean unlimited", "%s is not between %s and 1 TiB", is, minimum)
	}
}
