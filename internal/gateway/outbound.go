package gateway

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// OutboundRequest is a request that the gateway makes itself because a caller asked for it on one of the surfaces that know what
// they carry: execute, service routes, model endpoints.
type OutboundRequest struct {
	Caller  Caller
	Surface Surface
	// Permit returns what decides now. It is asked again every second while the request is under way, which ends when that denies it,
	// and must return at once. Nil denies, and so does a nil result.
	Permit func() *policy.Compiled
	// Service names what is used, for the record: a service, a provider. Credential says whether one is injected.
	Service    string
	Credential bool
	// Path is recorded in place of the request's, where that is to be read in another form. Empty: as the request has it.
	Path string
	// EncodedSlash says that the upstream takes an encoded slash in a path for a part of its segment; see [policy.Canonical].
	EncodedSlash bool
	// Inject puts the credential into the request, once every check has passed, the intent is on record and the
	// connection is open. Nil puts nothing. It may be called again, for another connection.
	Inject func(*http.Request) error
	// HeaderTimeout bounds the wait for the header of the answer; IdleTimeout ends what has not moved a byte for so
	// long, Lifetime everything. Zero means the gateway's own.
	HeaderTimeout, IdleTimeout, Lifetime time.Duration
}

// Send takes a request through every step of the gateway: policy, resolve, netguard, record, dial. It does not follow
// redirects, and takes nothing from the caller's rate: see [Gateway.Take]. r has an absolute http or https URL; its Host is
// sent as the URL has it, and hop-by-hop fields are not sent. The caller closes the body of the answer, which also ends
// the record. A refusal of the gateway itself is an error whose problem code says why; an answer of the upstream is none,
// whatever its status.
func (g *Gateway) Send(ctx context.Context, e OutboundRequest, r *http.Request) (*http.Response, *problem.Error) {
	onRecord(ctx)
	path := sentPath(r.URL)
	x := g.newExchange(g.errandCaller(ctx, e.Caller), e.Surface, r.Method, cmp.Or(e.Path, path))
	x.errand, x.Service, x.Credential, x.encodedSlash = e.Permit, e.Service, e.Credential, e.EncodedSlash
	if x.errand != nil {
		x.permit = x.errand()
	}
	x.hidden = e.Path != ""
	resp, refusal := x.send(ctx, e.within(g.limits), r, path)
	if refusal != nil {
		x.finish(context.WithoutCancel(ctx))
		return nil, refusal
	}
	return resp, nil
}

func (e OutboundRequest) within(l Limits) OutboundRequest {
	if e.HeaderTimeout <= 0 {
		e.HeaderTimeout = l.IdleTimeout
	}
	if e.IdleTimeout <= 0 {
		e.IdleTimeout = l.IdleTimeout
	}
	if e.Lifetime <= 0 {
		e.Lifetime = l.Lifetime
	}
	return e
}

// soils says whether a connection that a request was sent on is good for no other one: the agent wrote its body, which a
// server that does not read bodies takes for the beginning of the next request, and that one will have a credential. The
// bodies of requests to models are JSON objects, with which no request begins.
func (e OutboundRequest) soils(r *http.Request) bool {
	return e.Credential && e.Surface != SurfaceLLM && r.Body != nil && r.Body != http.NoBody
}

// errandCaller is the jail that the request came from, with its connections. An agent outside of all jails gets one for
// this request, which keeps nothing.
func (g *Gateway) errandCaller(ctx context.Context, c Caller) *caller {
	if who, ok := ctx.Value(jailKey{}).(*caller); ok && who.Agent == c.Agent && who.Jail == c.Jail {
		return who
	}
	who := &caller{Caller: c}
	who.idle.close()
	return who
}

func (x *exchange) send(ctx context.Context, e OutboundRequest, r *http.Request, path string) (*http.Response, *problem.Error) {
	to, err := hostport.FromURL(r.URL)
	scheme := policy.Scheme(r.URL.Scheme)
	if err == nil && scheme != policy.HTTP && scheme != policy.HTTPS {
		err = hostport.ErrURL
	}
	if err != nil {
		return nil, x.refused(ctx, badHost(err))
	}
	if refusal := x.admit(ctx, to, path, scheme); refusal != nil {
		return nil, x.refused(ctx, refusal)
	}
	u, refusal := x.reach(ctx, to, r.URL.Scheme, replayable(r))
	if refusal != nil {
		return nil, x.refused(ctx, refusal)
	}
	within, cancel := context.WithCancel(ctx)
	under := &underway{u: u}
	stop := x.watch(e.IdleTimeout, e.Lifetime, func() {
		cancel()
		under.close()
	})
	end := func(whole bool) {
		stop()
		if u := under.current(); whole && within.Err() == nil && !e.soils(r) {
			x.who.idle.put(u, x.gateway.now())
		} else {
			u.close()
		}
		cancel()
		x.finish(context.WithoutCancel(ctx))
	}
	resp, err := x.exchange(within, e, r, to, under)
	if err != nil {
		p, ok := err.(*problem.Error)
		if ok {
			x.failure, x.err = p.Code, p.Err
		} else {
			p = x.broken(err, within.Err() != nil, ctx.Err() != nil)
		}
		end(false)
		return nil, p
	}
	x.status = resp.StatusCode
	dropHops(resp.Header)
	dropOwn(resp.Header)
	withoutOwnTrailers(resp)
	resp.Body = &errandBody{ReadCloser: resp.Body, stop: stop, end: end, whole: resp.Body == http.NoBody, exchange: x}
	return resp, nil
}

// exchange sends the request, a second time where the connection was one that the server had closed.
func (x *exchange) exchange(ctx context.Context, e OutboundRequest, r *http.Request, to hostport.Endpoint, under *underway) (*http.Response, error) {
	u := under.current()
	out, err := outgoing(ctx, e, r, to)
	if err != nil {
		return nil, err
	}
	resp, err := u.within(e.HeaderTimeout, out)
	if err == nil || !u.reused || !replayable(r) || ctx.Err() != nil {
		return resp, err
	}
	next, refusal := x.again(ctx, to, u.key)
	if refusal != nil {
		return nil, refusal
	}
	under.use(next)
	if out, err = outgoing(ctx, e, r, to); err != nil {
		return nil, err
	}
	return next.within(e.HeaderTimeout, out)
}

// outgoing makes the request that leaves, with the credential in it.
func outgoing(ctx context.Context, e OutboundRequest, r *http.Request, to hostport.Endpoint) (*http.Request, error) {
	out := r.Clone(ctx)
	out.URL.User, out.URL.Fragment, out.URL.RawFragment = nil, "", ""
	out.URL.Host, out.Host = to.String(), to.HostHeader(r.URL.Scheme)
	out.RequestURI, out.Close = "", false
	dropHops(out.Header)
	for name := range out.Header {
		if strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "X-Forwarded-") {
			delete(out.Header, name)
		}
	}
	out.Header.Del("Forwarded")
	out.Header.Del("Via")
	if e.Inject != nil {
		if err := e.Inject(out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// dropHops removes the fields that are for one connection (RFC 9110 §7.6.1), also those that it names itself.
func dropHops(h http.Header) {
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); httpguts.ValidHeaderFieldName(name) {
				h.Del(name)
			}
		}
	}
	for _, name := range []string{
		"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	} {
		h.Del(name)
	}
}

// underway is the connection of a request, which may be exchanged for another.
type underway struct {
	mu     sync.Mutex // guards what follows
	u      *upstream
	closed bool
}

func (w *underway) current() *upstream {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.u
}

func (w *underway) use(u *upstream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.u = u
	if w.closed {
		u.close()
	}
}

func (w *underway) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.u.close()
}

// errandBody ends an errand when it is closed.
type errandBody struct {
	io.ReadCloser
	exchange *exchange
	stop     func() // ends the review
	end      func(whole bool)
	whole    bool // read to its end
	once     sync.Once
}

// Read implements io.Reader.
func (b *errandBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	if err == io.EOF {
		b.whole = true
		b.stop() // what has come whole was not denied
		return n, err
	}
	if p := b.exchange.deniedSince(err); p != nil {
		return n, p
	}
	if b.exchange.Credential {
		err = quiet{err}
	}
	return n, err
}

// Close implements io.Closer.
func (b *errandBody) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(func() { b.end(b.whole) })
	return err
}

// quiet is an error about an answer to a request with a credential. What Go says about one that is no HTTP quotes it, and it
// may repeat the request.
type quiet struct{ error }

// Error says what can be said without the answer.
func (q quiet) Error() string {
	var network *net.OpError
	if errors.As(q.error, &network) {
		return network.Error()
	}
	for _, known := range []error{io.ErrUnexpectedEOF, io.EOF, os.ErrDeadlineExceeded, context.Canceled, context.DeadlineExceeded, net.ErrClosed} {
		if errors.Is(q.error, known) {
			return known.Error()
		}
	}
	return "the answer is no HTTP"
}

// Unwrap returns what Go says, for those who look at its kind.
func (q quiet) Unwrap() error { return q.error }

// RoundTripper is Send for packages that want one, such as httputil.ReverseProxy. Its errors are *problem.Error.
func (g *Gateway) RoundTripper(e OutboundRequest) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, refusal := g.Send(r.Context(), e, r)
		if refusal != nil {
			return nil, refusal
		}
		return resp, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// WithCaller returns a context in which [CallerOf] finds the caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Refuse answers with a problem: JSON (RFC 9457), or a small page for a browser that shows it to a person. A detail
// retry_after in seconds becomes Retry-After. The header Clawjail-Refusal holds the code: no upstream's answer has it, so
// a status of the gateway's and one of an upstream's cannot be confused.
func Refuse(w http.ResponseWriter, r *http.Request, p *problem.Error) {
	NoteRefusal(r.Context(), p)
	refuse(w, r, p)
}
