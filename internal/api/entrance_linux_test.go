package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/quota"
)

// entered serves a fixture behind an entrance with little room.
func entered(t *testing.T) (w *fixture, e *Entrance) {
	t.Helper()
	w = newFixture(t)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e = NewEntrance(plain, config.Quotas{Tenant: 50, Agent: 100}, func() int { return 2 })
	e.limit, e.ofOne = 12, 8
	e.kept = quota.NewGate(quota.GateOptions{Kind: quota.KeptConnections(), Whole: 4, Quotas: config.Quotas{Tenant: 50, Agent: 100},
		Tenants: func() int { return 2 }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Serve(ctx, e) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w, e
}

// from connects from an address of the machine's own.
func from(t *testing.T, addr string, to net.Addr) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	c, err := d.DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// asks sends a request with a key on a connection, and says whether the connection is kept.
func asks(t *testing.T, c net.Conn, key string) (kept bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+c.RemoteAddr().String()+"/v1/whoami", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	if err := r.Write(c); err != nil {
		t.Fatal(err)
	}
	a, err := http.ReadResponse(bufio.NewReader(c), r)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, a.Body)
	if err != nil || a.StatusCode != http.StatusOK {
		t.Errorf("%s, %v", a.Status, err)
	}
	return !a.Close
}

// closed waits until the other end has closed a connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is open: %v", err)
	}
}

// A client that opens connections and shows no key closes its own older ones, and neither those of others nor those with a key.
func TestStrangersKeepNobodyOut(t *testing.T) {
	w, e := entered(t)
	known := from(t, "127.0.0.2", e.Addr())
	asks(t, known, w.keys["acme operator"])
	slow := from(t, "127.0.0.3", e.Addr()) // has not sent all of its request yet
	if _, err := io.WriteString(slow, "GET /v1/health HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	var crowd []net.Conn
	for range 40 {
		crowd = append(crowd, from(t, "127.0.0.4", e.Addr()))
	}
	for _, c := range crowd[:40-e.ofOne] {
		closed(t, c)
	}
	for n := range 4 { // others, of whom each has few: the crowd has most
		from(t, "127.0.0."+string(rune('5'+n)), e.Addr())
	}
	closed(t, crowd[40-e.ofOne])
	asks(t, known, w.keys["acme operator"])
	asks(t, from(t, "127.0.0.9", e.Addr()), w.keys["beta operator"])
	if _, err := io.WriteString(slow, "Host: "+e.Addr().String()+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if a, err := http.ReadResponse(bufio.NewReader(slow), nil); err != nil || a.StatusCode != http.StatusOK {
		t.Errorf("a stranger who is slow: %v, %v", a, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count > e.limit {
		t.Errorf("%d strangers are connected", e.count)
	}
}

// With a key, one tenant's connections that wait for the next request leave places for another's.
func TestNoTenantKeepsAllConnections(t *testing.T) {
	w, e := entered(t)
	for n := range 6 {
		if kept := asks(t, from(t, "127.0.0.1", e.Addr()), w.keys["acme operator"]); kept != (n < 2) {
			t.Errorf("connection %d of one tenant is kept: %v", n, kept)
		}
	}
	if !asks(t, from(t, "127.0.0.1", e.Addr()), w.keys["beta operator"]) {
		t.Error("the first connection of another tenant is not kept")
	}
}

// Connections beneath TLS are counted as well.
func TestTheConnectionOfARequestIsFoundBeneathTLS(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	v := &clientConn{Conn: here}
	if got := clientConnOf(withClientConn(t.Context(), tls.Server(v, nil))); got != v {
		t.Errorf("found %v", got)
	}
	if got := clientConnOf(withClientConn(t.Context(), here)); got != nil {
		t.Errorf("found %v", got)
	}
}
