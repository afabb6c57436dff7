//go:build vm

package vm

import (
	"slices"
	"strings"
)

// exposesLittle asks systemd how much of the machine the control plane could reach: 3.0 of 10 at most.
func exposesLittle(m *machine) {
	out := m.sh("systemd-analyze security --no-pager --threshold=30 clawjail.service")
	lines := strings.Split(out, "\n")
	m.t.Log(strings.TrimSpace(lines[len(lines)-1]))
	if r := m.try("systemd-analyze security --no-pager --threshold=30 clawjail-hostd.service"); r.Status == 0 {
		m.t.Error("the host daemon, which is root without a sandbox, passes too: the threshold is of no use")
	}
}

// reboots starts the guest anew with an agent and a session.
func reboots(m *machine) {
	m.sh("clawjail session open --ttl 1h")
	m.reboot()
	m.comesBack()
	if left := m.sh("clawjail session ls --json"); strings.Contains(left, "\"id\"") {
		m.t.Errorf("a session is there after a reboot: %s", left)
	}
}

// comesBack waits until everything is as it was before the guest ended.
func (m *machine) comesBack() {
	m.t.Helper()
	m.eventually(commandLimit, "systemctl is-active clawjail-hostd clawjail && clawjail status")
	counts(m)
	m.sh("clawjail audit verify")
}

// upgrades installs the next version beside an agent that runs.
func upgrades(m *machine) {
	before, version := counts(m), m.sh("clawjail version")
	m.sh("apt-get install -q -y /payload/new/clawjail_*.deb")
	m.eventually(commandLimit, "systemctl is-active clawjail-hostd clawjail && clawjail status")
	if now := m.sh("clawjail version"); now == version {
		m.t.Errorf("it is still %s", now)
	}
	if after := counts(m); after <= before {
		m.t.Errorf("the agent counted to %d before, and to %d now", before, after)
	}
	losesNoLine(m)
}

// traces are what an installation that runs has on a machine, and how to see it.
var traces = map[string]string{
	"control groups": "ls -d /sys/fs/cgroup/clawjail-*", "interfaces": "ls -d /sys/class/net/cj*", "sockets": "ls /run/clawjail",
	"mounts": "grep clawjail /proc/mounts | grep -v /var/lib/clawjail/templates", "loop devices": "grep clawjail /sys/block/loop*/loop/backing_file",
	"processes": "grep -ls clawjail /proc/[0-9]*/comm | grep .", "profiles of AppArmor": "grep clawjail /sys/kernel/security/apparmor/profiles",
	"tables of the firewall": "nft list tables | grep clawjail",
}

// ends does something that ends an installation with an agent, and looks that nothing of it is on the machine but what it keeps.
func (m *machine) ends(what, command string, keeps ...string) {
	m.t.Helper()
	m.sh("command -v nft >/dev/null || apt-get install -q -y --no-install-recommends nftables")
	counts(m)
	for thing, look := range traces {
		if m.try(look).Status != 0 {
			m.t.Errorf("there are no %s while an agent runs, so nobody would see them left", thing)
		}
	}
	m.sh(command)
	for thing, look := range traces {
		if r := m.try(look); r.Status == 0 {
			m.t.Errorf("%s, it leaves %s: %s", what, thing, r.Stdout)
		}
	}
	for _, kept := range keeps {
		if m.try("test -e "+kept).Status != 0 {
			m.t.Errorf("%s, it does not keep %s", what, kept)
		}
	}
}

// keptData are what stays when the data are not to go.
var keptData = []string{"/var/lib/clawjail/control", "/var/lib/clawjail/database", "/etc/clawjail/clawjail.yml"}

// uninstalls ends the installation as an administrator does, and begins again with what was kept.
func uninstalls(m *machine) {
	m.ends("uninstalled", "systemctl stop clawjail-hostd clawjail && clawjail uninstall", keptData...)
	m.sh("systemctl start clawjail-hostd clawjail")
	m.comesBack()
}

// leavesNothing removes the package, then purges it. An agent runs when that begins.
func leavesNothing(m *machine) {
	m.ends("removed", "apt-get remove -q -y clawjail", keptData...)
	m.sh("umount /var/lib/clawjail/templates") // the test's own disk
	m.sh("apt-get purge -q -y clawjail")
	left := strings.Fields(m.sh("find / -xdev -name '*clawjail*' -not -path '/proc/*'"))
	left = slices.DeleteFunc(left, func(path string) bool { return strings.HasPrefix(path, "/var/lib/apt/") })
	if len(left) > 0 || m.try("id clawjail").Status == 0 {
		m.t.Errorf("purged, it leaves %v, or its user", left)
	}
}
