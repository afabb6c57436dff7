//go:build !linux

package doctor

func simulate() {}
