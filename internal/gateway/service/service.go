// Package service is the reverse route of services for unmodified tools: a request to /svc/NAME/rest goes to the
// service's base URL with /rest, and with the service's credential, which the tool and its jail never have.
//
// A service allows methods and paths. A credential that a tool sends itself is left out, and so are cookies in
// both directions: all services share one address here, and what one of them sets the next one would get. Answers
// stream, are scrubbed as the service says, and redirects within the service stay in it. Connections cannot be upgraded.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access"
	"github.com/clawjail/clawjail/internal/gateway/inject"
	"github.com/clawjail/clawjail/internal/gateway/scrub"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// Prefix is where services are.
const Prefix = "/svc/"

const (
	// largestBody bounds what a tool sends, in bytes: a push of a large repository.
	largestBody = 2 << 30
	// largestAnswer bounds an answer that had to be decompressed; others have no bound but time.
	largestAnswer = 2 << 30
	// longestQuery bounds the query, as the header bounds the rest.
	longestQuery = 32 << 10
)

// Options of a Handler. All are required, except Used.
type Options = access.Options

// Handler answers everything below /svc/.
type Handler struct {
	Options
	views   func(gateway.Caller) access.View
	proxy   *httputil.ReverseProxy
	largest int64 // largestBody; tests set less
}

// New makes a Handler.
func New(o Options) (*Handler, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("configure services: %w", err)
	}
	h := &Handler{Options: o, largest: largestBody, views: func(c gateway.Caller) access.View { return o.Views(c) }}
	h.proxy = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      transport{o.Gateway},
		FlushInterval:  -1,
		ModifyResponse: func(resp *http.Response) error { return requestOf(resp.Request.Context()).receive(resp) },
		ErrorHandler:   h.answerError,
		// ReverseProxy logs only broken copies; they belong at debug level.
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return h, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w, done := access.Patient(w, r, h.Now)
	defer done()
	q, refusal := h.plan(r)
	if refusal != nil {
		gateway.Refuse(w, r, refusal)
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &limitedBody{ReadCloser: http.MaxBytesReader(w, r.Body, h.largest), request: q}
	}
	h.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, q)))
}

// request is one proxied request.
type request struct {
	caller     gateway.Caller
	service    egress.Service
	permit     func() *policy.Compiled // of the service as it is now
	credential *access.Credential
	base, url  *url.URL // of the service, and of this request
	host       string   // of the gateway, as the tool wrote it
	method     string
	scrub      scrub.Options
	tooLarge   atomic.Bool
}

type requestKey struct{}

func requestOf(ctx context.Context) *request {
	q, ok := ctx.Value(requestKey{}).(*request)
	if !ok {
		panic(http.ErrAbortHandler) // a request that did not come through ServeHTTP
	}
	return q
}

// plan decides everything that can be decided before the request is sent.
func (h *Handler) plan(r *http.Request) (*request, *problem.Error) {
	caller, refusal := access.Admit(r)
	if refusal != nil {
		return nil, refusal
	}
	if refusal := h.Gateway.Take(caller, gateway.SurfaceService); refusal != nil {
		return nil, refusal
	}
	name, rest, ok := splitPath(r.URL.EscapedPath())
	if !ok {
		return nil, unknown("")
	}
	found, _, ok := h.views(caller).Service(name)
	if !ok {
		return nil, unknown(name)
	}
	method, refusal := access.Method(r.Method)
	if refusal != nil {
		return nil, refusal
	}
	if r.Header["Upgrade"] != nil {
		return nil, problem.New(problem.Unsupported, "Do not retry: use plain HTTP requests; WebSockets go through the proxy, without a credential.",
			"connections to services cannot be upgraded")
	}
	if r.ContentLength > h.largest {
		return nil, tooLarge(h.largest)
	}
	q := &request{
		caller: caller, service: found, host: r.Host, method: method,
		scrub: scrub.Options{Scrub: found.Scrub, Compressed: found.Compressed, MaxDecoded: largestAnswer},
	}
	q.permit = func() *policy.Compiled {
		_, permit, _ := h.views(caller).Service(name)
		return permit
	}
	switch {
	case found.Inject.Type == egress.InjectNone:
		q.scrub.Scrub = egress.ScrubOff // there is nothing to find, and parts of answers may be asked for
	case found.Scrub == egress.ScrubOff:
		q.scrub.Scrub = egress.ScrubRedact // an operator may use a secret, and is not to see it
	}
	if err := inject.Check(found.Inject); err != nil {
		return nil, misconfigured(name, err)
	}
	secret := found.Secret
	if secret == "" {
		secret = found.Name
	}
	q.credential = access.NewCredential(h.Options, caller, secret, found.Inject)
	if q.base, refusal = access.Target(found.BaseURL); refusal != nil {
		return nil, misconfigured(name, refusal)
	}
	return q, q.setURL(rest, r.URL.RawQuery)
}

// splitPath cuts /svc/NAME/rest; rest begins with its slash, or is empty.
func splitPath(path string) (name, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, Prefix)
	if !ok {
		return "", "", false
	}
	if at := strings.IndexByte(path, '/'); at >= 0 {
		path, rest = path[:at], path[at:]
	}
	return path, rest, access.ServiceName(path)
}

// setURL builds the upstream URL.
func (q *request) setURL(rest, query string) *problem.Error {
	if rest != "" {
		var refusal *problem.Error
		if rest, refusal = q.plainPath(rest); refusal != nil {
			return refusal
		}
	}
	if len(query) > longestQuery {
		return problem.New(problem.TooLarge, "Send a shorter query.", "the query is longer than %d bytes", longestQuery)
	}
	path := strings.TrimSuffix(q.base.EscapedPath(), "/") + rest
	if path == "" {
		path = "/"
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return problem.New(problem.PathDenied, "Write every % as %25.", "the path of the URL can be read in two ways")
	}
	u := *q.base
	u.Path, u.RawPath, u.RawQuery = plain, path, inject.PlainQuery(query)
	if _, refusal := q.plainPath(u.EscapedPath()); refusal != nil {
		return refusal
	}
	q.url = &u
	return nil
}

// shown is the path as it is recorded: with the placeholder of the credential as the operator wrote it.
func (q *request) shown() string {
	if q.service.Inject.Type != egress.InjectPath {
		return ""
	}
	return strings.Replace(q.url.EscapedPath(), egress.EscapedPlaceholder, egress.Placeholder, 1)
}

// plainPath is access.PlainPath for this service.
func (q *request) plainPath(path string) (string, *problem.Error) {
	sent, refusal := access.PlainPath(path, q.slashes())
	if refusal == nil || q.slashes() {
		return sent, refusal
	}
	if _, ok := policy.Canonical(path, true); ok {
		return "", problem.New(problem.PathDenied, "Do not retry: an operator can allow it for the service: --encoded-slash allow.",
			"the path has an encoded slash (%%2F), which the service %s does not allow", q.service.Name)
	}
	return "", refusal
}

// slashes says whether the service allows %2F inside a path segment.
func (q *request) slashes() bool { return q.service.EncodedSlash == egress.EncodedSlashAllow }

func unknown(name string) *problem.Error {
	message := "the path names no service"
	if name != "" {
		message = fmt.Sprintf("this agent has no service of the name %s", name)
	}
	return problem.New(problem.ServiceUnknown,
		`Do not retry: if the task needs it, ask once: POST /v1/access-requests {"kind": "service", "target": "NAME", "reason": "…"}.`, "%s", message)
}

func misconfigured(name string, err error) *problem.Error {
	return problem.Wrap(err, problem.UpstreamFailed, "Do not retry: the operator has to correct the service.", "the service %s is misconfigured", name)
}

func tooLarge(limit int64) *problem.Error {
	return problem.New(problem.TooLarge, "Do not retry: send less at once.", "the request is larger than %d bytes", limit)
}

// rewrite makes the request that is sent. ReverseProxy has removed hop-by-hop headers.
func rewrite(pr *httputil.ProxyRequest) {
	q := requestOf(pr.In.Context())
	out := pr.Out
	target := *q.url
	out.URL, out.Host, out.Method = &target, "", q.method
	// Trailers of requests are not passed on: they would arrive after what was decided about headers.
	out.Trailer = nil
	inject.Hop(out.Header)
	inject.DropCredentials(out.Header)
	for _, name := range []string{"Origin", "Referer", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest", "Sec-Fetch-User"} {
		out.Header.Del(name)
	}
	if err := inject.Clear(out, q.service.Inject); err != nil {
		panic(http.ErrAbortHandler) // it was checked before
	}
	if _, named := out.Header["User-Agent"]; !named {
		out.Header.Set("User-Agent", "clawjail")
	}
	scrub.PrepareRequest(out.Header, q.scrub)
}

// transport sends requests through the gateway.
type transport struct{ gateway access.Sender }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	q := requestOf(r.Context())
	resp, refusal := t.gateway.Send(r.Context(), gateway.OutboundRequest{
		Caller: q.caller, Surface: gateway.SurfaceService, Permit: q.permit, Service: q.service.Name,
		Path: q.shown(), Credential: q.credential.Needed(), EncodedSlash: q.slashes(), Inject: q.credential.Into(r.Context()),
	}, r)
	if refusal != nil {
		return nil, refusal
	}
	// ReverseProxy reads our request from the context of this one. The one that was sent has the credential in it.
	resp.Request = r
	return resp, nil
}

// answerError answers a request that got no usable response.
func (h *Handler) answerError(w http.ResponseWriter, r *http.Request, err error) {
	q := requestOf(r.Context())
	p, ok := problem.As(err)
	switch {
	case q.tooLarge.Load():
		p = tooLarge(h.largest)
	case q.credential.Failure() != nil:
		p = q.credential.Failure()
	case r.Context().Err() != nil && (!ok || p.Code != problem.Timeout):
		p = problem.Wrap(err, problem.Canceled, "", "the client left before the answer")
	case !ok:
		p = problem.Wrap(err, problem.UpstreamFailed, "The gateway allowed the request; the fault is with the service. One later retry is reasonable.",
			"the service %s did not give a usable answer", q.service.Name)
	case access.Decided(p):
		denied := problem.Wrap(p, p.Code, "Do not retry: this is policy, not an outage. Ask the operator if the task needs it.",
			"the service %s does not allow %s %s", q.service.Name, q.method, Prefix+q.service.Name+q.below(q.url.EscapedPath()))
		denied.Details = p.Details
		p = denied
	}
	gateway.Refuse(w, r, p)
}

// limitedBody remembers that a body was too large.
type limitedBody struct {
	io.ReadCloser
	request *request
}

// Read implements io.Reader.
func (b *limitedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	var over *http.MaxBytesError
	if errors.As(err, &over) {
		b.request.tooLarge.Store(true)
	}
	return n, err
}
