//go:build unix && !linux && !freebsd

package pgtest

import "syscall"

// attributes of a process. This system does not end it together with the one that started it.
func attributes(c *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: c}
}
