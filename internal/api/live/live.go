// Package live shows a browser to a person over a WebSocket (RFC 6455), and carries back what the person does. The API and
// the console serve it.
//
// From the server, a binary message is a frame: four bytes, the most significant first, say how long the JSON is that
// follows, {"width","height","at"}, and the rest is a JPEG. There is no other frame before the client has said that it has
// drawn this one, and the next is the latest, so a slow client sees less and never old things. A text message is a JSON
// object with one member:
//
//	{"state": {…}}       tabs, address, popups: see browser.LiveState
//	{"control": {…}}     who has the browser in hand: {"by","name","since","mine"}, or null for nobody
//	{"error": {…}}       what a message of the client's did not do: {"code","message","hint"}; the connection goes on
//	{"copied": "…"}      the text that was asked for
//	{"end": {…}}         why there is nothing more: {"code","message"}; the connection is closed then
//
// From the client, a text message is a JSON object of at most MaxMessage bytes: {"type":"shown"} says that the last frame was
// drawn, {"type":"visible","visible":false} that nobody looks, and everything else is a browser.LiveInput. Members that are
// not known are an error, and nothing is done; a longer message is one, too. A text that is no JSON ends the connection.
//
// Inputs are done one after another. When more wait than may, moves of the pointer are left out first, then turns of the wheel
// and repeated keys. Nothing of an input is ever written down here.
package live

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/api/socket"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

const (
	// MaxMessage bounds a message of the client's, in bytes, and endlessMessage one that is refused.
	MaxMessage, endlessMessage = 1 << 20, 256 << 20
	// pingEvery is how often a silent client is asked whether it is still there, and pingLimit how long it may take.
	pingEvery = 20 * time.Second
	pingLimit = 20 * time.Second
	// writeLimit bounds how long a client may take to read one message, and endLimit the last.
	writeLimit = 20 * time.Second
	endLimit   = 5 * time.Second
)

// Viewer is one who watches a session. *session.Live is one.
type Viewer interface {
	// Next waits for something new to show; its error is why there is nothing more. One goroutine calls it.
	Next(ctx context.Context) (session.Sight, error)
	// Shown and Visible return at once.
	Shown()
	Visible(visible bool)
	// Input does one thing. One goroutine calls it.
	Input(ctx context.Context, in browser.LiveInput) (copied string, err error)
}

// errLeft is a client that is gone.
var errLeft = errors.New("the client has left")

// Serve answers a request with a WebSocket, and shows what the viewer sees until one of the two ends, or ctx: its cause is
// told. It returns why; the viewer is the caller's to close. The caller has decided that this client may connect, from this origin.
func Serve(ctx context.Context, w http.ResponseWriter, r *http.Request, viewer Viewer, log *slog.Logger) error {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled, InsecureSkipVerify: true})
	if err != nil {
		return err // Accept has answered
	}
	conn.SetReadLimit(-1) // receive has its own, and says so
	c := &connection{conn: conn, viewer: viewer, log: log, inputs: newQueue()}
	return c.serve(ctx)
}

// connection joins a WebSocket with a viewer.
type connection struct {
	conn   *websocket.Conn
	viewer Viewer
	log    *slog.Logger
	inputs *queue

	mu    sync.Mutex // held while something is written
	ended bool       // the last message was written
}

// serve carries messages until one of the two ends, or ctx, and returns why.
func (c *connection) serve(ctx context.Context) error {
	// It must not end with ctx: the last message is still to be sent then.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	doing, letGo := context.WithCancel(work)
	defer letGo()
	do := func(ctx context.Context) error { return c.do(ctx, doing) }
	loops := []func(context.Context) error{c.receive, c.show, do, c.ping}
	over := make(chan error, len(loops))
	var all sync.WaitGroup
	for _, loop := range loops {
		all.Go(func() { over <- loop(work) })
	}
	var why error
	select {
	case why = <-over:
	case <-ctx.Done():
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(why, errLeft) {
		why = cause // the loops only saw that something was gone
	}
	// Saying why takes as long as the client likes to take, who steers nothing meanwhile.
	letGo()
	c.close(why)
	stop()
	all.Wait()
	return why
}

// show carries what there is to see.
func (c *connection) show(ctx context.Context) error {
	for {
		sight, err := c.viewer.Next(ctx)
		if err != nil {
			return err
		}
		if sight.Changed {
			if err := c.tell(ctx, controlMessage{Control: controlOf(sight)}); err != nil {
				return err
			}
		}
		if sight.State != nil {
			if err := c.tell(ctx, stateMessage{sight.State}); err != nil {
				return err
			}
		}
		if sight.Frame != nil {
			text, err := frame(sight.Frame)
			if err != nil {
				return err
			}
			if err := c.write(ctx, websocket.MessageBinary, text); err != nil {
				return err
			}
		}
	}
}

// receive takes what the client says.
func (c *connection) receive(ctx context.Context) error {
	for {
		text, err := read(ctx, c.conn)
		var said said
		if err == nil {
			said, err = parse(text)
		} else if !errors.Is(err, errTooLarge) {
			return err
		}
		switch {
		case errors.Is(err, errNoMessage):
			return err
		case err != nil:
			err = c.refuse(ctx, err)
		case said.shown:
			c.viewer.Shown()
		case said.visible != nil:
			c.viewer.Visible(*said.visible)
		default:
			err = c.inputs.push(said.input)
		}
		if err != nil {
			return err
		}
	}
}

// do does what the client wants done, one thing after another, until doing ends; ctx is for telling how it went.
func (c *connection) do(ctx, doing context.Context) error {
	for {
		in, err := c.inputs.take(doing)
		if err != nil {
			return err
		}
		copied, err := c.viewer.Input(doing, in)
		switch {
		case doing.Err() != nil:
			return doing.Err()
		case err != nil:
			err = c.refuse(ctx, err)
		case in.Type == typeCopy, in.Type == typeCut:
			err = c.tell(ctx, copiedMessage{copied})
		}
		if err != nil {
			return err
		}
	}
}

// refuse says what was wrong with one message. The connection goes on.
func (c *connection) refuse(ctx context.Context, err error) error {
	said := sayable(err)
	if said.Code == problem.Internal {
		// The error may repeat what was typed, so its kind is all that is written down.
		c.log.Error("do what a person does in a browser", "code", said.Code)
	}
	return c.tell(ctx, errorMessage{said})
}

// ping finds out about clients that are gone and have not said so.
func (c *connection) ping(ctx context.Context) error {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		within, cancel := context.WithTimeout(ctx, pingLimit)
		err := c.conn.Ping(within)
		cancel()
		if err != nil {
			return errLeft
		}
	}
}

// close tells the client why. One that has left needs no reason.
func (c *connection) close(why error) {
	if errors.Is(why, errLeft) {
		_ = c.conn.CloseNow() // gone already
		return
	}
	said := sayable(why)
	if said.Code == problem.Internal {
		c.log.Error("show a browser live", "code", said.Code, "error", why)
	}
	if !c.last(endMessage{End: ending{Code: said.Code, Message: said.Message}}) {
		_ = c.conn.CloseNow() // it does not read
		return
	}
	if c.conn.Close(closeCode(said.Code), socket.Reason(problem.New(said.Code, "", "%s", said.Message))) != nil {
		_ = c.conn.CloseNow() // it did not answer
	}
}

// sayable is an error as the client is told it. Of what has no code it is told nothing.
func sayable(err error) failure {
	p, ok := problem.As(err)
	switch {
	case ok:
		return failure{Code: p.Code, Message: p.Message, Hint: p.Hint}
	case errors.Is(err, cdp.ErrClosed), errors.Is(err, cdp.ErrBrowserGone):
		return failure{Code: problem.SessionClosed, Message: "the session has ended", Hint: "open a new one"}
	}
	switch code := problem.CodeOf(err); code {
	case problem.Timeout:
		return failure{Code: code, Message: "the browser took longer than it may", Hint: "try again, or reload the page"}
	case problem.Canceled:
		return failure{Code: code, Message: "it was broken off", Hint: "connect again"}
	}
	return failure{Code: problem.Internal, Message: problem.Unexpected, Hint: "look into the log of the control plane"}
}

// closeCode is the code of the close frame (RFC 6455, 7.4.1): 1000 when the session is over, 1001 when connecting again later may
// help, 1011 for mistakes of ours, and 1008 for whom it was taken from, or who did not follow the protocol.
func closeCode(code string) websocket.StatusCode {
	switch code {
	case problem.SessionClosed, problem.BrowserExited, problem.AccountLost, problem.CookiesLost, problem.LimitMemory, problem.LimitWallClock,
		problem.NotFound:
		return websocket.StatusNormalClosure
	case problem.ShuttingDown, problem.Canceled:
		return websocket.StatusGoingAway
	}
	if problem.Status(code) >= http.StatusInternalServerError {
		return websocket.StatusInternalError
	}
	return websocket.StatusPolicyViolation
}
