package testenv

import (
	"math/rand/v2"
	"testing"
)

// Dice are for what a test does at random: `make test` has the same numbers each time, and `make test-long` others.
func Dice(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(20261126)
	if IsLong() {
		seed = rand.Uint64()
	}
	t.Logf("the dice have the seed %d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}
