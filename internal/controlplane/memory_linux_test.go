package controlplane

import (
	"log/slog"
	"math"
	"runtime/debug"
	"testing"
)

func TestTheControlPlaneTakesHalfOfTheMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	log := slog.New(slog.DiscardHandler)
	debug.SetMemoryLimit(math.MaxInt64)
	BoundMemory(func(string) (string, bool) { return "1GiB", true }, log)
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("the limit is %d where GOMEMLIMIT decides", got)
	}
	BoundMemory(func(string) (string, bool) { return "", false }, log)
	if got, machine := debug.SetMemoryLimit(-1), memoryOfMachine(); machine <= 0 || got != max(machine/2, minMemory) {
		t.Errorf("the limit is %d of %d", got, machine)
	}
	if memoryLimitFor(0) != 0 || memoryLimitFor(1<<20) != minMemory || memoryLimitFor(8<<30) != 4<<30 {
		t.Error("the limits of machines are others")
	}
}
