package mcp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend is a fake: it opens sessions that are only written down, and drives with a function of the test.
type backend struct {
	host  bool
	drive func(ctx context.Context, t Target, op browser.Operation) (any, error)
	// fails is what Open, Close and List return, by their names.
	fails map[string]error

	mu     sync.Mutex
	open   []session.Session
	closed []string
	asked  []session.OpenRequest
	driven []string // what was driven, as "target tool"
	by     []identity.Principal
}

func (b *backend) Open(_ context.Context, by identity.Principal, r session.OpenRequest) (session.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked, b.by = append(b.asked, r), append(b.by, by)
	if err := b.fails["Open"]; err != nil {
		return session.Session{}, err
	}
	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	s := session.Session{ID: fmt.Sprintf("s_%016d", len(b.asked)), State: session.StateReady, CredentialMode: "clean", Access: "tools",
		Browser: "shell", Record: "transient", OpenedBy: by.Actor(), Domains: r.Domains, ExpiresAt: &until}
	b.open = append(b.open, s)
	return s, nil
}

func (b *backend) Close(ctx context.Context, by identity.Principal, id string) (session.Session, error) {
	if ctx.Err() != nil {
		return session.Session{}, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.by = append(b.by, by)
	if err := b.fails["Close"]; err != nil {
		return session.Session{}, err
	}
	for n, s := range b.open {
		if s.ID == id {
			b.open = append(b.open[:n:n], b.open[n+1:]...)
			b.closed = append(b.closed, id)
			return s, nil
		}
	}
	return session.Session{}, problem.New(problem.NotFound, "list them", "there is no session %q", id)
}

func (b *backend) List(_ context.Context, by identity.Principal) ([]session.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.by = append(b.by, by)
	return append([]session.Session(nil), b.open...), b.fails["List"]
}

func (b *backend) Drive(ctx context.Context, by identity.Principal, t Target, op browser.Operation) (any, error) {
	b.mu.Lock()
	name := t.Session
	if t.Host {
		name = "host"
	}
	b.driven, b.by = append(b.driven, name+" "+fmt.Sprintf("%T", op)), append(b.by, by)
	b.mu.Unlock()
	return b.drive(ctx, t, op)
}

func (b *backend) Host() bool { return b.host }

func (b *backend) closedIDs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.closed...)
}

// log collects what was logged.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// fixture is a server with a fake behind it, and one client over pipes.
type fixture struct {
	*sdk.ClientSession
	t      *testing.T
	server *Server
	back   *backend
	log    *logged
	said   chan string // progress
	hangUp func() error
}

func newServer(t *testing.T, o Options) (*Server, *logged) {
	t.Helper()
	log := new(logged)
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, log
}

func newFixture(t *testing.T, back *backend) *fixture {
	t.Helper()
	w := newFixtureWith(t, Options{Backend: back, Version: "1.2.3", Sessions: Bounds{TTL: 30 * time.Minute, MaxTTL: 4 * time.Hour, Idle: 10 * time.Minute, Max: 8}})
	w.back = back
	return w
}

func newFixtureWith(t *testing.T, o Options) *fixture {
	t.Helper()
	s, log := newServer(t, o)
	w := &fixture{t: t, server: s, log: log, said: make(chan string, 200)}
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	w.hangUp = fromClient.Close
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- s.Serve(ctx, toServer, fromServer) }()
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			w.said <- fmt.Sprintf("%v/%v %s", r.Params.Progress, r.Params.Total, r.Params.Message)
		}})
	connected, err := client.Connect(ctx, &sdk.IOTransport{Reader: toClient, Writer: fromClient}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.ClientSession = connected
	t.Cleanup(func() {
		connected.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		cancel()
	})
	return w
}

// tool calls a tool and returns its texts.
func (w *fixture) tool(name string, args any) (string, *sdk.CallToolResult) {
	w.t.Helper()
	return callTool(w.t, w.ClientSession, name, args)
}

func callTool(t *testing.T, c *sdk.ClientSession, name string, args any) (string, *sdk.CallToolResult) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	out, err := c.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var texts []string
	for _, content := range out.Content {
		if text, ok := content.(*sdk.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	return strings.Join(texts, "\n"), out
}

type args = map[string]any
