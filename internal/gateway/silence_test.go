package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// An allowed connection may be silent for much longer than a request may be on its way: a tunnel, a stream, and an
// answer that a model thinks about.
func TestWhatIsSilentIsNotDead(t *testing.T) {
	const wait = 100 * time.Millisecond
	w := newFixture(t, withLimits(func(l *Limits) { l.BodyTimeout, l.FirstBytesTimeout = wait, wait }))
	think := make(chan struct{})
	site := web(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			rw.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(rw).Flush()
		case "/body":
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		<-think
		_, _ = io.WriteString(rw, "done\n")
	})
	w.public("example.com", "93.184.216.34", site.Listener.Addr())
	w.public("tunnel.example", "93.184.216.36", server(t, echo).Addr())
	w.admit(jailA, opaque("tunnel.example", 443))
	w.admit(jailB, webOnly("example.com", 80))

	tunnel, tunnelReader := w.connect(jailA, "tunnel.example:443")
	var waiting []*bufio.Reader
	for _, path := range []string{"/answer", "/stream"} {
		c := w.dial(jailB)
		if _, err := fmt.Fprintf(c, "GET http://example.com%s HTTP/1.1\r\nHost: x\r\n\r\n", path); err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, bufio.NewReader(c))
	}
	// The time that passes is that of bodies which do not come: each is given up after the wait.
	for range 4 {
		c := w.dial(jailB)
		if _, err := io.WriteString(c, "POST http://example.com/body HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\na"); err != nil {
			t.Fatal(err)
		}
		if all, err := io.ReadAll(c); err != nil {
			t.Fatalf("a body that does not come is waited for: %v, %q", err, all)
		}
	}
	if _, err := io.WriteString(tunnel, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := tunnelReader.ReadByte(); err != nil {
		t.Errorf("the tunnel: %v", err)
	}
	close(think)
	for n, from := range waiting {
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", n, err)
		}
		if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "done\n" {
			t.Errorf("answer %d: %s %q, %v", n, resp.Status, line, err)
		}
	}
}

// Programs leave tunnels open that they need no more. The one that was silent the longest makes room for a new one, and one that
// was busy within the last minute does not.
func TestASilentTunnelMakesRoom(t *testing.T) {
	var passed atomic.Int64
	w := newFixture(t, func(c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
		c.Rates = func(Caller) Rates { r := DefaultRates(); r.Tunnels = 2; return r }
	})
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	w.admit(jailA, opaque("example.com", 443))
	type open struct {
		net.Conn
		from *bufio.Reader
	}
	dial := func() open {
		c, from := w.connect(jailA, "example.com:443")
		return open{c, from}
	}
	answers := func(o open) bool {
		_, err := io.WriteString(o, "x")
		if err == nil {
			_, err = o.from.ReadByte()
		}
		return err == nil
	}
	first, second := dial(), dial()
	if !answers(first) || !answers(second) {
		t.Fatal("the tunnels do not answer")
	}
	const another = "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n"
	resp, body := w.raw(jailA, another)
	if code, _ := refusal(t, resp, body); code != problem.RateLimited {
		t.Errorf("a third one takes the place of a busy one: %s %s", resp.Status, body)
	}
	passed.Store(int64(forgotten / 2))
	if !answers(first) {
		t.Fatal("the first does not answer")
	}
	passed.Store(int64(forgotten + time.Second)) // the second was silent for so long, and the first was not
	third := dial()
	if !answers(third) || !answers(first) {
		t.Error("the third or the first does not answer")
	}
	if _, err := second.from.ReadByte(); err == nil {
		t.Error("the second is still open")
	}
	if line := w.logs.String(); !strings.Contains(line, problem.RateLimited) {
		t.Errorf("it is not said why it ended: %s", line)
	}
}

// Tunnels are counted by agent, so that those of its other jails make room as well, and those of others do not.
func TestASilentTunnelOfAnotherJailOfTheAgentMakesRoom(t *testing.T) {
	var passed atomic.Int64
	w := newFixture(t, func(c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
		c.Rates = func(Caller) Rates { r := DefaultRates(); r.Tunnels = 1; return r }
	})
	w.public("example.com", "93.184.216.34", server(t, echo).Addr())
	needLoopbacks(t)
	for addr, agent := range map[string]string{jailA: "a_one", jailB: "a_one", "127.0.0.4": "a_two"} {
		if err := w.g.Admit(netip.MustParseAddr(addr), Caller{Jail: "b" + addr, Agent: agent, Policy: opaque("example.com", 443)}); err != nil {
			t.Fatal(err)
		}
	}
	own, fromOwn := w.connect(jailA, "example.com:443")
	other, fromOther := w.connect("127.0.0.4", "example.com:443")
	for to, from := range map[net.Conn]*bufio.Reader{own: fromOwn, other: fromOther} {
		if _, err := io.WriteString(to, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := from.ReadByte(); err != nil {
			t.Fatal(err)
		}
	}
	passed.Store(int64(forgotten + time.Second))
	w.connect(jailB, "example.com:443")
	if _, err := own.Read(make([]byte, 1)); err == nil {
		t.Error("the tunnel of the agent's other jail is still open")
	}
	if err := other.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the tunnel of another agent made room: %v", err)
	}
}

// A host that is gone without a word is found out by TCP, however long a tunnel may be silent.
func TestConnectionsAreKeptAlive(t *testing.T) {
	ln := listenOn(t, "127.0.0.1:0")
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := ln.Accept(); err == nil {
			accepted <- c
		}
		close(accepted)
	}()
	c, err := dialChecked(t.Context(), netip.MustParseAddrPort(ln.Addr().String()), func(netip.AddrPort) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// A jail's connection is accepted by such a listener, too.
	from := <-accepted
	defer from.Close()
	for name, conn := range map[string]net.Conn{"to the host": c, "from the jail": from} {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var on int
		var asked error
		if err := raw.Control(func(fd uintptr) { on, asked = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE) }); err != nil || asked != nil {
			t.Fatal(err, asked)
		}
		if on == 0 {
			t.Errorf("the connection %s is not kept alive", name)
		}
	}
}
