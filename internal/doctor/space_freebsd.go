package doctor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// space asks statfs(2); what only root may still use counts below zero there.
func space(path string) (Space, error) {
	at := existing(path)
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return Space{}, fmt.Errorf("statfs %s: %w", at, err)
	}
	free := uint64(max(st.Bavail, 0)) * st.Bsize
	return Space{At: at, Free: free, Type: unix.ByteSliceToString(st.Fstypename[:]), ReadOnly: st.Flags&unix.MNT_RDONLY != 0}, nil
}
