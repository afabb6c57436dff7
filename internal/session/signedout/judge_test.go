package signedout

import (
	"slices"
	"testing"
)

func TestWordsOfAddressesAreWhole(t *testing.T) {
	for _, words := range [][]string{signInWords, secondFactorWords, settingsWords} {
		for _, w := range words {
			if w[len(w)-1] == '-' || w[0] == '-' {
				t.Errorf("%q is a part of a word", w)
			}
		}
	}
	if !slices.Contains(signInWords, "members-login") {
		t.Error("members-login is no word")
	}
}
