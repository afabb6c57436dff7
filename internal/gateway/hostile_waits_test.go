package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/testenv"
)

// short makes everything that is waited for short.
func short(l *Limits) {
	const wait = 200 * time.Millisecond
	l.HeaderTimeout, l.BodyTimeout, l.FirstBytesTimeout, l.IdleTimeout = wait, wait, wait, wait
}

// A jail that announces a body and does not send it keeps no connection with that, whether or not it was refused.
func TestABodyThatNeverComesHoldsNoConnection(t *testing.T) {
	w := newFixture(t, withLimits(func(l *Limits) {
		idle := l.IdleTimeout // which would end all of these as well
		short(l)
		l.IdleTimeout = idle
	}))
	s := web(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, webOnly("example.com", 80))
	for name, head := range map[string]string{
		"a length, allowed": "POST http://example.com/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\na",
		"a length, refused": "POST http://denied.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\na",
		"chunks, allowed":   "POST http://example.com/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nff\r\na",
		"chunks, refused":   "POST http://denied.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nff\r\na",
		"chunk by chunk":    "POST http://denied.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
		"no target":         "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\na",
		"expected, allowed": "POST http://example.com/ HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\na",
		"in a tunnel":       "CONNECT example.com:80 HTTP/1.1\r\nHost: x\r\n\r\nPOST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 10\r\n\r\na",
		"in a tunnel, else": "CONNECT example.com:80 HTTP/1.1\r\nHost: x\r\n\r\nPOST / HTTP/1.1\r\nHost: denied.example\r\nContent-Length: 10\r\n\r\na",
	} {
		c := w.dial(jailA)
		if _, err := io.WriteString(c, head); err != nil {
			t.Fatal(err)
		}
		if all, err := io.ReadAll(c); err != nil {
			t.Errorf("%s: the connection stays: %v after %.200q", name, err, all)
		}
		c.Close()
	}
	testenv.Eventually(t, patience, func() bool {
		now, _ := w.g.Activity(netip.MustParseAddr(jailA))
		return now.Open == 0
	}, "connections stay open")
}

// A jail that asks for much and reads nothing keeps neither the host's connection nor its own.
func TestAJailThatDoesNotReadHoldsNoRequest(t *testing.T) {
	w := newFixture(t, withLimits(short))
	page := []byte(strings.Repeat("a", 64<<10))
	s := web(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(page); err != nil {
				return
			}
		}
	})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admit(jailA, policy.PublicWeb())
	c := w.dial(jailA)
	fmt.Fprint(c, "GET http://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n")
	testenv.Eventually(t, patience, func() bool { return len(w.ended()) == 1 }, "the request goes on")
	testenv.Eventually(t, patience, func() bool {
		now, _ := w.g.Activity(netip.MustParseAddr(jailA))
		return now.Open == 0
	}, "the connection stays open")
}
