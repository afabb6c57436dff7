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

// TestDebian12 is the guest that every run of the tests has. Others are in guests_linux_test.go.
func TestDebian12(t *testing.T) {
	ordinary(t, guest{suite: "bookworm", kernel: "bookworm", arch: "amd64"}, everything)
}

// ordinary starts a guest and goes through the steps.
func ordinary(t *testing.T, g guest, steps func(m *machine)) {
	g = made(t, g)
	m := newMachine(t, g, payload(t, g), templates(t, g))
	m.boot()
	steps(m)
	m.off()
}

// everything installs the package in a guest, does with it what its users do, and removes it.
func everything(m *machine) {
	uses(m)
	step(m, "leaves nothing when it is removed", leavesNothing)
}

// uses is all of that but the end. Every guest goes through these steps.
func uses(m *machine) {
	step(m, "installs with its declared dependencies", installs)
	step(m, "starts its units", starts)
	step(m, "satisfies its doctor", satisfiesDoctor)
	step(m, "confines jails with AppArmor", confinesWithAppArmor)
	step(m, "exposes little of its control plane", exposesLittle)
	step(m, "keeps agents over ends of the host daemon", keepsAgents)
	step(m, "shows a page", showsAPage)
	step(m, "ends what is over the limits of an agent", limitsAgents)
	step(m, "ends what is over the limits of a browser", limitsBrowsers)
	step(m, "keeps agents over an upgrade", upgrades)
	step(m, "brings agents back after a reboot", reboots)
}

// step is one check: what it is called, and how long it took, are a line of the result. After one that failed the machine is
// in a state that nobody knows, so the rest is not tried.
func step(m *machine, name string, check func(m *machine)) {
	outer := m.t
	outer.Helper()
	began := time.Now()
	ok := outer.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
		m.t = t
		defer func() {
			if t.Failed() && m.port != nil {
				r, err := m.ask(journal)
				t.Logf("the guest's journal: %v\n%s", err, r.Stdout)
			}
		}()
		check(m)
	})
	m.t = outer
	if !ok {
		outer.FailNow()
	}
	outer.Logf("ok: %s (%s)", name, time.Since(began).Round(100*time.Millisecond))
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

// asksDoctor asks the doctor, again when it fails: its checks have ten seconds each, which an emulated guest of a busy host now and
// then needs more than.
func asksDoctor(m *machine, clawjail string) {
	m.t.Helper()
	const tries = 3
	for try := range tries {
		m.t.Logf("doctor, try %d", try+1)
		if m.healthy(m.within(2*commandLimit, clawjail+" doctor --json")) {
			return
		}
	}
	m.t.Errorf("the doctor finds a failure %d times", tries)
}

// healthy reads a report of the doctor.
func (m *machine) healthy(r wire.Reply) bool {
	m.t.Helper()
	var report struct {
		OK     bool
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
	m.t.Logf("doctor: %v", count)
	return report.OK && count["fail"] == 0
}

var journal = wire.Request{Run: []string{"/bin/sh", "-c", "journalctl --no-pager --quiet --lines 300 -u clawjail -u clawjail-hostd; " +
	"if command -v docker >/dev/null; then docker ps --all --quiet | xargs -r -n 1 docker logs --tail 200; fi 2>&1; dmesg | tail -n 5"}, Seconds: 60}

// keepsAgents ends the host daemon in each way that it can end. A program of an agent that counts must count on.
func keepsAgents(m *machine) {
	m.sh("clawjail agent add counter -- /bin/sh -c 'n=0; while sleep 1; do n=$((n+1)); echo $n; done'")
	counts(m)
	for _, way := range []string{
		"systemctl restart clawjail-hostd",
		"kill -9 $(systemctl show --property MainPID --value clawjail-hostd)",
		"kill -9 $(systemctl show --property MainPID --value clawjail)",
		"systemctl daemon-reload",
	} {
		before := counts(m)
		m.sh(way)
		m.eventually(commandLimit, "systemctl is-active clawjail-hostd clawjail && clawjail status")
		if after := counts(m); after <= before {
			m.t.Errorf("%s: the agent counted to %d before, and to %d now", way, before, after)
		}
		m.t.Logf("%s: the agent runs on", way)
	}
	// What the unit must not say: a folder that systemd would give to root at every start.
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

// counts waits for the next number that the agent prints. One that was started anew begins with 1.
func counts(m *machine) int {
	m.t.Helper()
	last := func() int {
		out := m.try("clawjail agent logs counter | tail -n 1")
		n, err := strconv.Atoi(strings.TrimSpace(string(out.Stdout)))
		if err != nil {
			return 0
		}
		return n
	}
	first := last()
	for deadline := time.Now().Add(commandLimit); time.Now().Before(deadline); time.Sleep(time.Second) { // it counts seconds
		if now := last(); now != first && now != 0 {
			return now
		}
	}
	m.t.Fatalf("the agent does not count: it is at %d\n%s", first, m.try("clawjail agent ls; clawjail agent logs counter").Stdout)
	return 0
}
