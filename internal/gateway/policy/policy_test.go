package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/gateway/hostport"
)

func ask(scheme Scheme, host string, port uint16, method string) Request {
	return Request{Scheme: scheme, Host: hostport.MustParseHost(host), Port: port, Method: method}
}

func allow(name, host string, ports ...uint16) Rule {
	return Rule{Name: name, Action: Allow, Host: MustParsePattern(host), Ports: Ports(ports...)}
}

func deny(name, host string) Rule {
	return Rule{Name: name, Action: Deny, Host: MustParsePattern(host), Ports: AnyPort()}
}

func TestPublicWeb(t *testing.T) {
	p := PublicWeb(deny("no-ads", "*.ads.example"), allow("printer", "10.0.0.9", 631), allow("dev", "dev.example", 8443))
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host string
		port uint16
		rule string
		code Code
	}{
		{"example.com", 443, "public-web", ""},
		{"EXAMPLE.com.", 80, "public-web", ""},
		{"example.com", 8080, "", PortDenied},
		{"example.com", 22, "", PortDenied},
		{"x.ads.example", 443, "no-ads", HostDenied},
		{"a.b.ads.example", 443, "no-ads", HostDenied},
		{"ads.example", 443, "public-web", ""},
		{"10.0.0.9", 631, "printer", ""},
		{"10.0.0.9", 443, "", PortDenied},
		{"93.184.216.34", 443, "", HostDenied},
		{"[2606:4700::1]", 443, "", HostDenied},
		{"dev.example", 8443, "dev", ""},
	} {
		d := p.Decide(ask(HTTPS, c.host, c.port, Connect))
		if d.Allowed != (c.code == "") || d.Code != c.code || d.Rule != c.rule {
			t.Errorf("%s:%d = %+v, want rule %q code %q", c.host, c.port, d, c.rule, c.code)
		}
		if !d.Allowed && (d.Hint == "" || !strings.Contains(d.Reason, hostport.MustParseHost(c.host).String())) {
			t.Errorf("%s:%d: refusal does not name the host or has no hint: %+v", c.host, c.port, d)
		}
	}
}

func TestZeroPolicyDeniesEverything(t *testing.T) {
	var p Policy
	if d := p.Decide(ask(HTTP, "example.com", 80, "GET")); d.Allowed || d.Code != HostDenied {
		t.Errorf("zero policy: %+v", d)
	}
	if p.Validate() == nil {
		t.Error("zero policy is valid")
	}
	open := Policy{Default: Allow}
	if d := open.Decide(Request{Scheme: HTTP, Port: 80}); d.Allowed {
		t.Error("a request without host is allowed")
	}
	if d := open.Decide(Request{Scheme: HTTP, Host: hostport.MustParseHost("a.example")}); d.Allowed {
		t.Error("a request without port is allowed")
	}
}

func TestDefaultAllowDoesNotCoverAddresses(t *testing.T) {
	p := Policy{Default: Allow}
	if !p.Decide(ask(HTTP, "example.com", 80, "GET")).Allowed {
		t.Error("default allow denies a name")
	}
	if p.Decide(ask(HTTP, "1.2.3.4", 80, "GET")).Allowed {
		t.Error("default allow covers an address")
	}
}

func TestFirstMatchingRuleDecides(t *testing.T) {
	both := []Rule{deny("no", "a.example"), allow("yes", "*.example", 443)}
	if d := Only(both...).Decide(ask(HTTPS, "a.example", 443, Connect)); d.Allowed || d.Rule != "no" {
		t.Errorf("deny first: %+v", d)
	}
	slices.Reverse(both)
	if d := Only(both...).Decide(ask(HTTPS, "a.example", 443, Connect)); !d.Allowed || d.Rule != "yes" {
		t.Errorf("allow first: %+v", d)
	}
}

func TestDenyEverythingAlsoCoversAddressesNamedLater(t *testing.T) {
	p := Only(deny("stop", "*"), allow("one", "1.2.3.4", 80))
	if d := p.Decide(ask(HTTP, "1.2.3.4", 80, "GET")); d.Allowed || d.Rule != "stop" {
		t.Errorf("%+v", d)
	}
}

func TestSchemeAndMethodConditions(t *testing.T) {
	p := Only(
		Rule{Name: "no-sockets", Action: Deny, Host: AnyHost(), Ports: AnyPort(), Scheme: WS},
		Rule{Name: "read", Action: Allow, Host: AnyHost(), Ports: Ports(80), Scheme: HTTP, Methods: []string{"GET", "HEAD"}},
		Rule{Name: "secure", Action: Allow, Host: MustParsePattern("s.example"), Ports: Ports(443), Scheme: HTTPS},
	)
	for _, c := range []struct {
		req  Request
		rule string
		code Code
	}{
		{ask(WS, "a.example", 80, "GET"), "no-sockets", HostDenied},
		{ask(HTTP, "a.example", 80, "GET"), "read", ""},
		{ask(HTTP, "a.example", 80, "POST"), "", MethodDenied},
		{ask(HTTPS, "a.example", 80, Connect), "", SchemeDenied},
		{ask(HTTP, "a.example", 80, Connect), "", MethodDenied},
		{ask(HTTPS, "s.example", 443, Connect), "secure", ""},
		{ask(HTTP, "s.example", 443, "GET"), "", SchemeDenied},
	} {
		if d := p.Decide(c.req); d.Rule != c.rule || d.Code != c.code {
			t.Errorf("%+v = %+v, want rule %q code %q", c.req, d, c.rule, c.code)
		}
	}
}

func TestDenyRuleWithMethodsClosesTunnels(t *testing.T) {
	p := PublicWeb(Rule{Name: "no-post", Action: Deny, Host: MustParsePattern("a.example"), Ports: AnyPort(), Methods: []string{"POST"}})
	if d := p.Decide(ask(HTTPS, "a.example", 443, Connect)); d.Allowed || d.Rule != "no-post" {
		t.Errorf("a POST could hide in the tunnel: %+v", d)
	}
	if d := p.Decide(ask(HTTP, "a.example", 80, "GET")); !d.Allowed {
		t.Errorf("%+v", d)
	}
}

func TestExactIsOnlyForRulesThatNameTheHost(t *testing.T) {
	p := PublicWeb(allow("named", "a.example", 443), allow("below", "*.b.example", 443))
	for host, want := range map[string]bool{"a.example": true, "x.b.example": false, "c.example": false} {
		if d := p.Decide(ask(HTTPS, host, 443, Connect)); !d.Allowed || d.Exact != want {
			t.Errorf("%s: %+v, want exact %v", host, d, want)
		}
	}
}

func TestValidateReportsEverythingAtOnce(t *testing.T) {
	err := Policy{Default: "maybe", Rules: []Rule{
		{},
		{Name: "twice", Action: Allow, Host: AnyHost(), Ports: Ports(80)},
		{Name: "twice", Action: Deny, Host: AnyHost(), Ports: []PortRange{{443, 80}, {0, 1}}, Scheme: "ftp", Methods: []string{"get"}, Opaque: true},
	}}.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"default action", "name is missing", "action", "host is missing", "ports are missing", "used twice", "443-80", "0-1", "ftp", "get", "opaque"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %q:\n%v", want, err)
		}
	}
}

func TestCloneSharesNothing(t *testing.T) {
	p := Only(Rule{Name: "a", Action: Allow, Host: AnyHost(), Ports: Ports(80), Methods: []string{"GET"}})
	c := p.Clone()
	p.Rules[0].Ports[0], p.Rules[0].Methods[0], p.Rules[0].Action = PortRange{1, 65535}, "POST", Deny
	if d := c.Decide(ask(HTTP, "a.example", 80, "GET")); !d.Allowed {
		t.Error("clone changed with the original")
	}
	if d := c.Decide(ask(HTTP, "a.example", 81, "GET")); d.Allowed {
		t.Error("clone changed with the original")
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, host string
		want          bool
	}{
		{"example.com", "example.com", true}, {"EXAMPLE.com.", "example.com", true}, {"example.com", "a.example.com", false},
		{"*.example.com", "a.example.com", true}, {"*.example.com", "a.b.example.com", true}, {"*.example.com", "example.com", false},
		{"*.example.com", "badexample.com", false}, {"*.example.com", "a.example.com.evil.org", false},
		{"*", "example.com", true}, {"*", "1.2.3.4", true}, {"1.2.3.4", "1.2.3.4", true}, {"[::ffff:1.2.3.4]", "1.2.3.4", true}, {"[::1]", "[::1]", true},
		{"*.bücher.example", "a.xn--bcher-kva.example", true},
	} {
		if got := MustParsePattern(c.pattern).Matches(hostport.MustParseHost(c.host)); got != c.want {
			t.Errorf("%q matches %q = %v", c.pattern, c.host, got)
		}
	}
	for _, bad := range []string{"", "*.", "**", "*.*", "*.*.com", "a.*.com", "*a.com", "*.1.2.3.4", "*.[::1]", "127.1", "http://a.com", "a.com:80"} {
		if p, err := ParsePattern(bad); err == nil {
			t.Errorf("ParsePattern(%q) = %q, want an error", bad, p)
		}
	}
	if (Pattern{}).Matches(hostport.MustParseHost("a.example")) || ExactHost(hostport.Host{}).Matches(hostport.Host{}) || AnyHost().Matches(hostport.Host{}) {
		t.Error("an empty pattern or host matches")
	}
}

func FuzzParsePattern(f *testing.F) {
	for _, s := range []string{"*", "*.example.com", "a.b", "1.2.3.4", "[::1]", "*.BÜCHER.de."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePattern(s)
		if err != nil {
			return
		}
		if again, err := ParsePattern(p.String()); err != nil || again != p {
			t.Fatalf("%q → %q → %q, %v", s, p, again, err)
		}
	})
}

// oracle decides by comparing text, label by label, the way a person would.
func oracle(p Policy, req Request) (bool, string) {
	host := req.Host.String()
	for _, r := range p.Rules {
		pattern := r.Host.String()
		hostOK := pattern == "*" || pattern == host
		if strings.HasPrefix(pattern, "*.") && !req.Host.IsAddr() {
			want, have := strings.Split(pattern, ".")[1:], strings.Split(host, ".")
			hostOK = len(have) > len(want) && slices.Equal(have[len(have)-len(want):], want)
		}
		if r.Action == Allow && req.Host.IsAddr() && pattern != host {
			hostOK = false
		}
		portOK := false
		for _, pr := range r.Ports {
			for n := int(pr.First); n <= int(pr.Last); n++ {
				portOK = portOK || n == int(req.Port)
			}
		}
		schemeOK := r.Scheme == "" || string(r.Scheme) == string(req.Scheme)
		methodOK := len(r.Methods) == 0
		for _, m := range r.Methods {
			methodOK = methodOK || m == req.Method
		}
		if len(r.Methods) > 0 && req.Method == "CONNECT" {
			methodOK = r.Action == Deny
		}
		if hostOK && portOK && schemeOK && methodOK {
			return r.Action == Allow, r.Name
		}
	}
	return p.Default == Allow && !req.Host.IsAddr(), ""
}

// drawCase draws from few values, so that rules and requests often meet.
func drawCase(t *rapid.T) (Policy, Request) {
	hosts := []string{"a.com", "b.a.com", "c.b.a.com", "ba.com", "com", "1.2.3.4", "[2001:db8::1]", "xn--bcher-kva.de"}
	patterns := append([]string{"*", "*.a.com", "*.b.a.com", "*.com", "*.xn--bcher-kva.de"}, hosts...)
	methods := []string{"GET", "POST", "CONNECT"}
	p := Policy{Default: rapid.SampledFrom([]Action{Allow, Deny}).Draw(t, "default")}
	for i := range rapid.IntRange(0, 6).Draw(t, "rules") {
		r := Rule{
			Name:    fmt.Sprint("r", i),
			Action:  rapid.SampledFrom([]Action{Allow, Deny}).Draw(t, "action"),
			Host:    MustParsePattern(rapid.SampledFrom(patterns).Draw(t, "pattern")),
			Scheme:  rapid.SampledFrom([]Scheme{"", "", HTTP, HTTPS, WS}).Draw(t, "rule scheme"),
			Methods: rapid.SliceOfN(rapid.SampledFrom(methods[:2]), 0, 2).Draw(t, "rule methods"),
		}
		for range rapid.IntRange(1, 2).Draw(t, "ranges") {
			first := rapid.Uint16Range(1, 6).Draw(t, "first")
			r.Ports = append(r.Ports, PortRange{first, rapid.Uint16Range(first, 6).Draw(t, "last")})
		}
		p.Rules = append(p.Rules, r)
	}
	req := ask(rapid.SampledFrom([]Scheme{HTTP, HTTPS, WS}).Draw(t, "scheme"), rapid.SampledFrom(hosts).Draw(t, "host"),
		rapid.Uint16Range(1, 6).Draw(t, "port"), rapid.SampledFrom(methods).Draw(t, "method"))
	return p, req
}

func decideAgreesWithOracle(t *rapid.T) {
	p, req := drawCase(t)
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	got := p.Decide(req)
	allowed, rule := oracle(p, req)
	if got.Allowed != allowed || got.Rule != rule {
		t.Fatalf("%+v = %+v, oracle says %v by %q", req, got, allowed, rule)
	}
	if got.Allowed == (got.Code != "") || got.Allowed == (got.Hint != "") || got.Reason == "" {
		t.Fatalf("decision contradicts itself: %+v", got)
	}
	if again := p.Clone().Decide(req); again != got {
		t.Fatalf("same question, two answers: %+v and %+v", got, again)
	}
}

func TestDecideAgreesWithANaiveOracle(t *testing.T) { rapid.Check(t, decideAgreesWithOracle) }

func FuzzDecide(f *testing.F) { f.Fuzz(rapid.MakeFuzz(decideAgreesWithOracle)) }
