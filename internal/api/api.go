// Package api is the control API: sessions, accounts, grants, keys and the audit log over HTTP, for programs and for the
// command line.
//
// It translates and decides nothing: what may be done, and by whom, is decided by the services behind it, which are told
// who asks. It adds the checks of every request:
//
//   - Every request needs a key in Authorization: Bearer or in X-Admin-Key, also one for a path that does not exist. Only
//     /v1/health, /v1/ready and /openapi.json answer without it, and the console, which asks by itself. A request ends with its key. A token of one session does there
//     what its scope says; DevTools clients and live views may send it in the address.
//   - A web page cannot use it: requests with a foreign Host, Origin or Sec-Fetch-Site are refused before the key is
//     looked at, so DNS rebinding and cross-site requests end there.
//   - Bodies are JSON of at most 1 MiB; one with cookies may have 33 MiB, from those who may store some, and a file 32 MiB.
//     Unknown and doubled keys, and anything after the end, are errors with a position. Unknown query parameters are
//     errors too.
//   - Errors are application/problem+json (RFC 9457) with the members code, hint, details and errors. The text of an error without a code
//     is in the log only. The content of a body is in neither.
//
// The API describes itself at /openapi.json.
package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// Sessions opens and uses browsers. *session.Service is one.
type Sessions interface {
	op.Sessions
	// Drive does something with a session's browser.
	Drive(ctx context.Context, by identity.Principal, id string, op browser.Operation) (any, error)
	// Devtools says what browser a DevTools client would attach to, and Attach adds one.
	Devtools(ctx context.Context, by identity.Principal, id string) (browser.Version, error)
	Attach(ctx context.Context, by identity.Principal, id string) (session.Devtools, error)
	// IssueToken makes a token that is good for one session, and Redeem says who holds one.
	IssueToken(ctx context.Context, by identity.Principal, id string, scope session.Scope, life time.Duration) (session.Token, error)
	Redeem(ctx context.Context, presented string) (identity.Principal, error)
	// Watch adds somebody who sees a session live, and steers it while they have it in hand.
	Watch(ctx context.Context, by identity.Principal, id string) (*session.Live, error)
	Thumbnail(ctx context.Context, by identity.Principal, id string) ([]byte, time.Time, error)
	// OpenRefresh opens a session in which a person logs in to a site, and Seen says what it has seen.
	OpenRefresh(ctx context.Context, by identity.Principal, r session.RefreshRequest) (session.Session, error)
	Seen(ctx context.Context, by identity.Principal, id string) (session.Seen, error)
	Recorded(ctx context.Context, by identity.Principal, id string, number int) ([]byte, string, error)
	// WriteRecording writes what was recorded as one page of HTML. Nothing is written when there is an error before it.
	WriteRecording(ctx context.Context, by identity.Principal, id string, w io.Writer) error
	Status() session.Status
	// Ready is why no sessions are opened here; nil when they are.
	Ready() error
}

// Options configure an API. Sessions, Identity, Credentials, Egress, Audit, Rows, Verify and Host are required.
type Options struct {
	Sessions    Sessions
	Identity    Identity
	Credentials Credentials
	Egress      op.Egress
	Audit       AuditLog
	// Agents keeps the jails of agents. Nil serves nothing about them; agents are identities alone then.
	Agents agent.Agents
	// Tasks reaches goals. Nil serves nothing about them.
	Tasks Tasks
	// Servers are the MCP servers in jails. Nil serves nothing about them.
	Servers op.Servers
	// Nodes are the control planes of the database.
	Nodes op.Nodes
	// Status says how everything is doing. Nil serves nothing about it.
	Status Statuses
	// SignIn knows who is signed in to the console. Nil serves nothing about it.
	SignIn SignIn
	// Rows are the whole audit log, for an export. A store.Store has them.
	Rows audit.Rows
	// Verify compares the audit log with its checkpoints.
	Verify func(ctx context.Context) (audit.Report, error)
	// Host returns what the host daemon says of itself, or an error while it does not answer.
	Host func(ctx context.Context) (HostInfo, error)
	// MCP serves /mcp, to callers whom [Caller] knows. Nil serves nothing there.
	MCP http.Handler
	// Console serves people: /, /console and everything below it. It knows them by itself. The contexts of its WebSockets and
	// streams of events end with the server. Nil serves nothing there.
	Console http.Handler
	// Surfaces serve agents what the gateway does for them. Nil serves nothing.
	Surfaces Surfaces
	// Metrics serves /metrics, to admins of all tenants, and with OpenMetrics to everybody. Nil serves nothing there.
	Metrics     http.Handler
	OpenMetrics bool
	// Peers are the other control planes of the database. Nil forwards nothing.
	Peers Peers
	// AgentNode is the one that has the jail of an agent and can be asked; empty where that is this one, or nobody.
	AgentNode func(ctx context.Context, tenant, name string) (node string, err error)
	// Version is that of the program.
	Version string
	// Listen is the configured address: a Host header with it is accepted, beside loopback names and addresses and the
	// address that the connection came to.
	Listen netip.AddrPort
	// OwnName reports whether a host name is the server's, as its certificate says. May be nil.
	OwnName func(host string) bool
	// BehindProxy are the proxies that may speak for their clients.
	BehindProxy []netip.Prefix
	// PublicName is the host name under which proxies are reached, and PublicPath the path below which they serve this API,
	// as [config.PublicPath] has it. Empty is none.
	PublicName, PublicPath string
	// PublicURL is how people reach the console from other machines. Empty is as whoever asks does.
	PublicURL string
	// Quotas and Tenants divide the memory of requests and answers; see [quota.GateOptions].
	Quotas  config.Quotas
	Tenants func() int

	Log *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// HostInfo is what the host daemon says of itself.
type HostInfo struct {
	Installation string `json:"installation" doc:"id of this installation: four characters in the name of everything that it makes"`
	Subnet       string `json:"subnet" doc:"the network of the jails"`
	Gateway      string `json:"gateway" doc:"the only address that a jail can reach"`
	Jails        int    `json:"jails"`
}

const (
	// maxBody bounds a request's body, maxJar one with cookies from somebody who may store them.
	maxBody = control.MaxBody
	maxJar  = cookies.MaxBytes + maxBody
	// maxHeader bounds a request's header.
	maxHeader = 64 << 10
	// headerTimeout and idleTimeout bound slow and silent connections; bodyTimeout and jarTimeout the arrival of a body.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	bodyTimeout   = 30 * time.Second
	jarTimeout    = 2 * time.Minute
	// ShutdownGrace is how long requests in flight may take after the end was asked for.
	ShutdownGrace = 15 * time.Second
)

// API is the control API.
type API struct {
	Options
	handler http.Handler // all of it, from the outside
	inner   http.Handler // without the path of public_url
	api     huma.API
	mux     *http.ServeMux
	// large are the routes, as patterns of the mux, whose bodies may have more than others.
	large  map[string]large
	meters *meters
	// watching adds a viewer to a session; tests have their own.
	watching func(ctx context.Context, by identity.Principal, id string) (viewing, error)
	away     http.Handler // sends requests to other control planes
	// sockets are the connections that the server has handed over, and must wait for by itself.
	sockets sync.WaitGroup
}

// large says how much a body may have, from whom, and whether it is bytes instead of JSON.
type large struct {
	limit int64
	may   identity.Operation
	raw   bool
}

// New makes an API.
func New(o Options) (*API, error) {
	if o.Sessions == nil || o.Identity == nil || o.Credentials == nil || o.Host == nil {
		return nil, errors.New("control API: sessions, identity, credentials and host are required")
	}
	if o.Egress == nil {
		return nil, errors.New("control API: what is decided about the way out is required")
	}
	if o.Audit == nil || o.Rows == nil || o.Verify == nil {
		return nil, errors.New("control API: the audit log, its rows and how to verify them are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	mux := http.NewServeMux()
	a := &API{Options: o, mux: mux, large: map[string]large{}, meters: newMeters(o)}
	a.watching, a.away = a.watch, a.forwarder()
	a.api = humago.New(mux, a.configuration())
	a.routes()
	if a.MCP != nil {
		mux.Handle(mcpPath, a.MCP)
	}
	if a.Metrics != nil {
		mux.HandleFunc("GET "+metricsPath, a.scrape)
	}
	mux.HandleFunc("/", a.elsewhere(mux))
	a.inner = a.metered(a.throughProxies(a.byOwner(a.byConsole(a.bySurface(a.guard(http.HandlerFunc(a.outsideSurfaces)),
		a.patient(bodyTimeout, a.guard(a.authenticate(a.bounded(mux, a.byAgent(mux))))))))))
	a.handler = Below(a.PublicPath, a.inner)
	return a, nil
}

// configuration is huma's, without what fetches scripts from elsewhere (its pages of documentation).
func (a *API) configuration() huma.Config {
	c := huma.DefaultConfig("clawjail control API", a.Version)
	c.Info.Description = "Jailed browser sessions, and what they may use. Every request needs a key."
	c.DocsPath, c.SchemasPath, c.CreateHooks = "", "", nil
	c.RejectUnknownQueryParameters = true
	c.NoFormatFallback = false
	c.Formats = map[string]huma.Format{"application/json": jsonFormat(), "json": jsonFormat()}
	c.Transformers = []huma.Transformer{a.transform}
	c.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		bearerName: {Type: "http", Scheme: "bearer", Description: "an operator's key, an agent's token, or the content of admin.key"},
		headerName: {Type: "apiKey", In: "header", Name: KeyHeader, Description: "the same, in a header of its own"},
	}
	c.Security = []map[string][]string{{bearerName: {}}, {headerName: {}}}
	// Values that print as [redacted] elsewhere are texts in a body.
	for _, t := range []reflect.Type{reflect.TypeFor[grant.Token](), reflect.TypeFor[secret.Value]()} {
		c.Components.Schemas.RegisterTypeAlias(t, reflect.TypeFor[string]())
	}
	c.Components.Schemas.RegisterTypeAlias(reflect.TypeFor[Jar](), reflect.TypeFor[[]RawCookie]())
	c.Components.Schemas.RegisterTypeAlias(reflect.TypeFor[Origins](), reflect.TypeFor[[]RawOrigin]())
	return c
}

// bearerName and headerName are what the OpenAPI document calls the two places of a key.
const (
	bearerName = "bearer"
	headerName = "adminKey"
)

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// Serve answers requests until ctx ends, then lets those in flight end, for ShutdownGrace at most. It closes the
// listener.
func (a *API) Serve(ctx context.Context, listener net.Listener) error {
	return a.serve(ctx, listener, a)
}

func (a *API) serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler: handler,
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.WithoutCancel(ctx), endingKey{}, ctx)
		},
		ConnContext:       withClientConn,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }() // waited for below, on both ways
	select {
	case err := <-ended:
		return fmt.Errorf("serve the control API on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), ShutdownGrace)
	defer cancel()
	err := server.Shutdown(grace)
	if err != nil {
		err = errors.Join(fmt.Errorf("wait for requests in flight: %w", err), server.Close())
	}
	<-ended // http.ErrServerClosed
	a.sockets.Wait()
	return err
}

// bounded refuses addresses that nothing can be named like, and bodies that are too large or not JSON, before anything
// reads them.
func (a *API) bounded(mux *http.ServeMux, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !cleanPath(r) {
			a.refuse(w, r, problem.New(problem.NotFound, "leave // and dots out of the address; a name or an id in it may be empty",
				"there is nothing at %s", quote(r.URL.Path)))
			return
		}
		if err := plainAddress(r); err != nil {
			a.refuse(w, r, err)
			return
		}
		limit, raw := a.maxBody(mux, r)
		if r.ContentLength > limit {
			a.refuse(w, r, tooLarge(limit))
			return
		}
		// A body that does not say its length may be too large all the same. huma stops one byte later.
		r.Body = http.MaxBytesReader(w, r.Body, limit+1)
		if r.ContentLength != 0 && !raw {
			if !strict.Content(r.Header.Get("Content-Type")) {
				a.refuse(w, r, problem.New(problem.BadRequest, "send Content-Type: application/json", "the body is not JSON"))
				return
			}
			r.Header.Set("Content-Type", "application/json") // huma knows fewer spellings of it
		}
		next.ServeHTTP(w, r)
	})
}

// maxBody is how large the body of a request may be, and whether it is no JSON. Much is read only for somebody whom it
// may serve.
func (a *API) maxBody(mux *http.ServeMux, r *http.Request) (limit int64, raw bool) {
	_, pattern := mux.Handler(r)
	body, ok := a.large[pattern]
	if !ok {
		return maxBody, false
	}
	by := caller(r.Context())
	if identity.CanWith(by, body.may, identity.Object{Tenant: by.TenantOr(""), Agent: by.ID, Session: by.Session}) == nil {
		return body.limit, body.raw
	}
	return maxBody, body.raw
}

// cleanPath says whether a path has no empty part and no dots. A ServeMux answers others with a redirection, which clients
// such as curl take for a success.
func cleanPath(r *http.Request) bool {
	at := r.URL.EscapedPath()
	return strings.HasPrefix(at, "/") && strings.TrimSuffix(at, "/") == strings.TrimSuffix(path.Clean(at), "/")
}

var errOddAddress = problem.New(problem.BadRequest, "leave control characters out, and write UTF-8", "the address has a control character, or is not UTF-8")

// plainAddress refuses a path and a query that are no texts that can be looked up and written down. A parameter that is there twice
// would be read in two ways, by two readers.
func plainAddress(r *http.Request) error {
	plain := func(text string) bool {
		return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || !plain(r.URL.Path) {
		return errOddAddress
	}
	for name, values := range query {
		if !plain(name) || slices.ContainsFunc(values, func(v string) bool { return !plain(v) }) {
			return errOddAddress
		}
		if len(values) > 1 {
			return problem.New(problem.BadRequest, "send it once", "the parameter %s is there %d times", quote(name), len(values))
		}
	}
	return nil
}

func tooLarge(limit int64) error {
	return problem.New(problem.BadRequest, "send less", "the body has more than %d bytes", limit)
}

// elsewhere answers what no route does: 405 where the path exists for another method, else 404.
func (a *API) elsewhere(mux *http.ServeMux) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			probe := r.Clone(r.Context())
			probe.Method = method
			if _, pattern := mux.Handler(probe); pattern != "/" && pattern != "" {
				w.Header().Add("Allow", method)
			}
		}
		if w.Header().Get("Allow") != "" {
			a.write(w, r, withStatus(document(problem.New(problem.BadRequest, "the routes are in /openapi.json",
				"the method %s is not allowed here", quote(r.Method))), http.StatusMethodNotAllowed))
			return
		}
		a.refuse(w, r, problem.New(problem.NotFound, "the routes are in /openapi.json", "there is nothing at %s", quote(r.URL.Path)))
	}
}

// quote shows what a caller has sent, in a message.
func quote(s string) string { return texts.Quote(s, 80) }
