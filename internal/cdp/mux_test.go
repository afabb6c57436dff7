package cdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/testenv"
)

// browserWithSessions answers attach and detach as Chromium does, and everything else with an empty result.
func browserWithSessions(other func(*Message) []string) func(*Message) []string {
	var n atomic.Int32
	return func(c *Message) []string {
		switch c.Method {
		case "Target.attachToBrowserTarget":
			id := fmt.Sprintf("X%d", n.Add(1))
			return []string{
				fmt.Sprintf(`{"method":"Target.attachedToTarget","params":{"sessionId":%q}}`, id),
				fmt.Sprintf(`{"id":%d,"result":{"sessionId":%q}}`, c.ID, id)}
		case "Target.detachFromTarget":
			return []string{fmt.Sprintf(`{"method":"Target.detachedFromTarget","params":%s}`, c.Params), ok(c)}
		}
		if other != nil {
			if out := other(c); out != nil {
				return out
			}
		}
		return []string{ok(c)}
	}
}

func attach(t testing.TB, m *Mux, options ClientOptions) *Client {
	t.Helper()
	c, err := m.Attach(short(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func send(t testing.TB, c *Client, frame string) {
	t.Helper()
	if err := c.Send(short(t), []byte(frame)); err != nil {
		t.Fatalf("send %.80s: %v", frame, err)
	}
}

func receive(t testing.TB, c *Client) string {
	t.Helper()
	frame, err := c.Receive(short(t))
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	return string(frame)
}

func expect(t testing.TB, c *Client, want string) {
	t.Helper()
	if got := receive(t, c); got != want {
		t.Fatalf("received %s\n    want %s", got, want)
	}
}

func TestClientsKeepTheirIDsAndNeverSeeTheirBrowserSession(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		return []string{fmt.Sprintf(`{"method":"A.e","params":{"for":%q},"sessionId":%q}`, c.Method, c.SessionID), ok(c)}
	}))
	m := NewMux(b.conn)
	one, two := attach(t, m, ClientOptions{}), attach(t, m, ClientOptions{})
	for _, c := range []struct {
		client *Client
		method string
	}{{one, "A.one"}, {two, "A.two"}, {one, "A.three"}} {
		send(t, c.client, fmt.Sprintf(`{"id":5,"method":%q}`, c.method))
		expect(t, c.client, fmt.Sprintf(`{"method":"A.e","params":{"for":%q}}`, c.method))
		expect(t, c.client, `{"id":5,"result":{}}`)
	}
	ids := make(map[int32]bool)
	for _, c := range b.commands() {
		if ids[c.ID] {
			t.Errorf("id %d used twice on the pipe", c.ID)
		}
		ids[c.ID] = true
		if strings.HasPrefix(c.Method, "A.") && c.SessionID == "" {
			t.Errorf("%s reached the browser itself", c.Method)
		}
	}
}

func TestAClientReachesOnlySessionsAttachedUnderIt(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		if c.Method == "A.attach" {
			return []string{
				fmt.Sprintf(`{"method":"Target.attachedToTarget","sessionId":%q,"params":{"sessionId":"child of %s"}}`, c.SessionID, c.SessionID),
				ok(c)}
		}
		return nil
	}))
	m := NewMux(b.conn)
	one, two := attach(t, m, ClientOptions{}), attach(t, m, ClientOptions{})
	send(t, one, `{"id":1,"method":"A.attach"}`)
	expect(t, one, `{"method":"Target.attachedToTarget","params":{"sessionId":"child of X1"}}`)
	expect(t, one, `{"id":1,"result":{}}`)
	send(t, one, `{"id":2,"method":"A.b","sessionId":"child of X1"}`)
	expect(t, one, `{"id":2,"result":{},"sessionId":"child of X1"}`)
	// An empty session is the client's own browser, as it is Chromium's root without a multiplexer.
	send(t, one, `{"id":2,"method":"A.b","sessionId":""}`)
	expect(t, one, `{"id":2,"result":{}}`)

	before := len(b.commands())
	for _, foreign := range []string{"child of X1", "X1", "X2", "nonsense"} {
		send(t, two, fmt.Sprintf(`{"id":3,"method":"A.b","sessionId":%q}`, foreign))
		expect(t, two, `{"id":3,"error":{"code":-32001,"message":"Session with given id not found."}}`)
	}
	if n := len(b.commands()); n != before {
		t.Errorf("%d commands for foreign sessions reached the browser", n-before)
	}
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if n := b.conn.attachedSessions(); n != 1 {
		t.Errorf("%d sessions after the close, want the other client's one", n)
	}
}

func TestABadFrameEndsOnlyItsClient(t *testing.T) {
	tests := []struct {
		name, frame string
		want        error
	}{
		{"malformed", `{"id":1`, ErrProtocol},
		{"duplicate key", `{"id":1,"method":"A.b","method":"A.c"}`, ErrProtocol},
		{"case variant", `{"id":1,"method":"A.b","SessionId":"X1"}`, ErrProtocol},
		{"unknown key", `{"id":1,"method":"A.b","x":1}`, ErrProtocol},
		{"two frames in one", "{\"id\":1,\"method\":\"A.b\"}\x00{\"id\":2,\"method\":\"A.b\"}", ErrProtocol},
		{"too large, without an id", `{"method":"A.b","params":{"a":"` + strings.Repeat("x", 9000) + `"}}`, ErrFrameTooLarge},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newFake(t, Options{}, browserWithSessions(nil))
			m := NewMux(b.conn)
			bad, good := attach(t, m, ClientOptions{MaxFrame: 8 << 10}), attach(t, m, ClientOptions{})
			if err := bad.Send(short(t), []byte(test.frame)); !errors.Is(err, test.want) {
				t.Fatalf("send: %v", err)
			}
			if _, err := bad.Receive(short(t)); !errors.Is(err, test.want) {
				t.Fatalf("receive: %v", err)
			}
			testenv.Eventually(t, 5*time.Second, func() bool { return m.Clients() == 1 }, "the client is detached")
			for _, c := range b.commands() {
				if strings.HasPrefix(c.Method, "A.") {
					t.Errorf("%s reached the browser", c.Method)
				}
			}
			send(t, good, `{"id":1,"method":"A.b"}`)
			expect(t, good, `{"id":1,"result":{}}`)
		})
	}
}

func TestTooManyPendingCommandsAreAnswered(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(func(*Message) []string { return []string{} }))
	m := NewMux(b.conn)
	c := attach(t, m, ClientOptions{MaxPending: 2})
	for i := range 2 {
		send(t, c, fmt.Sprintf(`{"id":%d,"method":"A.hang"}`, i))
	}
	send(t, c, `{"id":9,"method":"A.hang"}`)
	expect(t, c, `{"id":9,"error":{"code":-32000,"message":"Too many commands are waiting for a reply."}}`)
}

func TestClientsLearnWhyTheBrowserIsGone(t *testing.T) {
	var b *fakeBrowser
	b = newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		b.die()
		return []string{}
	}))
	m := NewMux(b.conn)
	one, two := attach(t, m, ClientOptions{}), attach(t, m, ClientOptions{})
	send(t, one, `{"id":1,"method":"A.die"}`)
	for _, c := range []*Client{one, two} {
		if _, err := c.Receive(short(t)); !errors.Is(err, ErrBrowserGone) {
			t.Errorf("got %v", err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := m.Attach(short(t), ClientOptions{}); !errors.Is(err, ErrBrowserGone) {
		t.Errorf("attach: %v", err)
	}
}

func TestABrowserThatDetachesAClientEndsIt(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		return []string{fmt.Sprintf(`{"method":"Target.detachedFromTarget","params":{"sessionId":%q}}`, c.SessionID)}
	}))
	m := NewMux(b.conn)
	c := attach(t, m, ClientOptions{})
	send(t, c, `{"id":1,"method":"A.b"}`)
	if _, err := c.Receive(short(t)); !errors.Is(err, ErrSessionGone) {
		t.Fatalf("got %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestABrowserThatStealsASessionEndsTheConnection(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		return []string{`{"method":"Target.attachedToTarget","params":{"sessionId":"X1"}}`}
	}))
	m := NewMux(b.conn)
	one := attach(t, m, ClientOptions{})
	send(t, one, `{"id":1,"method":"A.b"}`)
	if _, err := one.Receive(short(t)); !errors.Is(err, ErrProtocol) {
		t.Fatalf("got %v", err)
	}
}

func TestAnAttachThatNobodyWaitsForIsDetached(t *testing.T) {
	asked, goOn := make(chan struct{}), make(chan struct{})
	answer := browserWithSessions(nil)
	b := newFake(t, Options{}, func(c *Message) []string {
		if c.Method == "Target.attachToBrowserTarget" {
			close(asked)
			<-goOn
		}
		return answer(c)
	})
	m := NewMux(b.conn)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() {
		_, err := m.Attach(ctx, ClientOptions{})
		got <- err
	}()
	<-asked
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	close(goOn)
	testenv.Eventually(t, 5*time.Second, func() bool { return m.Clients() == 0 }, "the attempt is cleaned up")
	if n := b.conn.attachedSessions(); n != 0 {
		t.Errorf("%d sessions left", n)
	}
}

func TestMuxCloseDetachesEveryone(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(nil))
	m := NewMux(b.conn)
	one, two := attach(t, m, ClientOptions{}), attach(t, m, ClientOptions{})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Client{one, two} {
		if !errors.Is(c.Err(), ErrClosed) {
			t.Errorf("cause %v", c.Err())
		}
	}
	if n := b.conn.attachedSessions(); n != 0 {
		t.Errorf("%d sessions left", n)
	}
	if _, err := m.Attach(short(t), ClientOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("attach: %v", err)
	}
	if err := b.conn.Call(short(t), "", "A.b", nil, nil); err != nil {
		t.Errorf("the connection is the owner's, and still open: %v", err)
	}
}

// decider is a filter: it answers A.jar itself, rewrites A.rewrite, withholds A.secret, and meddles with ids.
type decider struct{}

func (decider) Command(c *Message) *Message {
	defer func() { c.ID, c.SessionID, c.Kind = 77, "meddled", Event }()
	switch c.Method {
	case "A.jar":
		return ResultReply([]byte(`{"cookies":[]}`))
	case "A.deny":
		return ErrorReply(CodeMethodUnknown, "'%s' is not for you", c.Method)
	case "A.rewrite":
		c.Params = []byte(`{"clean":true}`)
	}
	return nil
}

func (decider) Reply(command, reply *Message) {
	reply.Result = []byte(fmt.Sprintf(`{"was":%q,"id":%d}`, command.Method, command.ID))
	reply.ID, reply.SessionID = 77, "meddled"
}

func (decider) Event(e *Message) bool {
	pass := e.Method != "A.secret"
	e.Params, e.SessionID = []byte(`{"seen":true}`), "meddled"
	return pass
}

func TestAFilterDeniesAnswersRewritesAndWithholds(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		return []string{
			fmt.Sprintf(`{"method":"A.secret","sessionId":%q}`, c.SessionID),
			fmt.Sprintf(`{"method":"A.open","params":{"x":1},"sessionId":%q}`, c.SessionID), ok(c)}
	}))
	m := NewMux(b.conn)
	c := attach(t, m, ClientOptions{Filter: decider{}})
	send(t, c, `{"id":1,"method":"A.jar"}`)
	expect(t, c, `{"id":1,"result":{"cookies":[]}}`)
	send(t, c, `{"id":2,"method":"A.deny"}`)
	expect(t, c, `{"id":2,"error":{"code":-32601,"message":"'A.deny' is not for you"}}`)
	for _, seen := range b.commands() {
		if strings.HasPrefix(seen.Method, "A.") {
			t.Fatalf("%s reached the browser", seen.Method)
		}
	}
	send(t, c, `{"id":3,"method":"A.rewrite","params":{"dirty":true}}`)
	expect(t, c, `{"method":"A.open","params":{"seen":true}}`)
	expect(t, c, `{"id":3,"result":{"was":"A.rewrite","id":3}}`)
	seen := b.commands()
	if got := seen[len(seen)-1]; string(got.Params) != `{"clean":true}` || got.SessionID != "X1" {
		t.Errorf("the browser got %+v", got)
	}
}

func TestAFilterCannotSmuggleADelimiter(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(nil))
	c := attach(t, NewMux(b.conn), ClientOptions{Filter: smuggler{}})
	if err := c.Send(short(t), []byte(`{"id":1,"method":"A.b"}`)); !errors.Is(err, ErrProtocol) {
		t.Fatalf("got %v", err)
	}
}

type smuggler struct{}

func (smuggler) Command(c *Message) *Message {
	c.Params = bytes.ReplaceAll([]byte(`{}|{"id":1,"method":"Browser.close"`), []byte("|"), []byte("}\x00"))
	return nil
}
func (smuggler) Reply(_, _ *Message) {}
func (smuggler) Event(*Message) bool { return true }

// acting is a filter that answers one kind of event with a command of its own.
type acting struct {
	act   func(sessionID, method string, params jsontext.Value)
	ended chan struct{}
}

func (a *acting) Started(act func(sessionID, method string, params jsontext.Value)) { a.act = act }
func (a *acting) Ended()                                                            { close(a.ended) }
func (a *acting) Command(command *Message) *Message {
	if command.SessionID != "" {
		return ErrorReply(CodeServerError, "the filter was shown the session %s", command.SessionID)
	}
	return nil
}
func (a *acting) Reply(_, _ *Message) {}
func (a *acting) Event(event *Message) bool {
	if event.Method != "A.secret" {
		return true
	}
	a.act(event.SessionID, "A.letGo", event.Params)
	return false
}

func TestAFilterSendsCommandsInTheNameOfItsClient(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(func(c *Message) []string {
		if c.Method == "A.ask" {
			return []string{fmt.Sprintf(`{"method":"A.secret","params":{"n":1},"sessionId":%q}`, c.SessionID), ok(c)}
		}
		return nil
	}))
	m := NewMux(b.conn)
	filter := &acting{ended: make(chan struct{})}
	c := attach(t, m, ClientOptions{Filter: filter})
	send(t, c, `{"id":1,"method":"A.ask"}`)
	expect(t, c, `{"id":1,"result":{}}`)
	var own string
	testenv.Eventually(t, 5*time.Second, func() bool {
		for _, seen := range b.commands() {
			if seen.Method == "A.ask" {
				own = seen.SessionID
			}
			if seen.Method == "A.letGo" {
				return seen.SessionID == own && string(seen.Params) == `{"n":1}`
			}
		}
		return false
	}, "the filter's own command")
	// Its reply goes to nobody: the next thing that the client hears is the reply to its own.
	send(t, c, `{"id":2,"method":"A.other"}`)
	expect(t, c, `{"id":2,"result":{}}`)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	<-filter.ended
}

func TestAFilterThatSendsWithoutEndEndsItsClient(t *testing.T) {
	b := newFake(t, Options{}, browserWithSessions(nil))
	m := NewMux(b.conn)
	filter := &acting{ended: make(chan struct{})}
	c := attach(t, m, ClientOptions{Filter: filter})
	for range 1000 * maxActs {
		filter.act("", "A.letGo", nil)
		if c.Err() != nil {
			break
		}
	}
	if !errors.Is(c.Err(), ErrSlowClient) {
		t.Errorf("the client goes on: %v", c.Err())
	}
}
