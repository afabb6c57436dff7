package identity

import (
	"net/http"
	"net/netip"
	"testing"
)

func TestClientAddr(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64"), netip.MustParsePrefix("fe80::/10")}
	tests := []struct {
		name      string
		peer      string
		trusted   []netip.Prefix
		forwarded []string
		want      string
	}{
		{"no proxy", "198.51.100.7:1234", nil, nil, "198.51.100.7"},
		{"no proxy, spoofed", "198.51.100.7:1234", nil, []string{"127.0.0.1"}, "198.51.100.7"},
		{"not the proxy, spoofed", "198.51.100.7:1234", proxies, []string{"10.0.0.5"}, "198.51.100.7"},
		{"next to the proxies' network", "10.0.1.1:1", proxies, []string{"127.0.0.1"}, "10.0.1.1"},
		{"proxy", "10.0.0.5:1234", proxies, []string{"198.51.100.7"}, "198.51.100.7"},
		{"proxy without the header", "10.0.0.5:1234", proxies, nil, "10.0.0.5"},
		{"proxy and an empty header", "10.0.0.5:1234", proxies, []string{""}, "10.0.0.5"},
		{"spoofed through the proxy", "10.0.0.5:1234", proxies, []string{"127.0.0.1, 198.51.100.7"}, "198.51.100.7"},
		{"spoofed as a proxy through the proxy", "10.0.0.5:1234", proxies, []string{"203.0.113.9, 10.0.0.9, 198.51.100.7"}, "198.51.100.7"},
		{"spoofed in a header of its own", "10.0.0.5:1234", proxies, []string{"203.0.113.9", "198.51.100.7"}, "198.51.100.7"},
		{"two proxies", "10.0.0.5:1234", proxies, []string{"203.0.113.9, 198.51.100.7, 10.0.0.6"}, "198.51.100.7"},
		{"only proxies", "10.0.0.5:1234", proxies, []string{"10.0.0.7, 10.0.0.6"}, "10.0.0.7"},
		{"words", "10.0.0.5:1234", proxies, []string{"127.0.0.1, unknown"}, "10.0.0.5"},
		{"words behind a proxy", "10.0.0.5:1234", proxies, []string{"127.0.0.1, x, 10.0.0.6"}, "10.0.0.6"},
		{"an empty part", "10.0.0.5:1234", proxies, []string{"198.51.100.7,"}, "10.0.0.5"},
		{"half a bracket", "10.0.0.5:1234", proxies, []string{"[2001:db8::1"}, "10.0.0.5"},
		{"with a port", "10.0.0.5:1234", proxies, []string{"198.51.100.7:443"}, "198.51.100.7"},
		{"IPv6", "[fd00::5]:1234", proxies, []string{"2001:db8::1"}, "2001:db8::1"},
		{"IPv6 in brackets", "[fd00::5]:1234", proxies, []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"IPv6 with a port", "[fd00::5]:1234", proxies, []string{"[2001:db8::1]:443"}, "2001:db8::1"},
		{"a zone", "[fe80::1%eth0]:1234", proxies, []string{"198.51.100.7"}, "198.51.100.7"},
		{"mapped peer", "[::ffff:10.0.0.5]:1234", proxies, []string{"198.51.100.7"}, "198.51.100.7"},
		{"mapped client", "10.0.0.5:1234", proxies, []string{"::ffff:198.51.100.7"}, "198.51.100.7"},
		{"mapped proxy in the header", "10.0.0.5:1234", proxies, []string{"198.51.100.7, ::ffff:10.0.0.6"}, "198.51.100.7"},
		{"spaces", "10.0.0.5:1234", proxies, []string{"  198.51.100.7  "}, "198.51.100.7"},
		{"socket", "@", proxies, []string{"198.51.100.7"}, "invalid IP"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &http.Request{RemoteAddr: tt.peer, Header: http.Header{}}
			for _, value := range tt.forwarded {
				r.Header.Add("X-Forwarded-For", value)
			}
			if got := ClientAddr(r, tt.trusted).String(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func FuzzClientAddr(f *testing.F) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	f.Add("1.2.3.4, 10.0.0.9")
	f.Add("[::1]:1, x")
	f.Fuzz(func(t *testing.T, said string) {
		r := &http.Request{RemoteAddr: "10.0.0.5:1", Header: http.Header{"X-Forwarded-For": {said + ", 198.51.100.7"}}}
		if got := ClientAddr(r, trusted); got != netip.MustParseAddr("198.51.100.7") {
			t.Errorf("%q makes the client %s", said, got)
		}
		r.RemoteAddr = "203.0.113.1:1"
		if got := ClientAddr(r, trusted); got != netip.MustParseAddr("203.0.113.1") {
			t.Errorf("%q makes a stranger %s", said, got)
		}
	})
}
