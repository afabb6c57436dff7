//go:build linux

package linux

import (
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// TestNothingThatCrashesInAJailIsHandedToTheHost has the kernel hand the memory of programs that crash to a program of the
// host's, as systemd-coredump and apport are. A limit of 0 does not keep it from that, and the limit of jails does.
func TestNothingThatCrashesInAJailIsHandedToTheHost(t *testing.T) {
	const file = "/proc/sys/kernel/core_pattern"
	h := newTestHost(t)
	testenv.Alone(t, "core_pattern")
	before, err := os.ReadFile(file)
	must(t, err)
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0o644); err != nil {
			t.Error(err)
		}
	})
	if strings.Contains(string(before), "/dd of=") { // of a run that was killed
		before = []byte("core\n")
	}
	must(t, os.WriteFile(file, []byte("|"+testenv.Tool(t, "dd")+" of=/dev/null status=none"), 0o644))

	for _, kind := range []jail.Kind{jail.KindBrowser, jail.KindAgent} {
		open := h.start(t, probeSpec(kind), func(s *specs.Spec) {
			s.Process.Rlimits[1].Hard, s.Process.Rlimits[1].Soft = 0, 0
		})
		if a := open.Ask("crash"); !a.OK || a.Number != 1 {
			t.Fatalf("%s: with the limit 0 nothing is handed on, so that nothing is with another shows nothing: %+v", kind, a)
		}
		jailed := h.start(t, probeSpec(kind), nil)
		if a := jailed.Ask("crash"); !a.OK || a.Number != 0 {
			t.Errorf("%s: the host got the memory of a program that crashed: %+v", kind, a)
		}
		// A program that wants no core files asks for 0, which would let them be handed on. It is told that it has that.
		if a := jailed.Ask("limit", num(unix.RLIMIT_CORE)); !a.OK || a.Number != CoreLimit {
			t.Errorf("%s: asking for another limit: %+v", kind, a)
		}
		if a := jailed.Ask("crash"); !a.OK || a.Number != 0 {
			t.Errorf("%s: after it asked for 0 the host got the memory of a program that crashed: %+v", kind, a)
		}
		unfiltered := h.start(t, probeSpec(kind), func(s *specs.Spec) { s.Linux.Seccomp = nil })
		if a := unfiltered.Ask("limit", num(unix.RLIMIT_CORE)); !a.OK || a.Number != 0 {
			t.Fatalf("%s: without a filter the limit stays too: %+v", kind, a)
		}
		if a := unfiltered.Ask("crash"); !a.OK || a.Number != 1 {
			t.Fatalf("%s: without a filter nothing is handed on either: %+v", kind, a)
		}
	}
}
