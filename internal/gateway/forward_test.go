package gateway

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// rawServer answers every connection with fixed bytes once it has seen the end
// of a request, and keeps what it received.
type rawServer struct {
	net.Listener
	mu       sync.Mutex
	received []string
	wg       sync.WaitGroup
}

func newRawServer(t *testing.T, answer string, complete func(received string) bool) *rawServer {
	t.Helper()
	s := &rawServer{Listener: listenOn(t, "127.0.0.1:0")}
	s.wg.Go(func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				s.mu.Lock()
				i := len(s.received)
				s.received = append(s.received, "")
				s.mu.Unlock()
				buf := make([]byte, 4096)
				answered := false
				for {
					n, err := c.Read(buf)
					s.mu.Lock()
					s.received[i] += string(buf[:n])
					all := s.received[i]
					s.mu.Unlock()
					if err != nil {
						return
					}
					if !answered && complete(all) {
						answered = true
						if _, err := io.WriteString(c, answer); err != nil {
							return
						}
					}
				}
			})
		}
	})
	t.Cleanup(func() { s.Close(); s.wg.Wait() })
	return s
}

func (s *rawServer) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.received...)
}

func headerEnd(s string) bool { return strings.Contains(s, "\r\n\r\n") }

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

func TestHopByHopAndProxyHeadersStayHere(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, okAnswer, headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.PublicWeb())
	resp, _ := w.raw(jailA, "GET http://example.com/p?a=1;b=2&c=%zz HTTP/1.1\r\nHost: other.example\r\nConnection: close, X-Nominated, Authorization\r\n"+
		"X-Nominated: 1\r\nAuthorization: Basic abc\r\nProxy-Connection: keep-alive\r\nProxy-Custom: 1\r\nKeep-Alive: 5\r\n"+
		"TE: gzip\r\nVia: 1.1 jail\r\nForwarded: for=1.1.1.1\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Proto: https\r\nX-Kept: yes\r\n\r\n")
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	got := s.requests()[0]
	line, _, _ := strings.Cut(got, "\r\n")
	if line != "GET /p?a=1;b=2&c=%zz HTTP/1.1" {
		t.Errorf("request line %q", line)
	}
	if !strings.Contains(got, "\r\nHost: example.com\r\n") || !strings.Contains(got, "\r\nX-Kept: yes\r\n") {
		t.Errorf("host or header lost:\n%s", got)
	}
	low := strings.ToLower(got)
	for _, name := range []string{"x-nominated", "authorization", "proxy-", "keep-alive", "\r\nte:", "via:", "forwarded", jailA, "other.example", "evil", "accept-encoding", "user-agent"} {
		if strings.Contains(low, name) {
			t.Errorf("%q reached the upstream:\n%s", name, got)
		}
	}
}

func TestRequestSmugglingIsReframed(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, okAnswer, func(r string) bool { return strings.Contains(r, "0\r\n\r\n") })
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.PublicWeb())
	c := w.dial(jailA)
	io.WriteString(c, "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+
		"GET http://forbidden.internal:81/smuggled HTTP/1.1\r\nHost: forbidden.internal\r\n\r\n")
	br := bufio.NewReader(c)
	first, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, first.Body)
	if second, err := http.ReadResponse(br, nil); err == nil && second.StatusCode != 403 {
		t.Errorf("the smuggled request was answered %s", second.Status)
	}
	all := strings.ToLower(strings.Join(s.requests(), "\n"))
	if strings.Contains(all, "smuggled") || strings.Contains(all, "content-length: 6") || !strings.Contains(all, "transfer-encoding: chunked") {
		t.Errorf("upstream saw:\n%s", all)
	}
	for _, bad := range []string{
		"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nHost: b.example\r\n\r\n",
		"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"GET http://example.com/ HTTP/1.1\r\nHost : example.com\r\n\r\n",
		"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n X-Folded: 1\r\nBad Header: 1\r\n\r\n",
	} {
		before := len(s.requests())
		if resp, _ := w.raw(jailA, bad); resp.StatusCode < 400 {
			t.Errorf("%.120q: %s", bad, resp.Status)
		}
		if len(s.requests()) != before {
			t.Errorf("%.120q reached the upstream", bad)
		}
	}
}

func TestInterimResponsesAreDropped(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, "HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\nProxy-Authenticate: Basic\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"+
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nProxy-Status: forged\r\nConnection: X-Gone\r\nX-Gone: 1\r\nX-Final: 1\r\n\r\nok", headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.PublicWeb())
	resp, body := w.raw(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if resp.StatusCode != 200 || body != "ok" || resp.Header.Get("X-Final") != "1" {
		t.Errorf("%s %q %v", resp.Status, body, resp.Header)
	}
	for _, name := range []string{"X-Early", "Proxy-Authenticate", "Proxy-Status", "X-Gone"} {
		if resp.Header.Get(name) != "" {
			t.Errorf("%s came through", name)
		}
	}
}

func TestRedirectsArePassedToTheClient(t *testing.T) {
	w := newFixture(t)
	victim := untouched(t)
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, fmt.Sprintf("http://127.0.0.1:%d/", victim.Port), http.StatusFound)
	})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	resp, err := w.client(jailA).Get("http://example.com/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 302 || !strings.Contains(resp.Header.Get("Location"), "127.0.0.1") {
		t.Errorf("%s %s", resp.Status, resp.Header.Get("Location"))
	}
}

func TestBodiesAreNotDecoded(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	io.WriteString(z, strings.Repeat("text ", 1000))
	z.Close()
	w := newFixture(t)
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(packed.Bytes())
	})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	resp, body := w.raw(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if resp.Header.Get("Content-Encoding") != "gzip" || body != packed.String() {
		t.Errorf("encoding %q, %d bytes of %d", resp.Header.Get("Content-Encoding"), len(body), packed.Len())
	}
}

func TestUpstreamConnectionsAreNotShared(t *testing.T) {
	w := newFixture(t)
	var mu sync.Mutex
	peers := map[string]bool{}
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		peers[r.RemoteAddr] = true
	})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	w.admit(jailB, policy.PublicWeb())
	of := func(from string) string {
		mu.Lock()
		clear(peers)
		mu.Unlock()
		w.raw(from, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
		mu.Lock()
		defer mu.Unlock()
		if len(peers) != 1 {
			t.Fatalf("one request came from %v", peers)
		}
		for peer := range peers {
			return peer
		}
		return ""
	}
	first, other := of(jailA), of(jailB)
	// The answer is there a moment before its connection waits for the next request.
	eventually(t, func() bool {
		w.g.mu.Lock()
		who := w.g.callers[netip.MustParseAddr(jailA)]
		w.g.mu.Unlock()
		who.idle.mu.Lock()
		defer who.idle.mu.Unlock()
		return who.idle.count == 1
	}, "no connection waits")
	again := of(jailA)
	if first == other {
		t.Error("two jails share a connection")
	}
	if first != again {
		t.Error("the second request of a jail has a connection of its own")
	}
	if n := len(w.recorded()); n != 3 {
		t.Errorf("%d records of three requests", n)
	}
	// Nothing that a jail had open is there for the next at its address.
	if err := w.g.Forget(netip.MustParseAddr(jailA), ""); err != nil {
		t.Fatal(err)
	}
	w.admit(jailA, policy.PublicWeb())
	if of(jailA) == first {
		t.Error("a jail inherited a connection")
	}
}

func TestUploadsAndStreamsPass(t *testing.T) {
	w := newFixture(t)
	first := make(chan struct{})
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d ", len(body))
		w.(http.Flusher).Flush()
		<-first // the client has the first part before the second is written
		io.WriteString(w, "end")
	})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	resp, err := w.client(jailA).Post("http://example.com/", "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	part := make([]byte, 8)
	if _, err := io.ReadFull(resp.Body, part); err != nil || string(part) != "1048576 " {
		t.Fatalf("%q %v", part, err)
	}
	close(first)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "end" {
		t.Errorf("%q %v", rest, err)
	}
}

const upgradeRequest = "GET http://example.com/ws HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"

// echoAfterUpgrade switches protocols and then sends back what it gets.
func echoAfterUpgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		io.WriteString(w, "plain")
		return
	}
	c, brw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
	io.Copy(c, brw)
}

func TestWebSocketsPassWhenAllowed(t *testing.T) {
	noSockets := policy.Rule{Name: "no-sockets", Action: policy.Deny, Host: policy.AnyHost(), Ports: policy.AnyPort(), Scheme: policy.WS}
	w := newFixture(t)
	s := web(t, echoAfterUpgrade)
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	w.admit(jailB, policy.PublicWeb(noSockets))

	c := w.dial(jailA)
	fmt.Fprintf(c, upgradeRequest, "websocket")
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v %v", resp, err)
	}
	io.WriteString(c, "frames")
	echo := make([]byte, 6)
	if _, err := io.ReadFull(br, echo); err != nil || string(echo) != "frames" {
		t.Errorf("%q %v", echo, err)
	}

	denied, body := w.raw(jailB, fmt.Sprintf(upgradeRequest, "websocket"))
	if code, p := refusal(t, denied, body); code != problem.HostDenied || p["rule"] != "no-sockets" {
		t.Errorf("%s", body)
	}
	// Other protocols are not switched to: the request arrives as a plain one.
	if resp, body := w.raw(jailA, fmt.Sprintf(upgradeRequest, "h2c")); resp.StatusCode != 200 || body != "plain" {
		t.Errorf("h2c: %s %q", resp.Status, body)
	}
}

func TestSilentUpstreamsEndInATimeout(t *testing.T) {
	w := newFixture(t, withLimits(func(l *Limits) { l.IdleTimeout = 500 * time.Millisecond }))
	s := newRawServer(t, "", func(string) bool { return false })
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.PublicWeb())
	resp, body := w.raw(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if code, _ := refusal(t, resp, body); code != problem.Timeout || resp.StatusCode != 504 {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestStalledResponsesAreCut(t *testing.T) {
	w := newFixture(t, withLimits(func(l *Limits) { l.IdleTimeout = 500 * time.Millisecond }))
	s := newRawServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin", headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.PublicWeb())
	c := w.dial(jailA)
	io.WriteString(c, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if all, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(all), "begin") {
		t.Errorf("%q %v", all, err)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	w := newFixture(t)
	w.public("example.com", "93.184.216.34", untouched(t))
	w.admit(jailA, policy.PublicWeb())
	resp, _ := w.raw(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nX: "+strings.Repeat("x", 80<<10)+"\r\n\r\n")
	if resp.StatusCode != 431 {
		t.Error(resp.Status)
	}
}

func TestSlowHeadersAreCut(t *testing.T) {
	w := newFixture(t, withLimits(func(l *Limits) { l.HeaderTimeout = 50 * time.Millisecond }))
	w.admit(jailA, policy.PublicWeb())
	c := w.dial(jailA)
	io.WriteString(c, "GET http://example.com/ HTTP/1.1\r\n")
	if all, err := io.ReadAll(c); err != nil {
		t.Errorf("%q %v", all, err)
	}
}

func TestTooManyConnectionsAreTold(t *testing.T) {
	w := newFixture(t, withLimits(func(l *Limits) { l.ConnectionsPerCaller = 2 }))
	w.admit(jailA, policy.PublicWeb())
	w.admit(jailB, policy.PublicWeb())
	for range 2 {
		w.dial(jailA)
	}
	testenv.Eventually(t, patience, func() bool { a, _ := w.g.Activity(mustAddr(jailA)); return a.Open == 2 }, "two connections")
	resp, body := w.raw(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if code, _ := refusal(t, resp, body); code != problem.RateLimited || resp.StatusCode != 429 {
		t.Errorf("%s %s", resp.Status, body)
	}
	resp, body = w.raw(jailB, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if code, _ := refusal(t, resp, body); code != problem.DNSFailed {
		t.Errorf("a neighbour's connections count: %s", body)
	}
	// Beyond twice the limit there is no answer any more.
	w.dial(jailA)
	w.dial(jailA)
	testenv.Eventually(t, patience, func() bool { a, _ := w.g.Activity(mustAddr(jailA)); return a.Open == 4 }, "four connections")
	closedSoon(t, "a fifth connection", w.dial(jailA))
}
