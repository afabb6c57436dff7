//go:build linux || freebsd

package freebsd

import (
	"fmt"
	"strings"

	"github.com/clawjail/clawjail/internal/jail"
)

// confName is the file that jail(8) makes a jail of.
const confName = "jail.conf"

// conf is the text of a jail's jail.conf(5). There is nothing in it that is run: no exec.start, and no exec.prestart that
// makes interfaces. Every step is the driver's, and is looked at.
//
// persist keeps a jail that has no process yet. securelevel 3 forbids loading rules of packet filters and lowering it.
// Permissions that are off by default are switched off all the same, so that defaults that change change nothing.
func (o *Options) conf(name jail.Name, root string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by clawjail for one start of one jail.\n%s {\n", name)
	for _, line := range []string{
		fmt.Sprintf("path = %q", root), // a path without anything that needs an escape: see Options.Validate
		fmt.Sprintf("host.hostname = %q", name),
		"persist",
		"vnet",
		fmt.Sprintf("vnet.interface = %q", endInside(name)),
		"enforce_statfs = 2",
		fmt.Sprintf("devfs_ruleset = %d", o.DevfsRuleset),
		"mount.devfs",
		"securelevel = 3",
		"children.max = 0",
		"allow.set_hostname = 0", "allow.raw_sockets = 0", "allow.chflags = 0", "allow.mount = 0", "allow.quotas = 0",
		"allow.socket_af = 0", "allow.mlock = 0", "allow.reserved_ports = 0", "allow.read_msgbuf = 0",
		"allow.unprivileged_proc_debug = 0",
		"sysvmsg = new", "sysvsem = new", "sysvshm = new",
		"exec.clean",
		"exec.timeout = 30",
		"stop.timeout = 0",
	} {
		b.WriteString("\t" + line + ";\n")
	}
	b.WriteString("}\n")
	return []byte(b.String())
}
