package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// A rule that leads a name to an address opens what is private, and nothing of what is sealed.
func TestMetadataStaysClosedToRulesThatLeadThere(t *testing.T) {
	var rules []policy.Rule
	for n, a := range addresses() {
		rules = append(rules, policy.Rule{Name: "lead " + a.text, Action: policy.Allow, Host: policy.MustParsePattern(fmt.Sprintf("lead%d.example", n)),
			Ports: policy.Ports(80), Address: netip.MustParseAddr(a.text)})
	}
	w := newWhole(t, policy.Only(rules...))
	for n, a := range addresses() {
		host := fmt.Sprintf("lead%d.example", n)
		for name, request := range map[string]string{"absolute": plainRequest(host), "connect": connectRequest(host), "websocket": webSocketRequest(host)} {
			before := len(w.connections())
			got := w.raw(request)
			if got.outside() == a.sealed {
				t.Errorf("%s, %s: %s", a.text, name, got)
			}
			dialled := w.connections()[before:]
			if a.sealed && (len(dialled) != 0 || got.refusal != problem.AddressDenied) {
				t.Errorf("%s, %s: dialled %v: %s", a.text, name, dialled, got)
			}
			if !a.sealed && (len(dialled) != 1 || dialled[0].Addr() != netip.MustParseAddr(a.text).Unmap()) {
				t.Errorf("%s, %s: dialled %v", a.text, name, dialled)
			}
		}
	}
	if asked := w.names.names(); len(asked) != 0 {
		t.Errorf("names that rules lead somewhere were looked up: %v", slices.Collect(maps.Keys(asked)))
	}
}

// What operators take away ends what it has allowed, within about a second, on every surface; what stays goes on.
func TestStreamsEndWithWhatAllowsThem(t *testing.T) {
	upstream := egress.Upstream{BaseURL: "http://93.184.216.34/stream", Secret: "svc"}
	inject := egress.Injection{Type: egress.InjectBearer}
	aService := func(name string) store.Entry {
		return entry(t, "service", name, egress.Service{Name: name, Upstream: upstream, Allow: []egress.Allowance{{}}, Inject: inject,
			Scrub: egress.ScrubRedact, Compressed: egress.CompressedDecode})
	}
	aProvider := func(name string) store.Entry {
		return entry(t, "provider", name, egress.Provider{Name: name, Upstream: upstream, Wire: egress.WireOpenAI, Models: []string{name}, Priority: 100, Inject: inject})
	}
	w := newWhole(t, policy.Only(), aService("goes"), aService("stays"), aProvider("goes"), aProvider("stays"),
		entry(t, "settings", "settings", egress.Settings{Tools: []egress.Tool{{URL: "http://93.184.216.34/stream/**", Methods: []string{"GET"}}}}))
	open := func(method, path, body string) *bufio.Reader {
		c := w.open()
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: gateway:3000\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
		from := bufio.NewReader(c)
		for line := ""; !strings.Contains(line, marker); {
			var err error
			if line, err = from.ReadString('\n'); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
		return from
	}
	chat := func(model string) *bufio.Reader {
		return open("POST", "/v1/chat/completions", `{"model":"`+model+`","stream":true,"messages":[{"role":"user","content":"hello"}]}`)
	}
	stays := map[string]*bufio.Reader{"service": open("GET", "/svc/stays/x", ""), "model": chat("stays")}
	goes := map[string]*bufio.Reader{
		"service-goes":      open("GET", "/svc/goes/x", ""),
		"provider-goes":     chat("goes"),
		"settings-settings": open("POST", "/v1/execute", `{"url":"http://93.184.216.34/stream/x","stream":true}`),
	}
	for name := range goes {
		if err := w.db.DeleteEntry(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	for name, from := range goes {
		if _, err := io.Copy(io.Discard, from); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the stream goes on without it", name)
		}
	}
	for name, from := range stays {
		reviewed := time.Now().UnixNano()
		for at := int64(0); at < reviewed; {
			line, err := from.ReadString('\n')
			if err != nil {
				t.Fatalf("%s: the stream ends with others: %v", name, err)
			}
			_, _ = fmt.Sscanf(line, ": "+marker+" %d", &at)
		}
	}
}

// The gateway's own socket is closed on every way, also to a rule that leads a name there.
func TestTheGatewayItselfIsClosedToRulesThatLeadThere(t *testing.T) {
	lead := func(port ...uint16) policy.Rule {
		return policy.Rule{Name: "self", Action: policy.Allow, Host: policy.MustParsePattern("self.example"), Ports: policy.Ports(port...), Address: netip.MustParseAddr(jail)}
	}
	w := newWhole(t, policy.Only(lead(80), policy.Rule{Name: "any port", Action: policy.Allow, Host: policy.MustParsePattern("self.example"),
		Ports: policy.AnyPort(), Address: netip.MustParseAddr(jail)}))
	own := netip.MustParseAddrPort(w.addr)
	host := fmt.Sprintf("self.example:%d", own.Port())
	for _, request := range []string{
		"GET http://" + host + "/ HTTP/1.1\r\nHost: " + host + noHeaders,
		"CONNECT " + host + " HTTP/1.1\r\nHost: " + host + noHeaders,
	} {
		if got := w.raw(request); got.refusal != problem.AddressDenied {
			t.Errorf("%q: %s", request, got)
		}
	}
	if got := w.raw(plainRequest("self.example")); !got.outside() {
		t.Errorf("another port of that address: %s", got) // the rule does lead there
	}
	if dialled := w.connections(); len(dialled) != 1 || dialled[0].Port() != 80 {
		t.Errorf("dialled %v", dialled)
	}
}

// Programs read these spellings as addresses of the inside: none of them is dialled, and none resolved.
func TestNoSpellingOfAnAddressLeadsInside(t *testing.T) {
	everywhere := policy.Policy{Default: policy.Allow, Rules: []policy.Rule{
		{Name: "names", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.AnyPort()},
		{Name: "loopback", Action: policy.Allow, Host: policy.MustParsePattern("127.0.0.1"), Ports: policy.AnyPort()},
		{Name: "loopback6", Action: policy.Allow, Host: policy.MustParsePattern("[::1]"), Ports: policy.AnyPort()},
	}}
	w := newWhole(t, everywhere)
	for _, host := range []string{
		"0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "127.1", "127.0.1", "0", "00000177.1", "127.0.0.1.", "127.0.0.1..", "127.0.0.01",
		"①②⑦.⓪.⓪.①", "127。0。0。1", "127．0．0．1", "１２７.0.0.1", "127｡0｡0｡1", "%31%32%37.0.0.1", "127%2e0.0.1", "127.0.0.1%00.example", "127.0.0.1%20",
		"[::1%25lo]", "[::1%251]", "[::1%lo]", "[::ffff:127.0.0.1%25lo]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[::0001]", "[[::1]]", "[::1", "::1]", "[::1]x",
		"[127.0.0.1]", "[::]", "user@127.0.0.1", "a@b@127.0.0.1", "example.com@127.0.0.1", "127.0.0.1@example.com", "127.0.0.1#@example.com", "127.0.0.1\\@example.com",
		"127.0.0.1\t", "127.0.0.1:0", "127.0.0.1:", "127.0.0.1:80:80", "127.0.0.1:+80", "127.0.0.1:080", "127.0.0.1:65617", "[::1]:", "[::1]:0",
	} {
		for _, request := range []string{
			"GET http://" + host + "/ HTTP/1.1\r\nHost: x" + noHeaders,
			"CONNECT " + host + " HTTP/1.1\r\nHost: x" + noHeaders,
			"CONNECT " + host + ":80 HTTP/1.1\r\nHost: x" + noHeaders,
			webSocketRequest(host),
		} {
			if got := w.raw(request); got.outside() || got.status < 400 {
				t.Errorf("%q: %s", request, got)
			}
		}
		for _, scheme := range []string{"http", "https"} {
			if got := w.post("/v1/execute", tool(scheme+"://"+host+"/")); got.outside() || got.status < 400 {
				t.Errorf("execute %s: %s", host, got)
			}
		}
	}
	for _, target := range []string{"/", "//127.0.0.1/", "http:///x", "http:127.0.0.1/x", "http:/127.0.0.1/x", "http://", "*", "file:///etc/passwd", "gopher://127.0.0.1/", "ftp://127.0.0.1/", "ws://127.0.0.1/", "127.0.0.1/", "unix:/x"} {
		if got := w.raw("GET " + target + " HTTP/1.1\r\nHost: 127.0.0.1" + noHeaders); got.outside() {
			t.Errorf("%q: %s", target, got)
		}
	}
	for _, target := range w.connections() {
		t.Errorf("%s was dialled", target)
	}
	for name := range w.names.names() {
		if strings.ContainsAny(name, "0123456789") {
			t.Errorf("%q was looked up: it is an address to others", name)
		}
	}
	// The same rules let a name pass.
	w.names.lead("example.com", []netip.Addr{netip.MustParseAddr("93.184.216.34")})
	if got := w.raw(plainRequest("EXAMPLE.com.")); !got.outside() {
		t.Errorf("a name: %s", got)
	}
}

// Names are a way out by themselves: who may look up SECRET.attacker.example has sent the secret. Only what a rule allows
// is looked up, on no way anything else.
func TestRegressionDNSIsNoWayOutBesideTheProxy(t *testing.T) {
	allowed := policy.Only(policy.Rule{Name: "one", Action: policy.Allow, Host: policy.MustParsePattern("allowed.example"), Ports: policy.Ports(80)})
	w := newWhole(t, allowed)
	w.names.lead("allowed.example", []netip.Addr{netip.MustParseAddr("93.184.216.34")})
	secret := "c2VjcmV0.attacker.example"
	w.names.lead(secret, []netip.Addr{netip.MustParseAddr("93.184.216.34")})
	for _, try := range []func() heard{
		func() heard { return w.raw(plainRequest(secret)) },
		func() heard { return w.raw(connectRequest(secret)) },
		func() heard { return w.raw(webSocketRequest(secret)) },
		func() heard { return w.raw(plainRequest(secret + ".")) },
		func() heard { return w.raw("GET https://" + secret + "/ HTTP/1.1\r\nHost: " + secret + noHeaders) },
		func() heard { return w.raw("GET http://" + secret + ":81/ HTTP/1.1\r\nHost: " + secret + noHeaders) },
		func() heard { return w.post("/v1/execute", tool("http://"+secret+"/")) },
		func() heard { return w.raw("GET /svc/" + secret + "/ HTTP/1.1\r\nHost: gateway:3000" + noHeaders) },
		func() heard { return w.post("/v1/chat/completions", model(secret)) },
		// The port is not allowed, so the name is not looked up either.
		func() heard {
			return w.raw("GET http://allowed.example:81/ HTTP/1.1\r\nHost: allowed.example" + noHeaders)
		},
		func() heard { return w.raw("CONNECT allowed.example:53 HTTP/1.1\r\nHost: allowed.example" + noHeaders) },
		func() heard {
			return w.raw("GET http://" + secret + ".allowed.example/ HTTP/1.1\r\nHost: x" + noHeaders)
		},
	} {
		if got := try(); got.outside() || got.status < 400 {
			t.Errorf("%s", got)
		}
	}
	if asked := w.names.names(); len(asked) != 0 {
		t.Errorf("looked up: %v", slices.Collect(maps.Keys(asked)))
	}
	if got := w.raw(plainRequest("allowed.example")); !got.outside() {
		t.Errorf("what is allowed: %s", got)
	}
	if asked := w.names.names(); len(asked) != 1 || !asked["allowed.example"] {
		t.Errorf("looked up: %v", slices.Collect(maps.Keys(asked)))
	}
}

// A request within a tunnel may do no more than one outside of it.
func TestRegressionAConnectWithinATunnelIsNotRelayed(t *testing.T) {
	w := newWhole(t, policy.Only(policy.Rule{Name: "one", Action: policy.Allow, Host: policy.MustParsePattern("allowed.example"), Ports: policy.AnyPort()}))
	for _, name := range []string{"allowed.example", "other.example"} {
		w.names.lead(name, []netip.Addr{netip.MustParseAddr("93.184.216.34")})
	}
	for _, within := range []string{
		connectRequest("other.example"), connectRequest("allowed.example"), "CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example" + noHeaders,
		plainRequest("other.example"), "GET / HTTP/1.1\r\nHost: other.example" + noHeaders, "GET http://other.example/ HTTP/1.1\r\nHost: allowed.example" + noHeaders,
		"GET http://allowed.example:443/ HTTP/1.1\r\nHost: allowed.example" + noHeaders,
		"GET / HTTP/1.1\r\nHost: other.example\r\nHost: allowed.example" + noHeaders, "GET / HTTP/1.0" + noHeaders,
		// The gateway itself is not there either.
		"GET http://gateway:3000/v1/models HTTP/1.1\r\nHost: gateway:3000" + noHeaders, "POST /v1/execute HTTP/1.1\r\nHost: gateway:3000\r\nContent-Length: 0" + noHeaders,
	} {
		c := w.open()
		from := bufio.NewReader(c)
		if got := w.say(c, from, connectRequest("allowed.example")); got.status != 200 {
			t.Fatal(got)
		}
		before := len(w.connections())
		if got := w.say(c, from, within); got.outside() || got.status < 400 {
			t.Errorf("%q: %s", within, got)
		}
		if n := len(w.connections()) - before; n != 0 {
			t.Errorf("%q: %d connections", within, n)
		}
		c.Close()
	}
	c := w.open()
	defer c.Close()
	from := bufio.NewReader(c)
	w.say(c, from, connectRequest("allowed.example"))
	if got := w.say(c, from, "GET / HTTP/1.1\r\nHost: allowed.example"+noHeaders); !got.outside() {
		t.Errorf("what the tunnel is for: %s", got)
	}
	if w.names.names()["other.example"] {
		t.Error("the other host was looked up")
	}
}

// The filter must not be one of CONNECT only: a browser's plain requests do not use it.
func TestRegressionPlainHTTPIsFilteredLikeTunnels(t *testing.T) {
	deny := policy.Rule{Name: "not-this", Action: policy.Deny, Host: policy.MustParsePattern("denied.example"), Ports: policy.AnyPort()}
	w := newWhole(t, policy.PublicWeb(deny))
	for _, name := range []string{"denied.example", "allowed.example"} {
		w.names.lead(name, []netip.Addr{netip.MustParseAddr("93.184.216.34")})
	}
	for name, request := range map[string]func(string) string{"plain": plainRequest, "connect": connectRequest, "websocket": webSocketRequest} {
		for _, host := range []string{"denied.example", "DENIED.example", "denied.example.", "ｄenied.example", "denied。example"} {
			// The Host field is not what decides, and may not have such letters.
			raw := strings.Replace(request(host), "Host: "+host, "Host: x", 1)
			if got := w.raw(raw); got.refusal != problem.HostDenied || !strings.Contains(got.text, "not-this") {
				t.Errorf("%s %s: %s", name, host, got)
			}
		}
		if got := w.raw(request("allowed.example")); !got.outside() {
			t.Errorf("%s: %s", name, got)
		}
	}
	if w.names.names()["denied.example"] {
		t.Error("the denied host was looked up")
	}
}
