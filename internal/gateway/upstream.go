package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

const (
	// maxIdleUpstreams bounds the connections of one caller that wait for another request.
	maxIdleUpstreams = 64
	// idleUpstream is how long they wait. Many servers close after a minute, some after five seconds.
	idleUpstream = 30 * time.Second
	// freshUpstream is how long a connection may have waited to be used for a request that cannot be sent twice: the
	// server may be about to close it.
	freshUpstream = 2 * time.Second
)

// upstream is a connection to a server that speaks HTTP. It belongs to one caller, and carries one request at a time.
type upstream struct {
	*http.ClientConn
	conn   *meteredConn
	key    upstreamKey
	addr   netip.AddrPort
	since  time.Time // when it became idle
	round  int       // and in which round
	reused bool
	closed atomic.Bool
}

// upstreamKey says what a connection is good for. A name that operators lead to a private address is another one than
// the same name in DNS. A request with a credential has connections of its own: a server that loses count of where a
// request ends must not take one with a credential for the rest of another.
type upstreamKey struct {
	scheme     string // http or https
	to         hostport.Endpoint
	private    netip.Addr
	credential string // the service whose credential goes over it
}

// close ends the connection, whatever is under way on it.
func (u *upstream) close() {
	if !u.closed.Swap(true) {
		// The lower one first: it ends what the upper one waits for, whose TLS would wait for seconds to say goodbye.
		_ = u.conn.Close()
		_ = u.ClientConn.Close()
	}
}

// upstreams are the idle connections of one caller.
type upstreams struct {
	mu     sync.Mutex // guards what follows
	idle   map[upstreamKey][]*upstream
	count  int
	closed bool
	timer  *time.Timer // of the next round
	rounds int
}

// take returns an idle connection, the youngest first; nil when there is none.
func (p *upstreams) take(key upstreamKey, youngerThan time.Time) *upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[key]
	for len(list) > 0 {
		u := list[len(list)-1]
		list = list[:len(list)-1]
		p.count--
		if u.Available() > 0 && u.Err() == nil && !u.since.Before(youngerThan) {
			p.idle[key] = list
			u.reused = true
			return u
		}
		u.close()
	}
	delete(p.idle, key)
	return nil
}

// put keeps a connection for the next request, if one can follow.
func (p *upstreams) put(u *upstream, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || u.closed.Load() || u.Err() != nil || u.InFlight() > 0 || u.Available() == 0 || p.count >= maxIdleUpstreams {
		u.close()
		return
	}
	u.since, u.round = now, p.rounds
	if p.idle == nil {
		p.idle = make(map[upstreamKey][]*upstream)
	}
	p.idle[u.key] = append(p.idle[u.key], u)
	p.count++
	if p.timer == nil {
		p.timer = time.AfterFunc(idleUpstream, p.sweep)
	}
}

// sweep closes what has waited for long, and comes again while something waits.
func (p *upstreams) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.timer = nil
	p.rounds++
	for key, list := range p.idle {
		kept := list[:0]
		for _, u := range list {
			if u.Err() != nil || u.round+1 < p.rounds {
				u.close()
				p.count--
				continue
			}
			kept = append(kept, u)
		}
		if len(kept) == 0 {
			delete(p.idle, key)
		} else {
			p.idle[key] = kept
		}
	}
	if p.count > 0 {
		p.timer = time.AfterFunc(idleUpstream, p.sweep)
	}
}

// close ends all of them, and whatever is put afterwards.
func (p *upstreams) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, list := range p.idle {
		for _, u := range list {
			u.close()
		}
	}
	p.idle, p.count = nil, 0
	if p.timer != nil {
		p.timer.Stop()
	}
}

// dialledKey is under what a context has the connection that the client is to use.
type dialledKey struct{}

var errNotDialled = errors.New("a connection that was not made for this request")

// newClient makes what turns connections into ones that speak HTTP, with TLS where the scheme says so. It cannot dial: it
// gets the connection that was made to a checked address.
func (g *Gateway) newClient(roots *x509.CertPool) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy: nil,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if c, ok := ctx.Value(dialledKey{}).(net.Conn); ok {
				return c, nil
			}
			return nil, errNotDialled
		},
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    g.limits.ConnectTimeout,
		DisableCompression:     true,
		MaxResponseHeaderBytes: int64(g.limits.HeaderBytes) * 4,
		Protocols:              &protocols,
	}
}

// speak makes a connection to a checked address one that speaks HTTP.
func (g *Gateway) speak(ctx context.Context, c net.Conn, addr netip.AddrPort, key upstreamKey, m *meter) (*upstream, error) {
	metered := &meteredConn{Conn: c}
	metered.meter.Store(m)
	client, err := g.client.NewClientConn(context.WithValue(ctx, dialledKey{}, net.Conn(metered)), key.scheme, key.to.String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("speak %s: %w", key.scheme, err), closeQuietly(c))
	}
	return &upstream{ClientConn: client, conn: metered, key: key, addr: addr}, nil
}

// closeQuietly closes what may have been closed already.
func closeQuietly(c net.Conn) error {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
