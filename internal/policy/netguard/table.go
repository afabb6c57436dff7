package netguard

import "net/netip"

// special is one row of what is not the public Internet.
type special struct {
	prefix netip.Prefix
	what   string
}

// The tables are made once, and never changed.

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// specialRanges lists every prefix that is refused, with the document that sets
// it apart. The source is the IANA IPv4 and IPv6 Special-Purpose Address
// Registries (RFC 6890, RFC 8190), taken whole: also the few entries that are
// globally reachable, since they are anycast relays and sinks and no web site.
//
// IPv6 needs only the exceptions inside 2000::/3: what is outside of global
// unicast space is refused before this table is read.
var specialRanges = []special{
	{prefix("0.0.0.0/8"), "this network (RFC 791)"},
	{prefix("10.0.0.0/8"), "private use (RFC 1918)"},
	{prefix("100.64.0.0/10"), "carrier-grade NAT (RFC 6598)"},
	{prefix("127.0.0.0/8"), "loopback (RFC 1122)"},
	{prefix("169.254.0.0/16"), "link local (RFC 3927)"},
	{prefix("172.16.0.0/12"), "private use (RFC 1918)"},
	{prefix("192.0.0.0/24"), "IETF protocol assignments (RFC 6890)"},
	{prefix("192.0.2.0/24"), "documentation (RFC 5737)"},
	{prefix("192.31.196.0/24"), "AS112 (RFC 7535)"},
	{prefix("192.52.193.0/24"), "multicast tunnelling (RFC 7450)"},
	{prefix("192.88.99.0/24"), "6to4 relay (RFC 7526)"},
	{prefix("192.168.0.0/16"), "private use (RFC 1918)"},
	{prefix("192.175.48.0/24"), "AS112 (RFC 7534)"},
	{prefix("198.18.0.0/15"), "benchmarking (RFC 2544)"},
	{prefix("198.51.100.0/24"), "documentation (RFC 5737)"},
	{prefix("203.0.113.0/24"), "documentation (RFC 5737)"},
	{prefix("224.0.0.0/4"), "multicast (RFC 5771)"},
	{prefix("240.0.0.0/4"), "reserved, with the broadcast address (RFC 1112, RFC 919)"},
	{prefix("168.63.129.16/32"), "Azure's host (no RFC; public by number, private in fact)"},

	{prefix("2001::/23"), "IETF protocol assignments, with Teredo and ORCHID (RFC 2928, RFC 4380, RFC 7343)"},
	{prefix("2001:db8::/32"), "documentation (RFC 3849)"},
	{prefix("2002::/16"), "6to4 (RFC 3056)"},
	{prefix("2620:4f:8000::/48"), "AS112 (RFC 7534)"},
	{prefix("3fff::/20"), "documentation (RFC 9637)"},
}

// globalUnicast is all of IPv6 that has ever been given to anyone (RFC 4291).
var globalUnicast = prefix("2000::/3")

// metadataRanges lists where clouds answer a machine that asks who it is. They
// are refused even to a configuration that names them: there is no jail that
// needs the host's identity.
var metadataRanges = []special{
	{prefix("169.254.0.0/16"), "link-local metadata (RFC 3927)"},
	{prefix("fe80::/10"), "link-local metadata (RFC 4291)"},
	{prefix("100.100.100.200/32"), "Alibaba Cloud metadata"},
	{prefix("192.0.0.192/32"), "Oracle Cloud metadata"},
	{prefix("168.63.129.16/32"), "Azure's host"},
	{prefix("fd00:ec2::/32"), "AWS metadata"},
	{prefix("fd20:ce::254/128"), "Google Cloud metadata"},
	{prefix("fd00:42::42/128"), "Scaleway metadata"},
}

// unusableRanges lists what cannot be the address of one machine, or hides
// another address inside, and so is refused as a private destination too.
var unusableRanges = []special{
	{prefix("0.0.0.0/8"), "this network (RFC 791)"},
	{prefix("224.0.0.0/4"), "multicast (RFC 5771)"},
	{prefix("255.255.255.255/32"), "broadcast (RFC 919)"},
	{prefix("::/128"), "unspecified (RFC 4291)"},
	{prefix("::ffff:0:0:0/96"), "translated IPv4 (RFC 2765)"},
	{prefix("64:ff9b::/96"), "translated IPv4 (RFC 6052)"},
	{prefix("64:ff9b:1::/48"), "translated IPv4 (RFC 8215)"},
	{prefix("2002::/16"), "6to4 (RFC 3056)"},
	{prefix("2001::/32"), "Teredo (RFC 4380)"},
	{prefix("ff00::/8"), "multicast (RFC 4291)"},
}

// compatible is the dead form ::a.b.c.d (RFC 4291 §2.5.5.1); ::1 lies in it.
var compatible = prefix("::/96")

func find(table []special, a netip.Addr) (string, bool) {
	for _, s := range table {
		if s.prefix.Contains(a) {
			return s.what, true
		}
	}
	return "", false
}
