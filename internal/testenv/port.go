package testenv

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/clawjail/clawjail/internal/base/freeport"
)

var ports atomic.Uint32

// FreePort is a port of loopback for what is started later. It is free, as is the next one, and no program gets it by chance
// meanwhile: not from the kernel, not from a second call here, and rarely in another process of this network.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	for range 1000 {
		if port, free := freeport.Nth(uint32(os.Getpid())*16 + ports.Add(1)); free {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}
