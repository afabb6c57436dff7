// Package hostserver is the HTTP face of the host browser: the control server, and beside it a DevTools endpoint for
// stock clients.
//
// Both are for programs of the user. They listen on loopback, and for other machines only with TLS and another token
// ([Remote]). They want a token on every request, and refuse what comes from a web page: one that names the server by a
// name of its own (DNS rebinding), and one of another site. Bodies have at most 1 MiB, files 32 MiB.
//
// Errors have the shape of the control contract: error, code, reason, hint, details. Programs read code and reason,
// which are stable, and never the text.
package hostserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/base/keypair"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/browser/host"
	"github.com/clawjail/clawjail/internal/problem"
)

// Name is what the servers call themselves in every answer, so that a client knows whom it has found.
const Name = "clawjail-browser"

const (
	// headerLimit bounds the wait for a request, endLimit for answers that are under way when the server ends.
	headerLimit = 10 * time.Second
	idleLimit   = 2 * time.Minute
	endLimit    = 5 * time.Second
)

// Options of a [Server].
type Options struct {
	Keeper *host.Keeper
	Token  host.Token
	Log    *slog.Logger
	// EndWithBrowser ends the server when somebody stops the browser: one that nobody started by hand.
	EndWithBrowser bool
	// Remote is set when other machines are served besides.
	Remote *Remote
}

// Server is both servers.
type Server struct {
	keeper *host.Keeper
	token  host.Token
	ticket string
	log    *slog.Logger
	brief  bool
	remote *Remote
	cert   *keypair.Pair // of the servers for other machines, nil for those on loopback

	ended   chan struct{} // closed when somebody stopped the browser of a server that ends with it
	end     *sync.Once
	clients *sync.WaitGroup // DevTools clients, which a server's Shutdown does not know
	places  chan struct{}   // one for each of them
}

// New makes a server.
func New(o Options) *Server {
	return &Server{keeper: o.Keeper, token: o.Token, ticket: newTicket(), log: o.Log, brief: o.EndWithBrowser, remote: o.Remote,
		ended: make(chan struct{}), end: new(sync.Once), clients: new(sync.WaitGroup), places: make(chan struct{}, maxClients)}
}

// Serve answers on both listeners until ctx ends or the server is not needed any more. It closes them. The browser is
// the caller's.
func (s *Server) Serve(ctx context.Context, control, devtools net.Listener) error {
	// Requests that wait for the browser end with the server.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	servers := []*http.Server{s.server(ctx, s.Control()), s.server(ctx, s.Devtools())}
	listeners := []net.Listener{control, devtools}
	if s.remote != nil {
		far := s.far()
		servers = append(servers, s.server(ctx, far.Control()), s.server(ctx, far.Devtools()))
		listeners = append(listeners, s.remote.Control, s.remote.Devtools)
	}
	for n, listener := range listeners {
		g.Go(func() error {
			if err := servers[n].Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-s.ended:
		}
		ending, done := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer done()
		var errs []error
		for _, server := range servers {
			if err := server.Shutdown(ending); err != nil {
				errs = append(errs, server.Close()) // clients that still wait for an answer get none
			}
		}
		cancel()
		return errors.Join(errs...)
	})
	err := g.Wait()
	s.clients.Wait()
	return err
}

func (s *Server) server(ctx context.Context, handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit, MaxHeaderBytes: 32 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// Control is the control server.
func (s *Server) Control() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, answer func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			result, err := answer(r)
			if err == nil {
				err = control.Write(w, r, result, mediaOf(r))
			}
			if err != nil {
				s.fail(w, r, err)
			}
		})
	}
	// Only the status is answered by a browser that is switched off.
	enabled := func(answer func(*http.Request) (any, error)) func(*http.Request) (any, error) {
		return func(r *http.Request) (any, error) {
			if err := s.keeper.Enabled(); err != nil {
				return nil, err
			}
			return answer(r)
		}
	}
	handle("GET /{$}", func(*http.Request) (any, error) { return Served{s.keeper.Status(), s.brief}, nil })
	handle("POST /start", enabled(s.start))
	handle("POST /stop", enabled(s.stop))
	handle("GET /doctor", enabled(s.doctor))
	handle("GET /profiles", enabled(s.profiles))
	handle("GET /cdp", enabled(s.endpoint))
	for _, route := range control.Routes() {
		handle(route.Method+" "+route.Path, enabled(func(r *http.Request) (any, error) { return s.drive(route, r) }))
	}
	handle("/", enabled(func(r *http.Request) (any, error) {
		return nil, problem.New(problem.NotFound, "the requests are in the documentation of the host browser",
			"there is no %s %s", cut(r.Method), cut(r.URL.Path))
	}))
	return s.guard(s.authenticated(false, ownProfile(s, mux)))
}

// drive runs an operation.
func (s *Server) drive(route control.Route, r *http.Request) (any, error) {
	op, err := route.Decode(r)
	if err != nil {
		return nil, err
	}
	result, err := s.keeper.Drive(r.Context(), op)
	s.log.Debug("an operation", "tool", op.Tool(), "effect", op.Effect().String(), "code", problem.CodeOf(err))
	return result, err
}

// Served is the answer to a question for the status.
type Served struct {
	host.Status
	// EndsWithBrowser says that a command had started the server, which ends with a stop of the browser.
	EndsWithBrowser bool `json:"serverEndsWithBrowser"`
}

// Started is the answer to a start.
type Started struct {
	OK bool `json:"ok"`
	host.Status
}

func (s *Server) start(r *http.Request) (any, error) {
	var headless *bool
	if query := r.URL.Query(); query.Has("headless") {
		switch query.Get("headless") {
		case "true", "false":
			wish := query.Get("headless") == "true"
			headless = &wish
		default:
			return nil, problem.New(problem.BadRequest, "", `Invalid headless value. Use "true" or "false".`)
		}
	}
	if err := s.keeper.Start(r.Context(), headless); err != nil {
		return nil, err
	}
	return Started{OK: true, Status: s.keeper.Status()}, nil
}

// Stopped is the answer to a stop.
type Stopped struct {
	OK      bool   `json:"ok"`
	Stopped bool   `json:"stopped"` // there was a browser
	Profile string `json:"profile"`
}

func (s *Server) stop(r *http.Request) (any, error) {
	stopped, err := s.keeper.Stop(r.Context())
	if err != nil {
		return nil, err
	}
	if s.brief {
		s.end.Do(func() { close(s.ended) })
	}
	return Stopped{OK: true, Stopped: stopped, Profile: host.ProfileName}, nil
}

func (s *Server) doctor(r *http.Request) (any, error) {
	query := r.URL.Query()
	return s.keeper.Doctor(r.Context(), query.Get("deep") == "true" || query.Get("live") == "true"), nil
}

// Profiles is the answer to a question for profiles: there is one.
type Profiles struct {
	Profiles []Profile `json:"profiles"`
}

// Profile is one profile.
type Profile struct {
	Name      string `json:"name"`
	Driver    string `json:"driver"`
	Color     string `json:"color"`
	CDPPort   int    `json:"cdpPort"`
	Running   bool   `json:"running"`
	TabCount  int    `json:"tabCount"`
	IsDefault bool   `json:"isDefault"`
}

func (s *Server) profiles(r *http.Request) (any, error) {
	status := s.keeper.Status()
	p := Profile{Name: status.Profile, Driver: status.Driver, Color: status.Color, CDPPort: status.CDPPort, Running: status.Running, IsDefault: true}
	answer, err := s.keeper.Drive(r.Context(), &browser.Tabs{})
	if err != nil {
		return nil, err
	}
	if tabs, ok := answer.(browser.TabsResult); ok {
		p.TabCount = len(tabs.Tabs)
	}
	return Profiles{Profiles: []Profile{p}}, nil
}

// ownProfile takes ?profile= off a request, which older clients send: there is one profile.
func ownProfile(s *Server, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if !query.Has("profile") {
			next.ServeHTTP(w, r)
			return
		}
		if name := query.Get("profile"); name != host.ProfileName {
			s.fail(w, r, problem.New(problem.NotFound, "the only profile is "+host.ProfileName, "there is no profile %q", cut(name)))
			return
		}
		query.Del("profile")
		r = r.Clone(r.Context())
		r.URL.RawQuery = query.Encode()
		next.ServeHTTP(w, r)
	})
}

// mediaOf makes the addresses of pictures. The host is one that the guard has let through.
func mediaOf(r *http.Request) func(id string) string {
	return func(id string) string { return scheme(r, "http") + r.Host + "/media/" + id }
}

// cut bounds what comes from a client and goes into a message.
func cut(text string) string {
	const limit = 100
	return strings.ToValidUTF8(text[:min(len(text), limit)], "?")
}
