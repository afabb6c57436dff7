//go:build linux

package pid1

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAddressesAreThoseOfTheKernelsTables(t *testing.T) {
	const four = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.88.0.0/24 2 0 2
        +-- 10.88.0.0/28 2 0 2
           |-- 10.88.0.0
              /24 link UNICAST
           |-- 10.88.0.7
              /32 host LOCAL
        |-- 10.88.0.255
           /32 link BROADCAST
     |-- 127.0.0.1
        /32 host LOCAL
Local:
           |-- 10.88.0.7
              /32 host LOCAL
     |-- 192.168.1.9
        /32 host LOCAL
`
	const six = `00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000002 02 40 00 80     eth0
`
	want := []netip.Addr{netip.MustParseAddr("10.88.0.7"), netip.MustParseAddr("192.168.1.9"), netip.MustParseAddr("2001:db8::2")}
	if got, err := parseAddresses(four, six); err != nil || !slices.Equal(got, want) {
		t.Errorf("they are %v, %v", got, err)
	}
	for name, text := range map[string][2]string{"no address": {"|-- here\n/32 host LOCAL\n", ""}, "half of one": {"", "2001 02 40 00 80 eth0\n"}, "an empty line": {"", "\n"}} {
		if got, err := parseAddresses(text[0], text[1]); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
