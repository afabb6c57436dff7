//go:build linux

package linux

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
)

func TestOptionsReportEverythingWrongAtOnce(t *testing.T) {
	o := Options{Installation: "TOO LONG", RunDir: "run", DataDir: "", Storage: "xfs", Runtime: "podman", CgroupParent: "../x",
		WorkspaceRoots: []string{"/ok", "/srv/.."}, JailRoots: []string{"jails"}, StageDir: "stage"}
	err := o.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"installation id", "run_dir", "data_dir", "storage", "runtime", "gateway", "cgroup_parent", "workspace_roots", "jail_roots", "CLAWJAIL_STAGE_DIR"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in %q", want, err)
		}
	}
	o = Options{Installation: "abcd", RunDir: "/run/x", DataDir: "/var/x", Gateway: netip.MustParseAddr("10.0.0.1")}
	if err := o.Validate(); err != nil || o.Storage != StorageAuto || o.Runtime != RuntimeAuto || o.Templates != "/var/x/templates" || o.Log == nil {
		t.Errorf("defaults are %+v (%v)", o, err)
	}
}

// A later version of the default profile may allow what is decided here.
func TestFiltersAllowNothingThatIsDecidedElsewhere(t *testing.T) {
	for profile, extra := range map[jail.SeccompProfile][]string{
		jail.SeccompBrowser: {"socket", "socketpair", "clone", "unshare", "chroot", "setrlimit", "prlimit64"},
		jail.SeccompAgent:   {"socket", "socketpair", "clone", "setrlimit", "prlimit64"},
		jail.SeccompShared:  {"socket", "socketpair", "clone", "setrlimit", "prlimit64"},
	} {
		f, err := seccompFilter(profile)
		must(t, err)
		if f.DefaultAction != specs.ActErrno || len(f.Architectures) > 1 {
			t.Errorf("%s: default %s of %v", profile, f.DefaultAction, f.Architectures)
		}
		var allowed []string
		for _, r := range f.Syscalls {
			if r.Action != specs.ActAllow {
				continue
			}
			for _, n := range r.Names {
				if slices.Contains(decidedHere(), n) {
					allowed = append(allowed, n)
					if len(r.Args) == 0 && n != "chroot" {
						t.Errorf("%s: %s is allowed whatever its arguments", profile, n)
					}
				}
			}
		}
		slices.Sort(allowed)
		slices.Sort(extra)
		if got := slices.Compact(allowed); !slices.Equal(got, extra) {
			t.Errorf("%s allows %v, want %v", profile, got, extra)
		}
	}
	if _, err := seccompFilter("none"); err == nil {
		t.Error("a filter that does not exist was made")
	}
}
