//go:build !linux

package controlplane

// memoryOfMachine is not known here.
func memoryOfMachine() int64 { return 0 }
