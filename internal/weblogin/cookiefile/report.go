package cookiefile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// Report says what became of the cookies of a file. Cookies of domains that are not wanted are counted and not named.
type Report struct {
	Format Format `json:"format"`
	// Read is how many entries the file has, Kept how many of them are in the result.
	Read int `json:"read"`
	Kept int `json:"kept"`
	// Domains are counted, the wanted ones first. A wanted domain is named also when the file has nothing of it.
	Domains []DomainCount `json:"domains"`
	// Expired were left out. They say that somebody has to log in again.
	Expired []cookies.ID `json:"expired,omitempty"`
	// DeviceBound were kept, and will not work for long.
	DeviceBound []cookies.ID `json:"device_bound,omitempty"`
	// Invalid were left out.
	Invalid []Invalid `json:"invalid,omitempty"`
	// Storage is what pages have stored, of the wanted domains.
	Storage []weblogin.OriginInfo `json:"storage,omitempty"`
	// Notes are what else the user should know, one sentence each.
	Notes []string `json:"notes,omitempty"`
}

// DomainCount is how much a file has of one registrable domain, whatever became of it. The domain is empty for what
// belongs to none.
type DomainCount struct {
	Domain  string `json:"domain"`
	Cookies int    `json:"cookies"`
	Wanted  bool   `json:"wanted"`
	// Origins are those of the domain whose pages have stored something.
	Origins int `json:"origins,omitempty"`
}

// Invalid is an entry that is no cookie, or a cookie that no browser would take.
type Invalid struct {
	// Place is where in the file: "line 12"; empty when Cookie is known.
	Place  string         `json:"place,omitempty"`
	Cookie *cookies.ID    `json:"cookie,omitempty"`
	Reason cookies.Reason `json:"reason"`
	Text   string         `json:"text"`
}

// notACookie is the reason of an entry that could not be read.
const notACookie cookies.Reason = "not_a_cookie"

func broken(place, format string, args ...any) Invalid {
	return Invalid{Place: place, Reason: notACookie, Text: fmt.Sprintf(format, args...)}
}

// sift keeps what is wanted and can be used, wipes the rest, and reports. The storage of pages of wanted domains is kept
// whole: when something of it is beyond its bounds, that is an error.
func sift(f *found, o Options) (*Result, error) {
	out := &Result{Report: Report{Format: f.format, Read: len(f.cookies) + len(f.broken), Invalid: f.broken, Notes: f.notes}}
	counts := map[string]int{}
	for _, domain := range o.Domains {
		counts[domain] = 0
	}
	last := map[cookies.ID]int{}
	for i, c := range f.cookies {
		last[c.ID()] = i
	}
	twice := 0
	for i, c := range f.cookies {
		// A domain that is not valid is counted as none.
		domain, err := cookies.RegistrableDomain(c.Host())
		if err != nil {
			domain = ""
		}
		counts[domain]++
		if !slices.Contains(o.Domains, domain) {
			cookies.Wipe(f.cookies[i : i+1])
			continue
		}
		id := c.ID()
		keep := false
		var invalid *cookies.InvalidError
		switch err := cookies.Validate(c); {
		case last[id] != i:
			twice++
		case errors.As(err, &invalid):
			out.Report.Invalid = append(out.Report.Invalid, Invalid{Cookie: &id, Reason: invalid.Reason, Text: invalid.Text})
		case c.Expired(o.Now):
			out.Report.Expired = append(out.Report.Expired, id)
		default:
			keep = true
		}
		if !keep {
			cookies.Wipe(f.cookies[i : i+1])
			continue
		}
		if cookies.DeviceBound(c) {
			out.Report.DeviceBound = append(out.Report.DeviceBound, id)
		}
		out.Cookies = append(out.Cookies, c)
	}
	if twice > 0 {
		out.Report.Notes = append(out.Report.Notes, fmt.Sprintf("%d cookies stand in the file more than once; the last one counts", twice))
	}
	cookies.Sort(out.Cookies)
	out.Report.Kept = len(out.Cookies)
	stored, err := out.keepStorage(f.origins, o)
	if err != nil {
		out.Wipe()
		return nil, err
	}
	for domain := range stored {
		counts[domain] += 0
	}
	for _, domain := range slices.Sorted(maps.Keys(counts)) {
		out.Report.Domains = append(out.Report.Domains, DomainCount{domain, counts[domain], slices.Contains(o.Domains, domain), stored[domain]})
	}
	slices.SortStableFunc(out.Report.Domains, func(a, b DomainCount) int {
		switch {
		case a.Wanted == b.Wanted:
			return cmp.Or(cmp.Compare(b.Cookies, a.Cookies), strings.Compare(a.Domain, b.Domain))
		case a.Wanted:
			return -1
		}
		return 1
	})
	return out, nil
}

// keepStorage keeps what pages of wanted domains have stored, wipes the rest, and counts origins by their domains.
func (r *Result) keepStorage(list []weblogin.Origin, o Options) (counts map[string]int, err error) {
	counts = map[string]int{}
	for n, origin := range list {
		domain, err := weblogin.DomainOf(origin.Origin)
		if err != nil {
			domain = ""
		}
		if !origin.Empty() {
			counts[domain]++
		}
		if origin.Empty() || !slices.Contains(o.Domains, domain) {
			weblogin.WipeOrigins(list[n : n+1])
			continue
		}
		r.Origins = append(r.Origins, origin)
	}
	for _, domain := range o.Domains {
		of, _ := weblogin.Select(r.Origins, []string{domain})
		if err := weblogin.Validate(of, domain); err != nil {
			return nil, err
		}
	}
	r.Report.Storage = weblogin.Describe(r.Origins)
	return counts, nil
}
