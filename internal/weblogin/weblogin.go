// Package weblogin is what a browser has of somebody who is logged in: cookies, and what the pages of an origin have
// stored beside them. Sites keep tokens in either.
//
// Values are of a type that prints as "[redacted]". They leave the package through [Encode], [EncodeOrigins],
// [Login.Secrets] and the value's own method. Listings have origins, numbers and sizes, see [Describe]: a name may say
// whose the account is. The package is pure: no files, no network, no clock.
package weblogin

import (
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
)

// Login is what is carried from one browser to another.
type Login struct {
	Cookies []cookies.Cookie
	Origins []Origin
}

// Origin is what pages of one origin have stored.
type Origin struct {
	// Origin is scheme, host and port as browsers write them: https://app.example.com, http://example.com:8080.
	Origin string
	// Local is localStorage, and Databases are those of IndexedDB.
	Local     []Item
	Databases []Database
	// Left says what is there in a browser and cannot be carried. It is neither stored nor compared.
	Left []string
}

// Item is one entry of localStorage.
type Item struct {
	Name  string
	Value secret.Value
}

// Database is one of IndexedDB.
type Database struct {
	Name    string
	Version int64
	// Records are those of all its stores.
	Records int
	// JSON is all of it, as a storage state of Playwright has it.
	JSON secret.Value
}

// Bounds of what is stored, beside those of cookies. Chromium keeps 5 Mi characters an origin in localStorage.
const (
	MaxOrigins = 50
	// MaxItems is how many entries of localStorage an origin may have.
	MaxItems = 10_000
	// MaxDatabases and MaxRecords bound IndexedDB: databases of an origin, stores of a database, and records of a database.
	MaxDatabases = 50
	MaxStores    = 200
	MaxRecords   = 10_000
	// MaxValue, MaxDatabase and MaxOrigin are bytes: of a value of localStorage with its name, of the JSON of a database, and of
	// all of an origin.
	MaxValue    = 5 << 20
	MaxDatabase = 10 << 20
	MaxOrigin   = 16 << 20
	// MaxLeft is how many things may be named that are not kept.
	MaxLeft = 50
	// MaxBytes is all of a login, as it is encoded.
	MaxBytes = cookies.MaxBytes
)

// Empty says whether there is nothing in it.
func (l Login) Empty() bool { return len(l.Cookies) == 0 && len(l.Origins) == 0 }

// Wipe overwrites all values.
func (l Login) Wipe() {
	cookies.Wipe(l.Cookies)
	WipeOrigins(l.Origins)
}

// WipeOrigins overwrites the values of origins.
func WipeOrigins(list []Origin) {
	for _, o := range list {
		for _, item := range o.Local {
			item.Value.Wipe()
		}
		for _, d := range o.Databases {
			d.JSON.Wipe()
		}
	}
}

// Empty says whether there is nothing in it that could be kept.
func (o Origin) Empty() bool { return len(o.Local) == 0 && len(o.Databases) == 0 }

// Size is how many bytes the names and values of an origin have, and its databases as JSON.
func (o Origin) Size() int64 {
	var n int64
	for _, item := range o.Local {
		n += int64(len(item.Name) + item.Value.Len())
	}
	for _, d := range o.Databases {
		n += int64(d.JSON.Len())
	}
	return n
}

// OriginInfo is an origin without names and values.
type OriginInfo struct {
	Origin string `json:"origin"`
	// Items are entries of localStorage.
	Items int `json:"items"`
	// Databases are those of IndexedDB, and Records all that are in them.
	Databases int `json:"databases,omitempty"`
	Records   int `json:"records,omitempty"`
	// Bytes are those of names and values.
	Bytes int64 `json:"bytes"`
	// LeftOut says what is there and is not kept.
	LeftOut []string `json:"left_out,omitempty"`
}

// Describe lists origins in order, without what is in them.
func Describe(list []Origin) []OriginInfo {
	var out []OriginInfo
	for _, o := range list {
		info := OriginInfo{Origin: o.Origin, Items: len(o.Local), Databases: len(o.Databases), Bytes: o.Size(), LeftOut: o.Left}
		for _, d := range o.Databases {
			info.Records += d.Records
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b OriginInfo) int { return strings.Compare(a.Origin, b.Origin) })
	return out
}

// Total adds up what is described.
func Total(list []OriginInfo) (out OriginInfo) {
	for _, one := range list {
		out.Items += one.Items
		out.Databases += one.Databases
		out.Records += one.Records
		out.Bytes += one.Bytes
	}
	return out
}

// Select returns what is of the registrable domains, and how many other origins there were.
func Select(list []Origin, domains []string) (chosen []Origin, others int) {
	for _, o := range list {
		if domain, err := DomainOf(o.Origin); err == nil && slices.Contains(domains, domain) {
			chosen = append(chosen, o)
		} else {
			others++
		}
	}
	return chosen, others
}

// Compare names the origins whose localStorage is not as it was put in: one that is missing, an entry that is missing,
// changed or was there before. It says what, and no name and no value. Databases are compared where they are put in, by what
// they mean: the same record can be written in several ways.
func Compare(put, back []Origin) (bad []string) {
	for _, o := range put {
		at := slices.IndexFunc(back, func(b Origin) bool { return b.Origin == o.Origin })
		if at < 0 {
			bad = append(bad, o.Origin+" (nothing)")
			continue
		}
		if what := differs(o, back[at]); what != "" {
			bad = append(bad, o.Origin+" ("+what+")")
		}
	}
	return bad
}

func differs(put, back Origin) string {
	there := make(map[string]Item, len(back.Local))
	for _, item := range back.Local {
		there[item.Name] = item
	}
	for _, item := range put.Local {
		got, ok := there[item.Name]
		if !ok {
			return "an entry is missing"
		}
		if !got.Value.Equal(item.Value) {
			return "a value is another one"
		}
	}
	if len(there) > len(put.Local) {
		return "it had entries before"
	}
	return ""
}
