//go:build linux

package docker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/jail/cgroup"
)

// In version 2 the group of a program's own has no limits set: those above it hold.
func TestProgramInAContainerHasTheLimitsOfTheContainer(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"memory.max": "1048576\n", "cpu.max": "50000 100000\n", "pids.max": "64\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	container := cgroup.Groups{cgroup.Unified: dir}
	f := &fence{dir: filepath.Join(dir, fencePrefix+"x"), version: 2}
	if memory, milli, tasks, err := f.below(container); memory != 1<<20 || milli != 500 || tasks != 64 || err != nil {
		t.Errorf("the limits are %d, %d, %d: %v", memory, milli, tasks, err)
	}
	for name, other := range map[string]*fence{"beside the container": {dir: filepath.Join(t.TempDir(), "x"), version: 2}, "of another version": {dir: f.dir, version: 1}} {
		if _, _, _, err := other.below(container); err == nil {
			t.Errorf("a program %s has its limits", name)
		}
	}
}
