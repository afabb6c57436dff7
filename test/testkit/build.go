//go:build linux

package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built are the folders of what was built for the tests. Main removes them.
var built struct {
	mu      sync.Mutex
	folders []string
}

// Build is a folder with programs, static, that `go build` makes of its arguments: once for each test binary, when one is asked for.
func Build(args ...string) func() (dir string, err error) {
	return sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "clawjail-test-")
		if err != nil {
			return "", err
		}
		built.mu.Lock()
		built.folders = append(built.folders, dir)
		built.mu.Unlock()
		cmd := exec.Command("go", append([]string{"build", "-o", dir}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build programs of the tests: %w\n%s", err, out)
		}
		return dir, nil
	})
}

// The folder stays closed to others, as a home is: the control plane's user runs the program all the same.
var build = Build("-tags", "barriers", "github.com/clawjail/clawjail/cmd/clawjail")

// Program is the program with the barriers in it, which is built where scripts/test.sh has not made it for all test binaries.
func Program() (string, error) {
	if path := os.Getenv("CLAWJAIL_TEST_PROGRAM"); path != "" {
		return path, nil
	}
	dir, err := build()
	return filepath.Join(dir, "clawjail"), err
}

// Main runs the tests of a package, removes what was built for them, and returns the status to exit with.
func Main(m *testing.M) int {
	status := m.Run()
	for _, dir := range built.folders {
		_ = os.RemoveAll(dir) // in the temporary folder
	}
	return status
}
