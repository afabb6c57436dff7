package netguard

import "net/netip"

// special is one row of what is not the public Internet.
type special struct {
	prefix netip.Prefix
	what   string
}

// specialTable lists every prefix that is refused, with the document that sets
// it apart. The source is the IANA IPv4 and IPv6 Special-Purpose Address
// Registries (RFC 6890, RFC 8190), taken whole: also the few entries that are
// globally reachable, since they are anycast relays and sinks and no web site.
//
// IPv6 needs only the exceptions inside 2000::/3: what is outside of global
// unicast space is refused before this table is read.
func specialTable() []special {
	p := netip.MustParsePrefix
	return []special{
		{p("0.0.0.0/8"), "this network (RFC 791)"},
		{p("10.0.0.0/8"), "private use (RFC 1918)"},
		{p("100.64.0.0/10"), "carrier-grade NAT (RFC 6598)"},
		{p("127.0.0.0/8"), "loopback (RFC 1122)"},
		{p("169.254.0.0/16"), "link local (RFC 3927)"},
		{p("172.16.0.0/12"), "private use (RFC 1918)"},
		{p("192.0.0.0/24"), "IETF protocol assignments (RFC 6890)"},
		{p("192.0.2.0/24"), "documentation (RFC 5737)"},
		{p("192.31.196.0/24"), "AS112 (RFC 7535)"},
		{p("192.52.193.0/24"), "multicast tunnelling (RFC 7450)"},
		{p("192.88.99.0/24"), "6to4 relay (RFC 7526)"},
		{p("192.168.0.0/16"), "private use (RFC 1918)"},
		{p("192.175.48.0/24"), "AS112 (RFC 7534)"},
		{p("198.18.0.0/15"), "benchmarking (RFC 2544)"},
		{p("198.51.100.0/24"), "documentation (RFC 5737)"},
		{p("203.0.113.0/24"), "documentation (RFC 5737)"},
		{p("224.0.0.0/4"), "multicast (RFC 5771)"},
		{p("240.0.0.0/4"), "reserved, with the broadcast address (RFC 1112, RFC 919)"},
		{p("168.63.129.16/32"), "Azure's host (no RFC; public by number, private in fact)"},

		{p("2001::/23"), "IETF protocol assignments, with Teredo and ORCHID (RFC 2928, RFC 4380, RFC 7343)"},
		{p("2001:db8::/32"), "documentation (RFC 3849)"},
		{p("2002::/16"), "6to4 (RFC 3056)"},
		{p("2620:4f:8000::/48"), "AS112 (RFC 7534)"},
		{p("3fff::/20"), "documentation (RFC 9637)"},
	}
}

// globalUnicast is all of IPv6 that has ever been given to anyone (RFC 4291).
func globalUnicast() netip.Prefix { return netip.MustParsePrefix("2000::/3") }

// metadataTable lists where clouds answer a machine that asks who it is. They
// are refused even to a configuration that names them: there is no jail that
// needs the host's identity.
func metadataTable() []special {
	p := netip.MustParsePrefix
	return []special{
		{p("169.254.0.0/16"), "link-local metadata (RFC 3927)"},
		{p("fe80::/10"), "link-local metadata (RFC 4291)"},
		{p("100.100.100.200/32"), "Alibaba Cloud metadata"},
		{p("192.0.0.192/32"), "Oracle Cloud metadata"},
		{p("168.63.129.16/32"), "Azure's host"},
		{p("fd00:ec2::/32"), "AWS metadata"},
		{p("fd20:ce::254/128"), "Google Cloud metadata"},
		{p("fd00:42::42/128"), "Scaleway metadata"},
	}
}

// unusableTable lists what cannot be the address of one machine, or hides
// another address inside, and so is refused as a private destination too.
func unusableTable() []special {
	p := netip.MustParsePrefix
	return []special{
		{p("0.0.0.0/8"), "this network (RFC 791)"},
		{p("224.0.0.0/4"), "multicast (RFC 5771)"},
		{p("255.255.255.255/32"), "broadcast (RFC 919)"},
		{p("::/128"), "unspecified (RFC 4291)"},
		{p("::ffff:0:0:0/96"), "translated IPv4 (RFC 2765)"},
		{p("64:ff9b::/96"), "translated IPv4 (RFC 6052)"},
		{p("64:ff9b:1::/48"), "translated IPv4 (RFC 8215)"},
		{p("2002::/16"), "6to4 (RFC 3056)"},
		{p("2001::/32"), "Teredo (RFC 4380)"},
		{p("ff00::/8"), "multicast (RFC 4291)"},
	}
}

// compatible is the dead form ::a.b.c.d (RFC 4291 §2.5.5.1); ::1 lies in it.
func compatible() netip.Prefix { return netip.MustParsePrefix("::/96") }

func find(table []special, a netip.Addr) (string, bool) {
	for _, s := range table {
		if s.prefix.Contains(a) {
			return s.what, true
		}
	}
	return "", false
}
