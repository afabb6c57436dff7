package mcp

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/testenv"
)

// door stands in front of the handler as the API does: the bearer is the name of an agent.
type door struct {
	URL string
	*Server
	back *backend
	log  *logged
}

type whoKey struct{}

func newDoor(t *testing.T, back *backend, now func() time.Time) *door {
	t.Helper()
	d := newDoorWith(t, Options{Backend: back, Now: now})
	d.back = back
	return d
}

func newDoorWith(t *testing.T, o Options) *door {
	t.Helper()
	o.Principal = func(ctx context.Context) identity.Principal {
		by, _ := ctx.Value(whoKey{}).(identity.Principal)
		return by
	}
	s, log := newServer(t, o)
	inner := s.Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if ok {
			r = r.WithContext(context.WithValue(r.Context(), whoKey{}, identity.Principal{Kind: identity.KindAgent, ID: name, TokenID: "k_" + name}))
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return &door{URL: server.URL, Server: s, log: log}
}

// keyed sends a key with every request.
type keyed struct {
	*http.Transport
	name string
}

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.name)
	return k.Transport.RoundTrip(r)
}

func (d *door) client(t *testing.T, name string) *sdk.ClientSession {
	t.Helper()
	transport := &http.Transport{}
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(context.Background(), &sdk.StreamableClientTransport{
		Endpoint: d.URL, HTTPClient: &http.Client{Transport: keyed{transport, name}}, MaxRetries: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); transport.CloseIdleConnections() })
	return c
}

// send makes one request as a client of an older version does, and returns the status, the session id and the body.
func (d *door) send(t *testing.T, key, id, body string, more ...string) (int, string, string) {
	t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodDelete
	}
	r, err := http.NewRequest(method, d.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	if id != "" {
		r.Header.Set(sessionHeader, id)
	}
	for n := 0; n < len(more); n += 2 {
		r.Header.Set(more[n], more[n+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var b strings.Builder
	for buf := make([]byte, 4096); ; {
		n, err := answer.Body.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			break
		}
	}
	return answer.StatusCode, answer.Header.Get(sessionHeader), b.String()
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

func call2025(tool string) string {
	return `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"` + tool + `","arguments":{}}}`
}

func TestEveryCallActsAsTheKeyOfItsOwnRequest(t *testing.T) {
	d := newDoor(t, &backend{}, nil)
	ann, bob := d.client(t, "ann"), d.client(t, "bob")
	callTool(t, ann, "browser_open_session", nil)
	callTool(t, bob, "browser_open_session", nil)
	callTool(t, ann, "capabilities", nil)
	var who []string
	for _, by := range d.back.by {
		who = append(who, by.Actor())
	}
	if strings.Join(who, " ") != "agent:ann agent:bob agent:ann" {
		t.Errorf("acted as %q", who)
	}
}

func TestMCPSessionIsGoodWithItsKeyOnly(t *testing.T) {
	d := newDoor(t, &backend{drive: answers(browser.SnapshotResult{Snapshot: "PAGE"})}, nil)
	status, id, body := d.send(t, "ann", "", initialize)
	if status != 200 || id == "" || !strings.Contains(body, `"tools":{}`) {
		t.Fatalf("%d %q %s", status, id, body)
	}
	if status, _, body := d.send(t, "ann", id, call2025("browser_open_session")); status != 200 || !strings.Contains(body, "is open") {
		t.Fatalf("%d %s", status, body)
	}
	if status, _, body := d.send(t, "ann", id, call2025("browser_snapshot")); status != 200 || !strings.Contains(body, "PAGE") {
		t.Errorf("its own key: %d %s", status, body)
	}
	for name, key := range map[string]string{"another key": "bob", "no key": ""} {
		status, _, body := d.send(t, key, id, call2025("browser_snapshot"))
		if want := map[string]int{"bob": 404, "": 401}[key]; status != want || strings.Contains(body, "PAGE") {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if status, _, _ := d.send(t, key, id, ""); status != 404 && status != 401 {
			t.Errorf("%s ended it: %d", name, status)
		}
	}
	if status, _, _ := d.send(t, "ann", "nosuch", call2025("browser_snapshot")); status != 404 {
		t.Errorf("an id that nobody has: %d", status)
	}
	if status, _, _ := d.send(t, "ann", id, ""); status != 204 {
		t.Errorf("ending: %d", status)
	}
	if status, _, _ := d.send(t, "ann", id, call2025("browser_snapshot")); status != 404 {
		t.Errorf("ended: %d", status)
	}
	// Without one there is nothing to lean on.
	if _, _, body := d.send(t, "ann", "", call2025("browser_snapshot")); !strings.Contains(body, "session is missing") {
		t.Errorf("without: %s", body)
	}
}

func TestMCPSessionsEndAndAreBounded(t *testing.T) {
	now := time.Now()
	c := newConversations("", func() time.Time { return now })
	first, _ := c.begin("ann", "acme")
	bobs, _ := c.begin("bob", "rival")
	for range maxConversationsOf {
		now = now.Add(time.Second)
		c.begin("ann", "acme")
	}
	if c.find(first, "ann") != nil || c.find(bobs, "bob") == nil || len(c.all) != maxConversationsOf+1 {
		t.Errorf("there are %d", len(c.all))
	}
	// A tenant with many keys loses its own, and nobody else's.
	for n := range maxConversations + 10 {
		now = now.Add(time.Second)
		if id, _ := c.begin(strings.Repeat("x", n), "acme"); c.find(id, strings.Repeat("x", n)) == nil {
			t.Fatal("a new one is not there")
		}
	}
	if len(c.all) != maxConversations || c.find(bobs, "bob") == nil {
		t.Errorf("there are %d; the other tenant's is there: %v", len(c.all), c.find(bobs, "bob") != nil)
	}
	now = now.Add(conversationIdle)
	if c.find(bobs, "bob") != nil {
		t.Error("one that nobody used is there")
	}
	if c.begin("carl", "acme"); len(c.all) != 1 {
		t.Errorf("%d are left", len(c.all))
	}
}

func TestRequestsAreRefusedAtTheHandler(t *testing.T) {
	d := newDoor(t, &backend{}, nil)
	host := strings.TrimPrefix(d.URL, "http://")
	for _, c := range []struct {
		name, body string
		headers    []string
		want       int
	}{
		{"too large", `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", maxBody) + `"}`, nil, 413},
		{"no JSON", "{", nil, 400},
		{"no type", initialize, []string{"Content-Type", "text/plain"}, 415},
		{"another origin", initialize, []string{"Origin", "https://evil.test"}, 403},
		{"another site", initialize, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"its own origin", initialize, []string{"Origin", "http://" + host}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, _, body := d.send(t, "ann", "", c.body, c.headers...); status != c.want {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	t.Run("another name of loopback", func(t *testing.T) {
		r, _ := http.NewRequest(http.MethodPost, d.URL, strings.NewReader(initialize))
		r.Host = "evil.test"
		r.Header.Set("Authorization", "Bearer ann")
		answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != 403 {
			t.Error(answer.StatusCode)
		}
	})
}

func TestRequestsOfOneKeyAreBounded(t *testing.T) {
	d := newDoor(t, &backend{}, nil)
	_, id, _ := d.send(t, "ann", "", initialize)
	var leave func()
	for range maxAtOnce { // as many as are under way
		var err error
		if leave, err = d.requests.enter("agent:ann/k_ann"); err != nil {
			t.Fatal(err)
		}
	}
	if status, _, body := d.send(t, "ann", id, call2025("capabilities")); status != 429 || !strings.Contains(body, "rate_limited") {
		t.Errorf("one more: %d %s", status, body)
	}
	if status, _, body := d.send(t, "bob", "", initialize); status != 200 {
		t.Errorf("another key: %d %s", status, body)
	}
	leave()
	if status, _, body := d.send(t, "ann", id, call2025("capabilities")); status != 200 {
		t.Errorf("when one is done: %d %s", status, body)
	}
}

// One key cannot keep everything busy; another one is served meanwhile.
func TestCallsOfOneKeyAreBounded(t *testing.T) {
	begun := make(chan struct{}, 100)
	d := newDoor(t, &backend{drive: func(ctx context.Context, _ Target, _ browser.Operation) (any, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{}, maxAtOnce)
	// Older versions let a client send many calls in one request.
	calls := make([]string, maxAtOnce+5)
	for n := range calls {
		calls[n] = strings.Replace(`{"jsonrpc":"2.0","id":"#","method":"tools/call","params":{"name":"browser_eval","arguments":{"js":"1","session":"s_1"}}}`, "#", string(rune('a'+n)), 1)
	}
	go func() {
		defer close(done)
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, strings.NewReader("["+strings.Join(calls, ",")+"]"))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Authorization", "Bearer ann")
		if answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r); err == nil {
			for buf := make([]byte, 4096); err == nil; {
				_, err = answer.Body.Read(buf)
			}
			answer.Body.Close()
		}
	}()
	for range maxAtOnce {
		<-begun
	}
	if got, out := callTool(t, d.client(t, "ann"), "browser_eval", args{"js": "1", "session": "s_1"}); !out.IsError || !strings.HasPrefix(got, "error rate_limited") {
		t.Errorf("one more: %q", got)
	}
	if got, out := callTool(t, d.client(t, "bob"), "capabilities", nil); out.IsError {
		t.Errorf("another key: %q", got)
	}
	// The client goes: its calls end, and there is room again.
	cancel()
	<-done
	testenv.Eventually(t, 10*time.Second, func() bool {
		d.calls.mu.Lock()
		defer d.calls.mu.Unlock()
		return len(d.calls.in) == 0
	}, "calls of a client that has gone still run")
	if len(begun) != 0 {
		t.Errorf("%d calls too many", len(begun))
	}
}

func TestTaskOverHTTPClosesItsSessionWhenTheClientGoes(t *testing.T) {
	begun := make(chan struct{}, 10)
	d := newDoor(t, &backend{drive: func(ctx context.Context, _ Target, _ browser.Operation) (any, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, strings.NewReader(
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"browser_run_task","arguments":{"steps":[{"do":"snapshot"}]}}}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer ann")
	done := make(chan struct{})
	go func() {
		defer close(done)
		if answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r); err == nil {
			answer.Body.Close()
		}
	}()
	<-begun
	cancel()
	<-done
	testenv.Eventually(t, 10*time.Second, func() bool { return len(d.back.closedIDs()) == 1 }, "the session is still open")
}

// Otherwise the holder of a token for one session could go on with its maker's conversations, and use up the maker's calls.
func TestTheTokenOfASessionIsAnotherKeyThanItsMakers(t *testing.T) {
	maker := identity.Principal{Kind: identity.KindAgent, ID: "ann", Tenant: "acme", TokenID: "k1"}
	keys := map[string]bool{keyOf(maker): true}
	for _, session := range []string{"s_1", "s_2"} {
		for _, scope := range []identity.Scope{identity.ScopeView, identity.ScopeCDP} {
			keys[keyOf(maker.Within(session, scope, time.Time{}))] = true
		}
	}
	if len(keys) != 5 {
		t.Errorf("five keys are these: %v", keys)
	}
}
