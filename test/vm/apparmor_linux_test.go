//go:build vm

package vm

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// profiles is the kernel's list of profiles of AppArmor, with what takes one out.
const profiles = "/sys/kernel/security/apparmor/profiles"

// confinesAgain undoes what confinesWithAppArmor takes away.
const confinesAgain = `test ! -e /usr/sbin/parser || mv /usr/sbin/parser /usr/sbin/apparmor_parser
sed -i 's/^apparmor: .*/apparmor: auto/' /etc/clawjail/clawjail.yml`

// confinesWithAppArmor looks at jails under their profiles, at what the profiles refuse, and at a host that loses them.
func confinesWithAppArmor(m *machine) {
	id := m.sh(`sed -n 's/.*"id": *"\([a-z0-9]*\)".*/\1/p' /var/lib/clawjail/installation.json`)
	browser, agent := "clawjail-"+id+"-browser", "clawjail-"+id+"-agent"
	for _, name := range []string{browser, agent} {
		m.sh("grep -qxF '" + name + " (enforce)' " + profiles)
	}

	m.sh("clawjail agent add confined -- /bin/sleep 100000")
	session := m.openSandboxed(id, 503)
	m.sh("clawjail agent exec confined -- /bin/cat /proc/self/attr/current | grep -xF '" + agent + " (enforce)'")
	var got map[string]int
	for deadline := time.Now().Add(m.longer(commandLimit)); len(got) != 2 || got[browser+" (enforce)"] == 0 || got[agent+" (enforce)"] == 0; time.Sleep(time.Second) { // a runtime at work is in them as well
		if got = m.labels(id); time.Now().After(deadline) {
			m.t.Fatalf("processes of jails are under %v", got)
		}
	}
	refuses(m, browser, agent)
	restricted(m, id)

	// A host that loses the profiles makes no jail, and runs those that it has.
	m.sh(fmt.Sprintf("for p in %s %s; do printf %%s $p >/sys/kernel/security/apparmor/.remove; done", browser, agent))
	for what, command := range map[string]string{
		"a session":            "clawjail session open --memory 504MiB",
		"a warm session":       "clawjail session open",
		"an agent":             "clawjail agent add late -- /bin/sleep 100000",
		"a program of another": "clawjail agent exec confined -- /bin/true",
	} {
		r := m.try(command)
		said := string(r.Stdout) + string(r.Stderr)
		if r.Status == 0 || !strings.Contains(said, "AppArmor does not enforce the profile clawjail-"+id) || !strings.Contains(said, "systemctl restart clawjail-hostd") {
			m.t.Errorf("without the profiles, %s: %d: %s", what, r.Status, said)
		}
	}
	m.try("clawjail agent remove late --yes")
	if got := m.examined("apparmor"); got.Status != "fail" || !strings.Contains(got.Hint, "systemctl restart clawjail-hostd") {
		m.t.Errorf("without the profiles the doctor says %+v", got)
	}
	m.sh("systemctl restart clawjail-hostd")
	m.eventually(commandLimit, "clawjail status")
	if got := m.examined("apparmor"); got.Status != "warn" || !strings.Contains(got.Hint, "clawjail agent restart") {
		m.t.Errorf("with jails that had lost their profiles the doctor says %+v", got)
	}
	m.try("clawjail session close " + session)
	m.sh("clawjail agent restart confined")
	m.eventually(commandLimit, "clawjail agent exec confined -- /bin/cat /proc/self/attr/current | grep -xF '"+agent+" (enforce)'")

	// The profiles that are looked for above are not there without clawjail.
	m.sh("sed -i 's/^apparmor: .*/apparmor: off/' /etc/clawjail/clawjail.yml && systemctl restart clawjail-hostd")
	m.eventually(commandLimit, "clawjail status")
	m.sh("clawjail agent add loose -- /bin/sleep 100000")
	// Debian 13 has a profile for runc, which confines nothing and stays with what it starts.
	m.sh("clawjail agent exec loose -- /bin/cat /proc/self/attr/current | grep -xE 'unconfined|runc \\(unconfined\\)'")
	m.sh("clawjail agent exec confined -- /bin/cat /proc/self/attr/current | grep -xF '" + agent + " (enforce)'")
	m.sh("clawjail agent remove loose --yes && clawjail agent remove confined --yes")
	m.sh("sed -i 's/^apparmor: .*/apparmor: required/' /etc/clawjail/clawjail.yml && mv /usr/sbin/apparmor_parser /usr/sbin/parser")
	if r := m.try("systemctl restart clawjail-hostd"); r.Status == 0 {
		m.t.Error("the host daemon starts without the parser, and AppArmor is required")
	}
	m.sh("journalctl --no-pager --lines 20 -u clawjail-hostd | grep -F 'there is no apparmor_parser'")
	m.sh("mv /usr/sbin/parser /usr/sbin/apparmor_parser && sed -i 's/^apparmor: .*/apparmor: auto/' /etc/clawjail/clawjail.yml")
	m.sh("systemctl reset-failed clawjail-hostd; systemctl restart clawjail-hostd")
	m.eventually(commandLimit, "systemctl is-active clawjail-hostd clawjail && clawjail status")
}

// openSandboxed opens a session whose browser's own sandbox is on: a page has a user namespace of its own.
func (m *machine) openSandboxed(id string, mebibytes int) string {
	m.t.Helper()
	r := m.within(2*commandLimit, fmt.Sprintf("clawjail session open --memory %dMiB", mebibytes))
	if r.Status != 0 {
		m.t.Fatalf("no session opens: %s", r.Stderr)
	}
	m.eventually(commandLimit, `
group=`+m.group(mebibytes)+`
first=$(readlink /proc/$(head -n 1 $group/cgroup.procs)/ns/user)
for pid in $(cat $group/cgroup.procs); do
	if tr '\0' ' ' </proc/$pid/cmdline | grep -q -- --type=renderer; then
		[ "$(readlink /proc/$pid/ns/user)" = "$first" ] || exit 0
	fi
done
exit 1`)
	return strings.TrimSpace(string(r.Stdout))
}

// labels counts the processes of an installation's jails by what AppArmor says of them.
func (m *machine) labels(id string) map[string]int {
	m.t.Helper()
	out := map[string]int{}
	all := m.sh(`for pid in $(cat $(find /sys/fs/cgroup/clawjail-` + id + ` -name cgroup.procs)); do cat /proc/$pid/attr/current 2>/dev/null || true; done`)
	for line := range strings.Lines(all) {
		out[strings.TrimSpace(line)]++
	}
	return out
}

// refuses tries what the profiles refuse, as root and outside of any jail: there nothing else is in the way, as it shows where
// the same is done without a profile.
func refuses(m *machine, browser, agent string) {
	m.put("/root/refused", `set -eu
case $1 in
setting) echo 1 >/proc/sys/kernel/core_uses_pid ;;
mount) mkdir -p /tmp/here && mount -t tmpfs none /tmp/here && umount /tmp/here ;;
raw) perl -MSocket -e 'socket(my $s, PF_INET, SOCK_RAW, 1) or die $!' ;;
packet) perl -MSocket -e 'socket(my $s, 17, SOCK_DGRAM, 0) or die $!' ;;
signal) kill -CONT $2 ;;
trace) readlink /proc/$2/cwd >/dev/null ;;
capability) chown 1 /root/owned ;;
profile) printf "changeprofile $2" >/proc/self/attr/current ;;
esac
`, 0o755)
	pid := m.sh("touch /root/owned; sleep 100000 >/dev/null 2>&1 & echo $!")
	for _, what := range []string{"setting", "mount", "raw", "packet", "signal", "trace", "capability"} {
		command := "sh /root/refused " + what + " " + pid
		m.sh(command)
		for _, profile := range []string{browser, agent} {
			if r := m.try("aa-exec -p " + profile + " -- " + command); r.Status == 0 {
				m.t.Errorf("%s allows %s", profile, what)
			}
		}
	}
	for _, profile := range []string{browser, agent} {
		m.sh("sh /root/refused profile " + profile)
		if r := m.try("aa-exec -p " + profile + " -- sh /root/refused profile unconfined"); r.Status == 0 {
			m.t.Errorf("a program leaves %s", profile)
		}
	}
	m.sh("kill " + pid + " && rm /root/refused /root/owned")
	// Whether user namespaces can be told apart is for the kernel and the parser.
	if m.try("test -e /sys/kernel/security/apparmor/features/namespaces/userns_create -a -e /etc/apparmor.d/abi/4.0").Status != 0 {
		m.t.Log("this kernel or parser does not tell who makes user namespaces")
		return
	}
	m.sh("aa-exec -p " + browser + " -- unshare --user true")
	if r := m.try("aa-exec -p " + agent + " -- unshare --user true"); r.Status == 0 {
		m.t.Errorf("%s allows user namespaces", agent)
	}
}

// restricted opens a session where the kernel gives user namespaces to programs with a profile only.
func restricted(m *machine, id string) {
	const setting = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
	if m.try("test -e "+setting).Status != 0 {
		m.t.Log("this kernel cannot keep user namespaces from programs without a profile")
		return
	}
	before := m.sh("cat " + setting + " && echo 1 >" + setting)
	if r := m.try("setpriv --reuid=65534 --regid=65534 --clear-groups unshare --user --map-root-user --mount true"); r.Status == 0 {
		m.t.Error("a program without a profile makes a user namespace of use, so this check proves nothing")
	}
	m.sh("clawjail session close " + m.openSandboxed(id, 505))
	m.sh("echo " + before + " >" + setting)
}

// examination is one check of the doctor.
type examination struct{ Name, Status, Message, Hint string }

// examined asks the doctor, and returns one of its checks.
func (m *machine) examined(name string) examination {
	m.t.Helper()
	r := m.try("clawjail doctor --json")
	var report struct{ Checks []examination }
	if err := json.Unmarshal(r.Stdout, &report); err != nil {
		m.t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
	}
	for _, c := range report.Checks {
		if c.Name == name {
			return c
		}
	}
	m.t.Fatalf("the doctor has no check %s", name)
	return examination{}
}
