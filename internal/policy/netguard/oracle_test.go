package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// The oracle knows first and last addresses, from the IANA registries, and compares numbers; it knows no prefixes.

// notPublic are the ranges that no jail reaches, apart from what is outside of 2000::/3.
func notPublic() []string {
	return []string{
		"0.0.0.0 0.255.255.255", "10.0.0.0 10.255.255.255", "100.64.0.0 100.127.255.255", "127.0.0.0 127.255.255.255", "169.254.0.0 169.254.255.255",
		"172.16.0.0 172.31.255.255", "192.0.0.0 192.0.0.255", "192.0.2.0 192.0.2.255", "192.31.196.0 192.31.196.255", "192.52.193.0 192.52.193.255",
		"192.88.99.0 192.88.99.255", "192.168.0.0 192.168.255.255", "192.175.48.0 192.175.48.255", "198.18.0.0 198.19.255.255",
		"198.51.100.0 198.51.100.255", "203.0.113.0 203.0.113.255", "224.0.0.0 255.255.255.255", "168.63.129.16 168.63.129.16",
		"2001:: 2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db8:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "2002:: 2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"2620:4f:8000:: 2620:4f:8000:ffff:ffff:ffff:ffff:ffff", "3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff",
	}
}

// metadata are the ranges that stay closed whatever the configuration says.
func metadata() []string {
	return []string{
		"169.254.0.0 169.254.255.255", "100.100.100.200 100.100.100.200", "192.0.0.192 192.0.0.192", "168.63.129.16 168.63.129.16",
		"fe80:: febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fd00:ec2:: fd00:ec2:ffff:ffff:ffff:ffff:ffff:ffff", "fd20:ce::254 fd20:ce::254", "fd00:42::42 fd00:42::42",
	}
}

// nobodys are the ranges that are not the address of one machine, or hold another address.
func nobodys() []string {
	return []string{
		"0.0.0.0 0.255.255.255", "224.0.0.0 239.255.255.255", "255.255.255.255 255.255.255.255", ":: ::", "::2 ::ffff:ffff", "::ffff:0:0:0 ::ffff:0:ffff:ffff",
		"64:ff9b:: 64:ff9b::ffff:ffff", "64:ff9b:1:: 64:ff9b:1:ffff:ffff:ffff:ffff:ffff", "2001:: 2001:0:ffff:ffff:ffff:ffff:ffff:ffff",
		"2002:: 2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ff00:: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	}
}

// carries4 says whether an IPv6 address has an IPv4 address behind the mark of ISATAP, by how it is written in full.
func carries4(a netip.Addr) bool {
	text := unwrapped(a).WithZone("").StringExpanded()
	return len(text) == 39 && (text[19:29] == ":0000:5efe" || text[19:29] == ":0200:5efe" || text[19:29] == ":0100:5efe" || text[19:29] == ":0300:5efe")
}

// alone is a guard of a host that is part of no network.
func alone() Guard { return Guard{Networks: NewNetworks(nil, nil)} }

func within(ranges []string, a netip.Addr) bool {
	for _, r := range ranges {
		from, to, _ := strings.Cut(r, " ")
		first, last := netip.MustParseAddr(from), netip.MustParseAddr(to)
		if first.BitLen() == a.BitLen() && first.Compare(a) <= 0 && a.Compare(last) <= 0 {
			return true
		}
	}
	return false
}

// unwrapped takes ::ffff:a.b.c.d apart by its bytes.
func unwrapped(a netip.Addr) netip.Addr {
	if b := a.As16(); a.Is6() && [12]byte(b[:12]) == [12]byte{10: 0xff, 11: 0xff} {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

func oraclePublic(a netip.Addr) bool {
	zone := a.Zone() // unwrapping loses it
	a = unwrapped(a)
	return zone == "" && (a.Is4() || a.As16()[0]>>5 == 1) && !within(notPublic(), a) && !carries4(a)
}

func oraclePrivate(a netip.Addr) bool {
	zone := a.Zone()
	a = unwrapped(a)
	return zone == "" && !within(metadata(), a) && !within(nobodys(), a) && !carries4(a)
}

func agreesWithOracle(t *testing.T, a netip.Addr) {
	t.Helper()
	if got, want := Check(a) == nil, oraclePublic(a); got != want {
		t.Fatalf("Check(%s) accepts: %v, want %v", a, got, want)
	}
	if got, want := CheckPrivate(a) == nil, oraclePrivate(a); got != want {
		t.Fatalf("CheckPrivate(%s) accepts: %v, want %v", a, got, want)
	}
	ap := netip.AddrPortFrom(a, 443)
	targets, err := alone().Targets([]netip.Addr{a}, 443)
	if (err == nil) != (Check(a) == nil) || alone().CheckPublic(ap) == nil != (err == nil) {
		t.Fatalf("%s: the ways in disagree: %v", a, err)
	}
	if err == nil && (len(targets) != 1 || targets[0] != netip.AddrPortFrom(unwrapped(a), 443) || Check(targets[0].Addr()) != nil) {
		t.Fatalf("%s would be dialled as %v", a, targets)
	}
}

// The ends of every range and their neighbours are where a table goes wrong.
func TestTheEdgesOfEveryRange(t *testing.T) {
	for _, r := range append(append(append(notPublic(), metadata()...), nobodys()...), "2000:: 3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff") {
		for end := range strings.FieldsSeq(r) {
			a := netip.MustParseAddr(end)
			for _, near := range []netip.Addr{a, a.Prev(), a.Next()} {
				if near.IsValid() {
					agreesWithOracle(t, near)
					agreesWithOracle(t, netip.AddrFrom16(near.As16()))
				}
			}
		}
	}
}

// The addresses by which guards of other gateways were measured. Each of them is refused by every way in: alone, as one
// answer among good ones, at its last check before it is dialled, and wrapped into IPv6.
func TestAddressesThatOtherGuardsLetThrough(t *testing.T) {
	good := netip.MustParseAddr("8.8.8.8")
	for _, s := range []string{
		"127.0.0.1", "127.255.255.255", "10.0.0.1", "169.254.169.254", "0.0.0.0", "0.1.2.3", "100.100.100.200", "192.0.0.192", "198.18.0.1", "192.0.2.1", "240.0.0.1", "255.255.255.255", "224.0.0.1",
		"::", "::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::1", "2001:0:1::1", "::127.0.0.1", "::ffff:0:127.0.0.1", "fec0::1", "ff02::1",
		"100::1", "2001:db8::1", "3fff::1", "5f00::1", "168.63.129.16", "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a9fe:a9fe", "::1%lo", "::1%1", "::ffff:127.0.0.1%lo", "::%lo", "2606:4700::1111%lo",
	} {
		a := netip.MustParseAddr(s)
		ways := map[string]error{"Check": Check(a), "CheckPublic": alone().CheckPublic(netip.AddrPortFrom(a, 443))}
		for name, answers := range map[string][]netip.Addr{"alone": {a}, "first of two": {a, good}, "second of two": {good, a}} {
			targets, err := alone().Targets(answers, 443)
			if len(targets) != 0 {
				t.Errorf("%s, %s: %v would be dialled", s, name, targets)
			}
			ways[name] = err
		}
		if a.Is4() {
			ways["mapped"] = Check(netip.MustParseAddr("::ffff:" + s))
		}
		for way, err := range ways {
			if !errors.Is(err, ErrNotPublic) && !errors.Is(err, ErrZone) {
				t.Errorf("%s by %s: %v", s, way, err)
			}
		}
		agreesWithOracle(t, a)
	}
}

// However an address is spelled, Check and CheckPrivate say what the oracle says.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "::ffff:7f00:1", "64:ff9b::1", "2606:4700::1", "8.8.8.8", "2001:db8::1", "fd00:ec2::254", "168.63.129.16", "::2", "::ffff:0:1.2.3.4", "3fff:1000::", "2606:4700::5efe:7f00:1"} {
		a := netip.MustParseAddr(s)
		f.Add(a.AsSlice(), "")
		f.Add(a.AsSlice(), "lo")
	}
	f.Fuzz(func(t *testing.T, b []byte, zone string) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		agreesWithOracle(t, a.WithZone(zone))
		agreesWithOracle(t, netip.AddrFrom16(a.As16()))
		if zone != "" && a.Is6() && (Check(a.WithZone(zone)) == nil || CheckPrivate(a.WithZone(zone)) == nil) {
			t.Fatalf("%s is accepted with a zone", a)
		}
		if Check(a) == nil && (a.Unmap().IsPrivate() || a.Unmap().IsLoopback() || a.Unmap().IsLinkLocalUnicast() || a.Unmap().IsMulticast() || a.Unmap().IsUnspecified()) {
			t.Fatalf("%s is accepted", a)
		}
	})
}

// The text that a client or a name server writes, read and checked.
func FuzzCheckText(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "::1%lo", "::ffff:127.0.0.1", "::127.0.0.1", "fe80::1%eth0", "2606:4700::1111", "::ffff:8.8.8.8%1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return
		}
		agreesWithOracle(t, a)
		if again, err := netip.ParseAddr(fmt.Sprint(a)); err != nil || (Check(again) == nil) != (Check(a) == nil) {
			t.Fatalf("%q: checked otherwise when it is written again", s)
		}
	})
}
