//go:build !linux

package host

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

func thisMachine() machine {
	var m machine
	m.Host, _ = os.Hostname()
	// A value that the system does not give stays empty, which proves nothing.
	if runtime.GOOS == "darwin" {
		m.ID, _ = unix.Sysctl("kern.uuid")
		m.Boot, _ = unix.Sysctl("kern.bootsessionuuid")
	} else {
		m.ID, _ = unix.Sysctl("kern.hostuuid")
	}
	return m
}
