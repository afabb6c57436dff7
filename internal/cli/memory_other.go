//go:build !linux

package cli

// memoryOfMachine is not known here.
func memoryOfMachine() int64 { return 0 }
