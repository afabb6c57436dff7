package hostd

import (
	"fmt"
	"os"
	"syscall"

	"github.com/clawjail/clawjail/internal/problem"
)

// privateDir refuses a folder that is not this process's own, or that has one of the forbidden permissions.
func privateDir(path string, info os.FileInfo, forbidden os.FileMode) error {
	owner, ok := ownerOf(info)
	switch {
	case !info.IsDir():
		return problem.New(problem.BadConfig, "remove it", "%s is not a folder", path)
	case !ok || owner != uint32(os.Geteuid()):
		return problem.New(problem.BadConfig, fmt.Sprintf("chown it to user %d, or remove it", os.Geteuid()),
			"the folder %s belongs to another user", path)
	case info.Mode().Perm()&forbidden != 0:
		return problem.New(problem.BadConfig, fmt.Sprintf("chmod %04o %s", info.Mode().Perm()&^forbidden, path),
			"the folder %s is open to others (mode %04o)", path, info.Mode().Perm())
	}
	return nil
}

// ownerOf is the user that a file belongs to.
func ownerOf(info os.FileInfo) (uid uint32, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}
