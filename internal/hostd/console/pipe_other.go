//go:build !linux

package console

// enlarge has nothing to do: pipes grow by themselves.
func enlarge(int, int) {}
