//go:build !linux

package template

import "syscall"

// isolation exists on Linux only. Nothing that needs it is reached elsewhere: see supported.
func isolation(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
