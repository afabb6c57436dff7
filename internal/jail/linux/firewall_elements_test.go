//go:build linux

package linux

import "testing"

// A listing with an element twice is one of a table that grows, and lacks others.
func TestAListingWithAnElementTwiceIsNotTaken(t *testing.T) {
	if !distinct([][]byte{{1}, {2}, {3}}) || distinct([][]byte{{1}, {2}, {1}}) {
		t.Error("a key that is there twice is not seen, or one that is not")
	}
}
