//go:build linux

package hosttest

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// expect runs a command and fails the test unless it ends with a status and says something.
func expect(t *testing.T, h *Host, status int, says string, args ...string) {
	t.Helper()
	out, got, errs := h.Run(args...)
	if got != status || !strings.Contains(out+errs, says) {
		t.Errorf("%v: status %d, %q, want %d and %q", args, got, out+errs, status, says)
	}
}

func TestEveryBehaviourIsShownAndCited(t *testing.T) {
	h, root := withJail(t)
	outside := filepath.Join(h.Root(), "other")
	shown := map[string]func(t *testing.T){
		"a missing dataset": func(t *testing.T) {
			expect(t, h, 1, "cannot open 'zroot/no': dataset does not exist\n", "zfs", "list", "-Hp", "-o", "name", "zroot/no")
		},
		"a snapshot with clones stays": func(t *testing.T) {
			expect(t, h, 1, "snapshot has dependent clones\nuse '-R' to destroy the following datasets:\nzroot/cj/jails/x\n", "zfs", "destroy", "zroot/cj/templates/tiny@clawjail")
		},
		"a dataset with children stays": func(t *testing.T) {
			expect(t, h, 1, "cannot destroy 'zroot/cj/jails': filesystem has children\nuse '-r' to destroy", "zfs", "destroy", "zroot/cj/jails")
		},
		"a dataset name has 255 characters": func(t *testing.T) {
			expect(t, h, 1, "name is too long", "zfs", "create", "zroot/"+strings.Repeat("x", 250))
		},
		"a dataset in use is busy": func(t *testing.T) {
			expect(t, h, 1, "cannot unmount '"+root+"': pool or dataset is busy\n", "zfs", "destroy", "zroot/cj/jails/x")
			expect(t, h, 1, "pool or dataset is busy\n", "zfs", "unmount", "zroot/cj/jails/x")
		},
		"unmounting by force strands what is below": func(t *testing.T) {
			h.Must("zfs", "create", "-o", "mountpoint="+outside, "zroot/other")
			h.Must("zfs", "create", "zroot/other/below")
			h.Must("zfs", "unmount", "-f", "zroot/other")
			expect(t, h, 0, outside+"/below", "mount", "-p")
		},
		"a dying jail holds its dataset": func(t *testing.T) {
			h.Set(Settings{Dying: "1h"})
			h.Must("jail", "-R", "x")
			expect(t, h, 0, "jid=2 name=x path="+root+" dying\n", "jls", "-d", "-n", "-q", "jid", "name", "path", "dying")
			expect(t, h, 1, `jls: jail "x" not found`, "jls", "-j", "x", "jid")
			h.Must("umount", root+"/tmp")
			h.Must("umount", root+"/dev")
			expect(t, h, 1, "pool or dataset is busy", "zfs", "destroy", "zroot/cj/jails/x")
			h.Heal()
			h.Must("zfs", "destroy", "zroot/cj/jails/x")
		},
		"limits outlive jails": func(t *testing.T) {
			h.Must("rctl", "-a", "jail:gone:maxproc:deny=64")
			expect(t, h, 0, "jail:gone:maxproc:deny=64\n", "rctl")
			h.Must("rctl", "-r", "jail:gone")
			expect(t, h, 1, "rctl: failed to remove rule 'jail:gone': No such process\n", "rctl", "-r", "jail:gone")
		},
		"memory is denied to nobody": func(t *testing.T) {
			h.Must("rctl", "-a", "jail:x:memoryuse:deny=1M")
			expect(t, h, 0, "", user("/bin/probe", "memory", "33554432")...)
			h.Must("rctl", "-r", "jail:x")
		},
		"racct is off": func(t *testing.T) {
			h.Set(Settings{Sysctls: map[string]string{"kern.racct.enable": "0"}})
			expect(t, h, 1, "rctl: RACCT/RCTL present, but disabled; enable using kern.racct.enable=1 tunable\n", "rctl")
			h.Set(Settings{Sysctls: map[string]string{"kern.racct.enable": "1"}})
		},
		"an interface name has 15 characters": func(t *testing.T) {
			expect(t, h, 1, "File name too long", "ifconfig", "e0a_x", "name", "e0a_123456789012")
		},
		"a bridge whose name is taken is left behind": func(t *testing.T) {
			h.Must("ifconfig", "bridge", "create", "name", "cjtest")
			expect(t, h, 1, "bridge1\nifconfig: ioctl SIOCSIFNAME (set name): File exists\n", "ifconfig", "bridge", "create", "name", "cjtest")
			expect(t, h, 0, "bridge1", "ifconfig", "-l")
		},
		"both halves of a pair go together": func(t *testing.T) {
			name := strings.TrimSpace(h.Must("ifconfig", "epair", "create"))
			h.Must("ifconfig", name, "destroy")
			expect(t, h, 1, "does not exist", "ifconfig", strings.TrimSuffix(name, "a")+"b")
		},
		"an interface returns with its description": func(t *testing.T) {
			h.Must("ifconfig", "-j", "x", "e0b_x", "description", "clawjail x")
			h.Must("jail", "-R", "x")
			expect(t, h, 0, "description: clawjail x\n", "ifconfig", "e0b_x")
			h.Must("umount", root+"/dev") // -R unmounts nothing
			h.Must("jail", "-f", conf(h, "x", root), "-c", "-q", "x")
		},
		"adding to a missing table makes one that filters nothing": func(t *testing.T) {
			h.Rules("clawjail/test", "table <browser_tasks> persist\nblock in all\npass in from <browser_tasks>\n")
			expect(t, h, 0, "1 table created.\n1/1 addresses added.\n", "pfctl", "-a", "clawjail/test", "-t", "other", "-T", "add", "10.0.0.9")
			h.Must("pfctl", "-a", "clawjail/test", "-t", "browser_tasks", "-T", "add", "10.0.0.9")
			a := netip.MustParseAddr("10.0.0.9")
			if h.Admits("clawjail/test", "other", a) || !h.Admits("clawjail/test", "browser_tasks", a) {
				t.Error("the wrong table admits")
			}
		},
		"a missing table": func(t *testing.T) {
			expect(t, h, 1, "pfctl: Table does not exist.\n", "pfctl", "-t", "none", "-T", "show")
		},
		"testing a table ends with 2": func(t *testing.T) {
			h.Must("pfctl", "-t", "some", "-T", "add", "10.0.0.1")
			expect(t, h, 2, "0/1 addresses match.\n", "pfctl", "-t", "some", "-T", "test", "10.0.0.2")
		},
		"booleans of jls are names": func(t *testing.T) {
			expect(t, h, 0, "name=x nodying persist\n", "jls", "-n", "name", "dying", "persist")
		},
		"an unknown jail": func(t *testing.T) {
			expect(t, h, 1, `jail: "no" not found`, "jail", "-R", "no")
			expect(t, h, 1, `jexec: jail "no" not found`, "jexec", "no", "true")
			expect(t, h, 1, "ifconfig: jail not found: No such file or directory", "ifconfig", "-j", "no", "lo0")
		},
		"the options of a tmpfs are not listed": func(t *testing.T) {
			expect(t, h, 0, "tmpfs\trw,nosuid,noexec \t0 0\n", "mount", "-p")
		},
		"what is not understood is an error": func(t *testing.T) {
			for name := range names() {
				if _, status, _ := h.Run(name, "-Y"); status == 0 {
					t.Errorf("%s -Y succeeds", name)
				}
			}
			expect(t, h, 2, "invalid option 'z'", "zfs", "list", "-z")
			expect(t, h, 1, "unknown parameter: allow.everything", "jail", "-c", "path="+h.Root(), "persist", "allow.everything")
		},
	}
	last := []string{"an interface returns with its description", "a dying jail holds its dataset"}
	list := behaviours()
	slices.SortStableFunc(list, func(a, b behaviour) int { return slices.Index(last, a.Name) - slices.Index(last, b.Name) })
	for _, b := range list {
		if b.Source == "" || !slices.Contains([]string{"source", "measured", "inferred"}, b.Kind) || shown[b.Name] == nil {
			t.Errorf("%q is not cited, or not shown", b.Name)
			continue
		}
		t.Run(b.Name, shown[b.Name])
		delete(shown, b.Name)
	}
	for name := range shown {
		t.Errorf("%q is not in the list", name)
	}
}

func TestEveryScenarioLoadsAndCitesItsSource(t *testing.T) {
	list, err := Scenarios()
	if err != nil || len(list) < 12 {
		t.Fatalf("%v: %v", err, list)
	}
	for _, name := range list {
		if _, err := LoadScenario(name); err != nil {
			t.Error(err)
		}
	}
}

func TestAFaultEndsAfterItsTimes(t *testing.T) {
	h := New(t)
	h.Must("zfs", "create", "zroot/jails")
	h.Must("zfs", "create", "zroot/jails/x")
	h.Scenario("busy-clears")
	for range 3 {
		expect(t, h, 1, "pool or dataset is busy", "zfs", "destroy", "zroot/jails/x")
	}
	expect(t, h, 0, "", "zfs", "destroy", "zroot/jails/x")
}

func TestAStartThatFailsLeavesWhatARealOneLeaves(t *testing.T) {
	h, root := withJail(t)
	h.Must("jail", "-R", "x")
	h.Must("umount", root+"/dev")
	before := h.Resources()
	for _, name := range []string{"start-lies", "epair-left", "create-fails"} {
		h.Scenario(name)
		_, status, errs := h.Run("jail", "-f", conf(h, "x", root), "-c", "x")
		if wrong := (status == 0) != (name == "start-lies"); wrong {
			t.Errorf("%s: status %d, %s", name, status, errs)
		}
		if after := h.Resources(); !slices.Equal(before, after) {
			t.Errorf("%s: %v, before %v", name, after, before)
		}
	}
	h.Set(Settings{Rulesets: []string{"4"}})
	expect(t, h, 1, "failed", "jail", "-f", conf(h, "x", root), "-c", "x")
}

func TestMdoNeedsTheModuleAndARule(t *testing.T) {
	for name, want := range map[string]int{"mac_do-missing": 1, "mac_do-no-rule": 1, "mac_do-loaded": 0} {
		h := New(t)
		h.Scenario(name)
		out, status, errs := h.Run("mdo", "-u", "root", "echo", "ran")
		if status != want || (out == "ran\n") != (want == 0) || want != 0 && !strings.Contains(errs, "mdo: calling setcred() failed: Operation not permitted") {
			t.Errorf("%s: %d %q %q", name, status, out, errs)
		}
	}
}

func BenchmarkCommand(b *testing.B) {
	h := New(b)
	for b.Loop() {
		h.Must("jls", "-d", "name")
	}
}

func TestACommandIsLogged(t *testing.T) {
	h := New(t)
	for range 50 {
		h.Must("jls", "-d", "name")
	}
	if n := len(h.Log()); n != 50 {
		t.Errorf("%d commands were logged", n)
	}
}
