// Package relay brings the connections of containers to a gateway that is not on their network: on a host whose
// containers run under another kernel, or whose engine keeps its networks to itself.
//
// A relay runs as a container between the agents' internal network and an outside one. It understands nothing of what
// passes through it and holds no key but its own: for each connection it says from which address it came, proves that it
// may say so, and then copies bytes both ways. The gateway decides who the address is, and what it may do.
//
// The proof is HMAC-SHA256 over a nonce of the gateway's and the address, with a key that the relay has from a file. Relayed
// data is not encrypted: both ends are on one machine.
package relay

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// greeting begins what the gateway says; it changes with what follows it.
	greeting  = "clawjail-relay/1\n"
	nonceSize = 32
	addrSize  = 16 + 2 // an address as IPv6, and a port
	macSize   = sha256.Size
	// patience bounds how long either end may take to introduce itself.
	patience = 5 * time.Second
	// maxConnections bounds those at a time, on either end; and those that introduce themselves.
	maxConnections = 4096
)

// Key is what a relay proves itself with.
type Key [32]byte

// LogValue implements slog.LogValuer.
func (Key) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// Format implements fmt.Formatter.
func (Key) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, "[redacted]") } // the writer is fmt's, which never fails

// NewKey makes one.
func NewKey() (k Key) {
	rand.Read(k[:]) // never fails, see its documentation
	return k
}

// ReadKey reads the file of a key.
func ReadKey(path string) (k Key, err error) {
	f, err := os.Open(path)
	if err != nil {
		return k, problem.Wrap(err, problem.BadConfig, "the host daemon makes it, and mounts it into the container", "the key of the relay cannot be read")
	}
	defer f.Close() // only read from
	text, err := io.ReadAll(io.LimitReader(f, int64(len(k))+1))
	if err != nil {
		return k, fmt.Errorf("read the key of the relay: %w", err)
	}
	if len(text) != len(k) {
		return k, problem.New(problem.BadConfig, "the host daemon makes it anew when it is removed", "the key of the relay has not %d bytes", len(k))
	}
	return Key(text), nil
}

// proof is what a relay answers a nonce with.
func (k Key) proof(nonce, addr []byte) []byte {
	mac := hmac.New(sha256.New, k[:])
	mac.Write([]byte(greeting)) // a hash never fails
	mac.Write(nonce)
	mac.Write(addr)
	return mac.Sum(nil)
}

// Listen makes a listener of the connections that relays bring. RemoteAddr of a connection is the address that the relay
// says. A peer that does not prove itself is hung up on. Closing the listener closes inner. front is the port at which the relay is reached.
//
// Connections introduce themselves beside each other, so that they do not come out in the order of the kernel's queue: one
// may come out as long after its client has ended as an introduction takes, which is seconds at most.
func Listen(inner net.Listener, key Key, front uint16, log *slog.Logger) *Listener {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l := &Listener{Listener: inner, key: key, front: front, log: log, ready: make(chan net.Conn), done: make(chan struct{}), slots: make(chan struct{}, maxConnections),
		pendingConns: pendingConns{limit: maxConnections}}
	l.running.Go(l.accept)
	return l
}

// Listener is a listener of what relays bring.
type Listener struct {
	net.Listener
	key     Key
	front   uint16
	log     *slog.Logger
	ready   chan net.Conn
	slots   chan struct{} // of those that have introduced themselves
	running sync.WaitGroup
	pendingConns

	once sync.Once
	done chan struct{} // closed by Close, and when inner is closed
	err  error         // what Accept answers then; written before done is closed
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.done:
		return nil, l.err
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	l.end(net.ErrClosed)
	l.running.Wait()
	return err
}

// Front is the port at which the relay is reached.
func (l *Listener) Front() uint16 { return l.front }

// Probe connects to the listener as a relay does, and says that it comes from where it does.
func (l *Listener) Probe(ctx context.Context) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	if err := l.key.introduce(c, c.LocalAddr()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (l *Listener) end(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.done)
	})
}

// accept waits for a connection until done, or until the listener is closed.
func accept(l net.Listener, done <-chan struct{}, log *slog.Logger) (net.Conn, error) {
	return wake.Accept(l.Accept, done, func(err error) { log.Warn("accept a connection; it is tried again", "error", err) })
}

func (l *Listener) accept() {
	for {
		c, err := accept(l.Listener, l.done, l.log)
		if err != nil {
			l.end(err)
			return
		}
		l.enter(c)
		l.running.Go(func() { l.introduce(c) })
	}
}

// introduce hears who a connection is from, and gives it to Accept.
func (l *Listener) introduce(c net.Conn) {
	addr, err := l.hear(c)
	if !l.leave(c) && err == nil {
		err = errors.New("it had to make room")
	}
	if err == nil {
		select {
		case l.slots <- struct{}{}:
			defer func() { <-l.slots }()
		default:
			_ = c.Close() // too many wait; the relay tries again for its next connection
			return
		}
		select {
		case l.ready <- &conn{Conn: c, remote: net.TCPAddrFromAddrPort(addr)}:
			return
		case <-l.done:
		}
	} else {
		l.log.Debug("refused a relay", "from", c.RemoteAddr(), "error", err)
	}
	_ = c.Close() // nothing was promised
}

// pendingConns are the connections that have not yet introduced themselves. Any host that reaches the listener can open one. One too many
// closes the oldest of the address that has most, so that silent connections keep no relay out: a relay needs milliseconds.
type pendingConns struct {
	limit int

	mu  sync.Mutex
	all []pendingConn // the oldest first
}

type pendingConn struct {
	net.Conn
	from netip.Addr
}

func (s *pendingConns) enter(c net.Conn) {
	in := pendingConn{Conn: c}
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		in.from = tcp.AddrPort().Addr().Unmap()
	}
	if in.from.IsLoopback() { // a user of this host has all of them
		in.from = netip.IPv6Loopback()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= s.limit {
		of, crowd := map[netip.Addr]int{}, in.from
		for _, other := range s.all {
			if of[other.from]++; of[other.from] > of[crowd] {
				crowd = other.from
			}
		}
		at := slices.IndexFunc(s.all, func(other pendingConn) bool { return other.from == crowd })
		_ = s.all[at].Close() // nothing was promised
		s.all = slices.Delete(s.all, at, at+1)
	}
	s.all = append(s.all, in)
}

// leave says whether a connection was still among them.
func (s *pendingConns) leave(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.all, func(other pendingConn) bool { return other.Conn == c })
	if at >= 0 {
		s.all = slices.Delete(s.all, at, at+1)
	}
	return at >= 0
}

func (l *Listener) hear(c net.Conn) (netip.AddrPort, error) {
	var none netip.AddrPort
	stop := make(chan struct{})
	defer close(stop)
	go func() { // ends with the introduction
		select {
		case <-l.done:
			_ = c.SetDeadline(time.Unix(1, 0)) // ends what waits below
		case <-stop:
		}
	}()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return none, err
	}
	hello := make([]byte, len(greeting)+nonceSize)
	copy(hello, greeting)
	nonce := hello[len(greeting):]
	rand.Read(nonce) // never fails, see its documentation
	if _, err := c.Write(hello); err != nil {
		return none, err
	}
	answer := make([]byte, addrSize+macSize)
	if _, err := io.ReadFull(c, answer); err != nil {
		return none, err
	}
	addr := answer[:addrSize]
	if !hmac.Equal(answer[addrSize:], l.key.proof(nonce, addr)) {
		return none, errors.New("its proof is wrong")
	}
	if wake.Closed(l.done) {
		return none, net.ErrClosed
	}
	from := netip.AddrPortFrom(netip.AddrFrom16([16]byte(addr[:16])).Unmap(), uint16(addr[16])<<8|uint16(addr[17]))
	return from, c.SetDeadline(time.Time{})
}

// conn is a connection that a relay brought.
type conn struct {
	net.Conn
	remote net.Addr
}

// RemoteAddr is the address that the relay said.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// CloseWrite lets an end be half closed, as a TCP connection can be.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Options are what a relay needs. All but Log are required.
type Options struct {
	// Listener is on the agents' network.
	Listener net.Listener
	// Dial connects to the gateway's end.
	Dial func(ctx context.Context) (net.Conn, error)
	Key  Key
	Log  *slog.Logger
}

// Run relays until ctx ends, and closes the listener. It returns when every connection is closed.
func Run(ctx context.Context, o Options) error {
	if o.Listener == nil || o.Dial == nil || o.Key == (Key{}) {
		return errors.New("relay: an option is missing")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = o.Listener.Close() })()
	slots := make(chan struct{}, maxConnections)
	for {
		c, err := accept(o.Listener, ctx.Done(), o.Log)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = c.Close() // as many as may be
			continue
		}
		running.Go(func() {
			defer func() { <-slots }()
			if err := o.bring(ctx, c); err != nil && ctx.Err() == nil {
				o.Log.Warn("relay a connection", "error", err)
			}
		})
	}
}

// bring introduces a connection to the gateway and copies until both directions have ended.
func (o Options) bring(ctx context.Context, c net.Conn) error {
	defer c.Close() // both directions have ended, or are given up
	up, err := o.introduced(ctx, c.RemoteAddr())
	if err != nil {
		return fmt.Errorf("reach the gateway: %w", err)
	}
	defer up.Close() // likewise
	defer context.AfterFunc(ctx, func() { _, _ = c.Close(), up.Close() })()
	var both sync.WaitGroup
	both.Go(func() { pass(up, c) })
	pass(c, up)
	both.Wait()
	return nil
}

// pass copies one direction, and passes its end on.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite() // one that is closed by now has ended too
		return
	}
	_, _ = to.Close(), from.Close() // a direction that failed ends both
}

func (o Options) introduced(ctx context.Context, from net.Addr) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	up, err := o.Dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := o.Key.introduce(up, from); err != nil {
		return nil, errors.Join(err, up.Close())
	}
	return up, nil
}

// introduce says at the gateway's end whom a connection is from, with the proof.
func (k Key) introduce(up net.Conn, from net.Addr) error {
	tcp, ok := from.(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("%v is not an address", from)
	}
	if err := up.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	hello := make([]byte, len(greeting)+nonceSize)
	if _, err := io.ReadFull(up, hello); err != nil {
		return err
	}
	if !bytes.HasPrefix(hello, []byte(greeting)) {
		return errors.New("there is something else at its address")
	}
	ap := tcp.AddrPort()
	addr16 := ap.Addr().As16()
	addr := append(addr16[:], byte(ap.Port()>>8), byte(ap.Port()))
	if _, err := up.Write(append(addr, k.proof(hello[len(greeting):], addr)...)); err != nil {
		return err
	}
	return up.SetDeadline(time.Time{})
}
