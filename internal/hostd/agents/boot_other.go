//go:build !linux

package agents

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func bootTime() (string, error) {
	tv, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return "", fmt.Errorf("ask when the host was started: %w", err)
	}
	return fmt.Sprintf("%d", tv.Sec), nil
}
