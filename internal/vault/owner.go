package vault

import (
	"io/fs"
	"os"
	"syscall"
)

// giveTo gives a file that root makes to the owner of another one: what a command of root's leaves, the service that
// runs as somebody else must be able to use.
func giveTo(f *os.File, like fs.FileInfo) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return f.Chown(ownerOf(like), groupOf(like))
}

// ownerOf and groupOf say whose a file is; -1 is not known.
func ownerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

func groupOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Gid)
	}
	return -1
}
