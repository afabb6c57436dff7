package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
)

// viewer waits for the viewer that was added last.
func (d *testAPI) viewer(t *testing.T) *fakeViewing {
	t.Helper()
	var out *fakeViewing
	testenv.Eventually(t, 5*time.Second, func() bool {
		d.sessions.mu.Lock()
		defer d.sessions.mu.Unlock()
		if len(d.sessions.viewers) > 0 {
			out = d.sessions.viewers[len(d.sessions.viewers)-1]
		}
		return out != nil
	}, "somebody watches")
	return out
}

func TestASessionIsWatchedWithATokenInTheAddress(t *testing.T) {
	d := newTestAPI(t)
	d.holder(goodToken, identity.ScopeView, d.clock.Add(time.Hour))
	server := serve(t, d)
	conn := dial(t, server.URL+"/v1/sessions/"+someID+"/live?token="+goodToken)
	kind, text, err := conn.Read(t.Context())
	if err != nil || kind != websocket.MessageText || !strings.HasPrefix(string(text), `{"state":{"tabs":null,"url":"https://example.com/"`) {
		t.Errorf("%s, %v", text, err)
	}
	viewer := d.viewer(t)
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"reload"}`)); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		viewer.mu.Lock()
		defer viewer.mu.Unlock()
		return len(viewer.inputs) == 1
	}, "the input arrives")
	if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	<-viewer.closed // who leaves does not watch any more
}

func TestAViewEndsWithItsKeyAndWithTheServer(t *testing.T) {
	d := newTestAPI(t)
	d.holder(goodToken, identity.ScopeControl, d.clock.Add(time.Hour))
	server := serve(t, d)
	conn := dial(t, server.URL+"/v1/sessions/"+someID+"/live?token="+goodToken)
	viewer := d.viewer(t)
	d.identity.cut(problem.New(problem.Unauthorized, "", "the key was revoked"))
	wantEnd(t, conn, websocket.StatusPolicyViolation, "unauthorized: the key was revoked")
	<-viewer.closed
}

func TestAViewIsRefusedBeforeThereIsASocket(t *testing.T) {
	d := newTestAPI(t)
	d.holder(goodToken, identity.ScopeView, d.clock.Add(time.Hour))
	server := serve(t, d)
	url := server.URL + "/v1/sessions/" + someID + "/live"
	for name, test := range map[string]struct {
		url    string
		header http.Header
		fail   error
		status int
	}{
		"no token":   {url, nil, nil, 401},
		"a web page": {url + "?token=" + goodToken, http.Header{"Origin": {"https://evil.example"}}, nil, 403},
		"not theirs": {url + "?token=" + goodToken, nil, problem.New(problem.NotFound, "", "there is none"), 404},
	} {
		d.sessions.fail = test.fail
		conn, response, err := websocket.Dial(t.Context(), test.url, &websocket.DialOptions{HTTPHeader: test.header})
		if err == nil || response == nil || response.StatusCode != test.status || response.Header.Get("Content-Type") != problemType {
			t.Errorf("%s: %v, %v, %v", name, conn, response, err)
		}
	}
	// A caller with the right that sends no WebSocket does not watch either.
	d.sessions.fail = nil
	d.ask(t, "GET", "/v1/sessions/"+someID+"/live", "").wantProblem(t, 400, problem.BadRequest)
	<-d.viewer(t).closed
}

func TestWhatATakeOverIsAskedForArrives(t *testing.T) {
	d := newTestAPI(t)
	for path, body := range map[string]string{"take-over": `{"force":true}`, "hand-back": `{"anyway":true}`} {
		for text, want := range map[string]bool{body: true, "{}": false, "": false} {
			if a := d.ask(t, "POST", "/v1/sessions/"+someID+"/"+path, text); a.StatusCode != 200 || d.sessions.forced != want {
				t.Errorf("%s %s: %d, %t", path, text, a.StatusCode, d.sessions.forced)
			}
		}
		d.ask(t, "POST", "/v1/sessions/"+someID+"/"+path, `{"forced":true}`).wantProblem(t, 400, problem.BadJSON)
	}
}

// A program that drives is told in words that it can compare.
func TestWhoDrivesATakenOverSessionIsToldSo(t *testing.T) {
	d := newTestAPI(t)
	d.sessions.fail = problem.New(problem.TakenOver, "wait until it is handed back", "ann has taken over the session's browser")
	p := d.ask(t, "POST", "/v1/sessions/"+someID+"/navigate", `{"url":"https://example.com/"}`).wantProblem(t, http.StatusConflict, problem.TakenOver)
	if p.Detail != "ann has taken over the session's browser" || p.Hint == "" {
		t.Errorf("%+v", p)
	}
}

func TestARefreshNamesItsPageWhereThereIsAConsole(t *testing.T) {
	const body = `{"tenant":"acme","domain":"example.com","url":"https://example.com/login"}`
	var out RefreshSession
	d := newTestAPI(t)
	a := d.ask(t, "POST", "/v1/refreshes", body)
	if err := json.Unmarshal([]byte(a.body), &out); err != nil || out.ConsoleURL != "" || strings.Contains(a.body, "console_url") {
		t.Errorf("without a console: %s, %v", a.body, err)
	}
	if d.sessions.refresh != (session.RefreshRequest{Tenant: "acme", Domain: "example.com", URL: "https://example.com/login"}) {
		t.Errorf("%+v", d.sessions.refresh)
	}
	d = newTestAPI(t, func(o *Options) { o.Console = http.NotFoundHandler() })
	a = d.ask(t, "POST", "/v1/refreshes", body)
	if err := json.Unmarshal([]byte(a.body), &out); err != nil || out.ConsoleURL != "http://localhost:18780/console/refresh/"+someID ||
		out.Session.ID != someID || a.StatusCode != http.StatusCreated || a.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %s, %v", a.StatusCode, a.body, err)
	}
	d.ask(t, "POST", "/v1/refreshes", `{"tenant":"Acme!","domain":"example.com"}`).wantProblem(t, 400, problem.BadName)
}

func TestARefreshIsFinishedWithWhatWasChosen(t *testing.T) {
	d := newTestAPI(t)
	a := d.ask(t, "POST", "/v1/sessions/"+someID+"/refresh", `{"domains":["example.com"],"egress_domains":["cdn.example.net"]}`)
	if got := d.credentials.finished; a.StatusCode != 200 || !strings.Contains(a.body, `"domain":"example.com"`) || got.Session != someID ||
		!slices.Equal(got.Domains, []string{"example.com"}) || !slices.Equal(got.EgressDomains, []string{"cdn.example.net"}) {
		t.Errorf("%d %s, %+v", a.StatusCode, a.body, got)
	}
	d.ask(t, "POST", "/v1/sessions/"+someID+"/refresh", `{"domain":"example.com"}`).wantProblem(t, 400, problem.BadJSON)
	if a := d.ask(t, "GET", "/v1/accounts/needs-refresh?tenant=acme", ""); !strings.Contains(a.body, `{"tenant":"acme","domain":"example.com","reason":"login_page"`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestAThumbnailSaysWhenItWasMade(t *testing.T) {
	a := newTestAPI(t).ask(t, "GET", "/v1/sessions/"+someID+"/thumbnail", "")
	if a.Header.Get("Content-Type") != "image/jpeg" || a.Header.Get("Last-Modified") != "Tue, 14 Nov 2023 22:13:20 GMT" {
		t.Errorf("%v", a.Header)
	}
}

// A nil viewer in an interface would be one that is there.
func TestARefusedViewerIsNone(t *testing.T) {
	a := &API{Options: Options{Sessions: refusing{}}}
	if viewer, err := a.watch(t.Context(), identity.Principal{}, someID); viewer != nil || err == nil {
		t.Errorf("%v, %v", viewer, err)
	}
}

// refusing are sessions that nobody may watch.
type refusing struct{ Sessions }

func (refusing) Watch(context.Context, identity.Principal, string) (*session.Live, error) {
	return nil, problem.New(problem.Forbidden, "", "nobody may")
}
