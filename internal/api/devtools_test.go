package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
)

// fakeDevtools is a DevTools client without a browser: it answers what discovery asks, and repeats everything else.
type fakeDevtools struct {
	queue chan []byte
	done  chan struct{}
	once  sync.Once
	cause error
	deny  bool
}

const maxFakeFrame = 1000

func newDevtools() *fakeDevtools {
	return &fakeDevtools{queue: make(chan []byte, 100), done: make(chan struct{})}
}

func (f *fakeDevtools) Send(_ context.Context, frame []byte) error {
	var command struct {
		ID     int
		Method string
	}
	if err := json.Unmarshal(frame, &command); err != nil {
		f.end(fmt.Errorf("message of the client: %w", cdp.ErrProtocol))
		return f.cause
	}
	answer := string(frame)
	switch {
	case f.deny:
		answer = `{"id":1,"error":{"code":-32000,"message":"not here"}}`
	case command.Method == "Browser.getVersion":
		answer = `{"id":1,"result":{"protocolVersion":"1.3","product":"Chrome/1","revision":"@r","userAgent":"agent","jsVersion":"9"}}`
	case command.Method == "Target.getTargets":
		answer = `{"id":1,"result":{"targetInfos":[{"targetId":"T1","type":"page","title":"a","url":"https://example.com/"},{"targetId":"T2","type":"worker"}]}}`
	}
	f.queue <- []byte(`{"method":"Some.event"}`)
	f.queue <- []byte(answer)
	return nil
}

func (f *fakeDevtools) SendFrom(ctx context.Context, r io.Reader) error {
	frame, err := io.ReadAll(io.LimitReader(r, maxFakeFrame+1))
	if err != nil {
		return errors.Join(cdp.ErrUnread, err)
	}
	if len(frame) > maxFakeFrame {
		f.end(cdp.ErrFrameTooLarge)
		return f.cause
	}
	return f.Send(ctx, frame)
}

func (f *fakeDevtools) Receive(ctx context.Context) ([]byte, error) {
	select {
	case frame := <-f.queue:
		return frame, nil
	case <-f.done:
		return nil, f.cause
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fakeDevtools) end(cause error) {
	f.once.Do(func() {
		f.cause = cause
		close(f.done)
	})
}

func (f *fakeDevtools) Done() <-chan struct{} { return f.done }
func (f *fakeDevtools) Close() error          { f.end(cdp.ErrClosed); return nil }
func (f *fakeDevtools) Err() error {
	select {
	case <-f.done:
		return f.cause
	default:
		return nil
	}
}

// token is one that the fake sessions know, of an operator's with the scope.
func (d *testAPI) holder(token string, scope session.Scope, expires time.Time) {
	by := identity.Principal{Kind: identity.KindAdmin, ID: "admin", Role: identity.RoleAdmin, TokenID: "admin"}
	d.sessions.mu.Lock()
	defer d.sessions.mu.Unlock()
	if d.sessions.holders == nil {
		d.sessions.holders = map[string]identity.Principal{}
	}
	d.sessions.holders[token] = by.Within(someID, scope, expires)
}

const goodToken = session.TokenPrefix + "good"

// newEndpoint is a testAPI with a token, behind a real server.
func newEndpoint(t *testing.T, change ...func(*Options)) (d *testAPI, url string) {
	t.Helper()
	d = newTestAPI(t, change...)
	d.holder(goodToken, identity.ScopeCDP, d.clock.Add(time.Hour))
	server := serve(t, d)
	return d, server.URL + "/v1/sessions/" + someID + "/cdp"
}

// dial connects as a DevTools client does.
func dial(t *testing.T, url string) *websocket.Conn {
	t.Helper()
	conn, response, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatalf("%v, %v", err, response)
	}
	t.Cleanup(func() { _ = conn.CloseNow() }) // most are closed already
	return conn
}

// wantEnd reads until the connection ends, and compares how.
func wantEnd(t *testing.T, conn *websocket.Conn, code websocket.StatusCode, reason string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		_, _, err := conn.Read(ctx)
		if err == nil {
			continue
		}
		var end websocket.CloseError
		if !errors.As(err, &end) || end.Code != code || end.Reason != reason {
			t.Errorf("it ended with %v, want %d %q", err, code, reason)
		}
		return
	}
}

// client waits for the client that has attached.
func (d *testAPI) client(t *testing.T) *fakeDevtools {
	t.Helper()
	var out *fakeDevtools
	testenv.Eventually(t, 5*time.Second, func() bool {
		d.sessions.mu.Lock()
		defer d.sessions.mu.Unlock()
		if len(d.sessions.clients) > 0 {
			out = d.sessions.clients[len(d.sessions.clients)-1]
		}
		return out != nil
	}, "a client has attached")
	return out
}

func TestAClientFindsItsEndpointAndUsesIt(t *testing.T) {
	d, url := newEndpoint(t)
	for _, path := range []string{"/json/version", "/json/version/"} {
		response, err := http.Get(url + path + "?token=" + goodToken)
		if err != nil {
			t.Fatal(err)
		}
		var said BrowserVersion
		if err := errors.Join(json.NewDecoder(response.Body).Decode(&said), response.Body.Close()); err != nil {
			t.Fatal(err)
		}
		want := BrowserVersion{Browser: "Chrome/1", Protocol: "1.3", UserAgent: "agent",
			Endpoint: "ws" + strings.TrimPrefix(url, "http") + "?token=" + goodToken}
		if said != want {
			t.Fatalf("%+v", said)
		}
		conn := dial(t, said.Endpoint)
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"id":7,"method":"X.y"}`)); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`{"method":"Some.event"}`, `{"id":7,"method":"X.y"}`} {
			if kind, got, err := conn.Read(t.Context()); err != nil || string(got) != want || kind != websocket.MessageText {
				t.Errorf("%s, %v", got, err)
			}
		}
		client := d.client(t)
		if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Error(err)
		}
		<-client.Done() // what disconnects is detached
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestPagesAreListedForClients(t *testing.T) {
	d := newTestAPI(t)
	for _, path := range []string{"/json", "/json/", "/json/list", "/json/list/"} {
		a := d.ask(t, "GET", "/v1/sessions/"+someID+"/cdp"+path, "")
		if a.StatusCode != 200 || strings.TrimSpace(a.body) != `[{"id":"T1","type":"page","title":"a","url":"https://example.com/"}]` {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
	}
}

func TestTheEndpointIsNamedAsItsClientKnowsIt(t *testing.T) {
	proxied := func(r *http.Request) { r.Host, r.RemoteAddr = "jail.example.com", "192.0.2.1:1" }
	https := header("X-Forwarded-Proto", "https")
	for name, test := range map[string]struct {
		change []func(*http.Request)
		want   string
	}{
		"plain":                     {nil, "ws://127.0.0.1:18780"},
		"another name":              {[]func(*http.Request){func(r *http.Request) { r.Host = "localhost:1" }}, "ws://localhost:1"},
		"behind a proxy":            {[]func(*http.Request){proxied}, "ws://jail.example.com"},
		"behind a proxy with TLS":   {[]func(*http.Request){proxied, https}, "wss://jail.example.com"},
		"a client that says it has": {[]func(*http.Request){https}, "ws://127.0.0.1:18780"},
		"below a path":              {[]func(*http.Request){proxied, https}, "wss://jail.example.com/jail"},
		"below a path, from here":   {nil, "ws://127.0.0.1:18780"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestAPI(t, func(o *Options) {
				o.BehindProxy, o.PublicName = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, "jail.example.com"
				if strings.HasPrefix(name, "below a path") {
					o.PublicPath = "/jail"
				}
			})
			path := "/v1/sessions/" + someID
			var said BrowserVersion
			a := d.ask(t, "GET", path+"/cdp/json/version", "", test.change...)
			if err := json.Unmarshal([]byte(a.body), &said); err != nil || said.Endpoint != test.want+path+"/cdp" {
				t.Errorf("%s, %v", a.body, err) // a key of the header is not put into an address
			}
			var issued SessionToken
			a = d.ask(t, "POST", path+"/tokens", `{"scope":"cdp","ttl":"90s"}`, test.change...)
			if err := json.Unmarshal([]byte(a.body), &issued); err != nil || issued.WSURL != test.want+path+"/cdp?token=cjses_issued" ||
				issued.CDPURL != "http"+strings.TrimPrefix(issued.WSURL, "ws") || d.sessions.life != 90*time.Second || d.sessions.scope != identity.ScopeCDP {
				t.Errorf("%s, %v", a.body, err)
			}
			if text := fmt.Sprintf("%v %+v %#v", issued, issued, issued); strings.Contains(text, "cjses_") {
				t.Errorf("it prints as %s", text)
			}
		})
	}
}

func TestATokenIsAskedWhatItIsFor(t *testing.T) {
	d := newTestAPI(t)
	d.holder(goodToken, identity.ScopeView, d.clock.Add(time.Hour))
	if a := d.ask(t, "GET", "/v1/whoami", "", key(goodToken)); !strings.Contains(a.body, `"scope":"view"`) || !strings.Contains(a.body, `"session":"`+someID) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := d.ask(t, "GET", "/v1/whoami", ""); strings.Contains(a.body, "scope") || strings.Contains(a.body, "session") {
		t.Errorf("a key has a scope: %s", a.body)
	}
}

func TestATokenThatIsNotForClientsHasNoAddress(t *testing.T) {
	d := newTestAPI(t)
	if a := d.ask(t, "POST", "/v1/sessions/"+someID+"/tokens", `{"scope":"control"}`); a.StatusCode != 200 || strings.Contains(a.body, "_url") || d.sessions.life != 0 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestATokenIsTakenFromTheAddressOfTheEndpointAlone(t *testing.T) {
	const path = "/v1/sessions/" + someID
	for name, test := range map[string]struct {
		path   string
		change []func(*http.Request)
		status int
	}{
		"discovery":                {path + "/cdp/json/version?token=" + goodToken, []func(*http.Request){anonymous}, 200},
		"in the header":            {path + "/cdp/json/version", []func(*http.Request){key(goodToken)}, 200},
		"in the header, elsewhere": {path + "/tabs", []func(*http.Request){key(goodToken)}, 200},
		"in both":                  {path + "/cdp/json/version?token=" + goodToken, []func(*http.Request){key(goodToken)}, 200},
		"another in the header":    {path + "/cdp/json/version?token=" + goodToken, nil, 401},
		"twice":                    {path + "/cdp/json/version?token=" + goodToken + "&token=" + goodToken, []func(*http.Request){anonymous}, 401},
		"another":                  {path + "/cdp/json/version?token=" + session.TokenPrefix + "x", []func(*http.Request){anonymous}, 401},
		"empty":                    {path + "/cdp/json/version?token=", []func(*http.Request){anonymous}, 401},
		"a key":                    {path + "/cdp/json/version?token=" + strings.ReplaceAll(goodKey, " ", "+"), []func(*http.Request){anonymous}, 401},
		"a live view":              {path + "/live?token=" + goodToken, []func(*http.Request){anonymous}, 400}, // no WebSocket
		"below a live view":        {path + "/live/x?token=" + goodToken, []func(*http.Request){anonymous}, 401},
		"a path that begins so":    {path + "/liver?token=" + goodToken, []func(*http.Request){anonymous}, 401},
		"elsewhere":                {path + "/tabs?token=" + goodToken, []func(*http.Request){anonymous}, 401},
		"elsewhere with a key":     {path + "/tabs?token=" + goodToken, nil, 400},
		"a path that looks so":     {"/v1/sessions/x%2Fcdp?token=" + goodToken, []func(*http.Request){anonymous}, 401},
		"the sessions":             {"/v1/sessions?token=" + goodToken, []func(*http.Request){anonymous}, 401},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			d := newTestAPI(t, func(o *Options) { o.Log = logTo(&log) })
			d.holder(goodToken, identity.ScopeCDP, d.clock.Add(time.Hour))
			a := d.ask(t, "GET", test.path, "", test.change...)
			if a.StatusCode != test.status {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if a.StatusCode == 401 && len(d.sessions.calls) > 0 {
				t.Errorf("the service was asked for %q", d.sessions.calls)
			}
			if strings.Contains(log.String(), goodToken) || a.StatusCode != 200 && strings.Contains(a.body, goodToken) {
				t.Errorf("the token is in %s or %s", log.String(), a.body)
			}
		})
	}
}

func TestRefusalsAreAnsweredBeforeThereIsASocket(t *testing.T) {
	d, url := newEndpoint(t)
	for name, test := range map[string]struct {
		url    string
		header http.Header
		fail   error
		status int
	}{
		"no token":      {url, nil, nil, 401},
		"another token": {url + "?token=cjses_x", nil, nil, 401},
		"a web page":    {url + "?token=" + goodToken, http.Header{"Origin": {"https://evil.example"}}, nil, 403},
		"not with cdp":  {url + "?token=" + goodToken, nil, problem.New(problem.Forbidden, "", "its access is tools"), 403},
		"closed":        {url + "?token=" + goodToken, nil, problem.New(problem.SessionClosed, "", "it is closed"), 410},
	} {
		d.sessions.fail = test.fail
		conn, response, err := websocket.Dial(t.Context(), test.url, &websocket.DialOptions{HTTPHeader: test.header})
		if err == nil || response == nil || response.StatusCode != test.status || response.Header.Get("Content-Type") != problemType {
			t.Errorf("%s: %v, %v, %v", name, conn, response, err)
		}
	}
	d.sessions.fail = nil
	response, err := http.Get(url + "?token=" + goodToken)
	if err != nil || response.StatusCode != 400 {
		t.Errorf("without a WebSocket: %v, %v", response, err)
	}
	if err == nil {
		_ = response.Body.Close() // it is not read
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestABadFrameEndsItsClientAndNoOther(t *testing.T) {
	d, url := newEndpoint(t)
	url += "?token=" + goodToken
	good := dial(t, url)
	for name, test := range map[string]struct {
		kind   websocket.MessageType
		frame  string
		code   websocket.StatusCode
		reason string
	}{
		"huge":      {websocket.MessageText, `{"id":1,"method":"` + strings.Repeat("x", maxFakeFrame) + `"}`, websocket.StatusMessageTooBig, "the message is larger than one may be"},
		"malformed": {websocket.MessageText, `{"id":`, websocket.StatusInvalidFramePayloadData, "the message is no command of the DevTools protocol"},
		"binary":    {websocket.MessageBinary, `{"id":1}`, websocket.StatusUnsupportedData, "messages of the DevTools protocol are text"},
	} {
		t.Run(name, func(t *testing.T) {
			before := d.attached()
			conn := dial(t, url)
			if err := conn.Write(t.Context(), test.kind, []byte(test.frame)); err != nil {
				t.Fatal(err)
			}
			wantEnd(t, conn, test.code, test.reason)
			testenv.Eventually(t, 5*time.Second, func() bool { return d.attached() == before }, "the client is detached")
		})
	}
	if err := good.Write(t.Context(), websocket.MessageText, []byte(`{"id":1}`)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := good.Read(t.Context()); err != nil {
		t.Errorf("another client has ended: %v", err)
	}
}

// attached is how many clients have not ended.
func (d *testAPI) attached() (count int) {
	d.sessions.mu.Lock()
	defer d.sessions.mu.Unlock()
	for _, c := range d.sessions.clients {
		if c.Err() == nil {
			count++
		}
	}
	return count
}

func TestASocketEndsWithItsReason(t *testing.T) {
	long := strings.Repeat("ä", 100)
	for name, test := range map[string]struct {
		end    func(d *testAPI, c *fakeDevtools)
		code   websocket.StatusCode
		reason string
	}{
		"the key is revoked": {func(d *testAPI, _ *fakeDevtools) {
			d.identity.cut(problem.New(problem.Unauthorized, "", "the key was revoked"))
		},
			websocket.StatusPolicyViolation, "unauthorized: the key was revoked"},
		"the session ends": {func(_ *testAPI, c *fakeDevtools) { c.end(problem.New(problem.SessionClosed, "", "it was closed")) },
			websocket.StatusGoingAway, "session_closed: it was closed"},
		"a person takes over": {func(_ *testAPI, c *fakeDevtools) {
			c.end(problem.New(problem.TakenOver, "wait", "ann has taken over the session's browser"))
		}, websocket.StatusPolicyViolation, "taken_over: ann has taken over the session's browser"},
		"the token ends": {func(_ *testAPI, c *fakeDevtools) {
			c.end(problem.New(problem.Unauthorized, "", "the token has expired"))
		},
			websocket.StatusPolicyViolation, "unauthorized: the token has expired"},
		"the browser is gone": {func(_ *testAPI, c *fakeDevtools) { c.end(cdp.ErrBrowserGone) }, websocket.StatusGoingAway, "the session has ended"},
		"it does not read":    {func(_ *testAPI, c *fakeDevtools) { c.end(cdp.ErrSlowClient) }, websocket.StatusPolicyViolation, "the client reads too slowly"},
		"something private":   {func(_ *testAPI, c *fakeDevtools) { c.end(errors.New("secret")) }, websocket.StatusInternalError, "clawjail failed unexpectedly"},
		"a long reason": {func(_ *testAPI, c *fakeDevtools) { c.end(problem.New(problem.SessionClosed, "", "%s", long)) }, websocket.StatusGoingAway,
			"session_closed: " + strings.Repeat("ä", 52) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			d, url := newEndpoint(t)
			conn := dial(t, url+"?token="+goodToken)
			c := d.client(t)
			test.end(d, c)
			wantEnd(t, conn, test.code, test.reason)
			<-c.Done()
		})
	}
}

// cut ends everything that is held.
func (f *fakeIdentity) cut(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cancel := range f.held {
		cancel(why)
	}
}

func TestWhatIsDoneWithATokenEndsWithIt(t *testing.T) {
	d, url := newEndpoint(t)
	d.holder(goodToken, identity.ScopeCDP, d.clock.Add(time.Millisecond))
	conn := dial(t, url+"?token="+goodToken)
	d.later.Store(int64(time.Millisecond))
	wantEnd(t, conn, websocket.StatusPolicyViolation, "unauthorized: the token has expired")
	testenv.Eventually(t, 5*time.Second, func() bool { return d.identity.open() == 0 && d.attached() == 0 }, "nothing is held")
}

func TestTheEndOfTheServerEndsItsSockets(t *testing.T) {
	d := newTestAPI(t)
	d.holder(goodToken, identity.ScopeCDP, d.clock.Add(time.Hour))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- d.Serve(ctx, listener) }()
	conn := dial(t, "http://"+listener.Addr().String()+"/v1/sessions/"+someID+"/cdp?token="+goodToken)
	c := d.client(t)
	end()
	wantEnd(t, conn, websocket.StatusGoingAway, "shutting_down: clawjail is being stopped")
	if err := <-served; err != nil {
		t.Error(err)
	}
	if c.Err() == nil {
		t.Error("the server has ended before its client")
	}
}

func TestABrowserThatRefusesDiscoverySaysWhy(t *testing.T) {
	d := newTestAPI(t)
	d.sessions.refuse = true
	d.ask(t, "GET", "/v1/sessions/"+someID+"/cdp/json/list", "").wantProblem(t, 403, problem.MethodDenied)
	if d.attached() != 0 {
		t.Error("the client is still attached")
	}
}

func TestARecordingIsSavedAndNotShown(t *testing.T) {
	d := newTestAPI(t)
	d.sessions.page = []string{"<html>", "</html>"}
	a := d.ask(t, "GET", "/v1/sessions/"+someID+"/recording", "")
	if a.StatusCode != 200 || a.body != "<html></html>" || a.Header.Get("Content-Type") != "text/html; charset=utf-8" ||
		a.Header.Get("Content-Disposition") != "attachment; filename=recording-"+someID+".html" ||
		a.Header.Get("Content-Security-Policy") != "default-src 'none'; sandbox" {
		t.Errorf("%d %v %s", a.StatusCode, a.Header, a.body)
	}
	d.sessions.fail = problem.New(problem.NotFound, "", "nothing was recorded")
	if body, broken := d.brokenOff(t, "/v1/sessions/"+someID+"/recording"); !broken || body != "<html></html>" {
		t.Errorf("%t %s", broken, body) // a part is not the whole
	}
	d.sessions.page = nil
	d.ask(t, "GET", "/v1/sessions/"+someID+"/recording", "").wantProblem(t, 404, problem.NotFound)
}
