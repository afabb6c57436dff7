package pgtest

import "syscall"

// attributes of a process that ends when the one that started it does, even by SIGKILL.
func attributes(c *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: c, Pdeathsig: syscall.SIGQUIT}
}
