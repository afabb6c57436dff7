package gateway

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// FuzzRequestReader sends anything from a jail: nothing panics, every answer ends, and nothing is dialled that is inside or
// not on record.
func FuzzRequestReader(f *testing.F) {
	hello := clientHello(f, "example.com")
	for _, seed := range []string{
		"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"GET http://inside.example/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"GET http://127.0.0.1/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 3\r\n\r\nabcGET http://example.com/2 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na",
		// A body that never comes, which once held the connection.
		"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\nContent-Length:8100\r\n\r\na",
		"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n" + string(hello),
		"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n" + string(inRecords(hello, 30)),
		"CONNECT example.com:80 HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: example.com\r\n\r\nCONNECT inside.example:80 HTTP/1.1\r\nHost: inside.example\r\n\r\n",
		"CONNECT inside.example:80 HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT [::1%25lo]:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00",
		"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x00\x05", "\r\n\r\n\r\n", "GET http://a@example.com:0/%zz HTTP/1.0\n\n",
		"GET http://example.com/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic Ojox\r\n\r\n",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	a := newArena(f, policy.PublicWeb(), brief)
	f.Fuzz(func(t *testing.T, data []byte, hurry bool) {
		if len(data) > 64<<10 {
			return
		}
		a.send(t, data, hurry)
		a.verdict(t)
	})
}

// segments is a connection that delivers its bytes as they were cut.
type segments struct {
	script
	left [][]byte
}

func (s *segments) Read(b []byte) (int, error) {
	for len(s.left) > 0 && len(s.left[0]) == 0 {
		s.left = s.left[1:]
	}
	if len(s.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.left[0])
	s.left[0] = s.left[0][n:]
	return n, nil
}

// cut makes segments of so many bytes; what is left over is one.
func cut(data, sizes []byte) (out [][]byte) {
	for _, size := range sizes {
		n := min(int(size)+1, len(data))
		out, data = append(out, data[:n]), data[n:]
	}
	return append(out, data)
}

// FuzzClientHello cuts ClientHellos into records and segments, and damages them: where a tunnel may go on, the name that was
// found is the one that crypto/tls reads, and the host that was asked for.
func FuzzClientHello(f *testing.F) {
	hello := clientHello(f, "example.com")
	damaged := bytes.Clone(hello)
	damaged[60] ^= 0xff
	for _, raw := range [][]byte{nil, hello, damaged, hello[:50], helloWith(sni("example.com", "evil.example")), helloWith(sni("EXAMPLE.com")), helloWith(sni("example.com.")), helloWith(sni("evil.example"), sni("example.com")), helloWith()} {
		for _, size := range []uint16{1, 7, 200, 16000} {
			f.Add("example.com", raw, size, []byte{0, 0, 4, 0, 200})
		}
	}
	f.Add("evil.example", []byte(nil), uint16(100), []byte{})
	f.Add("", []byte(nil), uint16(3), []byte{1, 1, 1})
	a := newArena(f, policy.PublicWeb(), brief)
	f.Fuzz(func(t *testing.T, name string, raw []byte, size uint16, sizes []byte) {
		data := raw
		if len(raw) == 0 {
			h, err := hostport.ParseHost(name)
			if err != nil || h.IsAddr() || len(name) > 253 {
				return
			}
			data = clientHello(t, name)
		}
		if len(data) > 5 && data[0] == recordHandshake && size > 0 {
			data = inRecords(data, int(size))
		}
		if len(data) > 1<<20 {
			return
		}
		x := a.g.newExchange(a.who, SurfaceConnect, policy.Connect, "")
		x.permit, x.Host, x.Port = a.g.permit(a.who), hostport.MustParseHost("example.com"), 443
		first, found, err := x.firstBytes(&segments{left: cut(data, sizes)}, nil)
		if !bytes.HasPrefix(data, first) {
			t.Fatalf("%d bytes were read that were not sent so", len(first))
		}
		if found.kind == undecided {
			if err == nil {
				t.Fatal("undecided without an error")
			}
			return
		}
		if whole := classify(data[:min(len(data), maxOpening)]); found.kind != whole.kind || found.serverName != whole.serverName {
			t.Fatalf("in segments %+v, at once %+v", found, whole)
		}
		if found.kind != isTLS {
			return
		}
		to, err := hostport.ParseAuthority("example.com:443")
		if err != nil {
			t.Fatal(err)
		}
		read, ok := goServerName(data)
		if ok && read != found.serverName {
			t.Fatalf("we read %q, crypto/tls reads %q", found.serverName, read)
		}
		if refusal := x.judgeTLS(to, found); refusal == nil && ok && !strings.EqualFold(strings.TrimSuffix(read, "."), "example.com") {
			t.Fatalf("a tunnel to example.com may carry TLS for %q", read)
		}
		x.finish(context.Background())
	})
}
