//go:build !linux

package ringlog_test

// child is for a test of Linux.
func child(string) {}
