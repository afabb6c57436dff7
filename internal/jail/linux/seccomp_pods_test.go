//go:build linux && amd64

package linux

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// A kubelet gives pods of browsers the same filter, from a file that operators put on its node. It names no processor, and is for each its own.
func TestTheProfileOfPodsIsTheFilterOfBrowsers(t *testing.T) {
	filter, err := seccompFilter(jail.SeccompBrowser)
	if err != nil {
		t.Fatal(err)
	}
	filter.Architectures = nil
	// The limits are set in the pod, by the first process, which keeps them with a filter of its own: see keepCoreLimit.
	limits := []string{"setrlimit", "prlimit64"}
	filter.Syscalls = slices.DeleteFunc(filter.Syscalls, func(r specs.LinuxSyscall) bool { return len(r.Names) == 1 && slices.Contains(limits, r.Names[0]) })
	filter.Syscalls = append(filter.Syscalls, specs.LinuxSyscall{Names: limits, Action: specs.ActAllow})
	want, err := json.MarshalIndent(filter, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	testenv.Golden(t, filepath.Join(testenv.Repository(t), "packaging/kubernetes/seccomp.json"), string(want))
}
