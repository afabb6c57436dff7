//go:build vm && guests

package vm

import (
	"encoding/json"
	"fmt"
	"testing"
)

// These guests are tried by `make test-vm-all`: emulated, each takes as long as the one of `make test-vm`.

// atLength is everything, and the self-test, for which an emulated guest takes many minutes.
func atLength(m *machine) {
	uses(m)
	step(m, "passes its self-test", func(m *machine) { passesSelfTest(m, "clawjail", 3) })
	step(m, "leaves nothing when it is removed", leavesNothing)
}

func TestDebian12Backports(t *testing.T) {
	ordinary(t, guest{suite: "bookworm", kernel: "bookworm-backports", arch: "amd64"}, atLength)
}

func TestDebian13(t *testing.T) {
	ordinary(t, guest{suite: "trixie", kernel: "trixie", arch: "amd64"}, atLength)
}

func TestDebian13Backports(t *testing.T) {
	ordinary(t, guest{suite: "trixie", kernel: "trixie-backports", arch: "amd64"}, atLength)
}

// TestDebian12Faults has clawjail live beside the firewalls of others, and takes away what it stands on.
func TestDebian12Faults(t *testing.T) {
	ordinary(t, guest{suite: "bookworm", kernel: "bookworm", arch: "amd64"}, func(m *machine) {
		step(m, "installs with its declared dependencies", installs)
		step(m, "starts its units", starts)
		step(m, "keeps agents over ends of the host daemon", keepsAgents)
		for _, f := range firewalls {
			step(m, "lives beside "+f.name, livesBeside(f))
		}
		step(m, "passes its self-test", func(m *machine) { passesSelfTest(m, "clawjail", 3) })
		step(m, "refuses to start without a unit", missesUnit)
		step(m, "says that the disk is full", missesRoom)
		step(m, "refuses to start without what jails are made with", missesKernel)
		step(m, "loses nothing when the power is cut", losesNothing)
		step(m, "leaves nothing when it is removed", leavesNothing)
		step(m, "refuses to start half installed", missesConfiguration)
	})
}

// TestDebian12ARM64 goes through the steps that an emulator of another architecture has time for.
func TestDebian12ARM64(t *testing.T) {
	g := made(t, guest{suite: "bookworm", kernel: "bookworm", arch: "arm64"})
	m := newMachine(t, g, payload(t, g), templates(t, g))
	m.boot()
	step(m, "installs with its declared dependencies", installs)
	step(m, "starts its units", starts)
	step(m, "satisfies its doctor", satisfiesDoctor)
	step(m, "keeps agents over ends of the host daemon", keepsAgents)
	step(m, "shows a page", showsAPage)
	step(m, "passes its self-test", func(m *machine) { passesSelfTest(m, "clawjail", 1) })
	m.off()
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
