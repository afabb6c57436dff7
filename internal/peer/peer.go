// Package peer connects the control planes that share a database. It knows which of them has a session, and reaches it by TLS, in which
// both sides show certificates of an authority that only those have who have the same admin key.
package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// nodesFresh is how long a list of the nodes is good, lostFresh how long it is for one that it says is lost, and nodesLimit how
	// long the database has to make one.
	nodesFresh = 2 * time.Second
	lostFresh  = 100 * time.Millisecond
	nodesLimit = 5 * time.Second
	// dialLimit bounds a connection to a node.
	dialLimit = 5 * time.Second
	// lookEvery is how often it is looked whether a node is lost that is being asked. It is longer than lostFresh: a node that answered
	// when a request began is not given up for what was known before.
	lookEvery = 500 * time.Millisecond
	// maxIdle and idleLimit bound the connections that are kept for more requests, to one node.
	maxIdle   = 64
	idleLimit = time.Minute
)

// KeepAlive finds out in ten seconds that the machine at the other end of a connection is gone.
var KeepAlive = net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3}

// Options are what Peers are made from. Everything is required.
type Options struct {
	// Node is the name of this control plane.
	Node string
	// Secret is known to all nodes of the database, and has 32 bytes.
	Secret secret.Value
	// Nodes lists them.
	Nodes func(ctx context.Context) ([]store.Node, error)
	Log   *slog.Logger
	Now   func() time.Time
}

// Peers are the other control planes of the database.
type Peers struct {
	o         Options
	authority *authority
	transport *http.Transport

	mu    sync.Mutex // guards what follows, and is held while the nodes are listed
	nodes []store.Node
	read  time.Time
	// strange are the ids of audit keys that are not believed, and that were logged.
	strange map[string]bool
}

// New makes Peers. Close must be called.
func New(o Options) (*Peers, error) {
	a, err := newAuthority(o.Node, o.Secret, o.Now)
	if err != nil {
		return nil, err
	}
	p := &Peers{o: o, authority: a, strange: map[string]bool{}}
	p.transport = &http.Transport{DialTLSContext: p.dial, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idleLimit, DisableCompression: true}
	return p, nil
}

// Close closes idle connections.
func (p *Peers) Close() { p.transport.CloseIdleConnections() }

// Listener accepts connections of other nodes only.
func (p *Peers) Listener(l net.Listener) net.Listener {
	return tls.NewListener(l, p.authority.server())
}

// Look has the nodes listed anew when they are needed next.
func (p *Peers) Look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read = time.Time{}
}

// Owner is the node that has a session, of a browser or of MCP, or had it: empty when that is this one, or an unknown one.
func (p *Peers) Owner(ctx context.Context, session string) (string, error) {
	_, tag, is := strings.Cut(session, "_")
	own := store.NodeTag(p.o.Node)
	if !is || len(tag) < len(own) || tag[:len(own)] == own {
		return "", nil
	}
	n, err := p.find(ctx, func(n store.Node) bool { return store.NodeTag(n.Name) == tag[:len(own)] })
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	case !n.StoppedAt.IsZero():
		return "", nil // and its sessions have ended with it
	case n.Lost():
		return "", errLost(n.Name)
	case n.PeerAddress == "":
		return "", problem.New(problem.NodeUnreachable, "set node_listen in its clawjail.yml, or ask it", "the session is that of the control plane %s, which has no node_listen", n.Name)
	}
	return n.Name, nil
}

// Others are the nodes that can be asked.
func (p *Peers) Others(ctx context.Context) (names []string, err error) {
	all, err := p.list(ctx, nodesFresh)
	for _, n := range all {
		if n.Name != p.o.Node && n.StoppedAt.IsZero() && !n.Lost() && n.PeerAddress != "" {
			names = append(names, n.Name)
		}
	}
	return names, err
}

func (p *Peers) find(ctx context.Context, is func(store.Node) bool) (store.Node, error) {
	look := func(fresh time.Duration) (store.Node, error) {
		all, err := p.list(ctx, fresh)
		if err != nil {
			return store.Node{}, err
		}
		if at := slices.IndexFunc(all, is); at >= 0 {
			return all[at], nil
		}
		return store.Node{}, store.ErrNotFound
	}
	n, err := look(nodesFresh)
	if err == nil && n.Lost() {
		return look(lostFresh)
	}
	return n, err
}

// list are the nodes as they were less than fresh ago. The last list is used while the database does not answer.
func (p *Peers) list(ctx context.Context, fresh time.Duration) ([]store.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.read) < fresh {
		return p.nodes, nil
	}
	limited, cancel := context.WithTimeout(ctx, nodesLimit)
	defer cancel()
	all, err := p.o.Nodes(limited)
	switch {
	case err == nil:
		p.nodes, p.read = all, time.Now()
	case p.nodes == nil:
		return nil, fmt.Errorf("ask which control planes there are: %w", err)
	default:
		p.read = time.Now() // calls that wait for the lock use the old list
		p.o.Log.Warn("ask which control planes there are", "error", err)
	}
	return p.nodes, nil
}

// dial connects to a node, whose name stands where hosts do.
func (p *Peers) dial(ctx context.Context, _, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n, err := p.find(ctx, func(n store.Node) bool { return n.Name == name })
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialLimit, KeepAliveConfig: KeepAlive}, Config: p.authority.client(name)}
	ctx, cancel := context.WithTimeout(ctx, 2*dialLimit)
	defer cancel()
	return d.DialContext(ctx, "tcp", n.PeerAddress)
}

func errLost(node string) error {
	return problem.New(problem.NodeLost, "open a new session", "the control plane %s is lost, and its sessions with it", node)
}

// RoundTrip implements http.RoundTripper, for requests to https://NODE/. It ends when the node is lost, also one that still listens: a
// process that stands still does.
func (p *Peers) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := p.watch(ctx, r.URL.Hostname(), cancel)
	answer, err := p.transport.RoundTrip(r.WithContext(ctx))
	end := func() {
		stop()
		cancel(nil)
	}
	if err != nil {
		lost := context.Cause(ctx)
		end()
		if problem.CodeOf(lost) == problem.NodeLost {
			return nil, lost
		}
		return nil, p.unreachable(r.URL.Hostname(), err)
	}
	if both, is := answer.Body.(io.ReadWriteCloser); is { // it is no HTTP any more, and has left the context
		end = sync.OnceFunc(end)
		leave := context.AfterFunc(ctx, func() { _ = both.Close() })
		answer.Body = switched{both, func() {
			leave()
			end()
		}}
	} else {
		answer.Body = carried{answer.Body, ctx, end}
	}
	return answer, nil
}

// carried is the body of an answer of a node, and switched what goes both ways after it.
type carried struct {
	io.ReadCloser
	asking context.Context
	end    func()
}

// Read implements io.Reader. An answer that is cut because its node was given up may look complete: it ends with that error.
func (c carried) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if err != nil {
		if lost := context.Cause(c.asking); problem.CodeOf(lost) == problem.NodeLost {
			err = lost
		}
	}
	return n, err
}

// Close implements io.Closer.
func (c carried) Close() error {
	defer c.end()
	return c.ReadCloser.Close()
}

type switched struct {
	io.ReadWriteCloser
	end func()
}

// Close implements io.Closer.
func (s switched) Close() error {
	defer s.end()
	return s.ReadWriteCloser.Close()
}

// watch looks now and then whether a node is lost, until the context ends, and ends it then.
func (p *Peers) watch(ctx context.Context, node string, lost context.CancelCauseFunc) (stop func() bool) {
	var timer *time.Timer
	timer = time.AfterFunc(time.Hour, func() {
		if ctx.Err() != nil {
			return
		}
		if n, err := p.find(ctx, func(n store.Node) bool { return n.Name == node }); err == nil && n.Lost() {
			lost(errLost(node))
			return
		}
		timer.Reset(lookEvery)
	})
	timer.Reset(lookEvery)
	return timer.Stop
}

// unreachable is why a request did not get to a node.
func (p *Peers) unreachable(node string, err error) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return problem.Wrap(err, problem.NodeUnreachable, "set the clocks of both machines, by NTP", "the clocks of the control planes %s and %s are more than %s apart", p.o.Node, node, certificateEarly)
	}
	if refused := new(net.OpError); errors.As(err, &refused) && refused.Op == "remote error" { // as crypto/tls calls what the other side says
		return problem.Wrap(err, problem.NodeUnreachable, "compare control/admin.key of both, and their clocks", "the control plane %s refuses the certificate of %s", node, p.o.Node)
	}
	if unknown := new(tls.CertificateVerificationError); errors.As(err, &unknown) {
		return problem.Wrap(err, problem.NodeUnreachable, "copy control/admin.key of one of them to the other, and restart it", "the control plane %s has another admin key than %s", node, p.o.Node)
	}
	return problem.Wrap(err, problem.NodeUnreachable, "try again; which there are: clawjail node ls", "the control plane %s does not answer %s", node, p.o.Node)
}
