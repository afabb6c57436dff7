//go:build !linux

package hostd

// hardenPlatform has nothing to add here: package os opens everything close-on-exec.
func hardenPlatform() error { return nil }
