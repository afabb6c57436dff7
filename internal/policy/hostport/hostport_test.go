package hostport

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func TestHostsWrittenDifferentlyAreOneHost(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"example.com", "example.com"},
		{"EXAMPLE.Com", "example.com"},
		{"example.com.", "example.com"},
		{"ＥＸＡＭＰＬＥ．com", "example.com"},
		{"example。com", "example.com"},
		{"bücher.example", "xn--bcher-kva.example"},
		{"BÜCHER.example.", "xn--bcher-kva.example"},
		{"XN--BCHER-KVA.example", "xn--bcher-kva.example"},
		{"faß.example", "xn--fa-hia.example"},
		{"r3---sn-abc.example", "r3---sn-abc.example"},
		{"_dmarc.example.com", "_dmarc.example.com"},
		{"localhost", "localhost"},
		{"127.0.0.1.example.com", "127.0.0.1.example.com"},
		{"0x7f.example", "0x7f.example"},
		{"127.0.0.1", "127.0.0.1"},
		{"127.0.0.1.", "127.0.0.1"},
		{"①②⑦.0.0.1", "127.0.0.1"},
		{"127。0。0。1", "127.0.0.1"},
		{"１２７.0.0.1", "127.0.0.1"},
		{"[::1]", "[::1]"},
		{"[2001:DB8:0:0::1]", "[2001:db8::1]"},
		{"[::ffff:127.0.0.1]", "127.0.0.1"},
		{"[::ffff:7f00:1]", "127.0.0.1"},
	} {
		h, err := ParseHost(c.in)
		if err != nil {
			t.Errorf("ParseHost(%q): %v", c.in, err)
			continue
		}
		if h.String() != c.want {
			t.Errorf("ParseHost(%q) = %q, want %q", c.in, h, c.want)
		}
		if h != MustParseHost(c.want) {
			t.Errorf("ParseHost(%q) is not equal to ParseHost(%q)", c.in, c.want)
		}
	}
}

func TestLookAlikeNamesStayDifferent(t *testing.T) {
	latin := MustParseHost("apple.com")
	cyrillic, err := ParseHost("аррӏе.com")
	if err != nil {
		t.Fatal(err)
	}
	if latin == cyrillic || !strings.HasPrefix(cyrillic.String(), "xn--") {
		t.Errorf("look-alike of apple.com became %q", cyrillic)
	}
}

func TestHostsThatAreRefused(t *testing.T) {
	long := strings.Repeat("a", 64) + ".com"
	for in, want := range map[string]error{
		"":                        ErrEmpty,
		".":                       ErrName,
		"..":                      ErrName,
		"a..b":                    ErrName,
		".example.com":            ErrName,
		"example.com..":           ErrName,
		"\x80":                    ErrName,
		"a\ufffd":                 ErrName,
		"a\ufffd.com":             ErrName,
		"-a.com":                  ErrName,
		"a-.com":                  ErrName,
		"a b.com":                 ErrName,
		"a/b":                     ErrName,
		"a%2fb":                   ErrName,
		"a\x00b":                  ErrName,
		"a\r\nb":                  ErrName,
		"a\\b":                    ErrName,
		"a:b":                     ErrName,
		"℀.com":                   ErrName, // maps to "a/c"
		"*.example.com":           ErrName,
		"xn--example-.com":        ErrName, // encodes nothing
		"xn--a.com":               ErrName,
		"xn--.com":                ErrName,
		long:                      ErrName,
		"a\u200bb\u202e.com":      ErrName,
		strings.Repeat("a.", 200): ErrName,
		strings.Repeat("é", 5000): ErrName,
		"user@example.com":        ErrUserinfo,
		"a@b@127.0.0.1":           ErrUserinfo,
		"0177.0.0.1":              ErrOddAddress,
		"127.0.0.01":              ErrOddAddress,
		"0x7f.0.0.1":              ErrOddAddress,
		"0x7f000001":              ErrOddAddress,
		"0x":                      ErrOddAddress,
		"127.0.0.0x1":             ErrOddAddress,
		"2130706433":              ErrOddAddress,
		"127.1":                   ErrOddAddress,
		"127.0.1":                 ErrOddAddress,
		"127.0.0.256":             ErrOddAddress,
		"1.2.3.4.5":               ErrOddAddress,
		"0":                       ErrOddAddress,
		"example.1":               ErrOddAddress,
		"example.0X1F":            ErrOddAddress,
		"②①③⓪⑦⓪⑥④③③":              ErrOddAddress,
		"[::1%lo]":                ErrZone,
		"[::1%25lo]":              ErrZone,
		"[fe80::1%1]":             ErrZone,
		"[127.0.0.1]":             ErrName,
		"[[::1]]":                 ErrName,
		"[::1":                    ErrName,
		"[]":                      ErrName,
		"::1":                     ErrName,
		"[::1].com":               ErrName,
	} {
		h, err := ParseHost(in)
		if !errors.Is(err, want) {
			t.Errorf("ParseHost(%q) = %q, %v; want %v", in, h, err, want)
		}
		if !h.IsZero() {
			t.Errorf("ParseHost(%q) returned a host with its error", in)
		}
	}
}

func TestConnectTargets(t *testing.T) {
	for in, want := range map[string]string{
		"Example.COM.:443":       "example.com:443",
		"[::1]:8080":             "[::1]:8080",
		"1.2.3.4:1":              "1.2.3.4:1",
		"example.com:65535":      "example.com:65535",
		"[::ffff:1.2.3.4]:65535": "1.2.3.4:65535",
	} {
		e, err := ParseAuthority(in)
		if err != nil || e.String() != want {
			t.Errorf("ParseAuthority(%q) = %q, %v; want %q", in, e, err, want)
		}
	}
	for _, in := range []string{
		"", ":", ":443", "example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:080",
		"example.com:+80", "example.com:-1", "example.com: 80", "example.com:80:80", "example.com:http", "::1:80", "[::1]80",
		"[::1]:", "[::1", "u@example.com:443", "u:p@example.com:443", "/path", "http://example.com:80", "example.com:８０",
	} {
		if e, err := ParseAuthority(in); err == nil {
			t.Errorf("ParseAuthority(%q) = %q, want an error", in, e)
		}
	}
}

func TestURLTargets(t *testing.T) {
	for in, want := range map[string]string{
		"http://Example.com/x":       "example.com:80",
		"https://example.com.":       "example.com:443",
		"ws://example.com/s":         "example.com:80",
		"wss://example.com:1/":       "example.com:1",
		"http://[::1]/":              "[::1]:80",
		"http://127.0.0.1#@evil.com": "127.0.0.1:80",
		"http://①②⑦.0.0.1/":          "127.0.0.1:80",
	} {
		u, err := url.Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := FromURL(u); err != nil || e.String() != want {
			t.Errorf("FromURL(%q) = %q, %v; want %q", in, e, err, want)
		}
	}
	for _, in := range []string{
		"http:example.com/x", "http:///x", "/x", "//example.com/x", "ftp://example.com/", "http://a@b@127.0.0.1/", "http://u:p@example.com/",
		"http://example.com:/", "http://example.com:0/", "http://[::1%25lo]/", "http://0x7f.1/", "http://0177.1/",
	} {
		u, err := url.Parse(in)
		if err != nil {
			continue
		}
		if e, err := FromURL(u); err == nil {
			t.Errorf("FromURL(%q) = %q, want an error", in, e)
		}
	}
}

func TestHostHeaderLeavesOutTheDefaultPort(t *testing.T) {
	for _, c := range []struct{ in, scheme, want string }{
		{"example.com:80", "http", "example.com"},
		{"example.com:80", "https", "example.com:80"},
		{"[::1]:443", "https", "[::1]"},
		{"example.com:8080", "http", "example.com:8080"},
	} {
		e, err := ParseAuthority(c.in)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.HostHeader(c.scheme); got != c.want {
			t.Errorf("%s as %s host header = %q, want %q", c.in, c.scheme, got, c.want)
		}
	}
}

func TestConstructorsCannotMakeANonCanonicalHost(t *testing.T) {
	if _, err := FromAddr(netip.MustParseAddr("fe80::1%eth0")); !errors.Is(err, ErrZone) {
		t.Errorf("zone: %v", err)
	}
	if _, err := FromAddr(netip.Addr{}); err == nil {
		t.Error("invalid address accepted")
	}
	mapped, err := FromAddr(netip.MustParseAddr("::ffff:1.2.3.4"))
	if err != nil || mapped != MustParseHost("1.2.3.4") {
		t.Errorf("mapped address = %q, %v", mapped, err)
	}
	if _, err := NewEndpoint(Host{}, 80); err == nil {
		t.Error("endpoint without host accepted")
	}
	if _, err := NewEndpoint(mapped, 0); err == nil {
		t.Error("endpoint without port accepted")
	}
	h := MustParseHost("keep.example")
	if err := h.UnmarshalText([]byte("0x7f.1")); err == nil || h.String() != "keep.example" {
		t.Errorf("UnmarshalText of an odd address: %v, host %q", err, h)
	}
}

func TestIsUnder(t *testing.T) {
	parent := MustParseHost("example.com")
	for in, want := range map[string]bool{
		"a.example.com": true, "a.b.EXAMPLE.com.": true, "example.com": false, "badexample.com": false, "com": false, "1.2.3.4": false, "example.com.evil.org": false,
	} {
		if got := MustParseHost(in).IsUnder(parent); got != want {
			t.Errorf("%q under %q = %v, want %v", in, parent, got, want)
		}
	}
	if MustParseHost("1.2.3.4").IsUnder(Host{}) || MustParseHost("a.b").IsUnder(Host{}) {
		t.Error("something is under no host")
	}
}

// Whatever is accepted prints a form that is read back as the same value, and
// nothing that still looks like a number or holds a separator passes as a name.
func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"example.com", "BÜCHER.example.", "①②⑦.0.0.1", "[::ffff:1.2.3.4]", "[::1%25lo]", "0x7f.1", "xn--bcher-kva.de", "a@b", "℀", "İ.com", "\x80", "xn--fa-hia", "ẞ.de", "a\u00adb.c", "٣.٣.٣.٣"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHost(s)
		if err != nil {
			if !h.IsZero() {
				t.Fatalf("%q: host and error", s)
			}
			return
		}
		again, err := ParseHost(h.String())
		if err != nil || again != h {
			t.Fatalf("%q → %q → %q, %v", s, h, again, err)
		}
		if h.IsAddr() == (h.Name() != "") {
			t.Fatalf("%q is both or neither name and address", s)
		}
		if h.IsAddr() && (h.Addr().Zone() != "" || h.Addr().Is4In6()) {
			t.Fatalf("%q → %q", s, h)
		}
		if n := h.Name(); n != "" {
			if _, err := netip.ParseAddr(n); err == nil || strings.ContainsAny(n, ":/@%[]\\ ?#\r\n\x00") || n != strings.ToLower(n) || strings.HasSuffix(n, ".") || endsInNumber(n) {
				t.Fatalf("%q accepted as name %q", s, n)
			}
		}
	})
}

func FuzzParseAuthority(f *testing.F) {
	for _, s := range []string{"example.com:443", "[::1]:80", "a:0", "a:1:2", "u@h:1", "1.2.3.4:65535"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseAuthority(s)
		if err != nil {
			return
		}
		if e.Port() == 0 || e.Host().IsZero() {
			t.Fatalf("%q → %#v", s, e)
		}
		if again, err := ParseAuthority(e.String()); err != nil || again != e {
			t.Fatalf("%q → %q → %q, %v", s, e, again, err)
		}
		if again, err := ParseHostHeader(e.HostHeader("http"), 80); err != nil || again != e {
			t.Fatalf("host header of %q → %q, %v", e, again, err)
		}
	})
}

func TestLoopbackIsAnAddressOrLocalhost(t *testing.T) {
	for _, is := range []string{"localhost", "LOCALHOST", "127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"} {
		if !IsLoopback(is) {
			t.Errorf("%s is none", is)
		}
	}
	for _, is := range []string{"", "localhost.", "localho\u017ft", "localhost.example.com", "127.0.0.1.example.com", "127.1", "0x7f.1", "[::1]", "0.0.0.0", "::", "192.0.2.1", "127.0.0.1:80"} {
		if IsLoopback(is) {
			t.Errorf("%s is one", is)
		}
	}
}
