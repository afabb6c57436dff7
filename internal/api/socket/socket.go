// Package socket joins a WebSocket (RFC 6455) with a DevTools client: of a jailed session's browser, or of the host's.
//
// A message that is too large, or is no text, ends this connection and nothing else. A client that reads nothing, or is
// gone without a word, is found out. Whoever is ended is told why, in a close frame: the code and sentence of a problem,
// and of anything else nothing.
package socket

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// pingEvery is how often a silent client is asked whether it is still there, and pingLimit how long it may take.
	pingEvery = 30 * time.Second
	pingLimit = 20 * time.Second
	// writeLimit bounds how long a client may take to read one message.
	writeLimit = 30 * time.Second
	// maxReason bounds the reason in a close frame (RFC 6455, 5.5), in bytes.
	maxReason = 123
)

// Reasons why a connection ends that are this end's.
var (
	errBinary     = errors.New("messages of the DevTools protocol are text")
	errClientLeft = errors.New("the client has left")
)

// Client is a DevTools client. *cdp.Client is one.
type Client interface {
	Send(ctx context.Context, frame []byte) error
	// Receive is called by one goroutine at a time.
	Receive(ctx context.Context) ([]byte, error)
	// Done is closed when the client has ended, and Err says why.
	Done() <-chan struct{}
	Err() error
	// MaxFrame is the largest message the client may send, in bytes.
	MaxFrame() int
}

// Serve answers a request with a WebSocket, and carries messages until one of the two ends, or ctx. It returns why; the
// client is the caller's to close. Who may connect, from which origin, the caller has decided.
func Serve(ctx context.Context, w http.ResponseWriter, req *http.Request, client Client) error {
	conn, err := websocket.Accept(w, req, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled, InsecureSkipVerify: true})
	if err != nil {
		return err // Accept has answered
	}
	conn.SetReadLimit(int64(client.MaxFrame()))
	s := &socket{conn: conn, client: client, ended: make(chan error, 3)}
	return s.serve(ctx)
}

// Asked says whether a request asks for a WebSocket.
func Asked(h http.Header) bool {
	return strings.EqualFold(h.Get("Upgrade"), "websocket") && strings.Contains(strings.ToLower(h.Get("Connection")), "upgrade")
}

// socket joins a WebSocket with a DevTools client.
type socket struct {
	conn   *websocket.Conn
	client Client
	ended  chan error // one from each of the three below, at most
}

// serve carries messages until one of the two ends, or ctx, and returns why.
func (s *socket) serve(ctx context.Context) error {
	// It must not end with ctx: the close frame is still to be sent then.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	for _, loop := range []func(context.Context) error{s.up, s.down, s.ping} {
		all.Go(func() { s.ended <- loop(work) })
	}
	var why error
	select {
	case why = <-s.ended:
	case <-s.client.Done():
		why = s.client.Err()
	case <-ctx.Done():
		why = context.Cause(ctx)
	}
	if cause := s.client.Err(); cause != nil && !errors.Is(why, errClientLeft) {
		why = cause // the loops only saw that it was gone
	}
	s.close(why)
	stop()
	all.Wait()
	return why
}

// close tells the client why. A client that has left needs no reason.
func (s *socket) close(why error) {
	if errors.Is(why, errClientLeft) {
		_ = s.conn.CloseNow() // gone already
		return
	}
	code, reason := closing(why)
	if s.conn.Close(code, reason) != nil {
		_ = s.conn.CloseNow() // it did not answer
	}
}

// up carries messages of the client's to the browser.
func (s *socket) up(ctx context.Context) error {
	for {
		kind, frame, err := s.conn.Read(ctx)
		if errors.Is(err, websocket.ErrMessageTooBig) {
			return cdp.ErrFrameTooLarge
		}
		if err != nil {
			return errClientLeft
		}
		if kind != websocket.MessageText {
			return errBinary
		}
		if err := s.client.Send(ctx, frame); err != nil {
			return err
		}
	}
}

// down carries messages of the browser's to the client.
func (s *socket) down(ctx context.Context) error {
	for {
		frame, err := s.client.Receive(ctx)
		if err != nil {
			return err
		}
		if err := s.write(ctx, frame); err != nil {
			return errClientLeft
		}
	}
}

func (s *socket) write(ctx context.Context, frame []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	return s.conn.Write(ctx, websocket.MessageText, frame)
}

// ping finds out about clients that are gone and have not said so.
func (s *socket) ping(ctx context.Context) error {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		answer, cancel := context.WithTimeout(ctx, pingLimit)
		err := s.conn.Ping(answer)
		cancel()
		if err != nil {
			return errClientLeft
		}
	}
}

// closing is how a connection's end is told: a code of RFC 6455 and one sentence. Of what has no code nothing is told.
func closing(why error) (websocket.StatusCode, string) {
	switch {
	case errors.Is(why, cdp.ErrFrameTooLarge):
		return websocket.StatusMessageTooBig, "the message is larger than one may be"
	case errors.Is(why, errBinary):
		return websocket.StatusUnsupportedData, errBinary.Error()
	case errors.Is(why, cdp.ErrProtocol):
		return websocket.StatusInvalidFramePayloadData, "the message is no command of the DevTools protocol"
	case errors.Is(why, cdp.ErrSlowClient):
		return websocket.StatusPolicyViolation, "the client reads too slowly"
	}
	p, ok := problem.As(why)
	switch {
	case !ok && (errors.Is(why, cdp.ErrClosed) || errors.Is(why, cdp.ErrBrowserGone)):
		return websocket.StatusGoingAway, "the session has ended"
	case !ok:
		return websocket.StatusInternalError, "something went wrong that nobody foresaw"
	case p.Code == problem.Unauthorized, p.Code == problem.Forbidden, p.Code == problem.TakenOver:
		return websocket.StatusPolicyViolation, Reason(p)
	}
	return websocket.StatusGoingAway, Reason(p)
}

// Reason is a problem as short as a close frame has it (RFC 6455, 5.5): its code and its sentence.
func Reason(p *problem.Error) string {
	text := strings.ToValidUTF8(p.Code+": "+p.Message, "?")
	if len(text) <= maxReason {
		return text
	}
	text = text[:maxReason-len("…")]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + "…"
}
