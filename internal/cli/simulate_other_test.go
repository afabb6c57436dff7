//go:build !linux

package cli

// simulate does nothing: simulated hosts need Linux.
func simulate() {}
