package inventory

import (
	"io/fs"
	"syscall"
)

func ownerOf(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Uid)
	}
	return 0
}
