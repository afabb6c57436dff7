//go:build !linux

package cdp

import "io"

// widen does nothing: the sizes of pipes are the kernel's choice.
func widen(io.Writer) {}
