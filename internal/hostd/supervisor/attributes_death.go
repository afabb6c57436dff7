//go:build linux || freebsd

package supervisor

import "syscall"

// endWithParent makes the kernel ask the child to end when its parent is gone.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
