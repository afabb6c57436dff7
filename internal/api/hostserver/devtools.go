package hostserver

import (
	"net"
	"net/http"
	"strconv"

	"github.com/clawjail/clawjail/internal/api/socket"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/browser/host"
	"github.com/clawjail/clawjail/internal/problem"
)

// maxClients bounds how many DevTools clients there are at once.
const maxClients = 32

// socketPath is the address of the browser itself. Its last part is not read: there is one browser.
const socketPath = "/devtools/browser/" + host.ProfileName

// Endpoint is the answer to a question for the DevTools endpoint: where clients connect to. The addresses hold a ticket.
type Endpoint struct {
	CDPURL string `json:"cdp_url"`
	WSURL  string `json:"ws_url"`
}

func (s *Server) endpoint(r *http.Request) (any, error) {
	at := s.keeper.DevtoolsAddress()
	if s.cert != nil { // under the name that this client knows
		at = net.JoinHostPort(hostOf(r.Host), strconv.Itoa(int(s.remote.At.Devtools().Port())))
	}
	return Endpoint{CDPURL: scheme(r, "http") + at + "/?token=" + s.ticket, WSURL: scheme(r, "ws") + at + socketPath + "?token=" + s.ticket}, nil
}

// Devtools is the DevTools endpoint: what Playwright's connectOverCDP and Puppeteer's browserURL ask for.
func (s *Server) Devtools() http.Handler {
	mux := http.NewServeMux()
	version := func(w http.ResponseWriter, r *http.Request) {
		v, err := s.keeper.Version(r.Context())
		if err == nil {
			err = control.Write(w, r, map[string]string{
				"Browser": v.Product, "Protocol-Version": v.Protocol, "User-Agent": v.UserAgent,
				"webSocketDebuggerUrl": scheme(r, "ws") + r.Host + socketPath + "?token=" + s.ticket,
			}, nil)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	}
	mux.HandleFunc("GET /json/version", version)
	mux.HandleFunc("GET /json/version/{$}", version)
	mux.HandleFunc("GET /devtools/browser/{id}", s.socket)
	mux.HandleFunc("GET /{$}", s.socket)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, problem.New(problem.NotFound, "clients connect to the browser: /json/version says where", "there is no %s", cut(r.URL.Path)))
	})
	return s.guard(s.authenticated(true, mux))
}

// socket connects a client with the browser.
func (s *Server) socket(w http.ResponseWriter, r *http.Request) {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		s.fail(w, r, problem.New(problem.RateLimited, "end one of them", "%d DevTools clients are connected, and no more may be", maxClients))
		return
	}
	s.clients.Add(1)
	defer s.clients.Done()
	if !socket.Asked(r.Header) {
		s.fail(w, r, problem.New(problem.BadRequest, "connect with a DevTools client, such as Playwright's connectOverCDP", "this is the address of a WebSocket"))
		return
	}
	client, err := s.keeper.Attach(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer func() {
		if err := client.Close(); err != nil {
			s.log.Debug("a DevTools client left something behind", "error", err)
		}
	}()
	// Where the request comes from, the guard has looked at.
	s.log.Debug("a DevTools client came")
	err = socket.Serve(r.Context(), w, r, client)
	s.log.Debug("a DevTools client left", "why", err)
}
