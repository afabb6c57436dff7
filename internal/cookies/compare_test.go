package cookies

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/base/secret"
)

func TestCompareNamesWhatWasDroppedOrChanged(t *testing.T) {
	partitioned := func(c *Cookie) { c.PartitionKey = &PartitionKey{TopLevelSite: "https://other.test"} }
	for name, tt := range map[string]struct {
		set, got func(c *Cookie)
		want     []string // fields; "dropped"
	}{
		"the same":                      {nil, nil, nil},
		"value":                         {nil, func(c *Cookie) { c.Value = secret.New([]byte("canary")) }, []string{"value"}},
		"value of the same length":      {nil, func(c *Cookie) { c.Value = secret.New([]byte("value-of-sie")) }, []string{"value"}},
		"expiry lost":                   {func(c *Cookie) { c.Expires = seconds(epoch) + 60 }, nil, []string{"expires"}},
		"expiry gained":                 {nil, func(c *Cookie) { c.Expires = seconds(epoch) + 60 }, []string{"expires"}},
		"expiry another":                {expiring(60), expiring(61), []string{"expires"}},
		"expiry rounded":                {expiring(60), expiring(60.0000004), nil},
		"expiry brought forward":        {expiring(500 * 86400), expiring(400 * 86400), nil},
		"expiry brought too far":        {expiring(500 * 86400), expiring(300 * 86400), []string{"expires"}},
		"expiry pushed to the limit":    {expiring(60), expiring(400 * 86400), []string{"expires"}},
		"httpOnly":                      {nil, func(c *Cookie) { c.HTTPOnly = false }, []string{"httpOnly"}},
		"secure and its source":         {nil, insecure, []string{"secure", "sourceScheme", "sourcePort"}},
		"sameSite":                      {nil, func(c *Cookie) { c.SameSite = "" }, []string{"sameSite"}},
		"priority":                      {nil, func(c *Cookie) { c.Priority = "Low" }, []string{"priority"}},
		"source unspecified":            {func(c *Cookie) { c.SourceScheme, c.SourcePort, c.Priority = "", 0, "" }, nil, nil},
		"size is the browser's matter":  {func(c *Cookie) { c.Size = 0 }, nil, nil},
		"host-only instead of a domain": {nil, func(c *Cookie) { c.Domain = "example.test" }, []string{"dropped"}},
		"another path":                  {nil, func(c *Cookie) { c.Path = "/x" }, []string{"dropped"}},
		"another partition":             {partitioned, nil, []string{"dropped"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			differences := Compare([]Cookie{plain(tt.set)}, []Cookie{plain(func(c *Cookie) { c.Name = "other" }), plain(tt.got)}, epoch)
			for _, d := range differences {
				got = append(got, d.Changed...)
				if d.Dropped {
					got = append(got, "dropped")
				}
				if d.Cookie != plain(tt.set).ID() {
					t.Errorf("it is about %v", d.Cookie)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
			if text := fmt.Sprintf("%+v %#v", differences, differences); strings.Contains(text, "canary") || strings.Contains(text, "value-of") {
				t.Errorf("they show a value: %s", text)
			}
		})
	}
}

func expiring(after float64) func(c *Cookie) {
	return func(c *Cookie) { c.Expires, c.Session = seconds(epoch)+after, false }
}

func TestCompareTakesTheLaterOfTwo(t *testing.T) {
	first, second := plain(nil), plain(func(c *Cookie) { c.Value = secret.New([]byte("second")) })
	if d := Compare([]Cookie{first, second}, []Cookie{second}, epoch); len(d) > 0 {
		t.Errorf("got %v", d)
	}
	if d := Compare([]Cookie{first, second}, []Cookie{first}, epoch); len(d) != 1 {
		t.Errorf("got %v", d)
	}
	if d := Compare([]Cookie{first}, nil, time.Time{}); len(d) != 1 || !d[0].Dropped {
		t.Errorf("got %v", d)
	}
}
