package gateway_test

import (
	"bufio"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

// address is a row of the table of what is inside.
type address struct {
	text   string
	public bool // one of those that every way must reach, so that the others mean something
	sealed bool // closed also to a rule that leads a name there
}

// addresses are the table: every kind of address that has led inside some gateway, and two that are outside.
func addresses() []address {
	open := func(list ...string) (out []address) {
		for _, text := range list {
			out = append(out, address{text: text})
		}
		return out
	}
	sealed := func(list ...string) (out []address) {
		for _, text := range list {
			out = append(out, address{text: text, sealed: true})
		}
		return out
	}
	all := []address{{text: "93.184.216.34", public: true}, {text: "2606:4700::1111", public: true}}
	all = append(all, open(
		"127.0.0.1", "127.255.255.254", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.254",
		"100.64.0.1", "100.127.255.254", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "192.88.99.1", "240.0.0.1",
		"::1", "fd00::1", "fc00::1", "fdff::1", "fec0::1", "100::1", "2001:db8::1", "3fff::1", "5f00::1", "2620:4f:8000::1",
		"::ffff:127.0.0.1", "::ffff:10.0.0.1",
		// Public addresses that are inside because the host is part of their network: see networks.
		"45.45.45.45", "::ffff:45.45.45.45", "2a01:4f8:dead:beef::1", "2a01:4f8:dead:beef::2", "2a01:4f8:dead:beef:ffff::1", "45.45.46.2", "45.45.50.7",
		"2a01:4f8:feed::9", "45.45.47.1", appears.String(),
	)...)
	return append(all, sealed(
		// Metadata services, by every number that clouds have given them.
		"169.254.169.254", "169.254.0.1", "169.254.170.2", "169.254.170.23", "168.63.129.16", "100.100.100.200", "192.0.0.192",
		"fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fe80::1", "fe80::a9fe:a9fe", "::ffff:169.254.169.254", "::ffff:168.63.129.16",
		// Addresses of no machine, and IPv4 hidden in IPv6.
		"0.0.0.0", "0.1.2.3", "255.255.255.255", "224.0.0.1", "::", "ff02::1",
		"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::1", "2002:a9fe:a9fe::1", "2001:0:1::1",
		"::127.0.0.1", "::169.254.169.254", "::ffff:0:127.0.0.1",
		"2001:200::5efe:7f00:1", "2606:4700::200:5efe:a9fe:a9fe", "fd00::5efe:a00:1",
	)...)
}

// networks are those of the host of the table.
func networks(own ...netip.Addr) *netguard.Networks {
	var mine, near []netip.Prefix
	for _, a := range append(own, netip.MustParseAddr("45.45.45.45"), netip.MustParseAddr("2a01:4f8:dead:beef::1")) {
		mine = append(mine, netip.PrefixFrom(a, a.BitLen()))
	}
	// The network of an interface, the other end of a tunnel, what is routed into a VPN, a router, and the default route of
	// a VPN, which is none.
	for _, p := range []string{"2a01:4f8:dead:beef::/64", "45.45.46.2/32", "45.45.48.0/20", "2a01:4f8:feed::/48", "45.45.47.1/32", "0.0.0.0/1", "::/0"} {
		near = append(near, netip.MustParsePrefix(p))
	}
	return netguard.NewNetworks(mine, near)
}

// literal is the address as the host of a URL.
func (a address) literal() string {
	if parsed := netip.MustParseAddr(a.text); parsed.Is6() {
		return "[" + a.text + "]"
	}
	return a.text
}

// way is one way of asking for the n-th address.
type way struct {
	name string
	try  func(w *whole, a address, n int) heard
}

const noHeaders = "\r\n\r\n"

func plainRequest(host string) string {
	return "GET http://" + host + "/ HTTP/1.1\r\nHost: " + host + noHeaders
}

func connectRequest(host string) string {
	return "CONNECT " + host + ":80 HTTP/1.1\r\nHost: " + host + ":80" + noHeaders
}

func webSocketRequest(host string) string {
	return "GET http://" + host + "/ HTTP/1.1\r\nHost: " + host +
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==" + noHeaders
}

func tool(url string) map[string]any {
	return map[string]any{"url": url}
}

func model(name string) map[string]any {
	return map[string]any{"model": name, "messages": []any{map[string]any{"role": "user", "content": "hello"}}}
}

// ways are all of them.
func ways() []way {
	rawly := func(request func(host string) string, host func(a address, n int) string) func(*whole, address, int) heard {
		return func(w *whole, a address, n int) heard { return w.raw(request(host(a, n))) }
	}
	literal := func(a address, _ int) string { return a.literal() }
	named := func(prefix string) func(address, int) string {
		return func(_ address, n int) string { return fmt.Sprintf("%s%d.example", prefix, n) }
	}
	name := named("answer")
	return []way{
		{"a literal in absolute form", rawly(plainRequest, literal)},
		{"a literal in CONNECT", rawly(connectRequest, literal)},
		{"a literal for a WebSocket", rawly(webSocketRequest, literal)},
		{"a DNS answer in absolute form", rawly(plainRequest, name)},
		{"a DNS answer in CONNECT", rawly(connectRequest, name)},
		{"a DNS answer for a WebSocket", rawly(webSocketRequest, name)},
		{"the second of two answers", rawly(plainRequest, named("second"))},
		{"the second of two answers in CONNECT", rawly(connectRequest, named("second"))},
		{"the first of two answers", rawly(plainRequest, named("first"))},
		{"a name that is bound anew between two requests", func(w *whole, a address, n int) heard {
			host := named("rebound")(a, n)
			if before := w.raw(plainRequest(host)); !before.outside() {
				w.t.Errorf("%s: the first request gets %s", host, before)
			}
			return w.raw(plainRequest(host))
		}},
		{"a name that is bound anew within a tunnel", func(w *whole, a address, n int) heard {
			host := named("tunnel")(a, n)
			c := w.open()
			defer c.Close()
			from := bufio.NewReader(c)
			if opened := w.say(c, from, connectRequest(host)); !opened.outside() {
				w.t.Fatalf("%s: no tunnel: %s", host, opened)
			}
			return w.say(c, from, "GET / HTTP/1.1\r\nHost: "+host+noHeaders)
		}},
		{"execute with a literal", func(w *whole, a address, _ int) heard { return w.post("/v1/execute", tool("http://"+a.literal()+"/")) }},
		{"execute with a DNS answer", func(w *whole, a address, n int) heard { return w.post("/v1/execute", tool("http://"+name(a, n)+"/")) }},
		{"execute with a redirect to a literal", func(w *whole, a address, _ int) heard {
			return w.post("/v1/execute", tool("http://redirects.example/?to=http://"+a.literal()+"/"))
		}},
		{"execute with a redirect to a name", func(w *whole, a address, n int) heard {
			return w.post("/v1/execute", tool("http://redirects.example/?to=http://"+name(a, n)+"/"))
		}},
		{"a service whose base URL has a literal", func(w *whole, _ address, n int) heard {
			return w.raw(fmt.Sprintf("GET /svc/literal%d/ HTTP/1.1\r\nHost: gateway:3000%s", n, noHeaders))
		}},
		{"a service whose base URL has a name", func(w *whole, _ address, n int) heard {
			return w.raw(fmt.Sprintf("GET /svc/name%d/ HTTP/1.1\r\nHost: gateway:3000%s", n, noHeaders))
		}},
		{"a model whose base URL has a literal", func(w *whole, _ address, n int) heard {
			return w.post("/v1/chat/completions", model(fmt.Sprintf("literal%d", n)))
		}},
		{"a model whose base URL has a name", func(w *whole, _ address, n int) heard {
			return w.post("/v1/chat/completions", model(fmt.Sprintf("name%d", n)))
		}},
	}
}

// everything allows every name and every address of the table on every way: only the guard is left.
func everything(t testing.TB) (policy.Policy, []store.Entry) {
	t.Helper()
	rules := []policy.Rule{{Name: "names", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.Ports(80)}}
	tools := []egress.Tool{{URL: "http://*.example/**", Methods: []string{"GET"}}}
	var entries []store.Entry
	inject := egress.Injection{Type: egress.InjectBearer}
	taken := map[policy.Pattern]bool{}
	for n, a := range addresses() {
		host := policy.MustParsePattern(a.literal())
		if !taken[host] {
			taken[host] = true
			rules = append(rules, policy.Rule{Name: "literal " + a.text, Action: policy.Allow, Host: host, Ports: policy.Ports(80)})
			tools = append(tools, egress.Tool{URL: "http://" + a.literal() + "/**", Methods: []string{"GET"}})
		}
		for name, base := range map[string]string{fmt.Sprintf("literal%d", n): "http://" + a.literal(), fmt.Sprintf("name%d", n): fmt.Sprintf("http://answer%d.example", n)} {
			upstream := egress.Upstream{BaseURL: base, Secret: "svc"}
			entries = append(entries,
				entry(t, "service", name, egress.Service{Name: name, Upstream: upstream, Allow: []egress.Allowance{{}}, Inject: inject,
					Scrub: egress.ScrubRedact, Compressed: egress.CompressedDecode}),
				entry(t, "provider", name, egress.Provider{Name: name, Upstream: upstream, Wire: egress.WireOpenAI, Models: []string{name}, Priority: 100, Inject: inject}))
		}
	}
	return policy.Only(rules...), append(entries, entry(t, "settings", "settings", egress.Settings{Tools: tools}))
}

// fill writes the names of the table into the name server.
func (w *whole) fill() {
	outside := []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	w.names.lead("redirects.example", outside)
	for n, a := range addresses() {
		one := []netip.Addr{netip.MustParseAddr(a.text)}
		name := func(prefix string) string { return fmt.Sprintf("%s%d.example", prefix, n) }
		w.names.lead(name("answer"), one)
		w.names.lead(name("second"), append(outside[:1:1], one...))
		w.names.lead(name("first"), append(one[:1:1], outside...))
		w.names.lead(name("rebound"), outside, one)
		w.names.lead(name("tunnel"), outside, one)
	}
}

func TestNothingInsideIsEverDialled(t *testing.T) {
	base, entries := everything(t)
	w := newWhole(t, base, entries...)
	w.fill()
	w.networks.Store(networks(appears))
	for _, way := range ways() {
		t.Run(way.name, func(t *testing.T) {
			w.t = t
			for n, a := range addresses() {
				got := way.try(w, a, n)
				if got.outside() != a.public {
					t.Errorf("%s: %s", a.text, got)
				}
				if !a.public && got.refusal == "" && got.status != 404 {
					t.Errorf("%s: it was not the gateway that refused: %s", a.text, got)
				}
			}
		})
	}
	w.t = t
	for _, target := range w.connections() {
		if !isPublic(target.Addr()) {
			t.Errorf("%s was dialled", target)
		}
	}
	if n := w.trapped.Load(); n != 0 {
		t.Errorf("%d connections came to what is inside", n)
	}
}

// TestAnAddressThatAppearsIsInsideAtOnce gives the host an address while the gateway runs: before a request, and between
// the check of its answer and the connection. The address is reachable on every way until then.
func TestAnAddressThatAppearsIsInsideAtOnce(t *testing.T) {
	base, entries := everything(t)
	w := newWhole(t, base, entries...)
	w.fill()
	n := slices.IndexFunc(addresses(), func(a address) bool { return a.text == appears.String() })
	row := addresses()[n]
	for _, way := range ways() {
		if strings.Contains(way.name, "bound anew") {
			continue // its first answer is another address
		}
		t.Run(way.name, func(t *testing.T) {
			w.t = t
			try := func() heard { return way.try(w, row, n) }
			w.networks.Store(networks())
			if got := try(); !got.outside() {
				t.Fatalf("before the host has it: %s", got)
			}
			w.networks.Store(networks(appears))
			if got := try(); got.outside() || got.refusal != problem.AddressDenied {
				t.Errorf("when the host has it: %s", got)
			}
			if strings.Contains(way.name, "two answers") {
				return // the other one may be dialled
			}
			w.networks.Store(networks())
			w.late = func() { w.networks.Store(networks(appears)) }
			defer func() { w.late = func() {} }()
			if got := try(); got.outside() || got.refusal == "" {
				t.Errorf("when the host gets it while it is dialled: %s", got)
			}
		})
	}
}

// TestAHostThatDoesNotKnowItsNetworksLetsNobodyOut takes away what the kernel says.
func TestAHostThatDoesNotKnowItsNetworksLetsNobodyOut(t *testing.T) {
	base, entries := everything(t)
	w := newWhole(t, base, entries...)
	w.fill()
	public := addresses()[0]
	for _, way := range ways() {
		t.Run(way.name, func(t *testing.T) {
			w.t = t
			w.networks.Store(networks())
			if got := way.try(w, public, 0); !got.outside() {
				t.Fatalf("when they are known: %s", got)
			}
			if strings.Contains(way.name, "bound anew") || strings.Contains(way.name, "redirect") {
				return // they begin outside
			}
			w.networks.Store(nil)
			if got := way.try(w, public, 0); got.outside() || got.refusal != problem.AddressDenied {
				t.Errorf("when nobody knows them: %s", got)
			}
		})
	}
}
