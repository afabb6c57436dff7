package postgres

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// giveUp bounds how long what was sent may stay without an answer of the other kernel. While something is on its way, nothing is
// sent to see whether the other side is there.
func giveUp(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return c.Control(func(fd uintptr) {
		// A kernel that cannot do it gives up later.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
}
