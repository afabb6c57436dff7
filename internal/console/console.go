// Package console is the web console: it shows live what every agent and browser is doing, and lets operators act on them.
//
// It is a face. Its pages are made here, on the server, of what the services answer, and every action is one call of a
// service, which decides, as for the API, who may. It adds the checks of every request:
//
//   - Everybody signs in: with a key, a link that is good once, or a passkey. The cookie is for this path alone, or
//     with TLS for this host, SameSite=Strict and HttpOnly. A request, and whatever stays open, ends with the sign-in and with the key behind it.
//   - Requests that change something come from the console's own pages ([net/http.CrossOriginProtection]).
//   - Pages run no code but the console's own files and are never in a frame (Content-Security-Policy). Words of agents, pages and
//     logs are text wherever they are shown.
//
// Pages work without JavaScript, except what is live. Text that a person types into a browser in a jail is never logged.
package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/task"
)

// Prefix is where the console is.
const Prefix = "/console"

// Options configure a Console. Everything is required that does not say otherwise.
type Options struct {
	Sessions    Sessions
	Identity    Identity
	Credentials Credentials
	Egress      Egress
	// Agents keeps the jails of agents, and Servers are the MCP servers in jails. May be nil.
	Agents  agent.Agents
	Servers op.Servers
	// Tasks are those that are being done in sessions. May be nil.
	Tasks  Tasks
	Audit  api.AuditLog
	Rows   Rows
	Verify func(ctx context.Context) (audit.Report, error)
	SignIn SignIns
	// Health says how the installation is doing, and what in it needs somebody.
	Health Health
	// Config is the configuration, of which the pages show what is no secret.
	Config config.Config
	// BehindProxy are the proxies that may speak for their clients.
	BehindProxy []netip.Prefix
	Version     string

	Log *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Tasks are goals that models reach in browsers. *task.Service is one.
type Tasks interface {
	// Running is the task that is being done in a session, if there is one.
	Running(session string) (task.Progress, bool)
}

// Console is an http.Handler for / and everything below [Prefix].
type Console struct {
	Options
	mux     *http.ServeMux
	handler http.Handler
	pages   pages
	files   *assets
	path    string // before every address, where a proxy serves this below a path
}

// New makes a Console.
func New(o Options) (*Console, error) {
	if o.Sessions == nil || o.Identity == nil || o.Credentials == nil || o.Egress == nil || o.SignIn == nil || o.Health == nil {
		return nil, errors.New("console: sessions, identity, credentials, the way out, sign-ins and how everything is doing are required")
	}
	if o.Audit == nil || o.Rows == nil || o.Verify == nil {
		return nil, errors.New("console: the audit log, its rows and how to verify them are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Console{Options: o, mux: http.NewServeMux(), path: config.PublicPath(o.Config.PublicURL)}
	var err error
	if c.files, err = newAssets(themeOf(o.Config.Console.Accent, o.Config.HostBrowser.Color)); err != nil {
		return nil, err
	}
	if c.pages, err = c.pageTemplates(); err != nil {
		return nil, err
	}
	c.mux.Handle("GET "+Prefix+"/static/", c.files)
	c.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, Prefix+"/", http.StatusSeeOther) })
	c.mux.HandleFunc("GET "+Prefix+"/{$}", c.signedIn(c.overview))
	c.signInRoutes()
	c.overviewRoutes()
	c.sessionRoutes()
	c.refreshRoutes()
	c.agentRoutes()
	c.credentialRoutes()
	c.networkRoutes()
	c.auditRoutes()
	c.settingsRoutes()
	c.mux.HandleFunc(Prefix+"/", c.signedIn(nothingHere))
	c.handler = c.guard(c.mux)
	return c, nil
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// get and post register a page for who is signed in.
func (c *Console) get(path string, handle handler) {
	c.mux.HandleFunc("GET "+Prefix+path, c.signedIn(handle))
}

func (c *Console) post(path string, handle handler) {
	c.mux.HandleFunc("POST "+Prefix+path, c.signedIn(handle))
}
