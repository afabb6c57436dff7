package mcp

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/mcpserver"
	"github.com/clawjail/clawjail/internal/testenv"
)

// heard is what a client hears on a stream: each event, until it ends.
type heard struct {
	status int
	events chan string
	stop   func()
}

// hear listens to a conversation, as a client of a version with sessions does.
func (d *door) hear(t *testing.T, key, id string, more ...string) heard {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Authorization", "Bearer "+key)
	if id != "" {
		r.Header.Set(sessionHeader, id)
	}
	for n := 0; n < len(more); n += 2 {
		r.Header.Set(more[n], more[n+1])
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	h := heard{status: answer.StatusCode, events: make(chan string, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(h.events)
		defer answer.Body.Close()
		for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
			switch data, isData := strings.CutPrefix(lines.Text(), "data: "); {
			case isData:
				h.events <- data
			case strings.HasPrefix(lines.Text(), "id: "):
				h.events <- lines.Text()
			}
		}
	}()
	h.stop = func() { cancel(); <-done }
	t.Cleanup(h.stop)
	return h
}

// next is the next event; empty when the stream has ended.
func (h heard) next(t *testing.T) string {
	t.Helper()
	select {
	case e := <-h.events:
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is heard")
		return ""
	}
}

const toolsNote = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`

const listing = `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`

// newListening is a door whose tools change.
func newListening(t *testing.T) (*door, *others) {
	o := new(others)
	d := newDoorWith(t, Options{Backend: new(backend), Foreign: o})
	d.gap = time.Millisecond
	return d, o
}

// begin begins a conversation, and lists its tools.
func (d *door) begin(t *testing.T, key string) (id string) {
	t.Helper()
	_, id, body := d.send(t, key, "", initialize)
	if id == "" || !strings.Contains(body, `"listChanged":true`) {
		t.Fatalf("%q %s", id, body)
	}
	if status, _, body := d.send(t, key, id, listing); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	return id
}

// A stock client hears of changes of its own tools, and of nobody else's, in every version of the protocol.
func TestListenersHearOfChangesOfTheirOwnTools(t *testing.T) {
	for _, version := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			d, o := newListening(t)
			told := map[string]chan string{}
			clients := map[string]*sdk.ClientSession{}
			for _, who := range []string{"b", "c"} {
				told[who] = make(chan string, 100)
				transport := &http.Transport{}
				client, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
					ToolListChangedHandler:     func(context.Context, *sdk.ToolListChangedRequest) { told[who] <- "tools" },
					ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { told[who] <- "resources" },
					PromptListChangedHandler:   func(context.Context, *sdk.PromptListChangedRequest) { told[who] <- "prompts" },
				}).Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: d.URL, HTTPClient: &http.Client{Transport: keyed{transport, who}}, MaxRetries: -1},
					&sdk.ClientSessionOptions{ProtocolVersion: version})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { client.Close(); transport.CloseIdleConnections() })
				if got := client.InitializeResult().ProtocolVersion; got != version {
					t.Fatalf("it speaks %s", got)
				}
				if _, err := client.ListTools(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				clients[who] = client
			}
			testenv.Eventually(t, 10*time.Second, func() bool { return o.listening() == 2 }, "they do not listen")
			heard := map[string]bool{}
			hears := func(who, want string) {
				t.Helper()
				select {
				case got := <-told[who]:
					if got != want {
						t.Errorf("%s hears of %s, want %s", who, got, want)
					}
				case <-time.After(30 * time.Second):
					t.Fatalf("%s hears nothing of %s", who, want)
				}
			}
			for _, who := range []string{"c", "b"} { // c first: what b heard of that is there before its own
				o.give(who, "more__of-"+who)
				hears(who, "tools")
				listed, err := clients[who].ListTools(t.Context(), nil)
				if err != nil || !slices.ContainsFunc(listed.Tools, func(tool *sdk.Tool) bool { return tool.Name == "more__of-"+who }) {
					t.Errorf("%s lists %v, %v", who, listed, err)
				}
			}
			// A resource in the place of a tool: both lists are others.
			o.give("b", "mcp+one+x:1")
			hears("b", "tools")
			hears("b", "resources")
			o.give("b", "mcp+one+x:2")
			hears("b", "resources")
			o.give("b", "mcp+one+x:2?")
			for range 2 { // each when it is told
				select {
				case got := <-told["b"]:
					heard[got] = true
				case <-time.After(30 * time.Second):
					t.Fatal("b hears nothing")
				}
			}
			if !heard["resources"] || !heard["prompts"] {
				t.Errorf("b hears of %v", heard)
			}
			if len(told["b"])+len(told["c"]) != 0 {
				t.Error("somebody heard more than of the change of its own tools")
			}
			// They go, and nothing listens for them any more.
			for _, client := range clients {
				client.Close()
			}
			testenv.Eventually(t, 10*time.Second, func() bool { return o.listening() == 0 }, "somebody who has gone still listens")
		})
	}
}

func TestWhoMayNotListenDoesNot(t *testing.T) {
	d, _ := newListening(t)
	id := d.begin(t, "ann")
	if h := d.hear(t, "ann", id); h.status != 200 {
		t.Errorf("its own: %d", h.status)
	}
	for what, c := range map[string]struct {
		key, id string
		want    int
	}{"another key": {"bob", id, 404}, "no conversation": {"ann", "", 405}, "one that is none": {"ann", "nosuch", 404}} {
		if h := d.hear(t, c.key, c.id); h.status != c.want {
			t.Errorf("%s: %d, want %d", what, h.status, c.want)
		}
	}
	// Without tools that change there is nothing to listen to, and nobody is told that there is.
	plain := newDoor(t, new(backend), nil)
	_, own, body := plain.send(t, "ann", "", initialize)
	if h := plain.hear(t, "ann", own); h.status != 405 || strings.Contains(body, "listChanged") {
		t.Errorf("without: %d %s", h.status, body)
	}
}

func TestAStreamEndsWithWhatItIsOf(t *testing.T) {
	d, o := newListening(t)
	id := d.begin(t, "ann")
	first := d.hear(t, "ann", id)
	second := d.hear(t, "ann", id)
	if first.next(t) != "" {
		t.Error("the first goes on beside a second")
	}
	o.give("ann", "more__one")
	if got := second.next(t); got != toolsNote {
		t.Errorf("the second hears %q", got)
	}
	if status, _, _ := d.send(t, "ann", id, ""); status != 204 || second.next(t) != "" {
		t.Errorf("it goes on after its conversation: %d", status)
	}
	third := d.hear(t, "ann", d.begin(t, "ann"))
	testenv.Eventually(t, 10*time.Second, func() bool { return o.listening() == 1 }, "the others are still there")
	o.end()
	if third.next(t) != "" {
		t.Error("it goes on after the end of the service")
	}
	testenv.Eventually(t, 10*time.Second, func() bool {
		d.listeners.mu.Lock()
		defer d.listeners.mu.Unlock()
		return len(d.listeners.in) == 0
	}, "places of listeners are left")
}

// A change while a client is away is told when it comes back, until it has listed its tools.
func TestWhatIsMissedIsTold(t *testing.T) {
	d, o := newListening(t)
	id := d.begin(t, "ann")
	o.give("ann", "more__one")
	for range 2 { // it may have gone before it heard
		h := d.hear(t, "ann", id)
		if got := h.next(t); got != toolsNote {
			t.Errorf("heard is %q", got)
		}
		h.stop()
	}
	d.send(t, "ann", id, listing)
	h := d.hear(t, "ann", id)
	testenv.Eventually(t, 10*time.Second, func() bool { return o.listening() == 1 }, "it does not listen")
	d.conversations.end(id)
	if got := h.next(t); got != "" {
		t.Errorf("after it has listed: %q", got)
	}
}

// Libraries count how often a stream broke before anything with an id came, and give the whole conversation up after a few times.
func TestAStreamThatBreaksIsNotGivenUp(t *testing.T) {
	d, _ := newListening(t)
	id := d.begin(t, "ann")
	seen := map[string]bool{}
	last := "none"
	for range 3 {
		h := d.hear(t, "ann", id, "Mcp-Protocol-Version", "2025-11-25", "Last-Event-ID", last)
		last = h.next(t)
		if !strings.HasPrefix(last, "id: ") || seen[last] {
			t.Errorf("first of all %q comes", last)
		}
		seen[last] = true
		h.stop()
	}
	// Clients of versions before take an event without data for a mistake.
	h := d.hear(t, "ann", id, "Mcp-Protocol-Version", "2025-06-18")
	d.conversations.end(id)
	if got := h.next(t); got != "" {
		t.Errorf("first of all %q comes", got)
	}
}

// A listener takes none of the calls that its key may make, and there are so many of one key.
func TestListenersAreBounded(t *testing.T) {
	d, _ := newListening(t)
	id := d.begin(t, "ann")
	for range maxAtOnce + 1 {
		h := d.hear(t, "ann", d.begin(t, "ann"))
		if h.status != 200 {
			t.Fatal(h.status)
		}
	}
	if status, _, body := d.send(t, "ann", id, listing); status != 200 {
		t.Errorf("a call beside them: %d %s", status, body)
	}
	for range maxConversationsOf - maxAtOnce - 1 {
		if _, err := d.listeners.enter("agent:ann/k_ann"); err != nil {
			t.Fatal(err)
		}
	}
	if h := d.hear(t, "ann", id); h.status != 429 {
		t.Errorf("one more: %d", h.status)
	}
	if h := d.hear(t, "bob", d.begin(t, "bob")); h.status != 200 {
		t.Errorf("another key: %d", h.status)
	}
}

// stuck is the answer to a client that reads nothing: what is written to it waits for its deadline.
type stuck struct {
	http.ResponseWriter
	mu   sync.Mutex
	late bool
}

func (s *stuck) SetWriteDeadline(at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = !at.IsZero()
	return nil
}

func (s *stuck) Write([]byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.late {
		return 0, errors.New("it would wait for ever")
	}
	return 0, os.ErrDeadlineExceeded
}

func TestAListenerThatDoesNotReadIsLetGo(t *testing.T) {
	d, o := newListening(t)
	d.beat = time.Millisecond
	out := newEvents(&stuck{})
	l := listener{s: d.Server, by: identity.Principal{ID: "ann"}, seen: func() mcpserver.Views { return nil }, kinds: mcpserver.Kinds(), tell: out.tells(""), beat: out.stay}
	changed, stop := o.Watch(l.by)
	defer stop()
	l.changed = changed
	l.run(t.Context()) // returns
	if err := out.send("x"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// A stream says that it is still there, which keeps what is between from ending it, and counts as use of its conversation.
func TestAStreamKeepsItsConversation(t *testing.T) {
	var mu sync.Mutex
	now := time.Now()
	d := newDoorWith(t, Options{Backend: new(backend), Foreign: new(others), Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	d.beat = time.Millisecond
	id := d.begin(t, "ann")
	d.hear(t, "ann", id)
	for range 3 {
		mu.Lock()
		now = now.Add(conversationIdle - time.Hour)
		then := now
		mu.Unlock()
		testenv.Eventually(t, 10*time.Second, func() bool {
			d.conversations.mu.Lock()
			defer d.conversations.mu.Unlock()
			return d.conversations.all[id].used.Equal(then)
		}, "it is not used")
	}
}
