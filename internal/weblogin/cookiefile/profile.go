package cookiefile

import (
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/weblogin/cookiefile/firefox"
)

// fromProfile makes Chromium's cookies of Firefox's.
func fromProfile(p *firefox.Profile) *found {
	out := &found{format: Firefox}
	isolated := 0
	for _, row := range p.Rows {
		c := cookies.Cookie{
			Name: row.Name, Value: secret.Own(row.Value), Domain: row.Host, Path: row.Path, Expires: row.Expires,
			Size: int64(len(row.Name) + len(row.Value)), HTTPOnly: row.HTTPOnly, Secure: row.Secure, SameSite: row.SameSite,
			Session: row.Expires == cookies.Session,
		}
		if row.Partition != "" {
			site, ancestor, err := firefox.ParsePartition(row.Partition)
			c.PartitionKey = &cookies.PartitionKey{TopLevelSite: site, HasCrossSiteAncestor: ancestor || foreign(c, site)}
			if err != nil {
				// A page without a site, such as about:blank: Chromium calls such a partition opaque.
				c.PartitionKey, c.PartitionKeyOpaque = nil, true
			} else if !row.Partitioned {
				isolated++
			}
		}
		out.cookies = append(out.cookies, c)
	}
	out.notes = append(out.notes, "session cookies are not in a Firefox profile's database (Firefox keeps them with its open tabs); "+
		"a site that logs in with one needs a login in a clawjail session")
	out.note(isolated, "cookies were isolated by Firefox itself, without the site asking for it; they are imported as partitioned")
	out.note(p.Containers, "cookies of containers were left out; only the default container is read")
	out.note(p.Others, "cookies of private windows or other isolated contexts were left out")
	return out
}
