//go:build linux

package hosttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

// Host is a simulated host of one test.
type Host struct {
	t   testing.TB
	dir string
}

// New makes a host: a pool zroot that is mounted nowhere, a loopback, pf enabled without rules, racct enabled, the modules that
// a driver needs, and the devfs rulesets 1 to 5 and 4711. It is the test's until the end, when its processes are killed and its
// mounts are gone. The test needs root.
func New(t testing.TB) *Host {
	t.Helper()
	testenv.Need(t, testenv.Root)
	// Not t.TempDir: programs of other users look into it, and a socket's path is short.
	dir, err := os.MkdirTemp("/var/tmp", "hosttest")
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{t, dir}
	t.Cleanup(func() {
		if err := h.end(); err != nil {
			t.Errorf("end the simulated host: %v", err)
		}
	})
	s := &state{Dir: dir, PF: true, NextJID: 0, Anchors: map[string]*anchor{},
		Datasets: []*dataset{{Name: "zroot", ID: "d0", Props: map[string]string{"mountpoint": "none"}}},
		Ifaces:   []*iface{{Name: "lo0", Driver: "lo", Groups: []string{"lo"}, Inet: []string{"127.0.0.1/8"}, Up: true}},
		Klds:     []string{"kernel", "zfs", "if_epair", "if_bridge", "pf", "nullfs", "tmpfs"},
		Rulesets: []string{"1", "2", "3", "4", "5", "4711"},
		Sysctls: map[string]string{"kern.racct.enable": "1", "kern.osreldate": "1500068", "kern.osrelease": "15.0-RELEASE", "kern.ostype": "FreeBSD",
			"kern.features.vimage": "1", "net.link.bridge.pfil_member": "0", "net.link.bridge.pfil_bridge": "0", "net.link.bridge.pfil_onlyip": "1",
			"net.link.bridge.member_ifaddrs": "0", "net.inet.ip.forwarding": "0", "net.inet.tcp.msl": "30000", "security.jail.jailed": "0", "security.bsd.see_other_uids": "1",
			"hw.physmem": "8589934592", "kern.chroot_allow_open_directories": "1"}}
	for _, d := range []string{"bin", "root", "pool/d0/data", "ns"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range names() {
		if err := os.Symlink(self, filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	return h
}

// Commands is the folder of the host's commands.
func (h *Host) Commands() string { return filepath.Join(h.dir, "bin") }

// Root is the folder that all paths of this host lie in: the mount points of its datasets, the configuration and the state of
// what is tested.
func (h *Host) Root() string { return filepath.Join(h.dir, "root") }

// Run runs a command of the host. Its status is -1 when a signal ended it.
func (h *Host) Run(args ...string) (stdout string, status int, stderr string) {
	h.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(filepath.Join(h.Commands(), args[0]), args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/sbin:/bin:/usr/sbin:/usr/bin", "LC_ALL=C"}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("%v: %v", args, err)
	}
	return out.String(), cmd.ProcessState.ExitCode(), errs.String()
}

// Must is Run of what cannot fail.
func (h *Host) Must(args ...string) string {
	h.t.Helper()
	out, status, errs := h.Run(args...)
	if status != 0 {
		h.t.Fatalf("%v: status %d: %s", args, status, errs)
	}
	return out
}

// Fill makes a dataset, and those above it that are missing, mounts it below Root at a path like /templates/tiny, and lets fill
// put files into it.
func (h *Host) Fill(name, mountpoint string, fill func(dir string)) {
	h.t.Helper()
	parts := strings.Split(name, "/")
	for i := 2; i < len(parts); i++ {
		above := strings.Join(parts[:i], "/")
		if _, status, _ := h.Run("zfs", "list", "-H", "-o", "name", above); status != 0 {
			h.Must("zfs", "create", above)
		}
	}
	dir := filepath.Join(h.Root(), mountpoint)
	h.Must("zfs", "create", "-o", "mountpoint="+dir, name)
	if fill != nil {
		fill(dir)
	}
}

// Rules loads rules into an anchor of pf, as `pfctl -a anchor -f` does.
func (h *Host) Rules(anchor, text string) {
	h.t.Helper()
	file := filepath.Join(h.dir, "pf.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.Must("pfctl", "-a", anchor, "-f", file)
}

// Scenario makes the host behave as a scenario says from here on.
func (h *Host) Scenario(name string) {
	h.t.Helper()
	scenario, err := LoadScenario(name)
	if err != nil {
		h.t.Fatal(err)
	}
	h.change(func(s *state) {
		s.set(scenario.Host)
		for _, f := range scenario.Faults {
			s.Faults = append(s.Faults, &fault{Fault: f})
		}
	})
}

// Set changes the host.
func (h *Host) Set(o Settings) {
	h.t.Helper()
	h.change(func(s *state) { s.set(o) })
}

// Heal ends all faults, and lets jails that are removed from now on go at once.
func (h *Host) Heal() {
	h.t.Helper()
	h.change(func(s *state) {
		s.Faults, s.Dying = nil, ""
		for _, p := range s.Jails {
			if p.dying() {
				p.Until = p.Until.AddDate(-1, 0, 0)
			}
		}
	})
}

func (h *Host) change(f func(*state)) {
	h.t.Helper()
	s, lock, err := open(h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	f(s)
	if err := errors.Join(s.save(), lock.Close()); err != nil {
		h.t.Fatal(err)
	}
}

// Resources lists everything that exists on the host, one in a line and sorted, so that a test can compare before and after.
func (h *Host) Resources() []string {
	h.t.Helper()
	var out []string
	h.change(func(s *state) { out = s.resources() })
	return out
}

func (s *state) resources() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, d := range s.Datasets {
		add("dataset %s", d.Name)
	}
	for _, m := range s.Mounts {
		add("mount %s %s", m.Type, m.Node)
	}
	for _, i := range s.Ifaces {
		add("interface %s", i.Name)
		for _, m := range i.Members {
			add("member %s of %s", m.Name, i.Name)
		}
	}
	for name, a := range s.Anchors {
		for n, t := range a.Tables {
			add("table %s %s", name, n)
			for _, ip := range t.Addresses {
				add("address %s in %s %s", ip, name, n)
			}
		}
	}
	for _, r := range s.Limits {
		add("limit %s", r)
	}
	inside := s.inhabitants(s.Jails...)
	for _, p := range s.Jails {
		kind := "jail"
		if p.dying() {
			kind = "dying jail"
		}
		add("%s %s", kind, p.Name)
		for _, q := range inside[p] {
			add("process %d %s in %s", q.pid, q.name, p.Name)
		}
	}
	slices.Sort(out)
	return out
}

// Admits says whether the loaded rules let an address of a table through: whether the table is one that they name and it has
// the address.
func (h *Host) Admits(anchor, name string, addr netip.Addr) bool {
	h.t.Helper()
	var yes bool
	h.change(func(s *state) {
		a := s.Anchors[anchor]
		yes = s.PF && a != nil && len(a.Rules) > 0 && a.Tables[name] != nil && a.Tables[name].Declared && slices.Contains(a.Tables[name].Addresses, addr.String())
	})
	return yes
}

// Log is every command that was run, oldest first.
func (h *Host) Log() [][]string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, logFile))
	if err := missingIsFine(err); err != nil {
		h.t.Fatal(err)
	}
	var out [][]string
	for line := range strings.Lines(string(text)) {
		var l logged
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			h.t.Fatal(err)
		}
		out = append(out, l.Command)
	}
	return out
}

// end kills what runs in the host's jails and removes everything of it.
func (h *Host) end() error {
	s, lock, err := open(h.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range slices.Clone(s.Jails) {
		errs = append(errs, s.kill(p), s.bury(p))
	}
	for root := range groupRoots() { // of a command that was killed before it could write down what it made
		left, err := filepath.Glob(filepath.Join(root, s.group("*")))
		errs = append(errs, err)
		for _, dir := range left {
			errs = append(errs, missingIsFine(os.Remove(dir)))
		}
	}
	for range 20 { // mounts on mounts
		left := mountsBelow(h.dir)
		if len(left) == 0 {
			break
		}
		for _, m := range slices.Backward(left) {
			if err := unix.Unmount(m, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
			}
		}
	}
	if left := mountsBelow(h.dir); len(left) > 0 {
		return errors.Join(append(errs, fmt.Errorf("still mounted: %v", left))...)
	}
	return errors.Join(append(errs, lock.Close(), os.RemoveAll(h.dir))...)
}

func mountsBelow(dir string) []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && within(f[4], dir) {
			out = append(out, f[4])
		}
	}
	return out
}
