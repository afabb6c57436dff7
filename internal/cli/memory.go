package cli

import (
	"log/slog"
	"runtime/debug"
)

// boundMemory has the control plane collect its garbage more often before it takes half of the memory that there is: what it
// holds for clients is bounded (see the page on limits), and what it no longer holds is not to grow beside that. Who sets
// GOMEMLIMIT decides alone.
func boundMemory(lookupEnv func(string) (string, bool), log *slog.Logger) {
	if _, set := lookupEnv("GOMEMLIMIT"); set {
		return
	}
	if limit := memoryLimitFor(memoryOfMachine()); limit > 0 {
		debug.SetMemoryLimit(limit)
		log.Debug("memory is collected below a limit", "bytes", limit)
	}
}

// leastMemory is what the control plane is left at any rate.
const leastMemory = 256 << 20

// memoryLimitFor is the limit on a machine with so much memory; 0 is none.
func memoryLimitFor(machine int64) int64 {
	if machine <= 0 {
		return 0
	}
	return max(machine/2, leastMemory)
}
