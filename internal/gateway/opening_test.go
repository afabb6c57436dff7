package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// script is a connection that reads fixed bytes and swallows what is written.
type script struct{ io.Reader }

func (script) Write(b []byte) (int, error)      { return len(b), nil }
func (script) Close() error                     { return nil }
func (script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (script) SetDeadline(time.Time) error      { return nil }
func (script) SetReadDeadline(time.Time) error  { return nil }
func (script) SetWriteDeadline(time.Time) error { return nil }

// recording keeps what is written and has nothing to read.
type recording struct {
	script
	out *bytes.Buffer
}

func (r recording) Write(b []byte) (int, error) { return r.out.Write(b) }

// clientHello returns what Go's TLS client sends first; no name, no extension.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	var out bytes.Buffer
	c := tls.Client(recording{script{strings.NewReader("")}, &out}, &tls.Config{ServerName: name, InsecureSkipVerify: name == ""})
	if err := c.Handshake(); err == nil {
		t.Fatal("a handshake with nobody succeeded")
	}
	if out.Len() == 0 {
		t.Fatal("no ClientHello")
	}
	return out.Bytes()
}

// inRecords packs the message of one record into records of so many bytes.
func inRecords(record []byte, size int) []byte {
	var out []byte
	message := record[5:]
	for len(message) > 0 {
		n := min(size, len(message))
		out = append(out, 22, 3, 1, byte(n>>8), byte(n))
		out = append(out, message[:n]...)
		message = message[n:]
	}
	return out
}

func TestServerNamesAreFoundHoweverTheHelloIsCut(t *testing.T) {
	hello := clientHello(t, "www.example.com")
	for _, size := range []int{1, 2, 3, 5, 17, 100, 16384} {
		data := inRecords(hello, size)
		if len(data) > maxOpening {
			continue
		}
		if o := classify(data); o.kind != isTLS || o.serverName != "www.example.com" {
			t.Fatalf("records of %d bytes: %+v", size, o)
		}
		for n := range data {
			if o := classify(data[:n]); o.kind != undecided {
				t.Fatalf("records of %d bytes: decided after %d of %d bytes: %+v", size, n, len(data), o)
			}
		}
	}
	if o := classify(clientHello(t, "")); o.kind != isTLS || o.serverName != "" {
		t.Errorf("without name: %+v", o)
	}
	if o := classify(append(bytes.Clone(hello), 20, 3, 3, 0, 1, 1)); o.kind != isTLS {
		t.Errorf("with what follows: %+v", o)
	}
}

// helloWith builds a ClientHello with these extensions.
func helloWith(extensions ...[]byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 1, 1, 0)
	all := bytes.Join(extensions, nil)
	body = append(body, byte(len(all)>>8), byte(len(all)))
	body = append(body, all...)
	message := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append([]byte{22, 3, 1, byte(len(message) >> 8), byte(len(message))}, message...)
}

func sni(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(list, 0, byte(len(n)>>8), byte(len(n)))
		list = append(list, n...)
	}
	body := append([]byte{byte(len(list) >> 8), byte(len(list))}, list...)
	return append([]byte{0, 0, byte(len(body) >> 8), byte(len(body))}, body...)
}

func TestAmbiguousOpeningsAreRefused(t *testing.T) {
	if o := classify(helloWith(sni("a.example"))); o.kind != isTLS || o.serverName != "a.example" {
		t.Fatalf("the builder builds nothing: %+v", o)
	}
	long := inRecords(append([]byte{22, 3, 1, 0, 0, 1, 0, maxOpening>>8 - 1, 0}, make([]byte, maxOpening)...), 1)[:maxOpening]
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"two names":            {helloWith(sni("a.example", "b.example")), errTwoNames},
		"two extensions":       {helloWith(sni("a.example"), sni("b.example")), errTwoNames},
		"empty name":           {helloWith(sni("")), errMalformed},
		"no name in the list":  {helloWith(sni()), errMalformed},
		"zero byte":            {helloWith(sni("a.example\x00.evil")), errMalformed},
		"cut extension":        {helloWith(sni("a.example")[:9]), errMalformed},
		"application data":     {[]byte{22, 3, 1, 0, 1, 1, 23, 3, 3, 0, 1}, errNotHello},
		"server hello":         {[]byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, errNotHello},
		"empty record":         {[]byte{22, 3, 1, 0, 0}, errMalformed},
		"record too long":      {[]byte{22, 3, 1, 0xff, 0xff, 1}, errMalformed},
		"hello too long":       {[]byte{22, 3, 1, 0, 4, 1, 1, 0, 0}, errTooLong},
		"not TLS after all":    {[]byte{22, 9}, errNotHello},
		"endless":              {long, errTooLong},
		"SSH":                  {[]byte("SSH-2.0-x\r\n"), errUnknown},
		"blank line, then GET": {[]byte("\r\nGET / HTTP/1.1\r\n"), errUnknown},
		"space first":          {[]byte(" GET / HTTP/1.1\r\n"), errUnknown},
		"lower case":           {[]byte("get / HTTP/1.1\r\n"), errUnknown},
		"endless method":       {bytes.Repeat([]byte("A"), 100), errUnknown},
		"zero":                 {[]byte{0}, errUnknown},
	} {
		if o := classify(c.data); o.kind != isOther || !errors.Is(o.err, c.want) {
			t.Errorf("%s: %+v, want %v", name, o, c.want)
		}
	}
	for _, s := range []string{"GET / HTTP/1.1\r\n", "P ", "OPTIONS * HTTP/1.1"} {
		if o := classify([]byte(s)); o.kind != isHTTP {
			t.Errorf("%q: %+v", s, o)
		}
	}
	for _, s := range []string{"", "G", "GET"} {
		if o := classify([]byte(s)); o.kind != undecided {
			t.Errorf("%q: %+v", s, o)
		}
	}
}

// goServerName is the name that Go's TLS server reads out of the same bytes.
func goServerName(data []byte) (string, bool) {
	var name string
	found := false
	stop := errors.New("seen enough")
	s := tls.Server(script{bytes.NewReader(data)}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, found = h.ServerName, true
		return nil, stop
	}})
	_ = s.HandshakeContext(context.Background())
	return name, found
}

// Where both accept a ClientHello, both must read the same name: a difference is
// a way around the check.
func FuzzClassify(f *testing.F) {
	f.Add(clientHello(f, "www.example.com"))
	f.Add(inRecords(clientHello(f, "a.example"), 40))
	f.Add(clientHello(f, ""))
	f.Add(helloWith(sni("a.example")))
	f.Add(helloWith(sni("a.example", "b.example")))
	f.Add(helloWith(sni("a.example"), sni("b.example")))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o := classify(data)
		if (o.kind == isOther) != (o.err != nil) || o.kind != isTLS && o.serverName != "" {
			t.Fatalf("contradiction: %+v", o)
		}
		if len(data) >= maxOpening && o.kind == undecided {
			t.Fatal("undecided for ever")
		}
		if o.kind != isTLS {
			return
		}
		if name, ok := goServerName(data); ok && name != o.serverName {
			t.Fatalf("we read %q and crypto/tls reads %q", o.serverName, name)
		}
	})
}
