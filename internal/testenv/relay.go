package testenv

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
)

// Relay is a wire in front of a server. It carries TCP connections to an address that a test may change, and can be cut.
type Relay struct {
	listener net.Listener
	heard    io.Writer
	tasks    sync.WaitGroup

	mu     sync.Mutex
	to     string // empty: nowhere
	from   net.Addr
	coming map[net.Conn]struct{}
}

// NewRelay makes one that leads nowhere yet, and ends with the test. The servers' answers are written to heard as well, if it is not
// nil, by several goroutines.
func NewRelay(t testing.TB, heard io.Writer) *Relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{listener: listener, heard: heard, coming: make(map[net.Conn]struct{})}
	r.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			r.tasks.Go(func() { r.carry(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // no connection comes any more, also when it returns an error
		r.Lead("")
		r.tasks.Wait()
	})
	return r
}

// Addr is the host and port where it listens.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Lead has what comes from now on go to an address, and ends what has come before. Without an address it leads nowhere.
func (r *Relay) Lead(to string) { r.lead(nil, to) }

// LeadFrom is Lead as if the connections came from an address of this machine.
func (r *Relay) LeadFrom(from netip.Addr, to string) { r.lead(&net.TCPAddr{IP: from.AsSlice()}, to) }

func (r *Relay) lead(from net.Addr, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from, r.to = from, to
	for conn := range r.coming {
		_ = conn.Close() // gone in any case
	}
}

// carry carries one connection until either end leaves, or it is cut.
func (r *Relay) carry(conn net.Conn) {
	defer conn.Close()
	r.mu.Lock()
	to, from := r.to, r.from
	r.coming[conn] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.coming, conn)
	}()
	if to == "" {
		return
	}
	onward, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", to)
	if err != nil {
		return
	}
	defer onward.Close()
	r.tasks.Go(func() {
		defer onward.Close()
		_, _ = io.Copy(onward, conn) // an end is an end, whatever its reason
	})
	back := io.Writer(conn)
	if r.heard != nil {
		back = io.MultiWriter(r.heard, conn)
	}
	_, _ = io.Copy(back, onward) // likewise
}
