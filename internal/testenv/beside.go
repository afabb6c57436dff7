package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// Test binaries run side by side, each in namespaces of its own that scripts/alone.sh makes: network, mounts, IPC, /tmp,
// /var/tmp, /run and /dev/shm. They share processes, control groups and user ids. Names and numbers there are made of Slot.

// Slots is one more than the highest Slot.
const Slots = 9

// Slot is a number that no other test binary has at this moment: 1 to 8 in scripts/alone.sh, and 0 outside of it.
func Slot() int {
	slot, err := strconv.Atoi(os.Getenv("CLAWJAIL_TEST_SLOT"))
	if err != nil || slot < 0 || slot >= Slots {
		return 0
	}
	return slot
}

// Tag is three letters and digits for the n-th thing of this process. Nothing of another slot has the same, and rarely
// anything of another process of this one.
func Tag(n uint32) string {
	const all, each = 36 * 36 * 36, 36 * 36 * 36 / Slots
	number := uint32(Slot())*each + (uint32(os.Getpid())*16+n)%each
	return strconv.FormatUint(uint64(all+number), 36)[1:]
}

// OnHostNetwork makes a command use the network of the host, for what has to be downloaded once and is kept. The test needs root.
func OnHostNetwork(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	host := os.Getenv("CLAWJAIL_TEST_HOST")
	if host == "" {
		return // it is there already
	}
	cmd.Args = append([]string{"nsenter", fmt.Sprintf("--net=/proc/%s/ns/net", host), "--", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = Tool(t, "nsenter")
}
