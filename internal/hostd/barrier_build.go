//go:build barriers

package hostd

import (
	"os"
	"path/filepath"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// barrier stops before every step that the folder "barriers" below the run directory has a file of that name for, says
// so with a file <step>.reached, and goes on when the first one is removed. It is there in programs that are built with
// -tags barriers, for tests that kill processes at every step, and in no other.
func barrier(runDir string) func(jail.Step) {
	dir := filepath.Join(runDir, "barriers")
	return func(s jail.Step) {
		armed := filepath.Join(dir, string(s))
		for first := true; ; first = false {
			if _, err := os.Lstat(armed); err != nil {
				return
			}
			if first {
				if err := os.WriteFile(armed+".reached", nil, 0o600); err != nil {
					panic(err) // it is a test's program, and the test must see it
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}
