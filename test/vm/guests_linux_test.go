//go:build vm && guests

package vm

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// These guests are tried by `make test-vm-all`: emulated, each takes as long as the one of `make test-vm`.

// atLength is everything, and the self-test, for which an emulated guest takes many minutes.
func atLength() []check { return slices.Concat(uses(), []check{selfTest(3)}, last()) }

func selfTest(cycles int) check {
	return check{name: "passes its self-test", do: func(m *machine) { passesSelfTest(m, "clawjail", cycles) }}
}

func TestDebian12Backports(t *testing.T) {
	ordinary(t, guest{suite: "bookworm", kernel: "bookworm-backports", arch: "amd64"}, atLength())
}

func TestDebian13(t *testing.T) {
	ordinary(t, guest{suite: "trixie", kernel: "trixie", arch: "amd64"}, atLength())
}

func TestDebian13Backports(t *testing.T) {
	ordinary(t, guest{suite: "trixie", kernel: "trixie-backports", arch: "amd64"}, atLength())
}

// TestDebian12Faults has clawjail live beside the firewalls of others, and takes away what it stands on.
func TestDebian12Faults(t *testing.T) {
	checks, end := first(), last()
	end[len(end)-1].needed = true // before the package is only unpacked
	for _, f := range firewalls {
		checks = append(checks, check{name: "lives beside " + f.name, do: livesBeside(f), undo: f.off + "; apt-get purge -q -y --autoremove " + f.install})
	}
	ordinary(t, guest{suite: "bookworm", kernel: "bookworm", arch: "amd64"}, slices.Concat(checks, []check{
		selfTest(3),
		{name: "has its templates without a network", do: importsATemplate, undo: importsAgain},
		{name: "brings up a file of agents as containers", do: bringsUpContainers, undo: "rm -rf /srv/bots; docker network rm sand_bed; apt-get purge -q -y --autoremove docker.io"},
		{name: "refuses to start without a unit", do: missesUnit, undo: "systemctl unmask clawjail-hostd"},
		{name: "says that the disk is full", do: missesRoom, undo: "rm -rf /fill"},
		{name: "refuses to start without what jails are made with", do: missesKernel, undo: "rm -f " + blocked},
		{name: "loses nothing when the power is cut", do: losesNothing},
	}, end, []check{{name: "refuses to start half installed", do: missesConfiguration}}))
}

// TestDebian12ARM64 does the checks that an emulator of another architecture has time for.
func TestDebian12ARM64(t *testing.T) {
	ordinary(t, guest{suite: "bookworm", kernel: "bookworm", arch: "arm64"}, append(first(), []check{
		{name: "satisfies its doctor", do: satisfiesDoctor},
		{name: "keeps agents over ends and restarts of the host daemon", do: keepsAgents},
		{name: "shows a page", do: showsAPage},
		selfTest(1),
	}...))
}

// passesSelfTest has a private instance open, use and close browsers, and compare the guest with what it was before. clawjail is
// how the program is called.
func passesSelfTest(m *machine, clawjail string, cycles int) {
	r := m.within(4*commandLimit, fmt.Sprintf("%s selftest --cycles %d --json", clawjail, cycles))
	var report struct {
		OK                bool
		Cycles            int
		Residue, Failures []string
	}
	if err := json.Unmarshal(r.Stdout, &report); err != nil {
		m.t.Fatalf("%v\n%s%s", err, r.Stdout, tail(r.Stderr))
	}
	if r.Status != 0 || !report.OK || report.Cycles != cycles || len(report.Residue) > 0 || len(report.Failures) > 0 {
		m.t.Errorf("the self-test ends with %d: %+v\n%s", r.Status, report, tail(r.Stderr))
	}
}
