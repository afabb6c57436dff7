package gateway_test

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer is a real name server on loopback. A name with several answers gives the next one at each question, and the
// last one for good: it rebinds.
type nameServer struct {
	conn net.PacketConn
	done chan struct{}

	mu    sync.Mutex // guards what follows
	zone  map[string][][]netip.Addr
	asked map[string]int // questions by name and type
}

func newNameServer(t testing.TB) *nameServer {
	t.Helper()
	var listen net.ListenConfig
	conn, err := listen.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{conn: conn, done: make(chan struct{}), zone: map[string][][]netip.Addr{}, asked: map[string]int{}}
	go s.serve()
	t.Cleanup(func() { _ = conn.Close(); <-s.done })
	return s
}

// lead sets what a name leads to.
func (s *nameServer) lead(name string, sets ...[]netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone[name] = sets
}

// names are those that were asked for.
func (s *nameServer) names() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for question := range s.asked {
		name, _, _ := strings.Cut(question, " ")
		all[name] = true
	}
	return all
}

// resolver is the resolver of Go's library, which asks this server.
func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}}
}

func (s *nameServer) serve() {
	defer close(s.done)
	buffer := make([]byte, 4096)
	for {
		n, from, err := s.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		var question dnsmessage.Message
		if question.Unpack(buffer[:n]) != nil || len(question.Questions) != 1 {
			continue
		}
		reply, err := s.answer(question)
		if err == nil {
			_, _ = s.conn.WriteTo(reply, from) // a question without an answer is asked again
		}
	}
}

func (s *nameServer) answer(m dnsmessage.Message) ([]byte, error) {
	q := m.Questions[0]
	name := strings.TrimSuffix(strings.ToLower(q.Name.String()), ".")
	s.mu.Lock()
	key := name + " " + q.Type.String()
	sets, known := s.zone[name]
	var set []netip.Addr
	if len(sets) > 0 {
		set = sets[min(s.asked[key], len(sets)-1)]
	}
	s.asked[key]++
	s.mu.Unlock()

	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionAvailable: true},
		Questions: m.Questions,
	}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	header := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 0}
	for _, a := range set {
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: a.As4()}})
		case !a.Is4() && q.Type == dnsmessage.TypeAAAA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return reply.Pack()
}
