package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func local(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// chain is a gateway's end and a relay before it.
func chain(t *testing.T, gatewayKey, relayKey Key) (gateway *Listener, front net.Listener) {
	t.Helper()
	inner, front := local(t), local(t)
	return chained(t, inner, front, gatewayKey, relayKey), front
}

func chained(t *testing.T, inner, front net.Listener, gatewayKey, relayKey Key) *Listener {
	t.Helper()
	gateway := Listen(inner, gatewayKey, 3000, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Listener: front, Key: relayKey, Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", inner.Addr().String())
		}})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = gateway.Close()
	})
	return gateway
}

// through makes a connection to the front, and takes it from the gateway. Both ends are closed with the test.
func through(t *testing.T, gateway, front net.Listener) (c, got net.Conn) {
	t.Helper()
	c, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // a test may have closed it
	if got, err = gateway.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = got.Close() })
	return c, got
}

func TestBytesAndAddressArrive(t *testing.T) {
	key := NewKey()
	gateway, front := chain(t, key, key)
	c, got := through(t, gateway, front)
	if got.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("it came from %s, and is said to have come from %s", c.LocalAddr(), got.RemoteAddr())
	}
	want := bytes.Repeat([]byte("\x00\xffabc"), 200_000)
	go func() {
		_, _ = c.Write(want) // a failure shows as a short read
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	all, err := io.ReadAll(got)
	if err != nil || !bytes.Equal(all, want) {
		t.Fatalf("%d bytes came, %v", len(all), err)
	}
	// The other direction is open yet.
	if _, err := got.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if err := got.(*conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(c); string(all) != "answer" || err != nil {
		t.Fatalf("%q, %v", all, err)
	}
}

func TestOnlyWhoHasTheKeyIsHeard(t *testing.T) {
	gateway, front := chain(t, NewKey(), NewKey())
	c, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := gateway.Accept()
		accepted <- err
	}()
	// Neither who says nothing, nor who says less, nor who repeats what somebody proved before.
	for _, say := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("x", addrSize+macSize)} {
		d, err := net.Dial("tcp", gateway.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(d, say); err != nil {
			t.Fatal(err)
		}
		_ = d.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, d) // until it hangs up
		_ = d.Close()
	}
	if err := gateway.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection without proof was accepted: %v", err)
	}
}

// The holder of the listener can see how far its queue is.
func TestAProbeComesOutAsItself(t *testing.T) {
	key := NewKey()
	gateway, _ := chain(t, key, key)
	c, err := gateway.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := gateway.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.RemoteAddr().String() != c.LocalAddr().String() || gateway.Front() != 3000 {
		t.Errorf("the probe from %s comes out as %s", c.LocalAddr(), got.RemoteAddr())
	}
}

func TestProofIsOfNonceAndAddress(t *testing.T) {
	key := NewKey()
	a := key.proof([]byte("nonce one"), []byte("address"))
	for what, b := range map[string][]byte{
		"nonce": key.proof([]byte("nonce two"), []byte("address")), "address": key.proof([]byte("nonce one"), []byte("another")),
		"key": NewKey().proof([]byte("nonce one"), []byte("address")),
	} {
		if bytes.Equal(a, b) {
			t.Errorf("the proof does not depend on the %s", what)
		}
	}
}

// scarce is a listener that has no descriptor left for its first connections.
type scarce struct {
	net.Listener
	left atomic.Int32
}

func (s *scarce) Accept() (net.Conn, error) {
	if s.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return s.Listener.Accept()
}

func TestBothEndsOutliveAWantOfDescriptors(t *testing.T) {
	key := NewKey()
	inner, front := &scarce{Listener: local(t)}, &scarce{Listener: local(t)}
	inner.left.Store(2)
	front.left.Store(2)
	gateway := chained(t, inner, front, key, key)
	c, got := through(t, gateway, front)
	if inner.left.Load() >= 0 || front.left.Load() >= 0 || got.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("it came from %s, with %d and %d errors left", got.RemoteAddr(), inner.left.Load(), front.left.Load())
	}
}

func TestSilentRelayDoesNotKeepTheOthers(t *testing.T) {
	key := NewKey()
	gateway, front := chain(t, key, key)
	silent, err := net.Dial("tcp", gateway.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, got := through(t, gateway, front)
	_ = got.Close()
	// And Close does not wait for it.
	began := make(chan struct{})
	go func() {
		_ = gateway.Close()
		close(began)
	}()
	select {
	case <-began:
	case <-time.After(patience - time.Second):
		t.Error("a silent connection keeps the listener open")
	}
}

// Who connects and says nothing, as any user of the host can, closes their own older connections.
func TestSilentConnectionsTakeNoPlaceOfARelay(t *testing.T) {
	key := NewKey()
	gateway, front := chain(t, key, key)
	gateway.pendingConns.mu.Lock()
	gateway.pendingConns.limit = 4
	gateway.pendingConns.mu.Unlock()
	var silent []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", gateway.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	_, got := through(t, gateway, front)
	_ = got.Close()
	if err := silent[0].SetReadDeadline(time.Now().Add(patience / 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, silent[0]); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the oldest silent connection has its place")
	}
	var s pendingConns
	s.limit = 3
	at := func(addr string) *addressed { return &addressed{addr: addr} }
	relay, first, second, third := at("10.0.0.1"), at("127.0.0.1"), at("127.0.0.2"), at("127.0.0.3")
	for _, c := range []*addressed{relay, first, second, third} {
		s.enter(c)
	}
	if relay.closed || !first.closed || second.closed || !s.leave(relay) || s.leave(first) || !s.leave(third) {
		t.Errorf("closed: the relay's %v, the first %v, the second %v", relay.closed, first.closed, second.closed)
	}
}

// addressed is a connection from somewhere.
type addressed struct {
	net.Conn
	addr   string
	closed bool
}

func (a *addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(a.addr), Port: 1} }

func (a *addressed) Close() error {
	a.closed = true
	return nil
}

func TestKeyIsReadWholeAndNeverShown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	key := NewKey()
	for _, bad := range [][]byte{nil, key[:31], append(key[:], 'x')} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKey(path); err == nil {
			t.Errorf("%d bytes are a key", len(bad))
		}
	}
	if err := os.WriteFile(path, key[:], 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadKey(path); err != nil || got != key {
		t.Errorf("%v", err)
	}
	if s := fmt.Sprintf("%v %+v %x %s", key, key, key, key); strings.ReplaceAll(strings.ReplaceAll(s, "[redacted]", ""), " ", "") != "" {
		t.Errorf("printed as %s", s)
	}
}
