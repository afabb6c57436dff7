//go:build linux

package linux

import (
	"slices"
	"testing"
)

// The kernel may give an element of a growing set twice. That is no deviation, and a missing one still is.
func TestAnElementThatComesTwiceIsOne(t *testing.T) {
	got := distinct([][]byte{{1}, {2}, {1}, {3}, {2}})
	if !slices.EqualFunc(got, [][]byte{{1}, {2}, {3}}, slices.Equal[[]byte]) {
		t.Errorf("got %v", got)
	}
}
