package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/api/pipes"
	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// people knows one key, and its holder may do everything unless refuse says so.
type people struct {
	api.Identity
	refuse atomic.Pointer[problem.Error]
	cut    atomic.Pointer[context.CancelCauseFunc]
}

func (p *people) Authenticate(_ context.Context, presented string, _ netip.Addr) (identity.Principal, error) {
	if presented != "cjop_key" {
		return identity.Principal{}, problem.New(problem.Unauthorized, "", "no")
	}
	return identity.Principal{Kind: identity.KindAdmin, ID: "admin", Role: identity.RoleAdmin}, nil
}

func (p *people) Enter(_ context.Context, _ identity.Principal, cancel context.CancelCauseFunc) (func(), error) {
	p.cut.Store(&cancel)
	return func() {}, nil
}

func (p *people) Authorize(context.Context, identity.Principal, identity.Operation, string) error {
	if err := p.refuse.Load(); err != nil {
		return err
	}
	return nil
}

// programs runs programs of this machine.
type programs struct {
	agent.Agents
	fail   error
	exec   atomic.Bool
	begun  atomic.Int32
	ended  atomic.Int32
	events func(ctx context.Context, of, after string, follow bool, emit func(agent.Event) error) error
}

func (p *programs) Run(ctx context.Context, _ identity.Principal, tenant, name string, r agent.ProcessRequest) (agent.Process, *jail.Running, error) {
	if p.fail != nil {
		return agent.Process{}, nil, p.fail
	}
	var ends [6]*os.File
	for n := range 3 {
		ends[2*n], ends[2*n+1], _ = os.Pipe() // seen below
	}
	cmd := exec.CommandContext(ctx, r.Argv[0], r.Argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = ends[0], ends[3], ends[5]
	if err := cmd.Start(); err != nil {
		return agent.Process{}, nil, err
	}
	for _, f := range []*os.File{ends[0], ends[3], ends[5]} {
		_ = f.Close() // the program has it
	}
	p.begun.Add(1)
	return agent.Process{ID: "pr_1", Tenant: tenant, Agent: name}, &jail.Running{
		Stdio: &jail.Stdio{In: ends[1], Out: ends[2], Err: ends[4]},
		Wait: func(context.Context) (jail.Exit, error) {
			_ = cmd.Wait() // the state says how
			p.ended.Add(1)
			return jail.Exit{Code: cmd.ProcessState.ExitCode(), Cause: jail.CauseExited}, nil
		},
		End: func() { _ = cmd.Process.Kill() }, // gone already
	}, nil
}

func (p *programs) Exec(ctx context.Context, by identity.Principal, tenant, name string, r jail.Program) (*jail.Running, error) {
	p.exec.Store(true)
	_, running, err := p.Run(ctx, by, tenant, name, agent.ProcessRequest{Argv: r.Argv})
	return running, err
}

func (p *programs) Events(ctx context.Context, _ identity.Principal, _, _, of, after string, follow bool, emit func(agent.Event) error) error {
	return p.events(ctx, of, after, follow, emit)
}

// plane is a control plane with those, and a client of it.
func plane(t *testing.T) (*Client, *people, *programs) {
	t.Helper()
	who, run := &people{}, &programs{}
	a, err := api.New(api.Options{
		Sessions: struct{ api.Sessions }{}, Identity: who, Credentials: struct{ api.Credentials }{}, Egress: struct{ op.Egress }{},
		Audit: struct{ api.AuditLog }{}, Rows: struct{ audit.Rows }{}, Agents: run,
		Verify: func(context.Context) (audit.Report, error) { return audit.Report{}, nil },
		Host:   func(context.Context) (api.HostInfo, error) { return api.HostInfo{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, listener) }()
	c := New(&url.URL{Scheme: "http", Host: listener.Addr().String()}, "cjop_key")
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		c.CloseIdle()
	})
	return c, who, run
}

func shell(text string) op.ProcessRequest {
	return op.ProcessRequest{Argv: []string{"/bin/sh", "-c", text}}
}

func TestAProgramsStdioIsCarriedUntouched(t *testing.T) {
	c, _, run := plane(t)
	data := make([]byte, 3*pipes.Window+17)
	for n := range data {
		data[n] = byte(n * 11)
	}
	for _, exec := range []bool{false, true} {
		var out, errs bytes.Buffer
		got, err := c.Attach(t.Context(), "writer", exec, shell("cat; echo end >&2; exit 7"), Streams{In: bytes.NewReader(data), Out: &out, Err: &errs})
		if err != nil || got.Exit == nil || got.Exit.Code != 7 || !exec && (got.Process == nil || got.Process.ID != "pr_1") {
			t.Fatalf("%+v, %v", got, err)
		}
		if !slices.Equal(out.Bytes(), data) || errs.String() != "end\n" || run.exec.Load() != exec {
			t.Errorf("%d bytes of %d, %q, %v", out.Len(), len(data), &errs, run.exec.Load())
		}
	}
}

func TestAProgramIsNotAttachedToWithoutPermission(t *testing.T) {
	c, who, run := plane(t)
	streams := Streams{Out: io.Discard, Err: io.Discard}
	who.refuse.Store(problem.New(problem.Forbidden, "ask", "you may not"))
	_, err := c.Attach(t.Context(), "writer", false, shell("true"), streams)
	if problem.CodeOf(err) != problem.Forbidden {
		t.Error(err)
	}
	who.refuse.Store(nil)
	run.fail = problem.New(problem.TemplateMissing, "build it", "there is none")
	_, err = c.Attach(t.Context(), "writer", false, shell("true"), streams)
	if p, ok := problem.As(err); !ok || p.Code != problem.TemplateMissing || p.Hint != "build it" {
		t.Error(err)
	}
	run.fail = errors.New("not to be asked")
	if _, err = c.Attach(t.Context(), "writer", true, op.ProcessRequest{Argv: []string{"x"}, Template: "clawbot"}, streams); problem.CodeOf(err) != problem.BadRequest {
		t.Error(err)
	}
	other := New(c.base, "another")
	defer other.CloseIdle()
	if _, err = other.Attach(t.Context(), "writer", false, shell("true"), streams); problem.CodeOf(err) != problem.Unauthorized {
		t.Error(err)
	}
}

// A client that leaves ends the program, also one that does not read its input, and whose output is not taken.
func TestAProgramEndsWithWhoStartedIt(t *testing.T) {
	for name, cut := range map[string]func(who *people, leave func()){
		"left":    func(_ *people, leave func()) { leave() },
		"revoked": func(who *people, _ func()) { (*who.cut.Load())(problem.New(problem.Unauthorized, "", "revoked")) },
	} {
		t.Run(name, func(t *testing.T) {
			c, who, run := plane(t)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			typing, typed := io.Pipe()
			defer typing.Close()
			go func() {
				for {
					if _, err := typed.Write(make([]byte, 64<<10)); err != nil {
						return
					}
				}
			}()
			first := make(chan struct{})
			done := make(chan error, 1)
			go func() {
				_, err := c.Attach(ctx, "writer", false, shell("echo x; exec sleep 1000"),
					Streams{In: typing, Out: writer(func(p []byte) (int, error) { close(first); return len(p), nil }), Err: io.Discard})
				done <- err
			}()
			<-first
			cut(who, leave)
			if err := <-done; err == nil {
				t.Error("it has ended well")
			}
			testenv.Eventually(t, 20*time.Second, func() bool { return run.ended.Load() == 1 }, "the program runs on")
		})
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestAProgramWaitsForWhoReadsSlowly(t *testing.T) {
	c, _, run := plane(t)
	release, done := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	taken := make(chan struct{})
	var total atomic.Int64
	go func() {
		_, err := c.Attach(t.Context(), "writer", false, shell("head -c 4000000 /dev/zero"), Streams{Err: io.Discard, Out: writer(func(p []byte) (int, error) {
			once.Do(func() { close(taken) })
			<-release
			total.Add(int64(len(p)))
			return len(p), nil
		})})
		done <- err
	}()
	<-taken
	if run.ended.Load() != 0 {
		t.Error("it did not wait")
	}
	close(release)
	if err := <-done; err != nil || total.Load() != 4000000 {
		t.Errorf("%d bytes, %v", total.Load(), err)
	}
}

func TestWhoBreaksTheProtocolIsCutOff(t *testing.T) {
	flood := append([]byte{pipes.Stdin}, make([]byte, 200<<10)...)
	for name, messages := range map[string][][]byte{
		"more than there is room for": {flood, flood},
		"another's stream":            {{pipes.Stdout, 1}},
		"an exit":                     {{pipes.Exit, '{', '}'}},
		"credit without end":          {{pipes.Credit, pipes.Stdout, 255, 255, 255, 255}},
		"credit for its own":          {{pipes.Credit, pipes.Stdin, 0, 0, 0, 1}},
		"an unknown channel":          {{9, 1}},
		"nothing":                     {{}},
		"more after the end":          {{pipes.Stdin}, {pipes.Stdin, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, run := plane(t)
			conn, _, err := websocket.Dial(t.Context(), c.base.String()+"/v1/agents/writer/attach", &websocket.DialOptions{HTTPClient: c.http,
				HTTPHeader: http.Header{"Authorization": {"Bearer cjop_key"}}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.CloseNow() }() // closed by the other end
			if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"argv":["/bin/sleep","1000"]}`)); err != nil {
				t.Fatal(err)
			}
			// A client that is cut off before that has no program that could end.
			testenv.Eventually(t, 20*time.Second, func() bool { return run.begun.Load() == 1 }, "the program does not begin")
			for _, m := range messages {
				_ = conn.Write(t.Context(), websocket.MessageBinary, m) // it may be cut off already
			}
			testenv.Eventually(t, 20*time.Second, func() bool { return run.ended.Load() == 1 }, "the program runs on")
		})
	}
}

func TestEventsComeAsTheyAre(t *testing.T) {
	c, _, run := plane(t)
	sent := []agent.Event{
		{ID: "0-0-1", At: time.Unix(1, 0).UTC(), Type: agent.EventStarted},
		{ID: "9-0-1", At: time.Unix(2, 0).UTC(), Type: agent.EventJSON, Stream: jail.Stdout, Name: "x", JSON: json.RawMessage(`{"type":"x","a":"<&>\u2028"}`)},
		{ID: "9-4-1", At: time.Unix(3, 0).UTC(), Type: agent.EventText, Stream: jail.Stderr, Text: "a\rb: c\n\ndata: {}\n\nid: 5"},
		{ID: "9-4-2", At: time.Unix(4, 0).UTC(), Type: agent.EventExit, Exit: &jail.Exit{Code: 1, At: time.Unix(4, 0).UTC()}},
	}
	var asked string
	run.events = func(_ context.Context, of, after string, follow bool, emit func(agent.Event) error) error {
		asked = fmt.Sprint(of, " ", after, " ", follow)
		for _, e := range sent {
			if err := emit(e); err != nil {
				return err
			}
		}
		return nil
	}
	var got []agent.Event
	err := c.Events(t.Context(), EventsQuery{Agent: "writer", Process: "pr_1", After: "0-0-0", Follow: true}, func(e agent.Event) error { got = append(got, e); return nil })
	if err != nil || asked != "pr_1 0-0-0 true" {
		t.Errorf("%v, %q", err, asked)
	}
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Error(diff)
	}
	// A client that goes on by itself says so in a header.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.base.String()+"/v1/agents/writer/events?follow=false&after=1-1-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Last-Event-ID", "9-4-1")
	response, err := c.ask(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() // read to its end
	text, err := io.ReadAll(response.Body)
	if err != nil || asked != " 9-4-1 false" || response.Header.Get("Content-Type") != "text/event-stream" ||
		!strings.HasPrefix(string(text), "id: 0-0-1\nevent: started\ndata: {") || !strings.HasSuffix(string(text), "\n\nevent: end\ndata: {}\n\n") {
		t.Errorf("%v %q %q", err, asked, text)
	}
	enough := errors.New("enough")
	if err := c.Events(t.Context(), EventsQuery{Agent: "writer"}, func(agent.Event) error { return enough }); !errors.Is(err, enough) {
		t.Error(err)
	}
	run.events = func(context.Context, string, string, bool, func(agent.Event) error) error {
		return problem.New(problem.NotFound, "declare it", "no jail")
	}
	if err := c.Events(t.Context(), EventsQuery{Agent: "writer", Follow: true}, nil); problem.CodeOf(err) != problem.NotFound {
		t.Error(err)
	}
	// A part of a stream is not the whole.
	run.events = func(_ context.Context, _, _ string, _ bool, emit func(agent.Event) error) error {
		return errors.Join(emit(sent[0]), errors.New("broken"))
	}
	got = nil
	if err := c.Events(t.Context(), EventsQuery{Agent: "writer"}, func(e agent.Event) error { got = append(got, e); return nil }); problem.CodeOf(err) != problem.ControlPlaneUnreachable || len(got) != 1 {
		t.Errorf("%v, %d events", err, len(got))
	}
}

// A silent stream says that it was accepted.
func TestASilentStreamIsAnswered(t *testing.T) {
	c, _, run := plane(t)
	run.events = func(ctx context.Context, _, _ string, _ bool, _ func(agent.Event) error) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	response, err := c.send(t.Context(), http.MethodGet, "/v1/agents/writer/events", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() // it has no end
	line := make([]byte, 12)
	if _, err := io.ReadFull(response.Body, line); err != nil || string(line) != ": still here" {
		t.Errorf("%q, %v", line, err)
	}
}
