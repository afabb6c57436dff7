package testenv

import "syscall"

// unmount detaches what is mounted at a path; that there is nothing is fine.
func unmount(path string) { _ = syscall.Unmount(path, 2) } // MNT_DETACH
