package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestTheHostBrowserIsServedOnLoopbackOnly(t *testing.T) {
	tests := []struct {
		url, control, devtools string
		valid                  bool
	}{
		{"http://127.0.0.1:18791", "127.0.0.1:18791", "127.0.0.1:18792", true},
		{"http://localhost:18791/", "127.0.0.1:18791", "127.0.0.1:18792", true},
		{"http://[::1]:5", "[::1]:5", "[::1]:6", true},
		{"http://127.9.9.9:5", "127.9.9.9:5", "127.9.9.9:6", true},
		// Of another machine: good, and nothing to listen on.
		{"http://192.0.2.1:18791", "", "", true},
		{"https://browser.example", "", "", true},
		{"http://0.0.0.0:18791", "", "", true},
		{"http://127.0.0.1.example:18791", "", "", true},
		// Ports of people's own browsers, and no ports.
		{"http://127.0.0.1:9222", "127.0.0.1:9222", "127.0.0.1:9223", false},
		{"http://127.0.0.1:9221", "127.0.0.1:9221", "127.0.0.1:9222", false},
		{"http://127.0.0.1:65535", "", "", false},
		{"http://127.0.0.1:0", "", "", false},
		{"https://127.0.0.1:18791", "", "", false},
		// No addresses.
		{"http://user:secret@127.0.0.1:18791", "", "", false},
		{"http://127.0.0.1:18791/x", "", "", false},
		{"ftp://127.0.0.1:18791", "", "", false},
		{"127.0.0.1:18791", "", "", false},
		{"", "", "", false},
	}
	for _, tt := range tests {
		b := defaultHostBrowser()
		b.ControlURL = tt.url
		control, devtools, ok := b.Local()
		if ok != (tt.control != "") || ok && (control.String() != tt.control || devtools.String() != tt.devtools) {
			t.Errorf("%s: %v, %v, %v", tt.url, control, devtools, ok)
		}
		if err := b.Validate(); (err == nil) != tt.valid {
			t.Errorf("%s: %v", tt.url, err)
		}
	}
}

func TestColoursAreNumbers(t *testing.T) {
	for text, want := range map[string]uint32{"#FF4500": 0xff4500, "#000000": 0, "#ffffff": 0xffffff} {
		if got, ok := (HostBrowser{Color: text}).RGB(); !ok || got != want {
			t.Errorf("%s: %x, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "FF4500", "#FF450", "#FF45001", "#GG0000", "#+F4500"} {
		if _, ok := (HostBrowser{Color: text}).RGB(); ok {
			t.Errorf("%s is a colour", text)
		}
	}
}

func TestOtherMachinesNeedTLSAndAToken(t *testing.T) {
	at := netip.MustParseAddrPort
	tests := map[string]struct {
		change func(*RemoteBrowser)
		want   []string // none: it is valid
	}{
		"all of it":        {func(*RemoteBrowser) {}, nil},
		"nothing":          {func(r *RemoteBrowser) { *r = RemoteBrowser{} }, nil},
		"no certificate":   {func(r *RemoteBrowser) { r.TLS.Cert = "" }, []string{"browser.tls", "in the clear"}},
		"no TLS":           {func(r *RemoteBrowser) { r.TLS = TLS{} }, []string{"browser.tls", "in the clear"}},
		"no token":         {func(r *RemoteBrowser) { r.Token = "" }, []string{"browser.token", "a token of their own"}},
		"no address":       {func(r *RemoteBrowser) { r.Listen = netip.AddrPort{} }, []string{"browser.listen", "is missing"}},
		"every address":    {func(r *RemoteBrowser) { r.Listen = at("0.0.0.0:18791") }, []string{"browser.listen", "not one address"}},
		"loopback":         {func(r *RemoteBrowser) { r.Listen = at("127.0.0.1:18791") }, []string{"browser.listen", "not one address"}},
		"the port 9222":    {func(r *RemoteBrowser) { r.Listen = at("192.0.2.7:9222") }, []string{"browser.listen", "port 9222"}},
		"the last port":    {func(r *RemoteBrowser) { r.Listen = at("192.0.2.7:65535") }, []string{"browser.listen", "port 65535"}},
		"a path from here": {func(r *RemoteBrowser) { r.Token = "token" }, []string{"browser.token"}},
	}
	for name, tt := range tests {
		b := defaultHostBrowser()
		b.Remote = RemoteBrowser{Listen: at("192.0.2.7:18791"), TLS: TLS{Cert: "/b.crt", Key: "/b.key"}, Token: "/b.token"}
		tt.change(&b.Remote)
		err := b.Validate()
		if tt.want == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, text := range tt.want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v lacks %q", name, err, text)
			}
		}
	}
}
