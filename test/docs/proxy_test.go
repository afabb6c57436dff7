//go:build linux

package docs

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/task"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// behindProxy runs an instance whose proxy is on this machine, and whose users know it by the name in the examples.
func behindProxy(t *testing.T) (b *testkit.Installation, key string) {
	t.Helper()
	b = testkit.Start(t, instance.Options{Settings: testkit.NoPool + "behind_proxy: [127.0.0.1/32]\npublic_url: https://" + proxyName + "\n"})
	text, err := os.ReadFile(hostd.AdminKeyPath(b.Config))
	if err != nil {
		t.Fatal(err)
	}
	return b, strings.TrimSpace(string(text))
}

// TestExampleProxiesKeepTheDoor tries both examples before the real control plane.
func TestExampleProxiesKeepTheDoor(t *testing.T) {
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			b, key := behindProxy(t) // its own: what both guess would count for their one address
			backend := b.Config.Listen.String()
			f := p.inFront(t, backend)
			c := f.client()
			ask(t, c, f.url("/v1/health")).want(t, "health", http.StatusOK, "")
			ask(t, c, f.url("/v1/info"), api.KeyHeader, key).want(t, "the right key", http.StatusOK, "")
			ask(t, c, f.url("/v1/info")).want(t, "no key", http.StatusUnauthorized, problem.Unauthorized)

			t.Run("clients are known by their own address", func(t *testing.T) {
				if n := guess(t, f.client(), f.url("/v1/info"), true, clientGuesses+2); n == 0 {
					t.Error("who forges X-Forwarded-For is not slowed down")
				}
				ask(t, f.client(), f.url("/v1/info"), api.KeyHeader, key).want(t, "another client", http.StatusOK, "")
				open := p.inFront(t, backend, p.believing)
				if n := guess(t, open.client(), open.url("/v1/info"), true, clientGuesses+2); n != 0 {
					t.Errorf("a proxy that believes its clients makes no difference: slowed down after %d", n)
				}
			})

			t.Run("other names end at the proxy", func(t *testing.T) {
				foreign := []string{"Host", foreignName + ":" + f.port}
				ask(t, c, f.url("/v1/health"), foreign...).want(t, "a foreign Host", http.StatusMisdirectedRequest, "")
				if conn, err := f.dial(foreignName); err == nil {
					conn.Close()
					t.Error("a handshake for a foreign name succeeds")
				} else if wrong := new(x509.HostnameError); errors.As(err, wrong) {
					t.Errorf("a handshake for a foreign name gets a certificate: %v", err)
				}
				open := p.inFront(t, backend, p.anyName)
				ask(t, open.client(), open.url("/v1/health"), "Host", foreignName+":"+open.port).
					want(t, "a foreign Host without the proxy's control", http.StatusForbidden, problem.Forbidden)
				if conn, err := open.dial(foreignName); err == nil {
					conn.Close()
				} else if wrong := new(x509.HostnameError); !errors.As(err, wrong) {
					t.Errorf("without the control a foreign name gets no certificate either: %v", err)
				}
			})

			t.Run("other origins end at clawjail", func(t *testing.T) {
				for _, origin := range []string{"https://" + foreignName, "https://" + proxyName + ":1", "null"} {
					ask(t, c, f.url("/v1/info"), api.KeyHeader, key, "Origin", origin).
						want(t, "the origin "+origin, http.StatusForbidden, problem.Forbidden)
				}
				ask(t, c, f.url("/v1/info"), api.KeyHeader, key, "Sec-Fetch-Site", "cross-site").
					want(t, "a request of another site", http.StatusForbidden, problem.Forbidden)
				ask(t, c, f.url("/v1/info"), api.KeyHeader, key, "Origin", "https://"+proxyName+":"+f.port, "Sec-Fetch-Site", "same-origin").
					want(t, "its own origin", http.StatusOK, "")
			})

			t.Run("clawjail knows that clients come by TLS", func(t *testing.T) {
				link := func(f *front) string {
					r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url("/v1/console/links"), nil)
					if err != nil {
						t.Fatal(err)
					}
					r.Header.Set(api.KeyHeader, key)
					return send(t, f.client(), r).body
				}
				at := "://" + proxyName + ":"
				if got := link(f); !strings.Contains(got, `"https`+at+f.port+`/console/sign-in?`) {
					t.Errorf("a link to the console is %s", got)
				}
				open := p.inFront(t, backend, p.plain)
				if got := link(open); !strings.Contains(got, `"http`+at+open.port+`/console/sign-in?`) {
					t.Errorf("a proxy that does not say so makes no difference: %s", got)
				}
			})
		})
	}
}

// TestOnlyTheProxyIsBelieved goes past the proxy.
func TestOnlyTheProxyIsBelieved(t *testing.T) {
	b, key := behindProxy(t)
	to := b.Config.Listen.String()
	url := "http://" + to
	if guess(t, clientTo(t, to, newAddress(), nil), url+"/v1/info", true, clientGuesses+2) == 0 {
		t.Error("X-Forwarded-For of somebody who is not the proxy is believed")
	}
	ask(t, clientTo(t, to, newAddress(), nil), url+"/v1/info", api.KeyHeader, key, "Host", foreignName).
		want(t, "a foreign Host", http.StatusForbidden, problem.Forbidden)
}

// TestAProgramAtTheProxysAddressIsNoProxy is a user of this host, who connects from the address that the proxy has.
func TestAProgramAtTheProxysAddressIsNoProxy(t *testing.T) {
	b, key := behindProxy(t)
	to := b.Config.Listen.String()
	url := "http://" + to
	same := clientTo(t, to, "127.0.0.1", nil)
	asks := func(what, client, host string, status int, code string) {
		t.Helper()
		ask(t, same, url+"/v1/info", api.KeyHeader, key, "Host", host, "X-Forwarded-For", client).want(t, what, status, code)
	}
	asks("the public name", "203.0.113.1", proxyName, http.StatusOK, "")
	for _, path := range []string{"/v1/info", "/v1/health", "/console/sign-in", "/mcp"} {
		ask(t, same, url+path, api.KeyHeader, key, "Host", foreignName, "Origin", "http://"+foreignName).
			want(t, "a foreign Host at "+path, http.StatusForbidden, problem.Forbidden)
	}
	ask(t, same, url+"/v1/info", api.KeyHeader, key, "Host", proxyName, "Origin", "http://"+foreignName).
		want(t, "a foreign Origin", http.StatusForbidden, problem.Forbidden)

	n := guess(t, same, url+"/v1/info", true, enoughGuesses)
	if n <= clientGuesses || n > enoughGuesses {
		t.Errorf("who invents a client for each guess is slowed down after %d", n)
	}
	asks("who has shown a good key before", "203.0.113.1", proxyName, http.StatusOK, "")
	asks("who has shown none, while others guess", "203.0.113.2", proxyName, http.StatusTooManyRequests, problem.RateLimited)

	// The same without a word of a proxy: all loopback addresses are a local user's.
	for n = range enoughGuesses {
		if ask(t, clientTo(t, to, newAddress(), nil), url+"/v1/info", api.KeyHeader, "cjadm_wrong").status == http.StatusTooManyRequests {
			break
		}
	}
	if n == enoughGuesses-1 {
		t.Error("who connects from a new loopback address for each guess is not slowed down")
	}
}

// linesArrive reports whether the client has the first line before the second is written.
func (s *behind) linesArrive(t *testing.T, f *front, query string) bool {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url("/lines"+query), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "1\n" {
		t.Fatalf("the first line is %q, %v", line, err)
	}
	select {
	case s.acked <- struct{}{}:
	default: // nobody waits any more
	}
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.acked: // an answer that came too late
	default:
	}
	return line == "2\n"
}

// bodyArrives sends a body of the largest size in two parts, and reports whether the backend had the first before the
// second was sent.
func (s *behind) bodyArrives(t *testing.T, f *front) bool {
	t.Helper()
	read, write := io.Pipe()
	early := make(chan bool, 1)
	go func() { // waited for below, and ends when the request has
		_, err := write.Write(make([]byte, mib))
		select {
		case <-s.begun:
			early <- true
		case <-time.After(s.wait):
			early <- false
		}
		if err == nil {
			_, err = write.Write(make([]byte, largest-mib))
		}
		write.CloseWithError(err) // nil is the end
	}()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url("/body"), read)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = largest
	a := send(t, f.client(), r)
	if a.status != http.StatusOK || a.body != strconv.Itoa(largest) {
		t.Errorf("the largest body: %d, arrived are %s bytes", a.status, a.body)
	}
	if <-early {
		return true
	}
	select {
	case <-s.begun: // it came too late
	default:
	}
	return false
}

// TestExampleProxiesCarryEverything tries what clawjail's clients need from a proxy, before a backend that does it all.
func TestExampleProxiesCarryEverything(t *testing.T) {
	testenv.Root(t)
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			s := newBehind(t, arrival)
			f := p.inFront(t, s.address())
			for _, query := range []string{"", "?length"} {
				if !s.linesArrive(t, f, query) {
					t.Errorf("an answer is held back: /lines%s", query)
				}
			}
			if !s.bodyArrives(t, f) {
				t.Error("a body is held back")
			}
			ask(t, f.client(), f.url("/headers"))
			if h := <-s.seen; h.Get("Proto") != "HTTP/1.1" || h.Get("Upgrade") != "" || strings.EqualFold(h.Get("Connection"), "upgrade") {
				t.Errorf("an ordinary request arrives as %v", h)
			}
			f.upgrade()

			// One byte more than the largest.
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url("/body"), bytes.NewReader(make([]byte, largest+1)))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Expect", "100-continue")
			// Caddy 2.6 calls it a bad gateway.
			if a := send(t, f.client(), r); a.status != http.StatusRequestEntityTooLarge && (p.name != "caddy" || a.status != http.StatusBadGateway) {
				t.Errorf("a body that is too large: %d", a.status)
			}

			impatient := newBehind(t, neverMind)
			slow := p.inFront(t, impatient.address(), p.buffering)
			if impatient.linesArrive(t, slow, "?length") {
				t.Error("without the lines that turn buffering off, nothing is held back: the test shows nothing")
			}
			if p.name == "nginx" && impatient.bodyArrives(t, slow) { // Caddy does not buffer bodies
				t.Error("without the lines that turn buffering off, no body is held back: the test shows nothing")
			}
		})
	}
}

// upgrade changes to another protocol and speaks it.
func (f *front) upgrade() {
	f.t.Helper()
	conn, err := f.dial(proxyName)
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(arrival)); err != nil {
		f.t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /upgrade HTTP/1.1\r\nHost: %s:%s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", proxyName, f.port)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		f.t.Fatalf("upgrade: %v, %v", response, err)
	}
	for _, word := range []string{"one\n", "two\n"} {
		_, _ = io.WriteString(conn, word) // the answer tells
		if got, err := reader.ReadString('\n'); err != nil || got != word {
			f.t.Errorf("after the upgrade %q comes back as %q, %v", word, got, err)
		}
	}
}

func TestExampleProxiesWaitLongerThanAnyRequestTakes(t *testing.T) {
	testenv.Root(t)
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			s := newBehind(t, arrival)
			shorter := func(t *testing.T, text string) string {
				all := p.silence.FindAllStringSubmatch(text, -1)
				if len(all) != p.silences {
					t.Fatalf("%d lines say how long to wait, want %d", len(all), p.silences)
				}
				for _, found := range all {
					if d, err := time.ParseDuration(found[1]); err != nil || d <= task.MaxTimeout {
						t.Errorf("%q is not longer than the longest task, %v", found[0], task.MaxTimeout)
					}
					text = strings.Replace(text, found[0], strings.Replace(found[0], found[1], "1s", 1), 1)
				}
				return text
			}
			f := p.inFront(t, s.address(), shorter)
			// It is these lines that decide: with a second in them the proxy gives up.
			if a := ask(t, f.client(), f.url("/silent")); a.status != http.StatusGatewayTimeout && a.status != http.StatusBadGateway {
				t.Errorf("a backend that is silent: %d", a.status)
			}
		})
	}
}

// TestExampleProxiesListenOnOnePortOnly looks for a port that redirects, one that configures, and UDP.
func TestExampleProxiesListenOnOnePortOnly(t *testing.T) {
	testenv.Root(t)
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			f := p.inFront(t, newBehind(t, arrival).address())
			if got := f.listens(); !slices.Equal(got, []string{"tcp " + f.port}) {
				t.Errorf("it listens on %q, want %s alone", got, f.port)
			}
		})
	}
	t.Run("caddy without the controls", func(t *testing.T) {
		redirect := strconv.Itoa(int(testenv.FreePort(t)))
		f := proxies[1].inFront(t, newBehind(t, arrival).address(), instead("protocols h1 h2", "protocols h1 h2 h3"),
			instead("auto_https disable_redirects", "http_port "+redirect))
		got := f.listens()
		for _, want := range []string{"udp " + f.port, "tcp " + redirect} {
			if !slices.Contains(got, want) {
				t.Errorf("it listens on %q, and not on %s: the test shows nothing", got, want)
			}
		}
	})
}

// TestExampleProxiesLogNoKeys looks into all that they write, about requests that work and requests that do not.
func TestExampleProxiesLogNoKeys(t *testing.T) {
	testenv.Root(t)
	keys := []string{"canary-admin", "canary-bearer", "canary-cookie"}
	leaked := func(t *testing.T, p proxy, changes ...func(*testing.T, string) string) (out []string) {
		s := newBehind(t, arrival)
		f := p.inFront(t, s.address(), changes...)
		for _, path := range []string{"/headers", "/broken", "/end"} {
			ask(t, f.client(), f.url(path), api.KeyHeader, keys[0], "Authorization", "Bearer "+keys[1], "Cookie", "c="+keys[2])
			testenv.Eventually(t, arrival, func() bool { return strings.Contains(f.logs(), path) }, "%s logs nothing about %s", p.name, path)
		}
		for _, key := range keys {
			if strings.Contains(f.logs(), key) {
				out = append(out, key)
			}
		}
		return out
	}
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			if found := leaked(t, p); len(found) > 0 {
				t.Errorf("in the log are %q", found)
			}
			if p.talkative != nil {
				if found := leaked(t, p, p.talkative); len(found) > 0 {
					t.Errorf("in the log of a talkative proxy are %q", found)
				}
			}
			if found := leaked(t, p, p.telling); len(found) != len(keys) {
				t.Errorf("in a log with headers are only %q: the test shows nothing", found)
			}
		})
	}
}

// TestOwnCertificate runs clawjail with tls and without a proxy.
func TestOwnCertificate(t *testing.T) {
	b := testkit.Start(t, instance.Options{Settings: testkit.NoPool}) // makes the user who must read the key
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(b.ConfigFile)
	roots, authority := certificates(t, dir)
	group, err := user.LookupGroup(b.Config.User)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(dir, "clawjail.key")
	if err := errors.Join(os.Chown(keyFile, 0, gid), os.Chmod(keyFile, 0o640)); err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile(b.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, b.ConfigFile, fmt.Sprintf("%stls: {cert: %s/clawjail.crt, key: %s}\n", settings, dir, keyFile))

	up := b.Command(context.WithoutCancel(t.Context()), "up")
	var said bytes.Buffer // read after the end only
	up.Stdout, up.Stderr = &said, &said
	ended := testkit.Child(t, up)
	cli := func(env ...string) (string, error) {
		cmd := b.Command(t.Context(), "session", "ls", "--json")
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	trusting := "SSL_CERT_FILE=" + authority
	testenv.Eventually(t, arrival, func() bool {
		select {
		case <-ended:
			t.Fatalf("clawjail ended:\n%s", said.String())
		default:
		}
		_, err := cli()
		return err == nil
	}, "the command line does not work over https")

	to := b.Config.Listen.String()
	port := strconv.Itoa(int(b.Config.Listen.Port()))
	byName := "CLAWJAIL_URL=https://localhost:" + port
	if out, err := cli(trusting, byName); err != nil {
		t.Errorf("by a name: %v: %s", err, out)
	}
	if out, err := cli(byName); err == nil || !strings.Contains(out, "certificate") {
		t.Errorf("an authority that nobody trusts is trusted: %v: %s", err, out)
	}
	if out, err := cli(trusting, "CLAWJAIL_URL=http://"+to); err == nil {
		t.Errorf("it answers without TLS: %s", out)
	}
	c := clientTo(t, to, newAddress(), roots)
	ask(t, c, "https://"+proxyName+":"+port+"/v1/health").want(t, "the certificate's name", http.StatusOK, "")
	ask(t, c, "https://"+proxyName+":"+port+"/v1/health", "Host", foreignName).
		want(t, "a foreign Host", http.StatusForbidden, problem.Forbidden)

	renewed, authority := certificates(t, dir)
	ask(t, clientTo(t, to, newAddress(), renewed), "https://"+proxyName+":"+port+"/v1/health").want(t, "a renewed certificate", http.StatusOK, "")
	for _, env := range [][]string{nil, {"SSL_CERT_FILE=" + authority, byName}} {
		if out, err := cli(env...); err != nil {
			t.Errorf("with a renewed certificate and %q: %v: %s", env, err, out)
		}
	}
}
