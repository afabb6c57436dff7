package hostserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/browser/host"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxClients bounds how many DevTools clients there are at once.
	maxClients = 32
	// pingEvery finds clients that are gone without a word; writeLimit those that do not read.
	pingEvery  = 30 * time.Second
	writeLimit = 30 * time.Second
	// maxReason is what fits into a close frame (RFC 6455, 5.5).
	maxReason = 123
)

// socketPath is the browser's own target. What follows has no meaning: a client that is connected has a target of its own.
const socketPath = "/devtools/browser/" + host.ProfileName

// Endpoint is the answer to a question for the DevTools endpoint: where clients connect to. The addresses hold a ticket.
type Endpoint struct {
	CDPURL string `json:"cdp_url"`
	WSURL  string `json:"ws_url"`
}

func (s *Server) endpoint(*http.Request) (any, error) {
	at := s.keeper.DevtoolsAddress()
	return Endpoint{CDPURL: "http://" + at + "/?token=" + s.ticket, WSURL: "ws://" + at + socketPath + "?token=" + s.ticket}, nil
}

// Devtools is the DevTools endpoint: what Playwright's connectOverCDP and Puppeteer's browserURL ask for.
func (s *Server) Devtools() http.Handler {
	mux := http.NewServeMux()
	version := func(w http.ResponseWriter, r *http.Request) {
		v, err := s.keeper.Version(r.Context())
		if err == nil {
			err = control.Write(w, r, map[string]string{
				"Browser": v.Product, "Protocol-Version": v.Protocol, "User-Agent": v.UserAgent,
				"webSocketDebuggerUrl": "ws://" + r.Host + socketPath + "?token=" + s.ticket,
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
	if r.Header.Get("Upgrade") == "" {
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
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		s.log.Debug("a DevTools client did not speak WebSocket", "error", err)
		return
	}
	s.log.Debug("a DevTools client came")
	err = bridge(r.Context(), conn, client)
	s.log.Debug("a DevTools client left", "why", err)
}

// bridge carries messages both ways until one side ends, and tells the client why when that was ours.
func bridge(ctx context.Context, conn *websocket.Conn, client *host.Client) error {
	conn.SetReadLimit(int64(client.MaxFrame()) + 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for {
			kind, frame, err := conn.Read(ctx)
			if err != nil {
				return err
			}
			if kind != websocket.MessageText {
				return errors.New("a message is not text")
			}
			if err := client.Send(ctx, frame); err != nil {
				return err
			}
		}
	})
	g.Go(func() error {
		for {
			frame, err := client.Receive(ctx)
			if err != nil {
				return err
			}
			writing, cancel := context.WithTimeout(ctx, writeLimit)
			err = conn.Write(writing, websocket.MessageText, frame)
			cancel()
			if err != nil {
				return err
			}
		}
	})
	g.Go(func() error {
		tick := time.NewTicker(pingEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			waiting, cancel := context.WithTimeout(ctx, writeLimit)
			err := conn.Ping(waiting)
			cancel()
			if err != nil {
				return err
			}
		}
	})
	g.Go(func() error {
		// A client that the browser ended, or that sent what is not the protocol, is told before the others give up.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-client.Done():
			err := client.Err()
			_ = conn.Close(websocket.StatusPolicyViolation, reason(err))
			return err
		}
	})
	err := g.Wait()
	_ = conn.Close(websocket.StatusGoingAway, reason(err)) // the other side may have gone first
	return err
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	return text[:min(len(text), maxReason)]
}
