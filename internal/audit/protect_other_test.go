//go:build !linux

package audit

import (
	"os/exec"
	"testing"
)

// unprotect makes a file of checkpoints one that can be removed.
func unprotect(t testing.TB, path string) {
	t.Helper()
	_ = exec.Command("chflags", "nosappnd", path).Run() // where it is set
}
