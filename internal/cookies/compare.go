package cookies

import (
	"math"
	"slices"
	"time"
)

// maxAge is how long Chromium keeps a cookie at most; a later expiry is brought forward to it.
const maxAge = 400 * 24 * time.Hour

// Difference is a cookie that a browser did not take as it was given. It holds no value.
type Difference struct {
	Cookie ID `json:"cookie"`
	// Dropped says that the browser does not have the cookie at all.
	Dropped bool `json:"dropped,omitempty"`
	// Changed are the fields that differ.
	Changed []string `json:"changed,omitempty"`
}

// Compare finds what a browser dropped or changed between Storage.setCookies and Storage.getCookies; Chromium does
// both without an error. Cookies that were read back and not set are not looked at, and neither are fields that the
// set cookie does not specify. An expiry may be brought forward to 400 days from now.
//
// Of two set cookies with the same [ID] the later one counts, as in a browser.
func Compare(set, readBack []Cookie, now time.Time) []Difference {
	have := make(map[ID]Cookie, len(readBack))
	for _, c := range readBack {
		have[c.ID()] = c
	}
	last := make(map[ID]int, len(set))
	for i, c := range set {
		last[c.ID()] = i
	}
	var out []Difference
	for i, c := range set {
		id := c.ID()
		if last[id] != i {
			continue
		}
		got, ok := have[id]
		if !ok {
			out = append(out, Difference{Cookie: id, Dropped: true})
		} else if changed := changes(c, got, now); len(changed) > 0 {
			out = append(out, Difference{Cookie: id, Changed: changed})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int { return compareIDs(a.Cookie, b.Cookie) })
	return out
}

func changes(set, got Cookie, now time.Time) []string {
	var out []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"value", set.Value.Equal(got.Value)},
		{"expires", sameExpiry(set.Expires, got.Expires, now)},
		{"httpOnly", set.HTTPOnly == got.HTTPOnly},
		{"secure", set.Secure == got.Secure},
		{"sameSite", set.SameSite == got.SameSite},
		{"priority", set.Priority == "" || set.Priority == got.Priority},
		{"sourceScheme", set.SourceScheme == "" || set.SourceScheme == got.SourceScheme},
		{"sourcePort", set.SourcePort == 0 || set.SourcePort == got.SourcePort},
	} {
		if !f.same {
			out = append(out, f.name)
		}
	}
	return out
}

func sameExpiry(set, got float64, now time.Time) bool {
	// Chromium keeps microseconds; a float has as many digits until the year 2255.
	if set == got || math.Abs(set-got) < 1e-3 && set != Session && got != Session {
		return true
	}
	// An hour for clocks that differ, and for the time that passed in between.
	limit := seconds(now.Add(maxAge))
	return set > limit-3600 && math.Abs(got-limit) < 3600
}
