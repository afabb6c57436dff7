package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// routes reads the OpenAPI document as a client does.
func routes(t *testing.T, d *door) [][2]string {
	t.Helper()
	answer := d.ask(t, "GET", "/openapi.json", "", without(KeyHeader))
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal([]byte(answer.body), &doc); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("the document: %d, %v", answer.StatusCode, err)
	}
	var all [][2]string
	for path, methods := range doc.Paths {
		for method := range methods {
			all = append(all, [2]string{strings.ToUpper(method), strings.NewReplacer("{id}", someID, "{number}", "1").Replace(path)})
		}
	}
	if len(all) < 10 {
		t.Fatalf("the document has %d routes", len(all))
	}
	return all
}

func TestEveryRouteNeedsTheKey(t *testing.T) {
	d := newDoor(t)
	extra := [][2]string{{"GET", "/"}, {"GET", "/nothing"}, {"POST", "/v1/health"}, {"GET", "/openapi.yaml"}, {"GET", "/docs"},
		{"GET", "/v1/health/"}, {"GET", "//v1/health/../sessions"}, {"OPTIONS", "/v1/sessions"}, {"HEAD", "/v1/sessions"}}
	for _, route := range append(routes(t, d), extra...) {
		method, path := route[0], route[1]
		if method == "GET" && path == "/v1/health" {
			if a := d.ask(t, method, path, "", without(KeyHeader)); a.StatusCode != http.StatusOK {
				t.Errorf("health needs a key: %d", a.StatusCode)
			}
			continue
		}
		t.Run(method+" "+path, func(t *testing.T) {
			d := newDoor(t)
			d.ask(t, method, path, "", without(KeyHeader)).wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
			d.ask(t, method, path, "", header(KeyHeader, NewKey())).wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
			d.ask(t, method, path, "", header(KeyHeader, "")).wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
			d.ask(t, method, path, "", func(r *http.Request) { r.Header.Add(KeyHeader, d.key) }).
				wantProblem(t, http.StatusUnauthorized, problem.Unauthorized) // twice: which one counts is not guessed
			noCalls(t, d)
			if a := d.ask(t, method, path, ""); a.StatusCode == http.StatusUnauthorized {
				t.Error("the right key is refused")
			}
		})
	}
}

func TestWrongKeysAreSlowedDownAndTheRightOneIsNot(t *testing.T) {
	d := newDoor(t, func(o *Options) { o.BehindProxy = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")} })
	wrong := func(from string) asked {
		return d.ask(t, "GET", "/v1/sessions", "", header(KeyHeader, "cjadm_wrong"), func(r *http.Request) { r.RemoteAddr = from })
	}
	for range guesses {
		wrong("192.0.2.1:1").wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
	}
	refused := wrong("192.0.2.1:2")
	refused.wantProblem(t, http.StatusTooManyRequests, problem.RateLimited)
	if refused.Header.Get("Retry-After") != "3" {
		t.Errorf("Retry-After is %q", refused.Header.Get("Retry-After"))
	}
	if a := d.ask(t, "GET", "/v1/sessions", "", func(r *http.Request) { r.RemoteAddr = "192.0.2.1:3" }); a.StatusCode != http.StatusOK {
		t.Errorf("the right key is refused: %d", a.StatusCode)
	}
	wrong("192.0.2.2:1").wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
	d.clock = d.clock.Add(guessEvery)
	wrong("192.0.2.1:4").wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
	wrong("192.0.2.1:5").wantProblem(t, http.StatusTooManyRequests, problem.RateLimited)

	// Behind a proxy it is the client that is slowed down; a client cannot choose who it is.
	for n := range guesses + 1 {
		a := d.ask(t, "GET", "/v1/sessions", "", header(KeyHeader, "x"), header("X-Forwarded-For", fmt.Sprintf("198.51.100.%d, 192.0.2.9", n)),
			func(r *http.Request) { r.RemoteAddr = "10.0.0.1:1" })
		if n == guesses {
			a.wantProblem(t, http.StatusTooManyRequests, problem.RateLimited)
		}
	}
	for n := range guesses + 1 {
		a := d.ask(t, "GET", "/v1/sessions", "", header(KeyHeader, "x"), header("X-Forwarded-For", fmt.Sprintf("198.51.100.%d", n)),
			func(r *http.Request) { r.RemoteAddr = "192.0.2.50:1" })
		if n == guesses {
			a.wantProblem(t, http.StatusTooManyRequests, problem.RateLimited)
		}
	}
}

func TestGuessersCannotFillTheMemory(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	b := newBrake(func() time.Time { return now })
	for n := range 3 * brakedMost {
		b.wrong(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}))
		if len(b.braked) > brakedMost {
			t.Fatalf("%d addresses are kept", len(b.braked))
		}
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
			d := newDoor(t, func(o *Options) { o.OwnName = func(host string) bool { return host == "jail.example.com" } })
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
	d := newDoor(t, func(o *Options) { o.Listen = netip.MustParseAddrPort("0.0.0.0:443") })
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

func TestKeyIsMadeOnceAndForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.key")
	keys := make([]Key, 8)
	var wait sync.WaitGroup
	for n := range keys {
		wait.Go(func() {
			var err error
			if keys[n], err = LoadKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("the file: %v, %v", info.Mode(), err)
	}
	text, _ := os.ReadFile(path)
	for _, k := range keys {
		if !k.matches(strings.TrimSpace(string(text))) || k.IsZero() {
			t.Error("two processes have different keys")
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
	for _, shown := range []string{fmt.Sprint(keys[0]), fmt.Sprintf("%#v %+v %s", keys[0], keys[0], keys[0]), logged(keys[0])} {
		if strings.Contains(shown, "cjadm_") || !strings.Contains(shown, "[redacted]") {
			t.Errorf("a key prints as %s", shown)
		}
	}
}

func logged(k Key) string {
	var b strings.Builder
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "key", k)
	return b.String()
}

func TestKeysThatAreNotSecretAreRefused(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"open to others": func(path string) error { return os.WriteFile(path, []byte(NewKey()), 0o644) },
		"open to the group": func(path string) error {
			if err := os.WriteFile(path, []byte(NewKey()), 0o600); err != nil {
				return err
			}
			return os.Chmod(path, 0o640)
		},
		"a link": func(path string) error {
			if err := os.WriteFile(path+".real", []byte(NewKey()), 0o600); err != nil {
				return err
			}
			return os.Symlink(path+".real", path)
		},
		"empty":             func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"short":             func(path string) error { return os.WriteFile(path, []byte("cjadm_1234"), 0o600) },
		"without a prefix":  func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("ab", 32)), 0o600) },
		"not hexadecimal":   func(path string) error { return os.WriteFile(path, []byte("cjadm_"+strings.Repeat("z", 64)), 0o600) },
		"two keys in a row": func(path string) error { return os.WriteFile(path, []byte(NewKey()+"\n"+NewKey()), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "admin.key")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			k, err := LoadKey(path)
			if problem.CodeOf(err) != problem.BadConfig || !k.IsZero() || strings.Contains(fmt.Sprint(err), "cjadm_1") {
				t.Errorf("it is accepted, or told: %v", err)
			}
		})
	}
}
