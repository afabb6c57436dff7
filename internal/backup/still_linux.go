package backup

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// noVolumesInUse refuses while the kernel has a loop device of an agent's state: it is mounted somewhere, and what is in
// the file is not all of it.
func noVolumesInUse(c config.Config) error {
	used, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	below := filepath.Join(c.DataDir, stateDir) + "/"
	for _, path := range used {
		image, err := os.ReadFile(path)
		if err != nil {
			continue // given back meanwhile
		}
		if strings.HasPrefix(string(image), below) {
			return problem.New(problem.Conflict, stopHint, "the state %s of an agent is in use", filepath.Base(strings.TrimSpace(string(image))))
		}
	}
	return nil
}

// stateInFiles says that what agents keep is files of the data directory.
const stateInFiles = true
