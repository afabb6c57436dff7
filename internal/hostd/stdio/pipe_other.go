//go:build !linux

package stdio

// enlarge has nothing to do: pipes grow by themselves.
func enlarge(int, int) {}
