package policy

import (
	"strings"
	"testing"
)

// A pattern that is longer in its one form than as it was written would be kept, and then not be read: a rule that denies would
// deny everything.
func TestWhatParsePathReturnsIsReadBack(t *testing.T) {
	for _, n := range []int{1, 300, 341, 342, 700, 1000} {
		p, err := ParsePath("/" + strings.Repeat("é", n))
		if err != nil {
			continue
		}
		if again, err := ParsePath(p.String()); err != nil || again != p {
			t.Errorf("%d letters: %v", n, err)
		}
	}
	if _, err := ParsePath("/" + strings.Repeat("é", 300)); err != nil {
		t.Error(err)
	}
}
