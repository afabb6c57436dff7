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
	// attachLimit bounds how long the first message may take, and exitLimit the last.
	attachLimit = 30 * time.Second
	exitLimit   = 10 * time.Second
)

// Attached is the last message of an attachment: how the program ended, or why there is none.
type Attached struct {
	Process *Process   `json:"process,omitempty"`
	Exit    *jail.Exit `json:"exit,omitempty"`
	Problem *Problem   `json:"problem,omitempty"`
}

// attach runs a program in a jail for the other end of a WebSocket, whose first message says which. A caller without the right gets
// an HTTP error, before there is a WebSocket. The program ends with the connection.
func (a *API) attach(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	query := req.URL.Query()
	for key, values := range query {
		if key != "tenant" && key != "exec" || len(values) > 1 {
			return problem.New(problem.BadRequest, "the parameters are in /openapi.json", "the parameter %s is not known, or is there twice", quote(key))
		}
	}
	if len(req.PathValue("name")) > maxAgentName {
		return problem.New(problem.BadRequest, "list them: clawjail agent ls", "no agent has a name of more than %d bytes", maxAgentName)
	}
	exec, err := boolean(query.Get("exec"))
	if err != nil {
		return err
	}
	right := identity.ProcessStart
	if exec {
		right = identity.AgentExec
	}
	tenant := query.Get("tenant")
	if err := op.CheckTenant(tenant); err != nil {
		return err
	}
	if err := a.Identity.Authorize(req.Context(), by, right, by.TenantOr(tenant)); err != nil {
		return err
	}
	if !socket.Asked(req.Header) {
		return problem.New(problem.BadRequest, "connect with a WebSocket: clawjail spawn -- PROGRAM", "a program is attached to with a WebSocket")
	}
	a.sockets.Add(1)
	defer a.sockets.Done()
	ctx, release := untilTheEnd(req.Context())
	defer release()
	// Origins of others were refused at the door.
	conn, err := websocket.Accept(w, req, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled, InsecureSkipVerify: true})
	if err != nil {
		return nil // Accept has answered
	}
	t := &attachment{api: a, conn: conn, by: by, tenant: tenant, name: req.PathValue("name"), exec: exec}
	t.serve(ctx)
	return nil
}

// attachment is one program and its user.
type attachment struct {
	api          *API
	conn         *websocket.Conn
	by           identity.Principal
	tenant, name string
	exec         bool
}

// serve does everything, and closes the connection.
func (t *attachment) serve(ctx context.Context) {
	// The last message is sent when the request is to end, too.
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	defer func() { _ = t.conn.CloseNow() }() // when it was not closed with a reason
	body, err := t.first(ctx)
	if errors.Is(err, pipes.ErrLeft) {
		return
	}
	ends := pipes.NewServer(t.conn)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop(nil)
	if err != nil {
		t.last(work, ends, Attached{}, err)
		return
	}
	running, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	all.Go(func() {
		err := ends.Serve(work)
		quit(err)
	})
	out, err := t.run(running, work, ends, body)
	if errors.Is(err, pipes.ErrLeft) || errors.Is(err, pipes.ErrProtocol) {
		return // nobody is there to be told, or nobody who listens
	}
	t.last(work, ends, out, err)
}

// first reads what is to be run.
func (t *attachment) first(ctx context.Context) (ProcessRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, attachLimit)
	defer cancel()
	t.conn.SetReadLimit(maxAttach)
	kind, text, err := t.conn.Read(ctx)
	if err != nil {
		return ProcessRequest{}, pipes.ErrLeft // a read that was given up has closed the connection
	}
	if kind != websocket.MessageText {
		return ProcessRequest{}, problem.New(problem.BadRequest, "the protocol is in docs/spawn.md", "the first message is not a text that says what to run")
	}
	return decode[ProcessRequest](text)
}

// run runs the program until it has ended and everything that it printed is sent. quit ends with the connection.
func (t *attachment) run(running, work context.Context, ends *pipes.Pipes, body ProcessRequest) (Attached, error) {
	if body.Tenant != "" && body.Tenant != t.tenant {
		return Attached{}, problem.New(problem.BadRequest, "leave it out there", "the tenant is named in the address")
	}
	request, err := body.request()
	if err != nil {
		return Attached{}, err
	}
	out := Attached{}
	var program *jail.Running
	if t.exec {
		if request.Jail != nil || request.Template != "" || request.TTL != 0 || body.Limits != nil {
			return Attached{}, problem.New(problem.BadRequest, "leave out what is not argv, env and dir", "a program beside the agent's has its jail already")
		}
		program, err = t.api.Agents.Exec(running, t.by, t.tenant, t.name, jail.Program{Argv: request.Argv, Env: request.Env, Dir: request.Dir, Wire: jail.WireStdio})
	} else {
		var started agent.Process
		started, program, err = t.api.Agents.Run(running, t.by, t.tenant, t.name, request)
		out.Process = (*Process)(&started)
	}
	if err != nil {
		return Attached{}, cause(running, err)
	}
	// A stream that cannot be sent any more is of somebody who has left; Serve says so too.
	sending, enough := context.WithCancel(work)
	defer enough()
	defer context.AfterFunc(running, enough)()
	var output, input sync.WaitGroup
	output.Go(func() { _ = ends.Send(sending, pipes.Stdout, program.Stdio.Out) })
	output.Go(func() { _ = ends.Send(sending, pipes.Stderr, program.Stdio.Err) })
	input.Go(func() {
		// A program that reads no more is no reason to end.
		_ = ends.Receive(sending, pipes.Stdin, program.Stdio.In)
		_ = program.Stdio.In.Close() // a pipe, and its reader may be gone
	})
	defer input.Wait()
	defer program.Stdio.Close()
	defer enough()
	defer context.AfterFunc(running, program.End)()
	exit, err := program.Wait(work)
	output.Wait()
	if err != nil || running.Err() != nil {
		program.End()
		return Attached{}, cause(running, err)
	}
	out.Exit = &exit
	return out, nil
}

// cause is why something did not work: that somebody ended it, where somebody did.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// last sends the last message, and closes.
func (t *attachment) last(ctx context.Context, ends *pipes.Pipes, out Attached, err error) {
	ctx, cancel := context.WithTimeout(ctx, exitLimit)
	defer cancel()
	if err != nil {
		if p, ok := t.api.failed(ctx, "Run a program in a jail", err).(*Problem); ok { // it is always one
			out = Attached{Problem: p}
		}
	}
	text, err := json.Marshal(out)
	if err == nil {
		err = ends.SendExit(ctx, text)
	}
	if err != nil {
		return // gone
	}
	_ = t.conn.Close(websocket.StatusNormalClosure, "") // who does not answer is closed all the same
}
