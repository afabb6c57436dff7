package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestRequestsGoThroughEveryStepInOrder(t *testing.T) {
	w := newFixture(t)
	s := web(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello from %s", r.Host) })
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	resp, err := w.client(jailA).Get("http://EXAMPLE.com/x")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(body) != "hello from example.com" {
		t.Fatalf("%s %q", resp.Status, body)
	}
	if q := w.names.questions(); len(q) != 1 || q[0] != "example.com." {
		t.Errorf("resolver was asked %q, want one rooted name", q)
	}
	if e := strings.Join(w.happened(), ", "); e != "record example.com:80 true, dial 93.184.216.34:80" {
		t.Errorf("events: %s", e)
	}
	d := w.recorded()[0]
	if d.Jail != "b"+jailA || d.Session != "s"+jailA || d.Source.String() != jailA || d.Rule != "public-web" || d.Surface != SurfaceForward || d.Method != "GET" || len(d.Targets) != 1 {
		t.Errorf("recorded %+v", d)
	}
}

func TestUnknownCallerGetsARefusalAndNothingElse(t *testing.T) {
	w := newFixture(t)
	needLoopbacks(t)
	w.public("example.com", "93.184.216.34", untouched(t))
	for _, request := range []string{
		"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: gateway:3000\r\n\r\n",
	} {
		resp, body := w.raw(stranger, request)
		if code, _ := refusal(t, resp, body); resp.StatusCode != 403 || code != problem.UnknownCaller || !resp.Close {
			t.Errorf("%.20q: %s %s", request, resp.Status, code)
		}
	}
	if len(w.names.questions()) != 0 || len(w.happened()) != 0 {
		t.Errorf("a stranger caused %v and %v", w.names.questions(), w.happened())
	}
}

func TestEachAddressHasItsOwnPolicy(t *testing.T) {
	w := newFixture(t)
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	w.public("a.example", "93.184.216.1", s.Listener.Addr())
	w.admit(jailA, webOnly("a.example", 80))
	w.admit(jailB, webOnly("b.example", 80))
	for from, want := range map[string]int{jailA: 200, jailB: 403} {
		resp, err := w.client(from).Get("http://a.example/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("from %s: %s", from, resp.Status)
		}
	}
}

func TestRefusedNamesAreNotResolved(t *testing.T) {
	w := newFixture(t)
	w.public("secret-data.evil.example", "93.184.216.34", untouched(t))
	w.admit(jailA, webOnly("good.example", 80, 443))
	for _, request := range []string{
		"GET http://secret-data.evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT secret-data.evil.example:443 HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		resp, body := w.raw(jailA, request)
		code, p := refusal(t, resp, body)
		if code != problem.HostDenied || p["host"] != "secret-data.evil.example" || !strings.Contains(fmt.Sprint(p["hint"]), "Do not retry") {
			t.Errorf("%v", p)
		}
	}
	if q := w.names.questions(); len(q) != 0 {
		t.Errorf("resolver was asked %q", q)
	}
	for _, d := range w.recorded() {
		if d.Allowed || d.Code != problem.HostDenied {
			t.Errorf("recorded %+v", d)
		}
	}
	if len(w.recorded()) != 2 {
		t.Errorf("%d refusals are on record, want 2", len(w.recorded()))
	}
}

func TestRefusalCodesAreThoseOfTheProblemTable(t *testing.T) {
	if string(policy.HostDenied) != problem.HostDenied || string(policy.PortDenied) != problem.PortDenied {
		t.Error("policy and problem have different codes for the same refusal")
	}
	w := newFixture(t)
	w.admit(jailA, policy.PublicWeb())
	w.names.answers["private.example"] = [][]string{{"10.0.0.1"}}
	for request, want := range map[string]string{
		"CONNECT example.com:22 HTTP/1.1\r\nHost: x\r\n\r\n":                 problem.PortDenied,
		"CONNECT 93.184.216.34:443 HTTP/1.1\r\nHost: x\r\n\r\n":              problem.HostDenied,
		"CONNECT private.example:443 HTTP/1.1\r\nHost: x\r\n\r\n":            problem.AddressDenied,
		"CONNECT nowhere.example:443 HTTP/1.1\r\nHost: x\r\n\r\n":            problem.DNSFailed,
		"CONNECT 0x7f.1:443 HTTP/1.1\r\nHost: x\r\n\r\n":                     problem.BadHost,
		"CONNECT user@example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n":           problem.BadHost,
		"GET https://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n":               string(policy.SchemeDenied),
		"GET ftp://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n":                 problem.BadHost,
		"GET / HTTP/1.1\r\nHost: gateway:3000\r\n\r\n":                       problem.NotFound,
		"POST /v1/anything HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n": problem.NotFound,
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n":                              problem.NotFound,
	} {
		resp, body := w.raw(jailA, request)
		if code, _ := refusal(t, resp, body); code != want || resp.StatusCode != statusOf(want) {
			t.Errorf("%.40q: %s %s, want %s", request, resp.Status, code, want)
		}
	}
}

func TestRefusalsDoNotTellTheNetworkBehindThem(t *testing.T) {
	w := newFixture(t)
	w.admit(jailA, policy.PublicWeb())
	w.names.answers["private.example"] = [][]string{{"10.11.12.13"}}
	for _, host := range []string{"private.example", "nowhere.example"} {
		_, body := w.raw(jailA, "CONNECT "+host+":443 HTTP/1.1\r\nHost: x\r\n\r\n")
		if strings.Contains(body, "10.11.12.13") || strings.Contains(body, "10.0.0.53") {
			t.Errorf("%s", body)
		}
	}
	testenv.Eventually(t, patience, func() bool { return strings.Contains(w.logs.String(), "10.11.12.13") }, "the log does not have the address")
}

func TestBrowsersGetAPageThatEscapesItsText(t *testing.T) {
	w := newFixture(t)
	w.admit(jailA, policy.PublicWeb(policy.Rule{Name: "<script>", Action: policy.Deny, Host: policy.MustParsePattern("a.example"), Ports: policy.AnyPort()}))
	resp, body := w.raw(jailA, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nAccept: text/html,*/*\r\n\r\n")
	if resp.StatusCode != 403 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") || !strings.Contains(body, "a.example") {
		t.Errorf("%s %s", resp.Status, body)
	}
	if strings.Contains(body, "<script>") {
		t.Error("the page runs the rule's name")
	}
}

func TestPrivateNamesAndRebindingNeverReachALocalListener(t *testing.T) {
	w := newFixture(t)
	victim := untouched(t)
	s := web(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") })
	port := uint16(victim.Port)
	anyPort := policy.Rule{Name: "any-port", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.AnyPort()}
	literal := policy.Rule{Name: "literal", Action: policy.Allow, Host: policy.MustParsePattern("127.0.0.1"), Ports: policy.AnyPort()}
	w.admit(jailA, policy.Only(anyPort, literal))
	w.names.answers["loop.example"] = [][]string{{"127.0.0.1"}}
	w.names.answers["mapped.example"] = [][]string{{"::ffff:127.0.0.1"}}
	w.names.answers["zone.example"] = [][]string{{"::1%lo"}}
	w.names.answers["mixed.example"] = [][]string{{"93.184.216.34", "127.0.0.1"}}
	w.names.answers["nat64.example"] = [][]string{{"64:ff9b::7f00:1"}}
	w.names.answers["rebind.example"] = [][]string{{"93.184.216.34"}, {"127.0.0.1"}}
	w.routes[netip.AddrPortFrom(netip.MustParseAddr("93.184.216.34"), port)] = s.Listener.Addr().String()
	hosts := []string{
		"127.0.0.1", "localhost", "LOCALHOST.", "127.1", "0177.0.0.1", "0x7f000001", "2130706433", "0.0.0.0", "0", "[::1]", "[::]", "[::1%25lo]", "[::1%lo]",
		"[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:127.0.0.1%25lo]", "[64:ff9b::7f00:1]", "[::127.0.0.1]", "①②⑦.0.0.1", "127。0。0。1",
		"loop.example", "mapped.example", "zone.example", "mixed.example", "nat64.example", "a@127.0.0.1",
	}
	w.names.answers["localhost"] = [][]string{{"127.0.0.1"}}
	for _, host := range hosts {
		for _, request := range []string{
			fmt.Sprintf("CONNECT %s:%d HTTP/1.1\r\nHost: x\r\n\r\n", host, port),
			fmt.Sprintf("GET http://%s:%d/ HTTP/1.1\r\nHost: x\r\n\r\n", host, port),
		} {
			if resp, body := w.raw(jailA, request); resp.StatusCode != 403 && resp.StatusCode != 400 {
				t.Errorf("%.60q: %s %s", request, resp.Status, body)
			}
		}
	}
	// The first answer is public and is what is dialled, although the name server
	// has changed its mind by then; the second request sees the second answer.
	target := fmt.Sprintf("GET http://rebind.example:%d/ HTTP/1.1\r\nHost: x\r\n\r\n", port)
	if resp, body := w.raw(jailA, target); resp.StatusCode != 200 {
		t.Errorf("first: %s %s", resp.Status, body)
	}
	resp, body := w.raw(jailA, target)
	if code, _ := refusal(t, resp, body); code != problem.AddressDenied {
		t.Errorf("second: %s", body)
	}
	for _, e := range w.happened() {
		if strings.HasPrefix(e, "dial ") && !strings.HasPrefix(e, "dial 93.184.216.34:") {
			t.Errorf("%s", e)
		}
	}
}

func TestPrivateDestinationsNeedARuleThatNamesThem(t *testing.T) {
	s := web(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "private") })
	port := uint16(s.Listener.Addr().(*net.TCPAddr).Port)
	w := newFixture(t)
	w.names.answers["wiki.corp"] = [][]string{{"127.0.0.1"}}
	w.admit(jailA, private("wiki.corp", "127.0.0.1", port))
	w.admit(jailB, policy.Only(policy.Rule{Name: "all", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.AnyPort()}))
	request := fmt.Sprintf("GET http://wiki.corp:%d/ HTTP/1.1\r\nHost: x\r\n\r\n", port)
	if resp, body := w.raw(jailA, request); resp.StatusCode != 200 || body != "private" {
		t.Errorf("named: %s %s", resp.Status, body)
	}
	if q := w.names.questions(); len(q) != 0 {
		t.Errorf("resolver was asked %q", q)
	}
	resp, body := w.raw(jailB, request)
	if code, _ := refusal(t, resp, body); code != problem.AddressDenied {
		t.Errorf("by a pattern: %s", body)
	}
}

func TestTheGatewayIsNotReachedThroughItself(t *testing.T) {
	ln := listenOn(t, "127.0.0.1:0")
	port := uint16(ln.Addr().(*net.TCPAddr).Port)
	w := newFixtureOn(t, ln)
	w.admit(jailA, private("gw.corp", "127.0.0.1", port))
	resp, body := w.raw(jailA, fmt.Sprintf("CONNECT gw.corp:%d HTTP/1.1\r\nHost: x\r\n\r\n", port))
	if code, _ := refusal(t, resp, body); code != problem.AddressDenied {
		t.Errorf("%s", body)
	}
}

func TestNothingIsDialledWithoutARecord(t *testing.T) {
	w := newFixture(t)
	w.public("example.com", "93.184.216.34", untouched(t))
	w.admit(jailA, policy.PublicWeb())
	full := errors.New("disk full")
	w.recErr.Store(&full)
	for _, request := range []string{
		"GET http://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		resp, body := w.raw(jailA, request)
		if code, _ := refusal(t, resp, body); code != problem.AuditUnavailable || resp.StatusCode != 503 || strings.Contains(body, "disk full") {
			t.Errorf("%s %s", resp.Status, body)
		}
	}
	if e := w.happened(); len(e) != 0 {
		t.Errorf("happened: %v", e)
	}
}

func TestUnreachableHostsAre502(t *testing.T) {
	w := newFixture(t)
	refuses := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(testenv.FreePort(t))}
	w.public("example.com", "93.184.216.34", refuses)
	w.admit(jailA, policy.PublicWeb())
	for _, request := range []string{
		"GET http://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		resp, body := w.raw(jailA, request)
		if code, _ := refusal(t, resp, body); code != problem.UpstreamUnreachable || resp.StatusCode != 502 {
			t.Errorf("%s %s", resp.Status, body)
		}
	}
}

func TestOneLogLinePerDecision(t *testing.T) {
	w := newFixture(t)
	s := web(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("x", 1000)) })
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	w.raw(jailA, "GET http://example.com/hidden-path?token=hidden HTTP/1.1\r\nHost: x\r\nAuthorization: hidden\r\nConnection: close\r\n\r\n")
	testenv.Eventually(t, patience, func() bool { return strings.Count(w.logs.String(), "\n") == 1 }, "no log line")
	text := w.logs.String()
	if strings.Contains(text, "hidden") {
		t.Errorf("log has the path or a header: %s", text)
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(text), &line); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]any{
		"caller": jailA, "jail": "b" + jailA, "session": "s" + jailA, "host": "example.com", "port": 80.0, "rule": "public-web",
		"allowed": true, "address": "93.184.216.34:80", "surface": "forward", "method": "GET", "scheme": "http",
	} {
		if line[k] != want {
			t.Errorf("%s = %v, want %v", k, line[k], want)
		}
	}
	if in, _ := line["bytes_in"].(float64); in < 1000 {
		t.Errorf("bytes_in = %v", line["bytes_in"])
	}
	if out, _ := line["bytes_out"].(float64); out <= 0 {
		t.Errorf("bytes_out = %v", line["bytes_out"])
	}
	if _, ok := line["ms"]; !ok {
		t.Error("no ms")
	}
}

func TestNewReportsEverythingThatIsMissing(t *testing.T) {
	_, err := New(Config{Guard: netguard.Guard{Self: make([]netip.AddrPort, 1)}})
	if err == nil {
		t.Fatal("an empty configuration is accepted")
	}
	for _, want := range []string{"connections per caller", "header bytes", "header timeout", "first bytes timeout", "resolve timeout", "connect timeout", "idle timeout", "lifetime", "own socket 1", "records", "networks of the host"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %q:\n%v", want, err)
		}
	}
}
