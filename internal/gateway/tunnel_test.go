package gateway

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// connect opens a tunnel and returns it after the 200.
func (w *fixture) connect(from, target string) (*net.TCPConn, *bufio.Reader) {
	w.t.Helper()
	c := w.dial(from)
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"})
	if err != nil || resp.StatusCode != 200 {
		w.t.Fatalf("CONNECT %s: %v %v", target, resp, err)
	}
	return c, br
}

// opaque allows a host to be tunnelled to without being looked into.
func opaque(host string, port uint16) policy.Policy {
	return policy.Only(policy.Rule{Name: "opaque", Action: policy.Allow, Host: policy.MustParsePattern(host), Ports: policy.Ports(port), Opaque: true})
}

// server runs one handler per connection.
func server(t *testing.T, handle func(*net.TCPConn)) net.Listener {
	t.Helper()
	ln := listenOn(t, "127.0.0.1:0")
	var group errgroup.Group
	group.Go(func() error {
		for {
			c, err := ln.Accept()
			if err != nil {
				return nil
			}
			group.Go(func() error {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(2 * patience))
				handle(c.(*net.TCPConn))
				return nil
			})
		}
	})
	t.Cleanup(func() { ln.Close(); _ = group.Wait() })
	return ln
}

func echo(c *net.TCPConn) { _, _ = io.Copy(c, c) }

// lastCode waits for the log line of a finished exchange and returns it.
func (w *fixture) lastLine(part string) string {
	w.t.Helper()
	var line string
	testenv.Eventually(w.t, patience, func() bool {
		for l := range strings.Lines(w.logs.String()) {
			if strings.Contains(l, part) {
				line = l
			}
		}
		return line != ""
	}, "no log line with %s in %s", part, w.logs)
	return line
}

func tlsServer(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "secure "+r.Host) }))
	t.Cleanup(s.Close)
	return s
}

func TestHTTPSWorksThroughATunnel(t *testing.T) {
	w := newFixture(t)
	s := tlsServer(t)
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	client := w.client(jailA)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots}
	for _, url := range []string{"https://example.com/", "https://EXAMPLE.com/"} {
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.EqualFold(string(body), "secure example.com") {
			t.Errorf("%s: %q", url, body)
		}
	}
}

// hello opens a tunnel, sends bytes, and returns the first byte that comes back;
// 22 is the server's handshake, 21 an alert.
func (w *fixture) hello(target string, data []byte) byte {
	w.t.Helper()
	c, br := w.connect(jailA, target)
	defer c.Close()
	if _, err := c.Write(data); err != nil {
		w.t.Fatal(err)
	}
	first, err := br.ReadByte()
	if err != nil {
		return 0
	}
	return first
}

func TestTheServerNameMustBeTheTunnelsHost(t *testing.T) {
	w := newFixture(t)
	reached := make(chan struct{}, 100)
	s := server(t, func(c *net.TCPConn) {
		if n, _ := c.Read(make([]byte, 1)); n > 0 {
			reached <- struct{}{}
			_, _ = c.Write([]byte{22})
		}
	})
	w.public("example.com", "93.184.216.34", s.Addr())
	ip := policy.Rule{Name: "ip", Action: policy.Allow, Host: policy.MustParsePattern("93.184.216.34"), Ports: policy.Ports(443)}
	w.admit(jailA, policy.PublicWeb(ip))
	good := clientHello(t, "example.com")
	for name, c := range map[string]struct {
		target string
		data   []byte
		passes bool
	}{
		"same":                    {"example.com:443", good, true},
		"same, in small records":  {"example.com:443", inRecords(good, 30), true},
		"same, upper case":        {"example.com:443", helloWith(sni("EXAMPLE.COM")), true},
		"CONNECT upper case, dot": {"EXAMPLE.com.:443", good, true},
		"other":                   {"example.com:443", clientHello(t, "evil.example"), false},
		"sub-domain":              {"example.com:443", clientHello(t, "www.example.com"), false},
		"other, in small records": {"example.com:443", inRecords(clientHello(t, "evil.example"), 30), false},
		"none":                    {"example.com:443", clientHello(t, ""), false},
		"odd":                     {"example.com:443", helloWith(sni("0x7f.1")), false},
		"two":                     {"example.com:443", helloWith(sni("example.com"), sni("evil.example")), false},
		"address, no name":        {"93.184.216.34:443", clientHello(t, ""), true},
		"address as a name":       {"93.184.216.34:443", helloWith(sni("93.184.216.34")), true},
		"address, other name":     {"93.184.216.34:443", clientHello(t, "evil.example"), false},
		"not TLS, not HTTP":       {"example.com:443", []byte("\x00\x01\x02"), false},
		"SSH":                     {"example.com:443", []byte("SSH-2.0-x\r\n"), false},
	} {
		got := w.hello(c.target, c.data)
		if (got == 22) != c.passes {
			t.Errorf("%s: first byte back is %d", name, got)
		}
		if c.passes {
			<-reached
		} else if len(reached) != 0 {
			t.Errorf("%s: bytes reached the upstream", name)
			<-reached
		}
	}
	line := w.lastLine(`"code":"` + problem.SNIMismatch)
	if !strings.Contains(line, `"allowed":false`) || !strings.Contains(line, `"bytes_out":0`) {
		t.Errorf("%s", line)
	}
	found := false
	for _, o := range w.ended() {
		found = found || o.Code == problem.SNIMismatch
	}
	if !found {
		t.Error("the mismatch is not on record")
	}
}

func TestTLSClientsSeeAnAlertWhenTheyAreRefused(t *testing.T) {
	w := newFixture(t)
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, policy.PublicWeb())
	c, _ := w.connect(jailA, "example.com:443")
	err := tls.Client(c, &tls.Config{ServerName: "evil.example"}).Handshake()
	if err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("%v", err)
	}
}

func TestSilentTunnelsAreEnded(t *testing.T) {
	w := newFixture(t, withLimits(func(l *Limits) { l.FirstBytesTimeout = 250 * time.Millisecond }))
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, policy.PublicWeb())
	for _, sent := range []string{"", "\x16\x03"} {
		c, br := w.connect(jailA, "example.com:443")
		io.WriteString(c, sent)
		if rest, err := io.ReadAll(br); err != nil || len(rest) != 0 {
			t.Errorf("%q %v", rest, err)
		}
	}
	w.lastLine(codeProtocolDenied)
}

func TestSchemeRulesHoldInsideTunnels(t *testing.T) {
	w := newFixture(t)
	s := web(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "plain") })
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	rule := policy.Rule{Name: "tls-only", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.Ports(443), Scheme: policy.HTTPS}
	w.admit(jailA, policy.Only(rule))
	rule.Scheme = policy.HTTP
	w.admit(jailB, policy.Only(rule))

	c, br := w.connect(jailA, "example.com:443")
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 403 {
		t.Errorf("HTTP where only TLS is allowed: %v %v", resp, err)
	}
	d, br := w.connect(jailB, "example.com:443")
	d.Write(clientHello(t, "example.com"))
	if first, err := br.ReadByte(); err != nil || first != 21 {
		t.Errorf("TLS where only HTTP is allowed: %d %v", first, err)
	}
}

func TestPlainHTTPInATunnelIsHeldToItsHost(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, okAnswer, headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	noPost := policy.Rule{Name: "no-put", Action: policy.Deny, Host: policy.AnyHost(), Ports: policy.Ports(8080), Scheme: policy.HTTP, Methods: []string{"PUT"}}
	w.admit(jailA, policy.PublicWeb(noPost))

	c, br := w.connect(jailA, "example.com:80")
	for range 2 {
		io.WriteString(c, "GET /in HTTP/1.1\r\nHost: EXAMPLE.com\r\nProxy-Authorization: x\r\n\r\n")
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %v", resp, err)
		}
		io.Copy(io.Discard, resp.Body)
	}
	// The second request of the same connection is looked at as well.
	io.WriteString(c, "GET /fronted HTTP/1.1\r\nHost: hidden.example\r\n\r\n")
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if code, _ := refusal(t, resp, string(body)); code != codeHostMismatch || resp.StatusCode != 403 {
		t.Errorf("%s", body)
	}
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: hidden.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: example.com:8080\r\n\r\n",
		"GET http://hidden.example/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"CONNECT example.com:80 HTTP/1.1\r\nHost: example.com\r\n\r\n",
	} {
		c, br := w.connect(jailA, "example.com:80")
		io.WriteString(c, request)
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != 403 {
			t.Errorf("%.50q: %v %v", request, resp, err)
		}
	}
	all := strings.Join(s.requests(), "\n")
	if strings.Count(all, "GET /in") != 2 || strings.Contains(all, "fronted") || strings.Contains(all, "hidden") || strings.Contains(all, "Proxy-") {
		t.Errorf("upstream saw:\n%s", all)
	}
}

func TestWebSocketsWorkInsideATunnel(t *testing.T) {
	w := newFixture(t)
	s := web(t, echoAfterUpgrade)
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	c, br := w.connect(jailA, "example.com:80")
	fmt.Fprintf(c, strings.Replace(upgradeRequest, "http://example.com", "", 1), "websocket")
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v %v", resp, err)
	}
	io.WriteString(c, "frames")
	got := make([]byte, 6)
	if _, err := io.ReadFull(br, got); err != nil || string(got) != "frames" {
		t.Errorf("%q %v", got, err)
	}
}

func TestOtherProtocolsNeedAnOpaqueRule(t *testing.T) {
	w := newFixture(t)
	s := server(t, func(c *net.TCPConn) { // speaks first, as SSH does
		io.WriteString(c, "SSH-2.0-server\r\n")
		echo(c)
	})
	w.public("git.example", "93.184.216.34", s.Addr())
	w.admit(jailA, opaque("git.example", 22))
	w.admit(jailB, webOnly("git.example", 22))
	_, br := w.connect(jailA, "git.example:22")
	if line, err := br.ReadString('\n'); err != nil || line != "SSH-2.0-server\r\n" {
		t.Errorf("%q %v", line, err)
	}
	c, br := w.connect(jailB, "git.example:22")
	io.WriteString(c, "SSH-2.0-client\r\n")
	if rest, err := io.ReadAll(br); err != nil || len(rest) != 0 {
		t.Errorf("%q %v", rest, err)
	}
}

func TestBytesSentTogetherWithConnectArePassedOn(t *testing.T) {
	w := newFixture(t)
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, opaque("example.com", 443))
	c := w.dial(jailA)
	io.WriteString(c, "CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\nearly")
	br := bufio.NewReader(c)
	if resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	c.CloseWrite()
	if all, err := io.ReadAll(br); err != nil || string(all) != "early" {
		t.Errorf("%q %v", all, err)
	}
}

func TestHalfCloseReachesTheOtherSide(t *testing.T) {
	w := newFixture(t)
	s := server(t, func(c *net.TCPConn) {
		question, _ := io.ReadAll(c) // ends only with the client's half
		fmt.Fprintf(c, "you said %d bytes", len(question))
	})
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, opaque("example.com", 443))
	c, br := w.connect(jailA, "example.com:443")
	io.WriteString(c, "question")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(br); err != nil || string(answer) != "you said 8 bytes" {
		t.Errorf("%q %v", answer, err)
	}
}

func TestLargeTransfersArriveWhole(t *testing.T) {
	const size = 24 << 20
	w := newFixture(t)
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, opaque("example.com", 443))
	c, br := w.connect(jailA, "example.com:443")
	data := make([]byte, size)
	src := rand.NewChaCha8([32]byte{1})
	src.Read(data)
	var group errgroup.Group
	group.Go(func() error {
		if _, err := io.Copy(c, bytes.NewReader(data)); err != nil {
			return err
		}
		return c.CloseWrite()
	})
	sum := sha256.New()
	n, err := io.Copy(sum, br)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if want := sha256.Sum256(data); err != nil || n != size || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	line := w.lastLine(`"surface":"connect"`)
	if !strings.Contains(line, fmt.Sprintf(`"bytes_out":%d,"bytes_in":%d`, size, size)) {
		t.Errorf("%s", line)
	}
	if a, _ := w.g.Activity(mustAddr(jailA)); a.BytesOut != size || a.BytesIn != size || a.Requests != 1 {
		t.Errorf("%+v", a)
	}
}

func TestIdleTunnelsEndAndBusyOnesDoNot(t *testing.T) {
	w := newFixture(t, withLimits(func(l *Limits) { l.IdleTimeout = time.Second }))
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, opaque("example.com", 443))
	_, idle := w.connect(jailA, "example.com:443")
	busy, busyReader := w.connect(jailA, "example.com:443")
	ended := make(chan error, 1)
	go func() { _, err := idle.ReadByte(); ended <- err }()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for open := true; open; {
		select {
		case <-ended:
			open = false
		case <-tick.C:
		}
		io.WriteString(busy, "x")
		if _, err := busyReader.ReadByte(); err != nil {
			t.Fatalf("a busy tunnel was ended: %v", err)
		}
	}
	if _, err := busyReader.ReadByte(); err == nil {
		t.Error("a tunnel that became idle is open")
	}
}

func TestLifetimeEndsBusyTunnels(t *testing.T) {
	w := newFixture(t, withLimits(func(l *Limits) { l.Lifetime = 200 * time.Millisecond }))
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, opaque("example.com", 443))
	c, br := w.connect(jailA, "example.com:443")
	for {
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = br.ReadByte()
		}
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Fatal("the tunnel outlived its lifetime")
		}
		if err != nil {
			return
		}
	}
}

func TestAPeerThatDoesNotReadIsCutWhenIdle(t *testing.T) {
	w := newFixture(t, withLimits(func(l *Limits) { l.IdleTimeout = 150 * time.Millisecond }))
	release := make(chan struct{})
	w.public("example.com", "93.184.216.34", server(t, func(*net.TCPConn) { <-release }).Addr())
	t.Cleanup(func() { close(release) })
	w.admit(jailA, opaque("example.com", 443))
	c, _ := w.connect(jailA, "example.com:443")
	for block := make([]byte, 1<<20); ; {
		if _, err := c.Write(block); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Error("still open after the test's patience")
			}
			return
		}
	}
}

func TestIdleTunnelsHoldNoBuffers(t *testing.T) {
	w := newFixture(t)
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, opaque("example.com", 443))
	for range 3 {
		c, br := w.connect(jailA, "example.com:443")
		io.WriteString(c, "x")
		if _, err := br.ReadByte(); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, patience, func() bool { return w.g.buffers.lent.Load() == 0 }, "three idle tunnels hold buffers")
	if a, _ := w.g.Activity(mustAddr(jailA)); a.Open != 3 {
		t.Errorf("%d tunnels are open", a.Open)
	}
}
