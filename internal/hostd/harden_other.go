//go:build !linux

package hostd

// noCores is the limit on core files with which none is written.
const noCores = 0

// hardenPlatform has nothing to add here: package os opens everything close-on-exec.
func hardenPlatform() error { return nil }
