package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// routes reads the OpenAPI document as a client does: methods and paths, with their wildcards.
func routes(t *testing.T, d *testAPI) [][2]string {
	t.Helper()
	answer := d.ask(t, "GET", "/openapi.json", "", anonymous)
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal([]byte(answer.body), &doc); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("the document: %d, %v", answer.StatusCode, err)
	}
	var all [][2]string
	for path, methods := range doc.Paths {
		for method := range methods {
			all = append(all, [2]string{strings.ToUpper(method), path})
		}
	}
	if len(all) < 40 {
		t.Fatalf("the document has %d routes", len(all))
	}
	return all
}

func TestAnAddressWithAnEmptyPartIsRefusedAndNotRedirected(t *testing.T) {
	const session = "/v1/sessions/" + someID
	for _, at := range [][2]string{{"POST", "//v1/sessions"}, {"DELETE", "/v1//sessions/" + someID}, {"DELETE", "/v1/sessions//tokens/x"},
		{"DELETE", "/v1/./sessions/" + someID}, {"DELETE", session + "/x/.."}, {"GET", "//"}, {"GET", session + "//"}} {
		d := newTestAPI(t)
		a := d.ask(t, at[0], at[1], "")
		if a.wantProblem(t, http.StatusNotFound, problem.NotFound); a.Header.Get("Location") != "" {
			t.Errorf("%s %s is sent to %s", at[0], at[1], a.Header.Get("Location"))
		}
		noCalls(t, d)
	}
	d := newTestAPI(t)
	if a := d.ask(t, "DELETE", session, ""); a.StatusCode >= 300 {
		t.Errorf("the address as it is written in the document is answered %d %s", a.StatusCode, a.body)
	}
}

func TestEveryRouteNeedsTheKey(t *testing.T) {
	d := newTestAPI(t)
	extra := [][2]string{{"GET", "/"}, {"GET", "/nothing"}, {"POST", "/v1/health"}, {"GET", "/openapi.yaml"}, {"GET", "/docs"},
		{"GET", "/v1/health/"}, {"GET", "//v1/health/../sessions"}, {"OPTIONS", "/v1/sessions"}, {"HEAD", "/v1/sessions"}}
	filled := strings.NewReplacer("{id}", someID, "{number}", "1", "{domain}", "example.com", "{service}", "github", "{name}", "writer", "{node}", "n1", "{targetId}", "t1", "{media}", "m1")
	for _, route := range append(routes(t, d), extra...) {
		method, path := route[0], filled.Replace(route[1])
		if method == "GET" && (path == "/v1/health" || path == "/v1/ready") {
			if a := d.ask(t, method, path, "", anonymous); a.StatusCode != http.StatusOK {
				t.Errorf("%s needs a key: %d", path, a.StatusCode)
			}
			continue
		}
		t.Run(method+" "+path, func(t *testing.T) {
			d := newTestAPI(t)
			refused := func(change ...func(*http.Request)) {
				t.Helper()
				a := d.ask(t, method, path, "", change...)
				a.wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
				if a.Header.Get("WWW-Authenticate") != `Bearer realm="clawjail"` {
					t.Errorf("WWW-Authenticate is %q", a.Header.Get("WWW-Authenticate"))
				}
			}
			refused(anonymous)
			refused(key("another"))
			refused(key(""))
			refused(anonymous, header(KeyHeader, "another"))
			noCalls(t, d)
			if d.identity.open() != 0 {
				t.Error("a request without a good key is held")
			}
		})
	}
}

func TestOneKeyIsSentInOneOfTwoPlaces(t *testing.T) {
	for name, test := range map[string]struct {
		change []func(*http.Request)
		pass   bool
	}{
		"bearer":                  {[]func(*http.Request){key(goodKey)}, true},
		"bearer in another case":  {[]func(*http.Request){header("Authorization", "bearer "+goodKey)}, true},
		"the other header":        {[]func(*http.Request){anonymous, header(KeyHeader, goodKey)}, true},
		"the same in both":        {[]func(*http.Request){header(KeyHeader, goodKey)}, true},
		"another beside it":       {[]func(*http.Request){header(KeyHeader, "another")}, false},
		"an empty one beside it":  {[]func(*http.Request){header(KeyHeader, "")}, false},
		"the good one beside it":  {[]func(*http.Request){key("another"), header(KeyHeader, goodKey)}, false},
		"twice":                   {[]func(*http.Request){func(r *http.Request) { r.Header.Add("Authorization", bearer+" "+goodKey) }}, false},
		"the other header, twice": {[]func(*http.Request){anonymous, header(KeyHeader, goodKey), func(r *http.Request) { r.Header.Add(KeyHeader, goodKey) }}, false},
		"another scheme":          {[]func(*http.Request){header("Authorization", "Basic "+goodKey)}, false},
		"no scheme":               {[]func(*http.Request){header("Authorization", goodKey)}, false},
		"another scheme beside":   {[]func(*http.Request){header("Authorization", "Basic eDp5"), header(KeyHeader, goodKey)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestAPI(t)
			a := d.ask(t, "GET", "/v1/sessions", "", test.change...)
			if test.pass && a.StatusCode != http.StatusOK {
				t.Errorf("it is refused: %s", a.body)
			}
			if !test.pass {
				a.wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
				noCalls(t, d)
			}
		})
	}
}

func TestKeysComeFromTheClientBehindAProxy(t *testing.T) {
	d := newTestAPI(t, func(o *Options) { o.BehindProxy = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")} })
	d.ask(t, "GET", "/v1/sessions", "", header("X-Forwarded-For", "198.51.100.1, 192.0.2.9"), func(r *http.Request) { r.RemoteAddr = "10.0.0.1:1" })
	d.ask(t, "GET", "/v1/sessions", "", header("X-Forwarded-For", "198.51.100.1"), func(r *http.Request) { r.RemoteAddr = "192.0.2.50:1" })
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.50")}; !slices.Equal(d.identity.from, want) {
		t.Errorf("keys came from %s, want %s", d.identity.from, want)
	}
}

// A program at the proxy's address chooses Host by itself.
func TestAProxyHandsOnThePublicNameAndNoOther(t *testing.T) {
	d := newTestAPI(t, func(o *Options) {
		o.BehindProxy, o.PublicName = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, "jail.example"
	})
	for host, want := range map[string]int{
		"jail.example": http.StatusOK, "JAIL.example:8443": http.StatusOK, "127.0.0.1:18780": http.StatusOK, "localhost": http.StatusOK,
		"evil.test": http.StatusForbidden, "evil.test:18780": http.StatusForbidden, "jail.example.evil.test": http.StatusForbidden, "": http.StatusForbidden,
	} {
		a := d.ask(t, "GET", "/v1/sessions", "", func(r *http.Request) { r.Host, r.RemoteAddr = host, "127.0.0.1:1" })
		if a.StatusCode != want {
			t.Errorf("with the host %q: %d, want %d", host, a.StatusCode, want)
		}
	}
}

func TestTheServiceIsToldWhoAsks(t *testing.T) {
	d := newTestAPI(t)
	if d.ask(t, "GET", "/v1/sessions/"+someID, ""); d.sessions.by.Kind != identity.KindAdmin {
		t.Errorf("it was told %+v", d.sessions.by)
	}
}

func TestARequestEndsWithItsKey(t *testing.T) {
	d := newTestAPI(t)
	d.sessions.wait = make(chan struct{}) // never closed
	answered := make(chan asked)
	go func() { answered <- d.ask(t, "POST", "/v1/sessions", "") }()
	testenv.Eventually(t, 5*time.Second, func() bool {
		d.sessions.mu.Lock()
		defer d.sessions.mu.Unlock()
		return len(d.sessions.calls) > 0
	}, "the request arrives")
	d.identity.mu.Lock()
	for _, cancel := range d.identity.held {
		cancel(problem.New(problem.Unauthorized, "ask for another", "the key is not good any more"))
	}
	d.identity.mu.Unlock()
	(<-answered).wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
	if d.identity.open() != 0 {
		t.Error("a request that has ended is held")
	}
}

func TestAddressesThatNothingIsCalledLikeAreRefused(t *testing.T) {
	for _, path := range []string{"/v1/cookies/%00", "/v1/cookies/a%0ab", "/v1/secrets/%ff", "/v1/grants/x%7f", "/v1/audit?actor=%00", "/v1/audit?actor=%ff",
		"/v1/audit?%00=1", "/v1/audit?actor=%zz", "/v1/audit?actor=a&actor=a", "/v1/agents/x/log?stream=stdout&follow=true&stream=stderr"} {
		d := newTestAPI(t)
		d.ask(t, "GET", path, "").wantProblem(t, http.StatusBadRequest, problem.BadRequest)
	}
}

func TestWebPagesAreKeptOut(t *testing.T) {
	for name, test := range map[string]struct {
		change []func(*http.Request)
		pass   bool
	}{
		"a program":                  {nil, true},
		"localhost":                  {[]func(*http.Request){host("localhost:18780")}, true},
		"localhost in capitals":      {[]func(*http.Request){host("LOCALHOST")}, true},
		"IPv6 loopback":              {[]func(*http.Request){host("[::1]:18780")}, true},
		"another loopback":           {[]func(*http.Request){host("127.9.9.9:1")}, true},
		"the certificate's name":     {[]func(*http.Request){host("jail.example.com")}, true},
		"its own page":               {[]func(*http.Request){header("Origin", "http://127.0.0.1:18780"), header("Sec-Fetch-Site", "same-origin")}, true},
		"typed into the address bar": {[]func(*http.Request){header("Sec-Fetch-Site", "none")}, true},
		"a rebound name":             {[]func(*http.Request){host("evil.example.com:18780")}, false},
		"a name that begins well":    {[]func(*http.Request){host("localhost.evil.example.com")}, false},
		"an address of elsewhere":    {[]func(*http.Request){host("192.0.2.7:18780")}, false},
		"no host":                    {[]func(*http.Request){host("")}, false},
		"a port that is none":        {[]func(*http.Request){host("127.0.0.1:x")}, false},
		"user info":                  {[]func(*http.Request){host("localhost@evil.example.com")}, false},
		"a foreign origin":           {[]func(*http.Request){header("Origin", "https://evil.example.com")}, false},
		"an origin of another port":  {[]func(*http.Request){header("Origin", "http://127.0.0.1:3000")}, false},
		"an opaque origin":           {[]func(*http.Request){header("Origin", "null")}, false},
		"an empty origin":            {[]func(*http.Request){header("Origin", "")}, false},
		"another scheme":             {[]func(*http.Request){header("Origin", "chrome-extension://127.0.0.1:18780")}, false},
		"two origins": {[]func(*http.Request){header("Origin", "http://127.0.0.1:18780"),
			func(r *http.Request) { r.Header.Add("Origin", "https://evil.example.com") }}, false},
		"cross-site": {[]func(*http.Request){header("Sec-Fetch-Site", "cross-site")}, false},
		"same-site":  {[]func(*http.Request){header("Sec-Fetch-Site", "same-site")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestAPI(t, func(o *Options) { o.OwnName = func(host string) bool { return host == "jail.example.com" } })
			for _, path := range []string{"/v1/sessions", "/v1/health", "/openapi.json", "/nothing"} {
				a := d.ask(t, "GET", path, "", test.change...)
				if !test.pass {
					a.wantProblem(t, http.StatusForbidden, problem.Forbidden)
				} else if a.StatusCode == http.StatusForbidden {
					t.Errorf("%s is refused: %s", path, a.body)
				}
			}
			if !test.pass {
				noCalls(t, d)
			}
		})
	}
}

func host(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }

func TestHostIsTheAddressThatTheConnectionCameTo(t *testing.T) {
	d := newTestAPI(t, func(o *Options) { o.Listen = netip.MustParseAddrPort("0.0.0.0:443") })
	came := func(to string) func(*http.Request) {
		return func(r *http.Request) {
			r.Host = "192.0.2.7"
			addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(to))
			*r = *r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr))
			r.TLS = &tls.ConnectionState{}
		}
	}
	if a := d.ask(t, "GET", "/v1/health", "", came("192.0.2.7:443")); a.StatusCode != http.StatusOK {
		t.Errorf("it is refused: %s", a.body)
	}
	d.ask(t, "GET", "/v1/health", "", came("192.0.2.8:443")).wantProblem(t, http.StatusForbidden, problem.Forbidden)
}
