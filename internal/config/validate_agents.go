package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// validateAgents looks at what agents' jails are made from.
func (c Config) validateAgents(v *validation) {
	oneOf(v, "agents.driver", c.Agents.Driver, AgentDriverAuto, AgentDriverLinux, AgentDriverDocker)
	for key, roots := range map[string][]string{"workspace_roots": c.Agents.WorkspaceRoots, "jail_roots": c.Agents.JailRoots} {
		for i, path := range roots {
			field := fmt.Sprintf("%s[%d]", key, i)
			v.path(field, path)
			if path == "/" {
				v.flaw(field, "name a folder of its own", "must not be the root of the file system")
			}
			if slices.Index(roots, path) < i {
				v.flaw(field, "name it once", "%s is there already", path)
			}
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
	if n := c.Docker.Subnet; n != (netip.Prefix{}) {
		switch {
		case !n.Addr().Is4() || !n.Addr().IsPrivate() || n.Bits() < 16 || n.Bits() > 24:
			v.flaw("docker.subnet", "write something like 10.214.0.0/24, or leave it out", "%s is not a private IPv4 network between /16 and /24", n)
		case c.Subnet.IsValid() && c.Subnet.Overlaps(n):
			v.flaw("docker.subnet", "use another network", "%s overlaps the subnet of the jails", n)
		}
	}
}

func atLeast(v *validation, field string, is, least Bytes) {
	if is < least || is > 1<<40 {
		v.flaw(field, "zero does not mean unlimited", "%s is not between %s and 1 TiB", is, least)
	}
}
