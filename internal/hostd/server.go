package hostd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/hostd/agents"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// server answers calls. accept owns the goroutine of each connection, drain waits for all of them.
type server struct {
	Options
	life        Jails
	makers      makers
	keeper      *agents.Keeper
	bound       *bound
	tenants     *tenants
	checkpoints *checkpoints
	reaped      *reapings
	owners      *owners
	admission   *admission
	creates     *quota.Turns
	reads       chan struct{} // one token per piece of a log that is in memory
	handlers    map[Operation]handler
	started     time.Time
	refusals    rate.Sometimes // keeps strangers from filling the log

	// Calls that last end with stopping, the others may go on until cut.
	stopping, cut     context.Context
	endLasting, doCut context.CancelCauseFunc
	calls             sync.WaitGroup
}

// Why the context of a call ends.
var (
	errCallerGone = problem.New(problem.Canceled, "", "the caller closed the connection")
	errStopping   = problem.New(problem.ShuttingDown, "start it again: sudo clawjail up", "the host daemon is being stopped")
)

func newServer(o Options, m makers, k *agents.Keeper, b *bound, who *tenants, notes *checkpoints, reaped *reapings) *server {
	s := &server{
		Options: o, life: m.life, makers: m, keeper: k, bound: b, tenants: who, checkpoints: notes, reaped: reaped,
		owners:    &owners{drivers: m.drivers(), held: map[string]*holding{}},
		admission: &admission{limit: o.MaxConnections, users: map[uint32]*connections{}},
		creates:   quota.NewTurns(o.MaxCreates, who.share),
		reads:     make(chan struct{}, maxReads),
		handlers:  newHandlers(),
		started:   o.Now(),
		refusals:  rate.Sometimes{First: 10, Interval: time.Second},
	}
	s.stopping, s.endLasting = context.WithCancelCause(context.Background())
	reaped.isHere = s.owners.isHere
	s.cut, s.doCut = context.WithCancelCause(context.Background())
	return s
}

// accept serves connections until the listener closes or the context ends.
func (s *server) accept(ctx context.Context, l *net.UnixListener) {
	for {
		conn, err := wake.Accept(l.AcceptUnix, ctx.Done(), func(err error) { s.Log.Error("accept a connection; it is tried again", "error", err) })
		if err != nil {
			return
		}
		s.calls.Go(func() { s.serve(conn) })
	}
}

// drain ends the calls that last, lets the others come to their end, and cuts them when that takes too long.
func (s *server) drain() {
	s.endLasting(errStopping)
	patience := time.AfterFunc(s.Patience, func() { s.doCut(errStopping) })
	defer patience.Stop()
	s.calls.Wait()
	s.doCut(errStopping)
}

// serve answers the one call of a connection.
func (s *server) serve(conn *net.UnixConn) {
	defer conn.Close() // the caller sees the end of the answer, or nothing; no one can be told of an error
	p, err := peerOf(conn)
	if err != nil || (p.uid != 0 && p.uid != s.ControlUID) {
		// No answer: a stranger learns nothing, not even what the protocol looks like.
		s.refusals.Do(func() { s.Log.Warn("refused a connection", "peer", p, "error", err) })
		return
	}
	c := &call{conn: conn, peer: p, patience: s.Patience}
	leave, err := s.admission.open(p.uid)
	if err != nil {
		c.fail(err)
		return
	}
	defer leave()
	if c.request, err = c.read(); err != nil {
		if _, ok := problem.As(err); ok {
			c.fail(err)
		}
		s.refusals.Do(func() { s.Log.Warn("refused a request", "peer", p, "error", err) })
		return
	}
	handle, ok := s.handlers[c.request.Operation]
	if !ok {
		c.fail(problem.New(problem.BadRequest, "both halves of clawjail must be of one version", "there is no such operation"))
		return
	}
	base := s.cut
	if c.request.Operation.lasts() {
		base = s.stopping
		done, err := s.admission.lasting(p.uid)
		if err != nil {
			c.fail(err)
			return
		}
		defer done()
	}
	ctx, cancel := context.WithCancelCause(base)
	c.listen(cancel)
	began := s.Now()
	err = s.handle(ctx, c, handle)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.Join(context.Cause(ctx), err) // the cause says what cancelled it
	}
	s.log(c, s.Now().Sub(began), err)
	if err != nil {
		c.fail(err)
	}
	cancel(nil)
	c.hangUp()
}

// handle calls a handler. A panic is an error of this call alone: the host daemon watches every jail, and no request
// may end it. The jail that the call was about stays as it was left, for its owner's end or its wall clock.
func (s *server) handle(ctx context.Context, c *call, do handler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic in a call", "op", c.request.Operation, "peer", c.peer, "panic", p, "stack", string(debug.Stack()))
			err = problem.New(problem.Internal, "look into the log of the host daemon", "the host daemon could not answer %s", c.request.Operation)
		}
	}()
	return do(s, ctx, c)
}

func (s *server) log(c *call, took time.Duration, err error) {
	level := slog.LevelDebug
	if err != nil && problem.CodeOf(err) != problem.Canceled && !errors.Is(err, jail.ErrNotFound) {
		level = slog.LevelWarn
	}
	s.Log.Log(context.Background(), level, "call", "op", c.request.Operation, "peer", c.peer, "took", took, "error", err)
}

func (s *server) notify(state string) {
	if err := s.Notify(state); err != nil {
		s.Log.Warn("tell the service manager", "state", state, "error", err)
	}
}

// call is one connection with its one request.
type call struct {
	conn     *net.UnixConn
	peer     peer
	request  request
	patience time.Duration
	answered bool

	heard   chan error // what came after the request: nil for the byte accepted
	hearing sync.WaitGroup
}

// read reads the request, which must come soon.
func (c *call) read() (request, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
		return request{}, err
	}
	body, err := readFrame(c.conn, maxRequest)
	if err != nil {
		return request{}, err
	}
	if err := c.conn.SetReadDeadline(time.Time{}); err != nil {
		return request{}, err
	}
	return decodeRequest(body)
}

// listen watches for the caller leaving, or saying something when it is not its turn: both cancel the call.
func (c *call) listen(cancel context.CancelCauseFunc) {
	c.heard = make(chan error, 1)
	c.hearing.Go(func() {
		var b [1]byte
		n, err := c.conn.Read(b[:])
		switch {
		case n == 1 && b[0] == accepted:
			err = nil
		case n == 1:
			err = fmt.Errorf("the caller sent byte %#x", b[0])
		case err == nil:
			err = io.ErrUnexpectedEOF
		}
		c.heard <- err
		cancel(errCallerGone)
	})
}

// hangUp closes the connection and waits for what listens to it.
func (c *call) hangUp() {
	_ = c.conn.Close() // the answer has been written, or its error been seen
	c.hearing.Wait()
}

// answer sends a result.
func (c *call) answer(result any) error {
	return c.write(func() error {
		_, err := c.conn.Write(encodeAnswer(result, nil))
		return err
	})
}

// answerWithFiles sends a result and some descriptors.
func (c *call) answerWithFiles(result any, files ...*os.File) error {
	return c.write(func() error { return sendWithFiles(c.conn, encodeAnswer(result, nil), files...) })
}

// answerAgain sends a second result.
func (c *call) answerAgain(result any) error {
	c.answered = false
	return c.answer(result)
}

// fail sends an error, when nothing has been sent. A caller that is gone misses nothing.
func (c *call) fail(err error) {
	_ = c.write(func() error {
		_, err := c.conn.Write(encodeAnswer(nil, err))
		return err
	})
}

func (c *call) write(f func() error) error {
	if c.answered {
		return nil
	}
	c.answered = true
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return err
	}
	return f()
}
