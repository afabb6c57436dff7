// Package gateway is the only way out of a jail: an HTTP forward proxy that
// knows every jail by its source address, applies that jail's policy, and dials
// only addresses that it has checked itself.
//
// Every request goes through the same steps, in this order, and the first that
// refuses ends it:
//
//	who             the source address belongs to an admitted [Caller], and a
//	                token, where one is presented, to the same agent
//	canonical host  package hostport; ambiguous spellings are refused
//	policy          package policy; nothing is resolved for a refused name
//	rate            requests a minute and open tunnels, by caller
//	resolve         once, by the gateway; jails have no resolver
//	netguard        every answer must pass
//	record          an error of [Records.Begin] refuses the request
//	dial            exactly a checked address; the dialer compares again
//	stream          bytes are counted; silence and age end the connection
//	record          the outcome, which no request waits for
//
// Plain requests arrive in absolute form and are decided one by one. A connection
// to an upstream serves one caller only: nothing is shared between jails. When it
// is used again, its address is checked again, and every request has its record.
// CONNECT opens a tunnel, whose first bytes must be TLS for the host that was
// asked for, or plain HTTP, which is then treated as proxy requests to that
// host. TLS is never opened: what happens inside of it is between the jail and
// the host that the policy let it talk to.
package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/netguard"
)

// Resolver turns names into addresses; *net.Resolver is one. The gateway asks
// for rooted names ("example.com."), so that no search domain is ever tried.
// It must return soon after its context ends.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config is what a gateway needs. Zero Limits are an error: start from
// [DefaultLimits].
type Config struct {
	// Guard holds the installation's own sockets. The sockets that Serve listens
	// on are added to it, and its networks are those that Networks returns.
	Guard netguard.Guard
	// Networks are those of the host at this moment. It is required, and asked
	// before each connection and again when the socket is about to connect; nil
	// keeps everybody inside. See package gateway/hostnet.
	Networks func() *netguard.Networks
	// Resolver is the system's own when nil.
	Resolver Resolver
	// Records is required: no action without a record.
	Records Records
	// Policy is what a caller may now; it is asked with every request. Nil stands for the policy that the caller was
	// admitted with.
	Policy func(Caller) *policy.Compiled
	// Used says that a rule is about to let a request pass; ok is false when it was for one use and has had it, and once
	// says that it had that one use. Nil knows no such rules.
	Used func(ctx context.Context, rule string) (ok, once bool)
	// Ask has the operator asked about a host that no rule allows an agent, waits as long as was decided for the agent,
	// and reports whether to decide again. It may be nil.
	Ask func(ctx context.Context, c Caller, target string) (again bool)
	// Rates are those of a caller now; [DefaultRates] when nil.
	Rates func(Caller) Rates
	// Keys knows tokens. Without it a token is refused wherever one is presented.
	Keys Keys
	// Observer counts; nil counts nothing.
	Observer Observer
	// Roots are the authorities that are trusted when the gateway itself speaks TLS; the system's when nil.
	Roots *x509.CertPool
	// Local answers requests to the gateway itself that come from an agent's jail; [CallerOf] says whose. Nil answers
	// none. It has no part of the limits but the number of connections, and bounds bodies and time by itself.
	Local http.Handler
	// Unknown is asked about an address that is not admitted, before it is refused: it may be that of a jail that has
	// just been started. It admits the address if it is, says whether it is admitted now, and must return soon after its
	// context ends. Nil refuses at once.
	Unknown func(ctx context.Context, addr netip.Addr) bool
	// Quotas and Connections bound the open connections of a tenant and of an agent, and of all callers: see package quota. The
	// zero values are those of a configuration that says nothing, and [DefaultConnections]. Tenants is how many tenants there
	// are now; nil is one.
	Quotas      config.Quotas
	Connections int
	Tenants     func() int
	// Logger gets one line per decision, at its end. Nil discards them.
	Logger *slog.Logger
	// Now is the clock; time.Now when nil.
	Now    func() time.Time
	Limits Limits
}

// DefaultConnections is how many connections all callers may have open. Each takes two descriptors, with that to its host.
const DefaultConnections = 16384

// Limits bound what one caller can hold. All are required.
type Limits struct {
	// ConnectionsPerCaller bounds the open connections of one source address.
	// Those beyond are answered with 429; beyond twice that, closed.
	ConnectionsPerCaller int
	// HeaderBytes bounds the header of one request.
	HeaderBytes int
	// HeaderTimeout bounds the arrival of a request's header.
	HeaderTimeout time.Duration
	// BodyTimeout bounds the wait for the next part of a request's body, and for
	// the next request on a connection.
	BodyTimeout time.Duration
	// FirstBytesTimeout bounds the wait for the first bytes of a tunnel.
	FirstBytesTimeout time.Duration
	// ResolveTimeout and ConnectTimeout bound one request's way to its host.
	ResolveTimeout time.Duration
	ConnectTimeout time.Duration
	// IdleTimeout ends what was let through and has not moved a byte for so long:
	// tunnels, streams, answers that are waited for. Those whose other end is
	// gone are found much earlier, by TCP.
	IdleTimeout time.Duration
	// Lifetime ends tunnels and requests however busy they are.
	Lifetime time.Duration
}

// DefaultLimits returns the limits that suit a browser or an agent.
func DefaultLimits() Limits {
	return Limits{
		ConnectionsPerCaller: 256,
		HeaderBytes:          64 << 10,
		HeaderTimeout:        30 * time.Second,
		FirstBytesTimeout:    10 * time.Second,
		ResolveTimeout:       10 * time.Second,
		ConnectTimeout:       10 * time.Second,
		BodyTimeout:          60 * time.Second,
		IdleTimeout:          time.Hour,
		Lifetime:             12 * time.Hour,
	}
}

// Validate reports everything that is wrong with the limits at once.
func (l Limits) Validate() error {
	var errs []error
	for _, n := range []struct {
		name  string
		value int
	}{{"connections per caller", l.ConnectionsPerCaller}, {"header bytes", l.HeaderBytes}} {
		if n.value <= 0 {
			errs = append(errs, fmt.Errorf("%s: %d is not positive", n.name, n.value))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"header timeout", l.HeaderTimeout}, {"body timeout", l.BodyTimeout}, {"first bytes timeout", l.FirstBytesTimeout}, {"resolve timeout", l.ResolveTimeout},
		{"connect timeout", l.ConnectTimeout}, {"idle timeout", l.IdleTimeout}, {"lifetime", l.Lifetime},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s: %s is not positive", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// Gateway is the proxy. Its methods may be called from several goroutines.
type Gateway struct {
	resolver Resolver
	networks func() *netguard.Networks
	records  Records
	policy   func(Caller) *policy.Compiled
	used     func(ctx context.Context, rule string) (ok, once bool)
	ask      func(ctx context.Context, c Caller, target string) bool
	rates    func(Caller) Rates
	keys     Keys
	observer Observer
	quotas   quotas
	places   places
	lives    context.Context // ends with Close
	end      context.CancelFunc
	local    http.Handler
	log      *slog.Logger
	now      func() time.Time
	limits   Limits
	dial     dialFunc

	server         *http.Server
	proxy          *httputil.ReverseProxy
	client         *http.Transport // makes connections that speak HTTP; see upstream.go
	unknownCallers *unknownCallers // addresses that are not admitted and that Unknown is asked about; nil without Unknown
	tunnels        *handoff        // plain HTTP found inside tunnels, on its way to server
	buffers        *bufferPool
	serving        sync.WaitGroup // accept loops
	serves         sync.WaitGroup // connections that server holds
	start          time.Time
	handover       sync.Once
	base           netguard.Guard // the configuration's; never changed
	underWay       sync.Map       // the exchanges that are reviewed: each *exchange, with nothing

	mu        sync.Mutex     // guards what follows
	guard     netguard.Guard // base, with the sockets that are served now
	callers   map[netip.Addr]*caller
	listeners map[*listener]struct{}
	closed    bool
}

// New makes a gateway that has admitted no address and does not listen.
func New(c Config) (*Gateway, error) {
	errs := []error{c.Limits.Validate(), c.Guard.Validate()}
	if c.Records == nil {
		errs = append(errs, errors.New("records are missing"))
	}
	if c.Networks == nil {
		errs = append(errs, errors.New("the networks of the host are missing"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("configure gateway: %w", err)
	}
	g := &Gateway{
		resolver:  c.Resolver,
		networks:  c.Networks,
		records:   c.Records,
		policy:    c.Policy,
		used:      c.Used,
		ask:       c.Ask,
		rates:     c.Rates,
		keys:      c.Keys,
		observer:  c.Observer,
		local:     c.Local,
		log:       c.Logger,
		now:       c.Now,
		limits:    c.Limits,
		places:    newPlaces(c),
		dial:      dialChecked,
		buffers:   newBufferPool(),
		base:      c.Guard.Clone(),
		guard:     c.Guard.Clone(),
		callers:   make(map[netip.Addr]*caller),
		listeners: make(map[*listener]struct{}),
	}
	if g.resolver == nil {
		g.resolver = &net.Resolver{PreferGo: true}
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.now == nil {
		g.now = time.Now
	}
	if g.rates == nil {
		g.rates = func(Caller) Rates { return DefaultRates() }
	}
	if g.observer == nil {
		g.observer = nobody{}
	}
	if c.Unknown != nil {
		g.unknownCallers = newUnknownCallers(c.Unknown, g.now)
	}
	g.start = g.now()
	g.client = g.newClient(c.Roots)
	g.lives, g.end = context.WithCancel(context.Background())
	g.tunnels = newHandoff()
	g.proxy = g.newProxy()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	g.server = &http.Server{
		Handler:                      http.HandlerFunc(g.handle),
		ReadHeaderTimeout:            c.Limits.HeaderTimeout,
		IdleTimeout:                  c.Limits.BodyTimeout,
		MaxHeaderBytes:               c.Limits.HeaderBytes,
		DisableGeneralOptionsHandler: true,
		Protocols:                    &protocols,
		ErrorLog:                     slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		ConnContext:                  withConn,
		ConnState:                    g.countServed,
	}
	return g, nil
}

// Serve accepts connections until ctx ends or the gateway is closed, then closes
// the listener and the connections that came through it, and returns nil. It may
// run for several listeners at once. The listener must be a TCP listener.
func (g *Gateway) Serve(ctx context.Context, ln net.Listener) error {
	own, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		return errors.Join(fmt.Errorf("serve gateway on %s: not a TCP address", ln.Addr()), ln.Close())
	}
	l := newListener(g, ln, unmapped(own))
	if !g.addListener(l) {
		return errors.Join(errors.New("serve gateway: it is closed"), ln.Close())
	}
	defer g.serving.Done()
	g.handover.Do(func() {
		g.serving.Go(func() {
			// Ends with http.ErrServerClosed, in Close; there is nothing to report.
			_ = g.server.Serve(g.tunnels)
		})
		g.serving.Go(func() { g.review(g.lives) })
	})
	stop := context.AfterFunc(ctx, l.shut)
	err := g.server.Serve(l)
	stop()
	l.shut()
	g.removeListener(l)
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return fmt.Errorf("serve gateway on %s: %w", ln.Addr(), err)
}

func (g *Gateway) addListener(l *listener) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.serving.Add(1)
	g.listeners[l] = struct{}{}
	g.renewGuard()
	return true
}

func (g *Gateway) removeListener(l *listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.listeners, l)
	g.renewGuard()
}

// renewGuard is called with mu held. It makes a new value, because requests
// under way read the old one.
func (g *Gateway) renewGuard() {
	guard := g.base.Clone()
	for l := range g.listeners {
		guard.Self = append(guard.Self, l.own)
	}
	g.guard = guard
}

// currentGuard returns the guard with the sockets that are served now, and the networks that the host has now.
func (g *Gateway) currentGuard() netguard.Guard {
	g.mu.Lock()
	guard := g.guard
	g.mu.Unlock()
	guard.Networks = g.networks()
	return guard
}

// Close forgets every caller, closes every connection, and returns when all of
// them are closed and Serve has returned. It may be called again.
func (g *Gateway) Close() error {
	g.mu.Lock()
	g.closed = true
	callers := make([]*caller, 0, len(g.callers))
	for addr, who := range g.callers {
		callers = append(callers, who)
		delete(g.callers, addr)
	}
	g.mu.Unlock()
	g.end()
	err := g.server.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // the listener was closed by the end of its Serve
	}
	for _, who := range callers {
		who.cut()
	}
	g.serving.Wait()
	for _, who := range callers {
		who.work.Wait()
	}
	g.serves.Wait()
	if err != nil {
		return fmt.Errorf("close gateway: %w", err)
	}
	return nil
}

// countServed follows the connections that the HTTP server reads from, so that
// Close can wait for the last of its goroutines.
func (g *Gateway) countServed(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		g.serves.Add(1)
	case http.StateHijacked, http.StateClosed:
		g.serves.Done()
	}
}

var _ io.Closer = (*Gateway)(nil)
