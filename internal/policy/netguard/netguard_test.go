package netguard

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestOnlyThePublicInternetIsReachable(t *testing.T) {
	refused := []string{
		// Each special range at its first and last address.
		"0.0.0.0", "0.1.2.3", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.100.100.200", "100.127.255.255",
		"127.0.0.1", "127.255.255.255", "169.254.0.0", "169.254.169.254", "169.254.170.2", "169.254.255.255", "172.16.0.0", "172.31.255.255",
		"192.0.0.0", "192.0.0.192", "192.0.0.255", "192.0.2.1", "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.0.1", "192.168.255.255",
		"192.175.48.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
		"255.255.255.254", "255.255.255.255", "168.63.129.16",
		// The same, wrapped into IPv6.
		"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:168.63.129.16", "::ffff:0.0.0.0",
		"64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::1", "2002:808:808::1", "2001:0:1::1", "2001::",
		"::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8",
		// IPv6 of its own.
		"::", "::1", "fe80::1", "febf::1", "fc00::1", "fd00::1", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fec0::1", "ff02::1", "ff0e::1",
		"100::1", "100:0:0:1::1", "2001:db8::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:1ff:ffff::1", "2620:4f:8000::1", "3fff::1", "3fff:fff::1",
		"5f00::1", "1fff:ffff::1", "4000::1", "8000::1",
		// Zones.
		"::1%lo", "::1%1", "::ffff:127.0.0.1%lo", "2606:4700::1111%eth0", "fe80::1%eth0",
	}
	for _, s := range refused {
		if err := Check(netip.MustParseAddr(s)); err == nil {
			t.Errorf("%s is reachable", s)
		}
	}
	for _, s := range []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0",
		"172.15.255.255", "172.32.0.0", "192.0.1.0", "192.0.3.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.15",
		"::ffff:8.8.8.8", "2606:4700::1111", "2001:200::1", "2001:4860:4860::8888", "2003::1", "2620:4f:7fff::1", "2620:4f:8001::1", "3ffe::1", "3fff:1000::1", "2000::1",
	} {
		if err := Check(netip.MustParseAddr(s)); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	if err := Check(netip.Addr{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no address: %v", err)
	}
}

// A row without effect would be a row that nobody would miss: every prefix of
// the table must be the reason for which some address is refused.
func TestEveryRowOfTheTableIsNeeded(t *testing.T) {
	for _, s := range specialRanges {
		err := Check(s.prefix.Addr())
		if !errors.Is(err, ErrNotPublic) || !strings.Contains(err.Error(), s.what) {
			t.Errorf("%s (%s): %v", s.prefix, s.what, err)
		}
		if s.prefix != s.prefix.Masked() {
			t.Errorf("%s has host bits", s.prefix)
		}
		if s.prefix.Addr().Is6() && !globalUnicast.Overlaps(s.prefix) {
			t.Errorf("%s is outside 2000::/3 and refused anyway", s.prefix)
		}
	}
}

func TestMetadataIsNeverADestination(t *testing.T) {
	for _, a := range []string{
		"169.254.169.254", "169.254.170.2", "::ffff:169.254.169.254", "fe80::a9fe:a9fe", "100.100.100.200", "192.0.0.192", "168.63.129.16",
		"fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42",
	} {
		var g Guard
		if err := CheckPrivate(netip.MustParseAddr(a)); !errors.Is(err, ErrMetadata) {
			t.Errorf("in a rule %s: %v", a, err)
		}
		if err := g.CheckDestination(netip.AddrPortFrom(netip.MustParseAddr(a), 80)); !errors.Is(err, ErrMetadata) {
			t.Errorf("dialled %s: %v", a, err)
		}
	}
	for _, a := range []string{"0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "ff02::1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001:0:1::1", "::169.254.169.254", "::ffff:0:169.254.169.254", "fd00::5efe:a00:1", "2606:4700::200:5efe:a00:1"} {
		if err := CheckPrivate(netip.MustParseAddr(a)); !errors.Is(err, ErrUnusable) {
			t.Errorf("%s: %v", a, err)
		}
	}
	for _, a := range []string{"fd00::1%eth0", "::1%lo"} {
		if err := CheckPrivate(netip.MustParseAddr(a)); !errors.Is(err, ErrZone) {
			t.Errorf("%s: %v", a, err)
		}
	}
	for _, a := range []string{"127.0.0.1", "::1", "10.0.0.1", "fd12::1", "100.64.0.1", "8.8.8.8"} {
		if err := CheckPrivate(netip.MustParseAddr(a)); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestNobodyReachesTheGatewayItself(t *testing.T) {
	g := Guard{Networks: NewNetworks(nil, nil), Self: []netip.AddrPort{netip.MustParseAddrPort("8.8.8.8:18780"), netip.MustParseAddrPort("9.9.9.9:0"), netip.MustParseAddrPort("127.0.0.1:3000")}}
	for in, self := range map[string]bool{"8.8.8.8:18780": true, "8.8.8.8:443": false, "9.9.9.9:1": true, "[::ffff:8.8.8.8]:18780": true, "1.1.1.1:18780": false} {
		if err := g.CheckPublic(netip.MustParseAddrPort(in)); errors.Is(err, ErrSelf) != self {
			t.Errorf("%s: %v", in, err)
		}
	}
	if err := g.CheckDestination(netip.MustParseAddrPort("127.0.0.1:3000")); !errors.Is(err, ErrSelf) {
		t.Errorf("own socket as a private destination: %v", err)
	}
	if err := g.CheckDestination(netip.MustParseAddrPort("127.0.0.1:3001")); err != nil {
		t.Error(err)
	}
}

func TestOneBadAnswerRefusesAll(t *testing.T) {
	g := alone()
	a := netip.MustParseAddr
	if _, err := g.Targets([]netip.Addr{a("8.8.8.8"), a("10.0.0.1")}, 443); !errors.Is(err, ErrNotPublic) {
		t.Errorf("mixed answers: %v", err)
	}
	if _, err := g.Targets([]netip.Addr{a("::ffff:8.8.8.8%lo")}, 443); !errors.Is(err, ErrZone) {
		t.Errorf("zone: %v", err)
	}
	if _, err := g.Targets(nil, 443); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("no answers: %v", err)
	}
	got, err := g.Targets([]netip.Addr{a("2606:4700::1"), a("::ffff:8.8.8.8"), a("8.8.8.8")}, 443)
	if err != nil || len(got) != 2 || got[0].String() != "[2606:4700::1]:443" || got[1].String() != "8.8.8.8:443" {
		t.Errorf("Targets = %v, %v", got, err)
	}
}

func TestValidateReportsEverythingAtOnce(t *testing.T) {
	err := Guard{
		Self: []netip.AddrPort{{}, netip.MustParseAddrPort("[fe80::1%eth0]:80")},
	}.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"not an IP address", "own socket 1", "own socket 2"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %q:\n%v", want, err)
		}
	}
}
