//go:build linux

package doctor

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/jail/freebsd/hosttest"
	"github.com/clawjail/clawjail/internal/jail/freebsd/transcript"
	"github.com/clawjail/clawjail/internal/testenv"
)

// simulated is a simulated FreeBSD host with an installation on it, as docs/freebsd.md says how to make one.
type simulated struct {
	*freebsdFake
	host *hosttest.Host
}

func newSimulated(t *testing.T) *simulated {
	f := &simulated{newFreeBSDFake(t), hosttest.New(t)}
	f.Run = hostcmd.Runner{Dir: f.host.Commands()}
	f.Subnet = freebsdSubnet(f.Run)
	f.host.Fill("zroot/clawjail/templates/tiny/rootfs", "templates/tiny/rootfs", nil)
	rules, err := os.ReadFile(filepath.Join(testenv.Repository(t), "packaging/freebsd/clawjail.pf.conf"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(rules)
	for _, macro := range [][2]string{{"$bridge", "cjk3x9"}, {"$gateway", "10.213.0.1"}, {"$port", "3000"}} {
		text = strings.ReplaceAll(text, macro[0], macro[1])
	}
	f.host.Rules("", "anchor \"clawjail/*\" all\n")
	f.host.Rules("clawjail/k3x9", text)
	f.host.Set(hosttest.Settings{Sysctls: map[string]string{"net.link.bridge.pfil_bridge": "1", "net.link.bridge.pfil_member": "1"}})
	return f
}

// record makes a recording of the host and reads it.
func (f *simulated) record(template string) (text []byte, entries []transcript.Entry) {
	f.t.Helper()
	dir := filepath.Join(f.host.Root(), "run")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	var out bytes.Buffer
	before := f.host.Resources()
	err := Record(f.t.Context(), RecordOptions{Run: f.Run, Dataset: "zroot/clawjail", Dir: dir, Template: template, HostName: "vault.example.org", Now: time.Now, To: &out})
	if err != nil {
		f.t.Fatal(err)
	}
	if after := f.host.Resources(); !slices.Equal(before, after) {
		f.t.Errorf("the host has\n%s\nand had\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		f.t.Errorf("in the folder of the recording: %v, %v", left, err)
	}
	text = out.Bytes()
	r, err := transcript.NewReader(&out)
	if err != nil {
		f.t.Fatal(err)
	}
	if entries, err = r.All(); err != nil {
		f.t.Fatal(err)
	}
	return text, entries
}

// answered is how a command ended that begins so, in a recording.
func answered(t *testing.T, entries []transcript.Entry, begins ...string) transcript.Entry {
	t.Helper()
	for _, e := range entries {
		if len(e.Command) >= len(begins) && slices.Equal(e.Command[:len(begins)], begins) {
			return e
		}
	}
	t.Fatalf("the recording has no %v", begins)
	return transcript.Entry{}
}

func TestRecordingOfASimulatedHostIsReplayedWithoutDifferences(t *testing.T) {
	for _, template := range []string{"", "zroot/clawjail/templates/tiny/rootfs"} {
		f := newSimulated(t)
		text, entries := f.record(template)
		file := filepath.Join(t.TempDir(), "host.jsonl")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		hosttest.Replay(t, file)
		// All of it was tried: each step depends on the one before it.
		for _, begins := range [][]string{
			{"zfs", "create"}, {"zfs", "clone", "-o"}, {"ifconfig", "epair", "create"}, {"pfctl", "-a", recordAnchor, "-t", recordTable, "-T", "kill"},
			{"rctl", "-a"}, {"jail", "-f"}, {"jexec"}, {"jail", "-R"}, {"zfs", "destroy"},
		} {
			answered(t, entries, begins...)
		}
		if e := answered(t, entries, "jail", "-f"); e.Status != 0 || len(e.Files) != 1 {
			t.Errorf("the jail: %+v", e)
		}
		if strings.Contains(string(text), f.host.Root()) || strings.Contains(string(text), "tiny") {
			t.Errorf("it shows names of the host:\n%s", text)
		}
		if t.Failed() {
			t.Logf("%s", text)
		}
	}
}

func TestRecordingShowsWhatIsWrongWithAHost(t *testing.T) {
	for _, c := range []struct {
		scenario string
		begins   []string
		status   int
		says     string
	}{
		{"racct-off", []string{"sysctl", "-n", "kern.racct.enable"}, 0, "0\n"},
		{"racct-off", []string{"rctl", "-a"}, 1, "disabled"},
		{"racct-missing", []string{"sysctl", "-n", "kern.racct.enable"}, 1, "unknown oid"},
		{"pf-disabled", []string{"pfctl", "-s", "info"}, 0, "Status: Disabled"},
		{"no-space", []string{"zfs", "create"}, 1, "out of space"},
		{"create-fails", []string{"jail", "-f"}, 1, "Operation not permitted"},
		{"ifconfig-race", []string{"ifconfig", "epair0a", "name"}, 1, "File exists"},
	} {
		f := newSimulated(t)
		f.host.Scenario(c.scenario)
		_, entries := f.record("")
		if e := answered(t, entries, c.begins...); e.Status != c.status || !strings.Contains(e.Stdout+e.Stderr, c.says) {
			t.Errorf("%s: %+v", c.scenario, e)
		}
	}
}

func TestDoctorOfASimulatedHostFailsWhatAScenarioTakesAway(t *testing.T) {
	for _, c := range []struct {
		scenario, check string // the check that does not end as it does on a host that has everything
		want            Status
		hint            string
	}{
		{},
		{"racct-off", "resource_limits", Fail, "kern.racct.enable=1"},
		{"racct-missing", "resource_limits", Fail, "RCTL"},
		{"pf-disabled", "pf", Fail, "pf_enable"},
		{"rules-missing", "pf_anchor", Fail, "/usr/local/libexec/clawjail/pf-anchor"},
		{"table-missing", "pf_anchor", Fail, "/usr/local/libexec/clawjail/pf-anchor"},
		{"devfs-ruleset-missing", "devices", Fail, "devfs.rules"},
		{"no-space", "zfs_dataset", Warn, "free some space"},
	} {
		f := newSimulated(t)
		before := f.host.Resources()
		if c.scenario != "" {
			f.host.Scenario(c.scenario)
			before = f.host.Resources()
		}
		for _, r := range Run(t.Context(), f.Options, f.Host).Checks {
			switch {
			case r.Name == c.check:
				if r.Status != c.want || !strings.Contains(r.Hint, c.hint) {
					t.Errorf("%s: %+v", c.scenario, r)
				}
			case r.Name == "browser": // it has no sandbox of its own here, and that is said each time
			case r.Status != OK:
				t.Errorf("%s: %+v", c.scenario, r)
			}
		}
		if after := f.host.Resources(); !slices.Equal(before, after) {
			t.Errorf("%s: looking changed the host: %v", c.scenario, after)
		}
	}
}

func TestSubnetOfAFreeBSDHostOverlapsNoRoute(t *testing.T) {
	f := newFreeBSDFake(t)
	f.Subnet = freebsdSubnet(f.Run)
	const routes = "=netstat -rn -f inet\nRouting tables\n\nInternet:\nDestination        Gateway            Flags     Netif Expire\ndefault            192.0.2.1          UGS         em0\n"
	if f.answers(routes + "10.0.0.0/16 link#1 U em0\n"); f.check("subnet").Status != OK {
		t.Errorf("a free one: %+v", f.check("subnet"))
	}
	if f.answers(routes + "10.213.0.0/20 link#7 U cjk3x9\n"); f.check("subnet").Status != OK {
		t.Errorf("its own: %+v", f.check("subnet"))
	}
	if f.answers(routes + "10.213.4.0/24 link#1 U em0\n"); f.check("subnet").Status != Fail || f.check("subnet").Hint == "" {
		t.Errorf("one that is in use: %+v", f.check("subnet"))
	}
}
