package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// last is a request that is refused, after which the connection is closed: what comes before its answer is all there is.
const last = "GET http://last.example:1/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

// sent sends bytes from a jail and returns everything that comes back.
func (w *fixture) sent(from, bytes string) string {
	w.t.Helper()
	c := w.dial(from)
	defer c.Close()
	// The gateway may have answered and closed before it has read everything.
	_, _ = io.WriteString(c, bytes+last)
	all, err := io.ReadAll(c)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		w.t.Fatalf("%.200q: %v after %.200q", bytes, err, all)
	}
	if at := strings.LastIndex(string(all), "HTTP/1.1 403 "); at >= 0 && strings.Contains(string(all[at:]), `"last.example"`) {
		all = all[:at]
	}
	return string(all)
}

// statuses are the final status codes in what came back.
func statuses(t *testing.T, all string) (codes []int) {
	t.Helper()
	from := bufio.NewReader(strings.NewReader(all))
	for {
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			return codes
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return append(codes, resp.StatusCode)
		}
		_ = resp.Body.Close()
		codes = append(codes, resp.StatusCode)
	}
}

// Requests that two programs read in different ways, or that would say more than what was decided about. None of them
// reaches the host.
func TestRequestsThatCanBeReadInTwoWaysReachNobody(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, okAnswer, headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.PublicWeb())
	const get, post = "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n", "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\n"
	for name, request := range map[string]string{
		"two lengths":                       post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"two lengths in one field":          post + "Content-Length: 1, 2\r\n\r\nab",
		"a signed length":                   post + "Content-Length: +2\r\n\r\nab",
		"a negative length":                 post + "Content-Length: -2\r\n\r\nab",
		"a hexadecimal length":              post + "Content-Length: 0x2\r\n\r\nab",
		"a length too large":                post + "Content-Length: 18446744073709551617\r\n\r\nab",
		"an unknown transfer coding":        post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"two transfer codings":              post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"chunked twice":                     post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
		"chunked in two fields":             post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"identity":                          post + "Transfer-Encoding: identity\r\n\r\nab",
		"a coding with a vertical tab":      post + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
		"a space before the colon":          get + "X-Field : 1\r\n\r\n",
		"a space before the length's colon": post + "Content-Length : 2\r\n\r\nab",
		"a tab before the colon":            get + "X-Field\t: 1\r\n\r\n",
		"a zero byte in a value":            get + "X-Field: a\x00b\r\n\r\n",
		"a zero byte in a name":             get + "X-\x00Field: 1\r\n\r\n",
		"a bare carriage return":            get + "X-Field: a\rX-Other: b\r\n\r\n",
		"a field without a name":            get + ": 1\r\n\r\n",
		"a field without a colon":           get + "X-Field\r\n\r\n",
		"two hosts":                         "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nHost: other.example\r\n\r\n",
		"no host":                           "GET http://example.com/ HTTP/1.1\r\n\r\n",
		"a folded first line":               "GET http://example.com/\r\n HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a zero byte in the target":         "GET http://example.com/\x00 HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a tab in the target":               "GET http://example.com/\tx HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a space in the target":             "GET http://example.com/ x HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"an unfinished escape":              "GET http://example.com/%2 HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a method with a colon":             "G:T http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"HTTP/2 without TLS":                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a version that does not exist":     "GET http://example.com/ HTTP/1.9\r\nHost: example.com\r\n\r\nx",
		"HTTP/0.9":                          "GET http://example.com/\r\n\r\n",
		"an expectation nobody knows":       post + "Content-Length: 2\r\nExpect: something\r\n\r\nab",
		"a long field":                      get + "X-Field: " + strings.Repeat("a", 80<<10) + "\r\n\r\n",
		"many fields":                       get + strings.Repeat("X-F: 1\r\n", 20_000) + "\r\n",
		"a long target":                     "GET http://example.com/" + strings.Repeat("a", 80<<10) + " HTTP/1.1\r\nHost: example.com\r\n\r\n",
	} {
		before := len(s.requests())
		codes := statuses(t, w.sent(jailA, request))
		if name == "a version that does not exist" && len(codes) == 1 && codes[0] == 200 {
			continue // RFC 9112 §2.3: a higher minor version of 1 is read as 1.1
		}
		if len(codes) > 1 || len(codes) == 1 && codes[0] < 400 {
			t.Errorf("%s: answered %v", name, codes)
		}
		if n := len(s.requests()) - before; n != 0 {
			t.Errorf("%s reached the host %d times: %q", name, n, s.requests()[before:])
		}
	}
	// The same frame around a request that is in order.
	if codes := statuses(t, w.sent(jailA, get+"X-Field: 1\r\n\r\n")); len(codes) != 1 || codes[0] != 200 {
		t.Errorf("a plain request: %v", codes)
	}
}

// Requests that are odd and allowed: the host sees one request in the one form that all read alike.
func TestOddRequestsAreWrittenAnew(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, okAnswer, func(r string) bool {
		head, body, whole := strings.Cut(r, "\r\n\r\n")
		return whole && (!strings.Contains(strings.ToLower(head), "chunked") || strings.HasSuffix(body, "0\r\n\r\n"))
	})
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.PublicWeb())
	const to = " http://example.com/p HTTP/1.1\r\nHost: example.com\r\n"
	for _, test := range []struct {
		name, request string
		has, hasNot   []string // in what the host sees, in lower case
	}{
		{"a length beside chunks", "POST" + to + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", []string{"\r\n\r\n1\r\na\r\n0\r\n\r\n"}, []string{"content-length"}},
		{"extensions of chunks", "POST" + to + "Transfer-Encoding: chunked\r\n\r\n1;x=\"\r\na\r\n0\r\n\r\n", []string{"1\r\na\r\n0\r\n\r\n"}, []string{";x"}},
		{"trailers", "POST" + to + "Transfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n1\r\na\r\n0\r\nX-Late: 1\r\nAuthorization: forged\r\nHost: evil.example\r\nContent-Length: 5\r\n\r\n",
			[]string{"1\r\na\r\n0\r\n"}, []string{"forged", "evil.example", "content-length: 5"}},
		{"hop-by-hop names", "GET" + to + "Connection: close, X-Api-Key, Cookie\r\nX-Api-Key: k\r\nCookie: c\r\n\r\n", nil, []string{"x-api-key", "cookie", "connection: close, x"}},
		{"another Host", "GET http://example.com/p HTTP/1.1\r\nHost: other.example:81\r\n\r\n", []string{"host: example.com\r\n"}, []string{"other.example"}},
		{"a user name", "GET http://example.com/p?u=http://a@b HTTP/1.1\r\nHost: example.com\r\n\r\n", []string{"get /p?u=http://a@b http/1.1"}, nil},
		{"h2c", "GET" + to + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", nil, []string{"upgrade", "h2c", "http2-settings"}},
		{"two protocols", "GET" + to + "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n", nil, []string{"upgrade", "h2c"}},
		{"two protocols in two fields", "GET" + to + "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n\r\n", nil, []string{"upgrade", "h2c"}},
		{"an old version", "GET http://example.com/p HTTP/1.0\r\nX-Field: 1\r\n\r\n", []string{"get /p http/1.1", "host: example.com\r\n"}, nil},
		{"a folded field", "GET" + to + "X-Field: a\r\n X-Injected: 1\r\n\r\n", []string{"x-field: a x-injected: 1\r\n"}, []string{"\r\nx-injected"}},
		{"bare line feeds", "GET http://example.com/p HTTP/1.1\nHost: example.com\nX-Field: 1\n\n", []string{"get /p http/1.1\r\n", "\r\nx-field: 1\r\n"}, nil},
		{"names for the gateway", "GET" + to + "Proxy-Authorization-X: 1\r\nProxy-Connection: keep-alive\r\nProxy-Status: x\r\n\r\n", nil, []string{"proxy-"}},
		{"a body that the length leaves over", "GET" + to + "Content-Length: 0\r\n\r\n", nil, []string{"content-length: 1"}},
	} {
		before := len(s.requests())
		if codes := statuses(t, w.sent(jailA, test.request)); len(codes) != 1 || codes[0] != 200 {
			t.Errorf("%s: %v", test.name, codes)
			continue
		}
		seen := s.requests()[before:]
		if len(seen) != 1 {
			t.Errorf("%s: the host sees %d requests", test.name, len(seen))
			continue
		}
		low := strings.ToLower(seen[0])
		for _, want := range test.has {
			if !strings.Contains(low, want) {
				t.Errorf("%s: no %q in\n%s", test.name, want, seen[0])
			}
		}
		for _, bad := range test.hasNot {
			if strings.Contains(low, bad) {
				t.Errorf("%s: %q in\n%s", test.name, bad, seen[0])
			}
		}
	}
}

// Each request on a connection is decided about by itself, whatever came before.
func TestPipelinedRequestsAreDecidedOneByOne(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, okAnswer, headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, webOnly("example.com", 80))
	get := func(host, path string) string {
		return "GET http://" + host + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
	}
	codes := statuses(t, w.sent(jailA, get("denied.example", "/1")+get("example.com", "/2")+get("denied.example", "/3")+get("example.com", "/4")))
	if fmt.Sprint(codes) != "[403 200 403 200]" {
		t.Errorf("answers %v", codes)
	}
	if seen := s.requests(); len(seen) != 2 || !strings.HasPrefix(seen[0], "GET /2 ") || !strings.HasPrefix(seen[1], "GET /4 ") {
		t.Errorf("the host sees %q", seen)
	}
	// A body of a refused request is not the next request.
	body := get("example.com", "/smuggled")
	codes = statuses(t, w.sent(jailA, fmt.Sprintf("POST http://denied.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)+get("example.com", "/5")))
	if len(codes) == 0 || codes[0] != 403 || strings.Contains(strings.Join(s.requests(), ""), "smuggled") {
		t.Errorf("answers %v, the host sees %q", codes, s.requests())
	}
	// Nor is what follows a CONNECT that was refused.
	codes = statuses(t, w.sent(jailA, "CONNECT denied.example:443 HTTP/1.1\r\nHost: denied.example\r\n\r\n"+get("example.com", "/after")))
	if len(codes) != 1 || codes[0] != 403 || strings.Contains(strings.Join(s.requests(), ""), "after") {
		t.Errorf("answers %v, the host sees %q", codes, s.requests())
	}
}

// A client that only asks to become something else gets no tunnel.
func TestNoOtherProtocolIsSwitchedTo(t *testing.T) {
	w := newFixture(t)
	upgraded := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	s := newRawServer(t, upgraded, headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.PublicWeb())
	const to = "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n"
	for name, request := range map[string]string{
		"nothing asked":         to + "\r\n",
		"h2c asked":             to + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"no connection field":   to + "Upgrade: websocket\r\n\r\n",
		"another one confirmed": to + "Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n\r\n",
	} {
		if codes := statuses(t, w.sent(jailA, request)); len(codes) != 1 || codes[0] != http.StatusBadGateway {
			t.Errorf("%s: %v", name, codes)
		}
	}
	// A server that switches to something else than what was asked for.
	s2 := newRawServer(t, strings.Replace(upgraded, "websocket", "h2c", 1), headerEnd)
	w.public("other.example", "93.184.216.35", s2.Addr())
	ask := "GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	if codes := statuses(t, w.sent(jailA, ask)); len(codes) != 1 || codes[0] != http.StatusBadGateway {
		t.Errorf("another protocol than the one asked for: %v", codes)
	}
	c := w.dial(jailA)
	io.WriteString(c, strings.ReplaceAll(ask, "other.example", "example.com"))
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 101 {
		t.Errorf("a WebSocket: %v, %v", resp, err)
	}
}

// Words of an upstream about this gateway are not passed on, nor is an answer that two programs read in different ways.
func TestAnswersThatCanBeReadInTwoWaysAreNotPassedOn(t *testing.T) {
	w := newFixture(t)
	w.admit(jailA, policy.PublicWeb())
	n := 0
	// answered has a server answer with fixed bytes and close, and returns what the jail gets.
	answered := func(t *testing.T, answer string) string {
		t.Helper()
		n++
		s := server(t, func(c *net.TCPConn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.WriteString(c, answer)
				_ = c.CloseWrite()
				_, _ = io.Copy(io.Discard, c)
			}
		})
		host := fmt.Sprintf("a%d.example", n)
		w.public(host, fmt.Sprintf("93.184.216.%d", n), s.Addr())
		return w.sent(jailA, "GET http://"+host+"/ HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, answer := range map[string]string{
		"two lengths":                 ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"a length that is no number":  ok + "Content-Length: 0x2\r\n\r\nab",
		"a bare carriage return":      ok + "X-Field: a\rX-Injected: b\r\nContent-Length: 0\r\n\r\n",
		"a zero byte":                 ok + "X-Field: a\x00b\r\nContent-Length: 0\r\n\r\n",
		"an unknown coding":           ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"a status line that is none":  "HTTP/1.1 2OO OK\r\n\r\n",
		"a status of four digits":     "HTTP/1.1 2000 OK\r\n\r\n",
		"another protocol":            "ICY 200 OK\r\n\r\n",
		"a field without a colon":     ok + "X-Field\r\n\r\n",
		"a header that breaks off":    ok + "X-Field: 1\r\n",
		"nothing":                     "",
		"interim answers without end": strings.Repeat("HTTP/1.1 103 Early Hints\r\nX: "+strings.Repeat("a", 100)+"\r\n\r\n", 5000),
		"a header without end":        ok + strings.Repeat("X-Field: "+strings.Repeat("a", 1000)+"\r\n", 1000),
	} {
		all := answered(t, answer)
		codes := statuses(t, all)
		if len(codes) != 1 || codes[0] != http.StatusBadGateway || !strings.Contains(all, "Clawjail-Refusal: "+problem.UpstreamUnreachable) {
			t.Errorf("%s: %v %.300q", name, codes, all)
		}
		if strings.Contains(all, "X-Injected") {
			t.Errorf("%s: %q", name, all)
		}
	}
	forged := "Proxy-Status: clawjail; error=x\r\nClawjail-Refusal: host_denied\r\nClawjail-Upstream-Status: 500\r\nProxy-Authenticate: Basic\r\nProxy-Connection: x\r\n" +
		"Connection: X-Named, Set-Cookie\r\nX-Named: 1\r\nSet-Cookie: stays=no\r\nKeep-Alive: 9\r\n"
	early := "HTTP/1.1 100 Continue\r\nX-Early: 1\r\nSet-Cookie: early\r\n\r\nHTTP/1.1 102 Processing\r\nX-Early: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-Early: 1\r\nLink: <x>\r\n\r\n"
	all := answered(t, early+"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n"+forged+"\r\nok")
	if codes := statuses(t, all); len(codes) != 1 || codes[0] != 403 {
		t.Errorf("forged: %v", codes)
	}
	for _, bad := range []string{"Clawjail-", "Proxy-", "X-Early", "X-Named", "stays=no", "Link:", "Keep-Alive"} {
		if strings.Contains(all, bad) {
			t.Errorf("%q came through: %q", bad, all)
		}
	}
	// Trailers are the same field names at another place.
	all = answered(t, ok+"Transfer-Encoding: chunked\r\nTrailer: Clawjail-Refusal, Proxy-Status, X-Fine\r\n\r\n2\r\nok\r\n0\r\nClawjail-Refusal: host_denied\r\nProxy-Status: x\r\nX-Fine: 1\r\n\r\n")
	if strings.Contains(all, "host_denied") || strings.Contains(all, "Proxy-Status") || !strings.Contains(all, "X-Fine: 1") {
		t.Errorf("trailers: %q", all)
	}
	// A field that others read and Go does not.
	all = answered(t, ok+"X-Field : 1\r\nTransfer-Encoding : chunked\r\nContent-Length : 1\r\nContent-Length: 2\r\n\r\nok")
	if codes := statuses(t, all); strings.Contains(all, " : ") || strings.Contains(all, "X-Field") || len(codes) != 1 || codes[0] == 200 && !strings.HasSuffix(all, "\r\n\r\nok") {
		t.Errorf("a space before the colon: %q", all)
	}
	// Splitting: what comes after the length is no second answer.
	all = answered(t, ok+"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\nX-Split: 1\r\n\r\nforged")
	if codes := statuses(t, all); len(codes) != 1 || strings.Contains(all, "forged") {
		t.Errorf("split: %q", all)
	}
	// A length beside chunks: the chunks count, and the length is not passed on.
	all = answered(t, ok+"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
	if strings.Contains(all, "Content-Length: 3") || !strings.Contains(all, "ok") && !strings.Contains(all, "502") {
		t.Errorf("a length beside chunks: %q", all)
	}
	// An answer that breaks off is not passed on as a whole one.
	for name, answer := range map[string]string{"length": ok + "Content-Length: 100\r\n\r\nhalf", "chunks": ok + "Transfer-Encoding: chunked\r\n\r\n64\r\nhalf"} {
		all = answered(t, answer)
		resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(all)), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err = io.ReadAll(resp.Body); err == nil {
			t.Errorf("%s: an answer that broke off looks whole: %q", name, all)
		}
		_ = resp.Body.Close()
	}
}

// Answers to TRACE and TRACK repeat what was sent, cookies included.
func TestTheGatewayPassesOnNoTrace(t *testing.T) {
	w := newFixture(t)
	s := newRawServer(t, okAnswer, headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admit(jailA, policy.PublicWeb())
	for _, method := range []string{"TRACE", "TRACK", "trace", "Track"} {
		got := w.sent(jailA, method+" http://example.com/ HTTP/1.1\r\nHost: example.com\r\nCookie: sid=1\r\n\r\n")
		if codes := statuses(t, got); len(codes) != 1 || codes[0] != http.StatusForbidden || !strings.Contains(got, problem.MethodDenied) {
			t.Errorf("%s answers %q", method, got)
		}
	}
	if got := s.requests(); len(got) != 0 {
		t.Errorf("the host was sent %q", got)
	}
	if codes := statuses(t, w.sent(jailA, "OPTIONS http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")); len(codes) != 1 || codes[0] != http.StatusOK {
		t.Errorf("OPTIONS answers %v", codes)
	}
	if got := s.requests(); len(got) != 1 || !strings.HasPrefix(got[0], "OPTIONS / HTTP/1.1") {
		t.Errorf("the host was sent %q", got)
	}
}
