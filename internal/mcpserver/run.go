package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// protocol is the version that is asked for. Servers answer with the one that they speak.
const protocol = "2025-11-25"

// run is a server that was started and has answered.
type run struct {
	server  config.MCPServer
	process *process
	wire    *wire
	session *sdk.ClientSession
	stderr  texts.Tail
	drained chan struct{}
	leave   func() // the places of the servers that run; of one that an instance has
	// used says that somebody has called it, and ending that it is being ended. The service's lock guards both.
	used, ending bool
	// lists is what it offers its owner, where that is another thing than what its declaration offers. The service's lock guards it.
	lists *catalog
	// unwanted is closed when its place is wanted for another one, and gone when nothing of it is left.
	unwanted, gone chan struct{}
	// ended is closed when the connection is gone.
	ended chan struct{}
	// settled is closed by its instance when it is known why it has ended; why is nil when that was wanted.
	settled chan struct{}
	why     error
	// changed holds that what the server offers is something else, or is to be asked for again.
	changed wake.Signal
	took    Timing
	pace    pace

	mu       sync.Mutex
	next     int
	progress map[string]func(progressNote)
}

// Timing is how long the stages of a start took.
type Timing struct {
	Jail       time.Duration
	Initialize time.Duration
	List       time.Duration
}

// start starts a server for a tenant and says hello to it. On error nothing is left; what it printed is in the error.
func (s *Service) start(ctx context.Context, server config.MCPServer, tenant string) (*run, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.pace.start,
		problem.New(problem.Timeout, "`clawjail mcp-server test "+server.Name+"` shows what it prints", "the MCP server %s did not answer within %s", server.Name, s.pace.start))
	defer cancel()
	began := s.o.Now()
	p, err := s.startProcess(ctx, server, tenant)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	r := &run{server: server, process: p, drained: make(chan struct{}), ended: make(chan struct{}), settled: make(chan struct{}),
		changed: wake.New(), unwanted: make(chan struct{}), gone: make(chan struct{}),
		pace: s.pace, progress: map[string]func(progressNote){}}
	r.took.Jail = s.o.Now().Sub(began)
	go func() {
		defer close(r.drained)
		// A fault of this pipe is one of the server, and the other pipe tells it.
		_, _ = io.Copy(&r.stderr, p.stdio.Err)
	}()
	r.wire = newWire(p.stdio.In, p.stdio.Out, s.pace, s.o.Now, int(server.Answer), held{s.messages, quota.Holder{Tenant: tenant}})
	r.wire.changed = r.askAgain
	r.wire.progress, r.wire.patience = r.onProgress, r.patience
	r.wire.stray = func(line []byte) { _, _ = fmt.Fprintf(&r.stderr, "stdout: %s\n", line[:min(len(line), 1000)]) }
	began = s.o.Now()
	client := sdk.NewClient(&sdk.Implementation{Name: "clawjail", Version: s.o.Version}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{}, Logger: slog.New(slog.DiscardHandler)})
	stop := context.AfterFunc(ctx, func() { _ = r.wire.Close() }) // an unanswered initialize ends with its time
	r.session, err = client.Connect(ctx, r.wire, &sdk.ClientSessionOptions{ProtocolVersion: protocol})
	stop()
	if err != nil {
		close(r.ended)
		err = r.explain(ctx, err)
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.pace.destroy)
		defer cancel()
		return nil, errors.Join(err, r.end(ending))
	}
	r.took.Initialize = s.o.Now().Sub(began)
	go func() {
		defer close(r.ended)
		_ = r.session.Wait() // why it ended is asked of the wire and of the jail
	}()
	return r, nil
}

// askAgain lets the server be asked for what it offers.
func (r *run) askAgain() { r.changed.Send() }

// causeOf is the error with which a context has ended, or the one that was met first.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); problem.CodeOf(cause) != problem.Internal {
			return cause
		}
	}
	return err
}

// end ends a server, and returns when nothing of it is left.
func (r *run) end(ctx context.Context) error {
	_ = r.wire.Close() // the jail ends whatever its pipes say
	if r.session != nil {
		_ = r.session.Close() // likewise
	}
	err := r.process.end(ctx)
	r.wire.wait()
	<-r.ended
	<-r.drained
	if err != nil {
		return fmt.Errorf("end jail %s: %w", r.process.name, err)
	}
	return nil
}

// explain says why a server is gone: what has given it up, what it did wrong, or how it ended.
func (r *run) explain(ctx context.Context, err error) error {
	if cause := causeOf(ctx, nil); cause != nil {
		return cause
	}
	if fault := r.wire.fault(); fault != nil {
		return r.told(problem.New(problem.JailFailed, r.hint(), "the MCP server %s was ended: %s", r.server.Name, fault))
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.pace.exit)
	defer cancel()
	exit, waitErr := r.process.exit(asking)
	select {
	case <-r.drained: // its last words
	case <-asking.Done():
	}
	if waitErr != nil {
		return r.told(problem.Wrap(errors.Join(err, waitErr), problem.JailFailed, r.hint(), "the MCP server %s closed the connection", r.server.Name))
	}
	code := problem.JailFailed
	if exit.Cause == jail.CauseMemory {
		code = problem.LimitMemory
	}
	return r.told(problem.Wrap(err, code, r.hint(), "the MCP server %s ended: %s", r.server.Name, exit.Words()))
}

func (r *run) hint() string {
	return "an admin sees more with `clawjail mcp-server test " + r.server.Name + "`"
}

// told adds what the server printed last, for those who may see it: see [forCaller].
func (r *run) told(p *problem.Error) error { return p.With(detailStderr, r.printed(4<<10)) }

const detailStderr = "stderr"

// printed is what the server printed last, without characters that would move a terminal's cursor: whole lines, up to limit bytes.
func (r *run) printed(limit int) string {
	text := visible(r.stderr.String(), texts.TailBytes)
	if len(text) > limit {
		text = text[len(text)-limit:]
		if _, after, found := strings.Cut(text, "\n"); found {
			text = after
		}
	}
	return strings.ToValidUTF8(text, "")
}

// alive says whether the server is still connected.
func (r *run) alive() bool {
	return !wake.Closed(r.ended)
}

// probe asks whether the server still answers, and ends the connection when it does not.
func (r *run) probe(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, r.pace.pong)
	defer cancel()
	if err := r.session.Ping(ctx, nil); err == nil || isRefusal(err) {
		return true // also a server that does not know the question has answered
	}
	if r.alive() && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		_ = r.wire.blame(fmt.Errorf("it did not answer within %s", r.pace.pong))
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		_ = r.wire.Close()
	}
	return false
}

func isRefusal(err error) bool {
	var said *jsonrpc.Error
	return errors.As(err, &said)
}

// Progress is told how far a call is.
type Progress func(done, of float64, message string)

// Bounds of what is passed on of progress.
const (
	progressPerSecond = 10
	progressQueue     = 8
	maxProgressText   = 500
)

// ask asks the server something. A call that says nothing for a while ends; one that goes on, and says so, may take longer. Canceling
// the context cancels the call at the server too.
func ask[R any](ctx context.Context, r *run, tell Progress, send func(ctx context.Context, token string) (R, error)) (answer R, err error) {
	var nothing R
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent, longest := r.silence(), max(r.server.Silence, r.pace.maxCall)
	slow := problem.New(problem.Timeout, "ask for less at once, or set `silence` of the server", "the MCP server %s did not answer within %s", r.server.Name, silent)
	silence := time.AfterFunc(silent, func() { cancel(slow) })
	defer silence.Stop()
	maximum := time.AfterFunc(longest, func() {
		cancel(problem.New(problem.Timeout, "ask for less at once", "the call took longer than %s", longest))
	})
	defer maximum.Stop()

	notes := make(chan progressNote, progressQueue)
	told := make(chan struct{})
	go func() {
		defer close(told)
		for n := range notes {
			if tell != nil && ctx.Err() == nil {
				tell(n.Progress, n.Total, visible(n.Message, maxProgressText))
			}
		}
	}()
	limit := rate.NewLimiter(progressPerSecond, progressQueue)
	token, forget := r.watch(func(n progressNote) {
		silence.Reset(silent)
		if limit.Allow() {
			select {
			case notes <- n:
			default: // a slow reader misses this one and gets a later one
			}
		}
	})
	answer, err = send(ctx, token)
	forget()
	close(notes)
	if err == nil {
		<-told
		return answer, nil
	}
	cause := context.Cause(ctx)
	cancel(nil)
	<-told
	if cause != nil {
		return nothing, cause
	}
	return nothing, err
}

// silence is how long a call may say nothing.
func (r *run) silence() time.Duration { return cmp.Or(r.server.Silence, r.pace.call) }

// patience is how long the server may leave unread what it is sent now. While it works on a call it need not read another one: that
// may then wait for as long as the first may be silent.
func (r *run) patience() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.progress) > 1 { // the call that is sent is one of them
		return max(r.pace.write, r.silence())
	}
	return r.pace.write
}

// watch makes a token for the progress of a call.
func (r *run) watch(tell func(progressNote)) (token string, forget func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	token = fmt.Sprintf("c%d", r.next)
	r.progress[token] = tell
	return token, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.progress, token)
	}
}

func (r *run) onProgress(n progressNote) {
	token, ok := n.Token.(string)
	if !ok {
		return
	}
	// Told under the lock: nothing is told any more when forget has returned.
	r.mu.Lock()
	defer r.mu.Unlock()
	if tell := r.progress[token]; tell != nil {
		tell(n)
	}
}
