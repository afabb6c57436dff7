//go:build vm

package vm

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/test/vm/wire"
)

// TestDebian12 is the guest of `make test-vm`. Others are in guests_linux_test.go.
func TestDebian12(t *testing.T) {
	ordinary(t, guest{suite: "bookworm", kernel: "bookworm", arch: "amd64"}, append(uses(), last()...))
}

// ordinary starts a guest and does the checks.
func ordinary(t *testing.T, g guest, checks []check) {
	checks = chosen(t, checks)
	g = made(t, g)
	m := newMachine(t, g, payload(t, g), templates(t, g))
	m.do(checks, anew, usable)
}

// anew has both halves start again, which ends sessions and gives AppArmor its profiles.
const anew = "systemctl reset-failed clawjail-hostd clawjail; systemctl restart clawjail-hostd clawjail"

// usable waits for both halves, and takes agents away but the one that counts.
const usable = whole + ` && clawjail agent ls | awk 'NR > 1 && $1 != "counter" { print $1 }' | xargs -r clawjail agent remove --yes`

var upgrade = check{name: "keeps agents over an upgrade", do: upgrades, undo: "dpkg --configure -a"}

// first are the checks that all others need. A package that another revision has built is upgraded at once: the rest is about
// these files.
func first() []check {
	out := []check{{name: "installs with its declared dependencies", do: installs, needed: true}, {name: "starts its units", do: starts, needed: true}}
	if *before != "" {
		out = append(out, check{name: upgrade.name, do: upgrade.do, needed: true})
	}
	return out
}

// last takes the package away again.
func last() []check {
	return []check{{name: "leaves nothing but data when it is uninstalled", do: uninstalls}, {name: "leaves nothing when it is removed", do: leavesNothing}}
}

// uses is what users do with it. Every guest goes through these.
func uses() []check {
	out := append(first(), []check{
		{name: "satisfies its doctor", do: satisfiesDoctor},
		{name: "confines jails with AppArmor", do: confinesWithAppArmor, undo: confinesAgain},
		{name: "exposes little of its control plane", do: exposesLittle},
		{name: "keeps agents over ends and restarts of the host daemon", do: keepsAgents, undo: "rm -rf /run/fill /run/more /run/systemd/system/clawjail-hostd.service.d; systemctl daemon-reload"},
		{name: "brings up a file of agents with nothing configured", do: bringsUpAFile, undo: "rm -rf /srv/bots"},
		{name: "shows a page", do: showsAPage},
		{name: "ends what is over the limits of an agent", do: limitsAgents},
		{name: "ends what is over the limits of a browser", do: limitsBrowsers},
	}...)
	if *before == "" {
		out = append(out, upgrade)
	}
	return append(out, check{name: "brings agents back after a reboot", do: reboots})
}

func installs(m *machine) {
	if out := m.try("command -v runc || command -v crun || command -v debootstrap"); out.Status == 0 {
		m.t.Fatalf("there is already %s", out.Stdout)
	}
	m.sh("apt-get update -q && apt-get install -q -y /payload/old/clawjail_*.deb")
	m.sh("runc --version && clawjail doctor --help && id clawjail")
	if got := m.try("systemctl is-enabled clawjail-hostd clawjail || systemctl is-active clawjail-hostd clawjail"); got.Status == 0 {
		m.t.Errorf("an installation starts or enables units: %s", got.Stdout)
	}
}

// console asks for the console's first page, with nothing but bash.
const console = `bash -euc 'exec 3<>/dev/tcp/127.0.0.1/18780
printf "GET /console HTTP/1.1\r\nHost: 127.0.0.1:18780\r\nConnection: close\r\n\r\n" >&3; head -n 1 <&3'`

func starts(m *machine) {
	m.sh("systemctl enable --now clawjail-hostd clawjail")
	// Units of the kind notify are started when they answer, so there is nothing to wait for.
	m.sh("systemctl is-active clawjail-hostd clawjail")
	// The first start looks for the template of the browsers; here it is on a disk of the test.
	m.eventually(commandLimit, "test $(systemctl show --property ExecMainExitTimestampMonotonic --value clawjail-template) -gt 0 && "+
		"test $(systemctl show --property Result --value clawjail-template) = success")
	if got := m.sh(console); !strings.Contains(got, " 200 ") && !strings.Contains(got, " 30") {
		m.t.Errorf("the console answers %q", got)
	}
}

func satisfiesDoctor(m *machine) { asksDoctor(m, "clawjail") }

// asksDoctor asks the doctor, whose limits of time grow with the machine.
func asksDoctor(m *machine, clawjail string) {
	m.t.Helper()
	if !m.healthy(m.within(2*commandLimit, clawjail+" doctor --json")) {
		m.t.Error("the doctor finds a failure")
	}
}

// healthy reads a report of the doctor.
func (m *machine) healthy(r wire.Reply) bool {
	m.t.Helper()
	var report struct {
		OK     bool
		Pace   float64
		Checks []struct{ Name, Status, Message, Hint string }
	}
	if err := json.Unmarshal(r.Stdout, &report); err != nil {
		m.t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
	}
	count := map[string]int{}
	for _, c := range report.Checks {
		count[c.Status]++
		if c.Status == "fail" || c.Status == "warn" {
			m.t.Logf("%s: %s: %s (%s)", c.Status, c.Name, c.Message, c.Hint)
		}
	}
	m.t.Logf("doctor: %v, at a pace of %.1f", count, report.Pace)
	return report.OK && count["fail"] == 0
}

var journal = wire.Request{Run: []string{"/bin/sh", "-c", "journalctl --no-pager --quiet --lines 300 -u clawjail -u clawjail-hostd; " +
	"if command -v docker >/dev/null; then docker ps --all --quiet | xargs -r -n 1 docker logs --tail 200; fi 2>&1; dmesg | tail -n 5"}, Seconds: 60}

// whole awaits that both halves answer.
const whole = "systemctl is-active clawjail-hostd clawjail && clawjail status"

// keepsAgents ends the host daemon in each way that it can end. A program of an agent that counts must count on, and nothing that it
// prints may be lost.
func keepsAgents(m *machine) {
	counts(m)
	kill := func(unit string) string { return "kill -9 $(systemctl show --property MainPID --value " + unit + ")" }
	for _, way := range []string{"systemctl restart clawjail-hostd", kill("clawjail-hostd"), kill("clawjail"), "systemctl daemon-reload"} {
		before := counts(m)
		m.sh(way)
		m.eventually(commandLimit, whole)
		if after := counts(m); after <= before {
			m.t.Errorf("%s: the agent counted to %d before, and to %d now", way, before, after)
		}
		m.t.Logf("%s: the agent runs on", way)
	}
	keepsAgentsWhileStopped(m)
	keepsAgentsOnAFullRun(m)
	losesNoLine(m)
	// The unit must not name a folder that systemd would give to root at every start.
	m.put("/run/systemd/system/clawjail-hostd.service.d/control.conf", "[Service]\nRuntimeDirectory=clawjail\nRuntimeDirectoryMode=0755\nRuntimeDirectoryPreserve=yes\nRestart=no\n", 0o644)
	m.sh("systemctl daemon-reload")
	if r := m.try("systemctl restart clawjail-hostd"); r.Status == 0 {
		m.t.Error("with RuntimeDirectory the host daemon starts beside a jail, so this check would not see its end")
	} else if status := m.sh("systemctl show --property ExecMainStatus --value clawjail-hostd"); status != "233" {
		m.t.Errorf("with RuntimeDirectory the host daemon ends with %s", status)
	}
	m.sh("rm -r /run/systemd/system/clawjail-hostd.service.d && systemctl daemon-reload && systemctl restart clawjail-hostd")
	m.eventually(commandLimit, "clawjail status")
	counts(m)
}

// keepsAgentsWhileStopped stops the host daemon for a while. Everybody is told that agents are not watched meanwhile.
func keepsAgentsWhileStopped(m *machine) {
	before := counts(m)
	m.sh("systemctl stop clawjail-hostd")
	m.eventually(commandLimit, "clawjail agent ls 2>&1 | grep -E '^counter +not watched'")
	m.eventually(commandLimit, "clawjail status | grep -E 'agents are not watched|Agents run on meanwhile'")
	m.sh("systemctl start clawjail-hostd")
	m.eventually(commandLimit, whole)
	m.eventually(commandLimit, "clawjail agent ls | grep -E '^counter +running'")
	if after := counts(m); after <= before {
		m.t.Errorf("stopped and started: the agent counted to %d before, and to %d now", before, after)
	}
}

// keepsAgentsOnAFullRun kills the host daemon while its folder of sockets is on a full file system, for longer than systemd would try by
// default. It comes back by itself when there is room.
func keepsAgentsOnAFullRun(m *machine) {
	before := counts(m)
	m.sh("fallocate -l $(df --output=avail -B1 /run | tail -n 1) /run/fill && ! fallocate -l 64K /run/more; rm -f /run/more")
	m.sh("kill -9 $(systemctl show --property MainPID --value clawjail-hostd)")
	m.eventually(commandLimit, "test $(systemctl show --property NRestarts --value clawjail-hostd) -ge 8 || clawjail status")
	m.t.Logf("with a full /run: %s", m.sh("systemctl show --property ActiveState,SubState,NRestarts clawjail-hostd | tr '\\n' ' '"))
	m.sh("rm /run/fill")
	m.eventually(commandLimit, whole)
	if after := counts(m); after <= before {
		m.t.Errorf("with a full /run: the agent counted to %d before, and to %d now", before, after)
	}
}

// losesNoLine looks at all numbers that the agent has printed: each is one more than the one before.
func losesNoLine(m *machine) {
	m.t.Helper()
	m.sh("clawjail agent logs counter | awk 'NR > 1 && $1 != last + 1 { print \"after \" last \" comes \" $1; lost = 1 } { last = $1 } END { exit lost }'")
}

// counts waits for the next number that the agent prints, which is made where there is none. One that was started anew begins with 1.
func counts(m *machine) int {
	m.t.Helper()
	m.sh("clawjail agent show counter >/dev/null 2>&1 || clawjail agent add counter -- /bin/sh -c 'n=0; while sleep 1; do n=$((n+1)); echo $n; done'")
	last := func() int {
		out := m.try("clawjail agent logs counter | tail -n 1")
		n, err := strconv.Atoi(strings.TrimSpace(string(out.Stdout)))
		if err != nil {
			return 0
		}
		return n
	}
	first := last()
	for deadline := time.Now().Add(m.longer(commandLimit)); time.Now().Before(deadline); time.Sleep(time.Second) { // it counts seconds
		if now := last(); now != first && now != 0 {
			return now
		}
	}
	m.t.Fatalf("the agent does not count: it is at %d\n%s", first, m.try("clawjail agent ls; clawjail agent logs counter").Stdout)
	return 0
}
