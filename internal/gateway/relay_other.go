//go:build !unix

package gateway

import "syscall"

// readWhenReady is not available here; the caller reads in the ordinary way.
func readWhenReady(syscall.RawConn, *bufferPool) readBorrowed { return nil }
