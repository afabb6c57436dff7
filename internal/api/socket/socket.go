// Package socket joins a WebSocket (RFC 6455) with a DevTools client: of a jailed session's browser, or of the host's.
//
// A client may be busy, stopped or asleep: it is waited for, for as long as [patience] says. One that is gone without a word is
// found out. A message that is too large is answered; one that is no text, or no command, ends this connection and nothing
// else. A client that is ended is told why, in a close frame: the code and sentence of a problem; of other errors only their kind.
package socket

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// pingEvery is how often a client is asked whether it is still there. It also keeps proxies from ending what is silent.
	pingEvery = 30 * time.Second
	// patience is how long a client may say nothing, not even that it is still there, and how long one message may take in
	// either direction. A client that computes, or is stopped in a debugger, neither reads nor answers. Machines that are
	// gone are found earlier, by TCP.
	patience = 15 * time.Minute
	// endLimit is how long a client that reads too slowly may take for the message before its close frame.
	endLimit = 20 * time.Second
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
	// SendFrom reads one message and gives it to the browser. An error of the reader is a cdp.ErrUnread.
	SendFrom(ctx context.Context, r io.Reader) error
	// Receive is called by one goroutine at a time.
	Receive(ctx context.Context) ([]byte, error)
	// Done is closed when the client has ended, and Err says why.
	Done() <-chan struct{}
	Err() error
}

// Serve answers a request with a WebSocket, and carries messages until one of the two ends, or ctx. It returns why; the
// client is the caller's to close. The caller has decided that it may connect, from this origin.
func Serve(ctx context.Context, w http.ResponseWriter, req *http.Request, client Client) error {
	s, err := accept(w, req, client)
	if err != nil {
		return err // the request was answered
	}
	return s.serve(ctx)
}

func accept(w http.ResponseWriter, req *http.Request, client Client) (*socket, error) {
	s := &socket{client: client, began: time.Now(), pingEvery: pingEvery, patience: patience, ended: make(chan error, 3),
		pings: make(chan []byte, 1), writing: make(chan struct{}, 1)}
	under := &hijacked{ResponseWriter: w}
	conn, err := websocket.Accept(under, req, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled, InsecureSkipVerify: true,
		OnPingReceived: s.pinged, OnPongReceived: func(context.Context, []byte) { s.sign() }})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1) // the client has its own, and answers
	s.conn, s.under = conn, under.conn
	return s, nil
}

// hijacked remembers the connection below a WebSocket.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

// Hijack implements http.Hijacker.
func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = conn
	return conn, rw, err
}

// Asked says whether a request asks for a WebSocket.
func Asked(h http.Header) bool {
	return strings.EqualFold(h.Get("Upgrade"), "websocket") && strings.Contains(strings.ToLower(h.Get("Connection")), "upgrade")
}

// socket joins a WebSocket with a DevTools client.
type socket struct {
	conn                *websocket.Conn
	under               net.Conn // below it
	client              Client
	pingEvery, patience time.Duration
	ended               chan error // one from each of the three loops, at most

	began   time.Time
	heard   atomic.Int64  // when the client last said anything, in nanoseconds since it began
	pings   chan []byte   // holds the last ping of the client's that was not answered
	writing chan struct{} // holds a token while a message, a ping or a pong is written
}

// sign notes that the client is there.
func (s *socket) sign() { s.heard.Store(int64(time.Since(s.began))) }

// serve carries messages until one of the two ends, or ctx, and returns why.
func (s *socket) serve(ctx context.Context) error {
	// It must not end with ctx: the close frame is still to be sent then.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	for _, loop := range []func(context.Context) error{s.up, s.down, s.control} {
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
	if errors.Is(why, cdp.ErrSlowClient) {
		// The close frame comes behind the message that is being written.
		late := time.AfterFunc(endLimit, func() { _ = s.conn.CloseNow() })
		s.writing <- struct{}{}
		late.Stop()
		<-s.writing
	}
	code, reason := closing(why)
	if s.conn.Close(code, reason) != nil {
		_ = s.conn.CloseNow() // it did not answer
	}
}

// up carries messages of the client's to the browser.
func (s *socket) up(ctx context.Context) error {
	for {
		kind, message, err := s.conn.Reader(ctx)
		if err != nil {
			return errClientLeft
		}
		s.sign()
		if kind != websocket.MessageText {
			return errBinary
		}
		late := time.AfterFunc(s.patience, func() { _ = s.conn.CloseNow() })
		err = s.client.SendFrom(ctx, message)
		late.Stop()
		if errors.Is(err, cdp.ErrUnread) {
			return errClientLeft
		}
		if err != nil {
			return err
		}
		s.sign()
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
	s.writing <- struct{}{}
	defer func() { <-s.writing }()
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	return s.conn.Write(ctx, websocket.MessageText, frame)
}

// pinged takes a ping of the client's, and leaves the answer to control: only the last one must be answered (RFC 6455, 5.5.3).
func (s *socket) pinged(_ context.Context, payload []byte) bool {
	s.sign()
	select {
	case <-s.pings:
	default:
	}
	s.pings <- bytes.Clone(payload)
	return false
}

// The first byte of control frames (RFC 6455, 5.5), which are whole. Those of a server are not masked.
const (
	finalPing = 0x80 | 0x9
	finalPong = 0x80 | 0xA
)

// control pings the client and answers its pings, and finds out about one that is gone and has not said so. It writes them
// itself, between messages: the package of the WebSocket ends a connection that does not take them within five seconds.
func (s *socket) control(ctx context.Context) error {
	tick := time.NewTicker(s.pingEvery)
	defer tick.Stop()
	for {
		frame := []byte{finalPing, 0}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case payload := <-s.pings: // of 125 bytes at most
			frame = append([]byte{finalPong, byte(len(payload))}, payload...)
		case <-tick.C:
			if time.Since(s.began)-time.Duration(s.heard.Load()) > s.patience {
				return errClientLeft
			}
		}
		if s.writeRaw(frame) != nil {
			return errClientLeft
		}
	}
}

func (s *socket) writeRaw(frame []byte) error {
	s.writing <- struct{}{}
	defer func() { <-s.writing }()
	err := s.under.SetWriteDeadline(time.Now().Add(s.patience))
	if err == nil {
		_, err = s.under.Write(frame)
	}
	return errors.Join(err, s.under.SetWriteDeadline(time.Time{}))
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
	case errors.Is(why, cdp.ErrTooManySessions):
		return websocket.StatusPolicyViolation, "the client is attached to too much"
	}
	p, ok := problem.As(why)
	switch {
	case !ok && (errors.Is(why, cdp.ErrClosed) || errors.Is(why, cdp.ErrBrowserGone)):
		return websocket.StatusGoingAway, "the session has ended"
	case !ok:
		return websocket.StatusInternalError, problem.Unexpected
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
