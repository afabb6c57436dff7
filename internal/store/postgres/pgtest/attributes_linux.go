package pgtest

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes of a process that ends when the one that started it does, even by SIGKILL.
func attributes(c *syscall.Credential) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Credential: c, Pdeathsig: syscall.SIGQUIT}
	if c != nil && closed("/etc", 0o001) || c != nil && closed("/etc/passwd", 0o004) {
		// The server looks up its own name, which is no secret on this machine.
		attr.AmbientCaps = []uintptr{unix.CAP_DAC_READ_SEARCH}
	}
	return attr
}

// closed says whether others lack a permission.
func closed(path string, permission os.FileMode) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&permission == 0
}
