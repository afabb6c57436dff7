//go:build !linux && !freebsd

package supervisor

import "syscall"

// endWithParent has no equivalent here.
func endWithParent(*syscall.SysProcAttr) {}
