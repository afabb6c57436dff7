//go:build vm && guests

package vm

import (
	"strings"
	"time"
)

// blocked keeps modules of the kernel from being loaded.
const blocked = "/etc/modprobe.d/test.conf"

// missesKernel starts the guest with a kernel that lacks what jails are made with: first several things, then one after the other.
func missesKernel(m *machine) {
	counts(m) // the agent is there
	m.put(blocked, "install overlay /bin/false\ninstall loop /bin/false\ninstall nf_tables /bin/false\ninstall veth /bin/false\n", 0o644)
	m.words = "cgroup_disable=memory"
	m.reboot()
	all := m.doctor()
	m.finds(all, "cgroups", "lack memory", "take cgroup_disable=memory off")
	m.finds(all, "storage", "no overlayfs", "modprobe overlay")
	m.finds(all, "agent_state", "no overlayfs", "modprobe overlay")
	m.finds(all, "network", "veth", "modprobe")
	m.finds(all, "nft", "no nftables", "nf_tables")
	m.refuses("clawjail-hostd", "this kernel has no overlayfs", "modprobe overlay")
	m.refuses("clawjail", "the host daemon does not answer")
	m.put(blocked, "install loop /bin/false\ninstall nf_tables /bin/false\ninstall veth /bin/false\n", 0o644)
	m.finds(m.doctor(), "agent_state", "no loop devices", "modprobe loop")
	m.refuses("clawjail-hostd", "no control group controller memory", "enable the controller")
	if left := m.sh("ls /var/lib/clawjail/agents"); !strings.Contains(left, "counter") {
		m.t.Errorf("an agent that cannot run is forgotten: %s", left)
	}

	m.words = ""
	m.reboot()
	m.refuses("clawjail-hostd", "no nftables", "nf_tables")
	// Interfaces are made with each jail.
	m.put(blocked, "install veth /bin/false\n", 0o644)
	m.sh("systemctl start clawjail-hostd clawjail")
	if r := m.try("clawjail session open"); r.Status == 0 || !strings.Contains(string(r.Stderr), "no veth interfaces") || !strings.Contains(string(r.Stderr), "sudo modprobe veth") {
		m.t.Errorf("without veth a session ends with %d: %s", r.Status, r.Stderr)
	}
	m.sh("rm " + blocked)
	m.comesBack()
	m.satisfied(m.doctor(), "cgroups", "storage", "agent_state", "network", "nft")
}

// missesUnit masks a unit, as an administrator does who wants it never to start.
func missesUnit(m *machine) {
	m.sh("systemctl stop clawjail clawjail-hostd && systemctl mask clawjail-hostd")
	m.finds(m.doctor(), "units", "clawjail-hostd.service is masked", "systemctl unmask clawjail-hostd.service")
	if r := m.try("clawjail status"); !strings.Contains(string(r.Stdout)+string(r.Stderr), "clawjail-hostd.service is masked") {
		m.t.Errorf("status: %s%s", r.Stdout, r.Stderr)
	}
	m.refuses("clawjail", "the host daemon does not answer")
	m.sh("systemctl unmask clawjail-hostd && systemctl start clawjail-hostd clawjail")
	m.comesBack()
	m.satisfied(m.doctor(), "units")
}

// fills has the guest's disk full to the last block.
const fills = `mkdir -p /fill
for size in 1G 128M 8M 256K 4K; do
	n=0
	while fallocate -l $size /fill/$size.$n 2>/dev/null; do n=$((n+1)); done
	rm -f /fill/$size.$n
done
df --output=avail -B1 /`

// missesRoom fills the disk while everything runs.
func missesRoom(m *machine) {
	before := counts(m)
	m.t.Log(m.sh(fills))
	m.finds(m.doctor(), "disk_data", "is full", "free some space")
	for _, command := range []string{"clawjail agent add no-room -- /bin/sleep infinity", "clawjail session open"} {
		r := m.try(command)
		if said := string(r.Stderr); r.Status == 0 || !strings.Contains(said, "disk") || !strings.Contains(said, "free some space") {
			m.t.Errorf("%s: ends with %d: %s", command, r.Status, said)
		} else {
			m.t.Logf("%s: %s", command, said)
		}
	}
	m.sh("rm -r /fill")
	if after := counts(m); after <= before {
		m.t.Errorf("the agent counted to %d before the disk was full, and to %d now", before, after)
	}
	m.eventually(time.Minute, "clawjail agent add room -- /bin/sleep infinity")
	m.sh("clawjail agent remove --yes room")
	m.comesBack()
	m.satisfied(m.doctor(), "disk_run")
}

// missesConfiguration unpacks the package without configuring it, on a guest that has nothing of clawjail.
func missesConfiguration(m *machine) {
	m.sh("dpkg --unpack /payload/new/clawjail_*.deb && systemctl daemon-reload")
	all := m.doctor()
	m.finds(all, "package", "is unpacked", "apt-get install --fix-broken")
	m.refuses("clawjail-hostd", "the user clawjail of the control plane does not exist")
	m.refuses("clawjail")
	m.sh("apt-get install -q -y --fix-broken")
	m.satisfied(m.doctor(), "package", "user")
	m.sh("systemctl start clawjail-hostd clawjail && clawjail agent ls && apt-get purge -q -y clawjail")
}
