// Package shim is the control plane's side of clawjail-shim, the first process of a pod. Nothing listens in a pod: the shim dials out, says
// with a token of Kubernetes which pod it is in, and does then what it is asked. It confines itself and says how it is confined, tries what
// it must not reach, starts programs with their stdio, and connects to ports on the pod's loopback.
//
// All of that is carried by one stream, which outlives the connection that carries it (package link): streams of yamux for each program's
// stdin, stdout and stderr, and one for each request. Before a program runs in a pod, nothing is in it but the shim. Afterwards the pod counts as
// hostile: what it says decides about nothing but its own programs, and what it may make the control plane keep is bounded.
package shim

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/link"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// helloLimit is how long a connection may take to say who it is.
	helloLimit = 10 * time.Second
	// whoLimit is how long it may take to find out whether that is true.
	whoLimit = 10 * time.Second
	// maxHellos bounds the connections that have not said it, of all, and maxHellosOf those of one address.
	maxHellos, maxHellosOf = 512, 2
	// refusalDelay is how long one that was refused is held, so that a pod does not have the API server asked more than twice a second.
	refusalDelay = time.Second
)

// Options are what a Server is made from. Fields are required unless they say otherwise.
type Options struct {
	// TLS is the server's side. A pod shows no certificate.
	TLS *tls.Config
	// Who says which pod a token and an address belong to. An error of it is told to the pod. It refuses pods in which programs have run and
	// that this server does not have any more: those have the token, too.
	// The Pod keeps about, which [Pod.About] returns.
	Who func(ctx context.Context, token string, from netip.Addr) (pod string, about any, err error)
	// Arrived is told of a pod that has connected, before anything is asked of it, and of one that connects again after that. It does not wait, nor
	// ask the server for anything.
	Arrived func(*Pod)
	// Broken, if it is there, is told of a pod with a program whose connection has broken, and is waited for. It does not wait.
	Broken func(*Pod)
	// Window is how long a pod whose connection broke is waited for.
	Window time.Duration
	Log    *slog.Logger
}

// Server lets pods in.
type Server struct {
	o       Options
	ctx     context.Context
	cancel  context.CancelFunc
	working sync.WaitGroup

	mu     sync.Mutex // guards what follows
	hellos map[netip.Addr]int
	all    int
	links  map[string]*Pod // by their secret
	pods   map[string]*Pod // by what Who says
}

// NewServer makes one. Close must be called.
func NewServer(o Options) *Server {
	s := &Server{o: o, hellos: map[netip.Addr]int{}, links: map[string]*Pod{}, pods: map[string]*Pod{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Serve accepts connections of pods, until the listener is closed.
func (s *Server) Serve(l net.Listener) {
	for {
		conn, err := wake.Accept(l.Accept, s.ctx.Done(), func(err error) { s.o.Log.Error("accept the connection of a pod; it is tried again", "error", err) })
		if err != nil {
			return
		}
		from, place := s.enter(conn)
		if !place {
			_ = conn.Close() // there are too many, and nothing was promised
			continue
		}
		s.working.Go(func() {
			err := s.greet(conn, from)
			_ = conn.Close()
			if err != nil && s.ctx.Err() == nil {
				s.o.Log.Debug("a connection of a pod has ended", "address", from, "error", err)
			}
		})
	}
}

// Close ends all connections and waits for them. The listener is the caller's.
func (s *Server) Close() {
	s.cancel()
	s.mu.Lock()
	for _, p := range s.links {
		_ = p.stream.Close()
	}
	s.mu.Unlock()
	s.working.Wait()
}

// enter gives a place to a connection that has not introduced itself.
func (s *Server) enter(conn net.Conn) (netip.Addr, bool) {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}, false
	}
	from := at.Addr().Unmap()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxHellos || s.hellos[from] >= maxHellosOf || s.ctx.Err() != nil {
		return from, false
	}
	s.all++
	s.hellos[from]++
	return from, true
}

func (s *Server) leave(from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.hellos[from]--; s.hellos[from] == 0 {
		delete(s.hellos, from)
	}
}

// greet finds out which pod has connected, and carries its stream until the connection ends.
func (s *Server) greet(raw net.Conn, from netip.Addr) error {
	leave := sync.OnceFunc(func() { s.leave(from) })
	defer leave()
	stop := context.AfterFunc(s.ctx, func() { _ = raw.Close() })
	defer stop()
	conn := tls.Server(raw, s.o.TLS)
	if err := conn.SetDeadline(time.Now().Add(helloLimit)); err != nil {
		return err
	}
	var hello Hello
	if err := readMessage(conn, maxHello, &hello); err != nil {
		return fmt.Errorf("read who it is: %w", err)
	}
	p, arrived, err := s.admit(conn, hello, from)
	if err == nil {
		err = errors.Join(conn.SetDeadline(time.Now().Add(helloLimit)),
			WriteMessage(conn, Welcome{Link: p.link, Arrived: arrived, WindowMS: s.o.Window.Milliseconds()}), conn.SetDeadline(time.Time{}))
		if err != nil {
			p.stream.Leave(conn)
			return err
		}
		leave()
		p.note(func() { p.conns++ })
		err := p.stream.Carry(conn, hello.Arrived)
		p.note(func() { p.conns-- })
		if p.Broken() && s.o.Broken != nil {
			s.o.Broken(p)
		}
		return err
	}
	s.o.Log.Warn("a pod was refused", "address", from, "error", err)
	wake.Sleep(s.ctx, refusalDelay)
	return errors.Join(err, conn.SetDeadline(time.Now().Add(helloLimit)), WriteMessage(conn, Welcome{Refused: RefusalOf(err)}), conn.Close())
}

// admit finds the pod of a connection and gives its stream to it.
func (s *Server) admit(conn net.Conn, hello Hello, from netip.Addr) (*Pod, uint64, error) {
	if hello.Version != Version {
		return nil, 0, problem.New(problem.Unsupported, "make its image anew: clawjail template image", "the clawjail-shim of the pod speaks version %d, and this control plane version %d", hello.Version, Version)
	}
	ctx, cancel := context.WithTimeout(s.ctx, whoLimit)
	defer cancel()
	who, about, err := s.o.Who(ctx, hello.Token, from)
	if err != nil {
		return nil, 0, err
	}
	p, err := s.pod(who, about, hello, from)
	if err != nil {
		return nil, 0, err
	}
	arrived, err := p.stream.Take(conn)
	if err != nil {
		return nil, 0, lost(err)
	}
	return p, arrived, nil
}

func lost(err error) error {
	return problem.Wrap(err, problem.NotFound, "the pod is made anew", "nothing waits for this pod any more")
}

// pod is the one that a connection goes on with, or a new one.
func (s *Server) pod(who string, about any, hello Hello, from netip.Addr) (*Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hello.Link != "" {
		p := s.links[hello.Link]
		if p == nil || p.name != who || p.address != from {
			return nil, lost(nil)
		}
		return p, nil
	}
	if before := s.pods[who]; before != nil {
		if !before.replaceable() {
			return nil, problem.New(problem.Conflict, "a pod has one clawjail-shim, and its connection goes on by itself", "the pod %s is connected, and a program has run there", who)
		}
		_ = before.stream.Close() // nothing was begun there
	}
	if err := s.ctx.Err(); err != nil {
		return nil, problem.New(problem.ShuttingDown, "try again", "the control plane ends")
	}
	p := &Pod{name: who, about: about, address: from, link: rand.Text(), stream: link.New(s.o.Window), done: make(chan struct{}), working: &s.working}
	session, err := yamux.Client(p.stream, Session(0), nil)
	if err != nil {
		return nil, errors.Join(err, p.stream.Close())
	}
	p.session = session
	s.links[p.link], s.pods[who] = p, p
	s.working.Go(func() {
		<-session.CloseChan()
		_ = p.stream.Close() // what the other side says that is no yamux ends the session, and this the connection
		s.mu.Lock()
		delete(s.links, p.link)
		if s.pods[who] == p {
			delete(s.pods, who)
		}
		s.mu.Unlock()
		close(p.done)
	})
	s.o.Arrived(p) // with the lock: of two connections of a pod the second is told of last
	return p, nil
}
