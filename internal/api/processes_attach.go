package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api/pipes"
	"github.com/clawjail/clawjail/internal/api/socket"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxAttach bounds the first message: the longest command line, as JSON writes it.
	maxAttach = 512 << 10
	// attachLimit bounds the wait for the first message, exitLimit the sending of the last.
	attachLimit = 30 * time.Second
	exitLimit   = 10 * time.Second
)

// Attached is the last message of an attachment: how the program ended, or why there is none.
type Attached struct {
	Process *op.Process `json:"process,omitempty"`
	Exit    *jail.Exit  `json:"exit,omitempty"`
	Problem *Problem    `json:"problem,omitempty"`
}

// attach runs a program in a jail for the client of a WebSocket, whose first message says which. A caller without the right gets
// an HTTP error, before there is a WebSocket. The program ends with the connection.
func (a *API) attach(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	tenant, name, err := ofOneAgent(req, by)
	if err != nil {
		return err
	}
	query := req.URL.Query()
	exec, err := boolean(query, "exec")
	if err != nil {
		return err
	}
	right := identity.ProcessStart
	if exec {
		right = identity.AgentExec
	}
	if err := a.Identity.Authorize(req.Context(), by, right, tenant); err != nil {
		return err
	}
	if !socket.Asked(req.Header) {
		return problem.New(problem.BadRequest, "connect with a WebSocket: clawjail spawn -- PROGRAM", "a program is attached to with a WebSocket")
	}
	a.sockets.Add(1)
	defer a.sockets.Done()
	ctx, release := untilTheEnd(req.Context())
	defer release()
	// Requests with another site's Origin were refused before.
	conn, err := websocket.Accept(w, req, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled, InsecureSkipVerify: true})
	if err != nil {
		return nil // Accept has answered
	}
	t := &attachment{api: a, conn: conn, by: by, tenant: query.Get("tenant"), name: name, exec: exec}
	t.serve(ctx)
	return nil
}

// attachment is one WebSocket and the program run for it.
type attachment struct {
	api          *API
	conn         *websocket.Conn
	by           identity.Principal
	tenant, name string
	exec         bool
}

// serve runs the program, sends how it ended, and closes the connection.
func (t *attachment) serve(ctx context.Context) {
	defer func() { _ = t.conn.CloseNow() }() // when it was not closed with a reason
	// sendCtx outlives ctx, so that the last message can be sent after the server was told to stop.
	sendCtx, cancelSend := context.WithCancel(context.WithoutCancel(ctx))
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancelSend()
	body, err := t.readRequest(ctx)
	if errors.Is(err, pipes.ErrLeft) {
		return
	}
	streams := pipes.NewServer(t.conn)
	if err != nil {
		t.sendExit(sendCtx, streams, Attached{}, err)
		return
	}
	runCtx, cancelRun := context.WithCancelCause(ctx)
	defer cancelRun(nil)
	reading.Go(func() { cancelRun(streams.Serve(sendCtx)) })
	out, err := t.run(runCtx, sendCtx, streams, body)
	if errors.Is(err, pipes.ErrLeft) || errors.Is(err, pipes.ErrProtocol) {
		return // the client has left, or would not understand
	}
	t.sendExit(sendCtx, streams, out, err)
}

// readRequest reads what is to be run.
func (t *attachment) readRequest(ctx context.Context) (op.ProcessRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, attachLimit)
	defer cancel()
	t.conn.SetReadLimit(maxAttach)
	kind, text, err := t.conn.Read(ctx)
	if err != nil {
		return op.ProcessRequest{}, pipes.ErrLeft // a read that was given up has closed the connection
	}
	if kind != websocket.MessageText {
		return op.ProcessRequest{}, problem.New(problem.BadRequest, "the protocol is in docs/spawn.md", "the first message is not a text that says what to run")
	}
	return decode[op.ProcessRequest](text)
}

// run runs the program until it has ended and everything that it printed is sent. runCtx ends with the connection or the
// server, sendCtx only with serve.
func (t *attachment) run(runCtx, sendCtx context.Context, streams *pipes.Pipes, body op.ProcessRequest) (Attached, error) {
	if body.Tenant != "" && body.Tenant != t.tenant {
		return Attached{}, problem.New(problem.BadRequest, "leave it out there", "the tenant is named in the address")
	}
	request, err := body.Request()
	if err != nil {
		return Attached{}, err
	}
	out := Attached{}
	var program *jail.Running
	if t.exec {
		if request.Jail != nil || request.Template != "" || request.TTL != 0 || body.Limits != nil {
			return Attached{}, problem.New(problem.BadRequest, "leave out what is not argv, env and dir", "a program in an agent's own jail cannot choose its jail")
		}
		program, err = t.api.Agents.Exec(runCtx, t.by, t.tenant, t.name, jail.Program{Argv: request.Argv, Env: request.Env, Dir: request.Dir, Wire: jail.WireStdio})
	} else {
		var started agent.Process
		started, program, err = t.api.Agents.Run(runCtx, t.by, t.tenant, t.name, request)
		out.Process = (*op.Process)(&started)
	}
	if err != nil {
		return Attached{}, causeOf(runCtx, err)
	}
	streamCtx, cancelStreams := context.WithCancel(sendCtx)
	var output, input sync.WaitGroup
	defer input.Wait()
	defer program.Stdio.Close()
	defer cancelStreams()
	defer context.AfterFunc(runCtx, func() {
		cancelStreams()
		program.End()
	})()
	// A stream fails when the client has left. Serve finds that out, too.
	output.Go(func() { _ = streams.Send(streamCtx, pipes.Stdout, program.Stdio.Out) })
	output.Go(func() { _ = streams.Send(streamCtx, pipes.Stderr, program.Stdio.Err) })
	input.Go(func() {
		_ = streams.Receive(streamCtx, pipes.Stdin, program.Stdio.In) // the program may close its stdin early
		_ = program.Stdio.In.Close()                                  // and then this fails
	})
	exit, err := program.Wait(sendCtx)
	output.Wait()
	if err != nil || runCtx.Err() != nil {
		program.End()
		return Attached{}, causeOf(runCtx, err)
	}
	out.Exit = &exit
	return out, nil
}

// causeOf is why ctx ended, or err while it has not.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// sendExit sends the last message, and closes the connection.
func (t *attachment) sendExit(ctx context.Context, streams *pipes.Pipes, out Attached, err error) {
	ctx, cancel := context.WithTimeout(ctx, exitLimit)
	defer cancel()
	if err != nil {
		if p, ok := t.api.failed(ctx, "Run a program in a jail", err).(*Problem); ok { // it is always one
			out = Attached{Problem: p}
		}
	}
	text, err := json.Marshal(out)
	if err == nil {
		err = streams.SendExit(ctx, text)
	}
	if err != nil {
		return // the client has left
	}
	_ = t.conn.Close(websocket.StatusNormalClosure, "") // a client that does not answer is closed all the same
}
