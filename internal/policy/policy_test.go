package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy/hostport"
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

func TestReportModeAllowsAndSaysWhatEnforceWouldDo(t *testing.T) {
	enforce := Only(deny("no-ads", "*.ads.example"), allow("web", "a.example", 443))
	report := enforce.Clone()
	report.Mode = Report
	if err := report.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, req := range []Request{
		ask(HTTPS, "x.ads.example", 443, Connect), ask(HTTPS, "b.example", 443, Connect), ask(HTTPS, "a.example", 80, Connect), ask(HTTP, "1.2.3.4", 80, "GET"),
	} {
		want, got := enforce.Decide(req), report.Decide(req)
		if want.Allowed || want.Reported || want.Code == "" {
			t.Fatalf("enforce: %+v", want)
		}
		want.Allowed, want.Reported = true, true
		if got != want {
			t.Errorf("report: %+v, want %+v", got, want)
		}
	}
	if d := report.Decide(ask(HTTPS, "a.example", 443, Connect)); !d.Allowed || d.Reported {
		t.Errorf("an allowed request is reported: %+v", d)
	}
	if d := report.Decide(Request{Scheme: HTTP, Port: 80}); d.Allowed {
		t.Errorf("report mode allows a request without a host: %+v", d)
	}
	report.Mode = "Report"
	if d := report.Decide(ask(HTTPS, "b.example", 443, Connect)); d.Allowed {
		t.Errorf("an unknown mode allows: %+v", d)
	}
	if err := report.Validate(); err == nil || !strings.Contains(err.Error(), `mode "Report"`) {
		t.Errorf("an unknown mode is valid: %v", err)
	}
}

func TestWhatCannotBeToldMeetsRulesThatDenyOnly(t *testing.T) {
	closed := Policy{Default: Allow, Rules: []Rule{{Name: "no-post", Action: Deny, Host: AnyHost(), Ports: AnyPort(), Scheme: HTTP, Methods: []string{"POST"}}}}
	open := Only(Rule{Name: "post", Action: Allow, Host: AnyHost(), Ports: AnyPort(), Scheme: HTTP, Methods: []string{"POST"}})
	for _, c := range []struct {
		req          Request
		denied, okay bool
	}{
		{ask(HTTP, "a.example", 80, "POST"), true, true},
		{ask(HTTP, "a.example", 80, "GET"), false, false},
		{ask(HTTPS, "a.example", 80, "POST"), false, false},
		{ask(HTTP, "a.example", 80, "post"), true, false},
		{ask(HTTP, "a.example", 80, ""), true, false},
		{ask(HTTP, "a.example", 80, Connect), true, false},
		{ask("", "a.example", 80, "POST"), true, false},
		{ask("HTTP", "a.example", 80, "POST"), true, false},
	} {
		if d := closed.Decide(c.req); d.Allowed == c.denied {
			t.Errorf("deny rule, %+v: %+v", c.req, d)
		}
		if d := open.Decide(c.req); d.Allowed != c.okay {
			t.Errorf("allow rule, %+v: %+v", c.req, d)
		}
	}
}

func TestAnswersAreShortAndPlainWhateverWasAsked(t *testing.T) {
	r := allow("get", "a.example", 80)
	r.Methods, r.Scheme = []string{"GET"}, HTTP
	for _, req := range []Request{ask(HTTP, "a.example", 80, "G\nET"), ask(HTTP, "a.example", 80, strings.Repeat("X", 1<<16)), ask(Scheme(strings.Repeat("\x1b", 1<<16)), "a.example", 80, "GET")} {
		d := Only(r).Decide(req)
		if d.Allowed || len(d.Reason) > 1000 || strings.ContainsAny(d.Reason, "\n\x1b") {
			t.Errorf("%.1000q", d.Reason)
		}
	}
}

func TestAddressesNeedARuleThatAllowsOneHost(t *testing.T) {
	with := func(action Action, host, address string) Rule {
		return Rule{Name: "x", Action: action, Host: MustParsePattern(host), Ports: Ports(80), Address: netip.MustParseAddr(address)}
	}
	for _, r := range []Rule{with(Allow, "wiki.corp", "10.0.0.1"), with(Allow, "10.0.0.1", "10.0.0.1"), with(Allow, "10.0.0.1", "::ffff:10.0.0.1")} {
		if err := Only(r).Validate(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
		d := Only(r).Decide(Request{Scheme: HTTP, Host: r.Host.host, Port: 80, Method: "GET", Path: "/"})
		if !d.Allowed || d.Address != r.Address {
			t.Errorf("%+v: %+v", r, d)
		}
	}
	for want, r := range map[string]Rule{
		"only in an allow rule": with(Deny, "wiki.corp", "10.0.0.1"),
		"named exactly":         with(Allow, "*.corp", "10.0.0.1"),
		"needs a host":          with(Allow, "*", "10.0.0.1"),
		"another":               with(Allow, "10.0.0.1", "10.0.0.2"),
		"zones":                 with(Allow, "wiki.corp", "fe80::1%eth0"),
	} {
		if err := Only(r).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
}

func TestListsAndTextsOfAPolicyAreBounded(t *testing.T) {
	long := allow(strings.Repeat("n", maxName+1), "a.example", 80)
	control := allow("a\nb", "a.example", 80)
	ports := allow("ports", "a.example", make([]uint16, maxRanges+1)...)
	methods, method := allow("methods", "a.example", 80), allow("method", "a.example", 80)
	methods.Methods = slices.Repeat([]string{"GET"}, maxMethods+1)
	method.Methods = []string{strings.Repeat("G", maxMethod+1)}
	for want, p := range map[string]Policy{
		"longer than": Only(long), "control character": Only(control), "not UTF-8": Only(allow("\xff", "a.example", 80)), "ranges of ports": Only(ports), "33 methods": Only(methods), "upper-case": Only(method),
		"at most 100000": Only(make([]Rule, maxRules+1)...),
	} {
		err := p.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		} else if len(err.Error()) > 1000 {
			t.Errorf("%q: the error has %d bytes", want, len(err.Error()))
		}
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
