package controlplane

import (
	"log/slog"
	"runtime/debug"
)

// BoundMemory has the control plane collect its garbage more often before it takes half of the memory that there is: what it
// holds for clients is bounded (see the page on limits), and what it no longer holds is not to grow beside that. Where
// GOMEMLIMIT is set, it decides alone.
func BoundMemory(lookupEnv func(string) (string, bool), log *slog.Logger) {
	debug.SetGCPercent(gcPercent)
	if _, set := lookupEnv("GOMEMLIMIT"); set {
		return
	}
	if limit := memoryLimitFor(memoryOfMachine()); limit > 0 {
		debug.SetMemoryLimit(limit)
		log.Debug("memory is collected below a limit", "bytes", limit)
	}
}

// gcPercent has the heap collected more often than Go's own default: much of what passes through here (pictures, pages of the
// protocol) is garbage at once, and memory is better given to jails.
const gcPercent = 50

// minMemory is what the control plane is left at any rate.
const minMemory = 256 << 20

// memoryLimitFor is the limit on a machine with so much memory; 0 is none.
func memoryLimitFor(machine int64) int64 {
	if machine <= 0 {
		return 0
	}
	return max(machine/2, minMemory)
}
