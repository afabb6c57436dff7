package template

import "syscall"

// isolation is the namespaces of a command. Unsharing the mount namespace makes every mount in it private, so that
// nothing that the command mounts is ever seen on the host. With the process that started it, the command dies too.
func isolation(noNetwork bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
		Setsid:       true, // a Ctrl-C at the terminal reaches us, and we decide
	}
	if noNetwork {
		attr.Cloneflags |= syscall.CLONE_NEWNET
	}
	return attr
}
