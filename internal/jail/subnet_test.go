package jail

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestSubnetsAreFreeOrTheInstallationsOwn(t *testing.T) {
	candidates := []netip.Prefix{netip.MustParsePrefix("10.1.0.1/20"), netip.MustParsePrefix("10.2.0.0/20"), netip.MustParsePrefix("10.3.0.0/20")}
	used := []Occupied{{netip.MustParsePrefix("10.1.4.0/24"), "the address", "vpn"}, {netip.MustParsePrefix("10.4.0.0/14"), "the route to", ""}}
	for _, c := range []struct{ own, want string }{
		{"", "10.2.0.0/20"}, {"10.3.0.0/20", "10.3.0.0/20"}, {"10.1.0.0/20", "10.2.0.0/20"}, {"10.3.0.0/24", "10.2.0.0/20"},
	} {
		var own []netip.Prefix
		if c.own != "" {
			own = append(own, netip.MustParsePrefix(c.own))
		}
		if got, err := FreeSubnet(candidates, own, used); err != nil || got.String() != c.want {
			t.Errorf("with its own %q: %s, %v", c.own, got, err)
		}
	}
	if _, err := FreeSubnet(candidates[:1], nil, used); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("with no free one: %v", err)
	}
	for subnet, because := range map[string]string{"10.1.0.0/20": "the address 10.1.4.0/24 on vpn", "10.5.0.0/20": "the route to 10.4.0.0/14 of this host", "10.2.0.0/20": ""} {
		err := CheckSubnet(netip.MustParsePrefix(subnet), used)
		if (err == nil) != (because == "") || err != nil && !strings.Contains(err.Error(), because) {
			t.Errorf("%s: %v", subnet, err)
		}
	}
	for route, wide := range map[string]bool{"0.0.0.0/0": true, "128.0.0.0/1": true, "10.0.0.0/8": false} {
		if WideRoute(netip.MustParsePrefix(route)) != wide {
			t.Errorf("%s", route)
		}
	}
}
