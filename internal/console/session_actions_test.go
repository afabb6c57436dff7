package console

import (
	"bytes"
	"errors"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/task"
)

func TestBrowserIsTakenOverAndHandedBackByForms(t *testing.T) {
	w := withSessions(t)
	p := w.post("acme operator", "/console/sessions/s_one/take-over")
	w.follow("acme operator", p).holds(t, http.StatusOK, "You have the browser in hand", "You are steering", "Hand back")
	w.sessions.password = true
	p = w.post("acme operator", "/console/sessions/s_one/hand-back")
	if p.location != "/console/sessions/s_one?anyway=yes" {
		t.Errorf("it leads to %q", p.location)
	}
	insist := `data-insist="anyway" hidden`
	told := w.follow("acme operator", p)
	told.holds(t, http.StatusOK, "has a password in a field", "Hand back anyway")
	told.lacks(t, insist)
	w.get("acme operator", "/console/sessions/s_one").holds(t, http.StatusOK, insist) // not asked before there is a reason
	p = w.post("acme operator", "/console/sessions/s_one/hand-back", "anyway", "yes")
	w.follow("acme operator", p).holds(t, http.StatusOK, "is handed back", "Nobody has it in hand")
	w.get("acme admin", "/console/sessions/s_one").holds(t, http.StatusOK, "operator operator is driving") // to somebody else
	if got := strings.Join(w.sessions.asked, "; "); got != "take-over s_one false; hand-back s_one true" {
		t.Error(got)
	}
}

func TestBrowserOfAnotherIsTakenByForceOnly(t *testing.T) {
	w := withSessions(t)
	p := w.post("acme operator", "/console/sessions/s_held/take-over")
	if p.location != "/console/sessions/s_held?force=yes" || len(w.sessions.asked) != 0 {
		t.Fatalf("it leads to %q, and did %v", p.location, w.sessions.asked)
	}
	w.follow("acme operator", p).holds(t, http.StatusOK, "take it with force", "Take it from them")
	w.post("acme operator", "/console/sessions/s_held/take-over", "force", "yes")
	if w.sessions.asked[0] != "take-over s_held true" {
		t.Error(w.sessions.asked)
	}
}

func TestScriptsAreToldHowToInsist(t *testing.T) {
	w := withSessions(t)
	ask := func(path string) page {
		return w.send("acme operator", http.MethodPost, path, nil, func(r *http.Request) { r.Header.Set("HX-Request", "true") })
	}
	if p := ask("/console/sessions/s_held/take-over"); p.status != http.StatusConflict || p.header.Get("X-Insist") != "force" || !strings.Contains(p.header.Get("HX-Trigger"), "has taken over") {
		t.Errorf("%d %v", p.status, p.header)
	}
	if p := ask("/console/sessions/s_one/take-over"); p.status != http.StatusNoContent || p.header.Get("X-Insist") != "" || p.header.Get("Set-Cookie") != "" {
		t.Errorf("%d %v", p.status, p.header)
	}
	if p := ask("/console/sessions/s_none/take-over"); p.status != http.StatusNotFound || p.header.Get("X-Insist") != "" {
		t.Errorf("%d %v", p.status, p.header)
	}
}

func TestTokenOfASessionIsShownOnceAndRevoked(t *testing.T) {
	w := withSessions(t)
	p := w.post("acme operator", "/console/sessions/s_one/tokens", "scope", "control", "life", "2h")
	p.holds(t, http.StatusOK, "shown once", "cjses_SECRET", "http://localhost:18780/console/watch#s_one:cjses_SECRET", "see and steer", "control, by operator operator")
	p = w.get("acme operator", "/console/sessions/s_one")
	p.lacks(t, "cjses_SECRET")
	p.holds(t, http.StatusOK, `name="token" value="st_1"`)
	w.post("acme operator", "/console/sessions/s_one/tokens", "scope", "cdp", "life", "2h").lacks(t, "/console/watch#")
	w.post("acme operator", "/console/sessions/s_one/tokens", "scope", "view", "life", "99h").holds(t, http.StatusUnprocessableEntity, "too long", `value="99h"`)
	w.post("acme operator", "/console/sessions/s_one/tokens", "scope", "view", "life", "x").holds(t, http.StatusUnprocessableEntity, `id="f-life-wrong"`)
	p = w.post("acme operator", "/console/sessions/s_one/tokens/revoke", "token", "st_1")
	w.follow("acme operator", p).holds(t, http.StatusOK, "The token is revoked")
	if len(w.sessions.tokens) != 1 {
		t.Errorf("%d tokens are left", len(w.sessions.tokens))
	}
	if p := w.get("acme operator", "/console/sessions/s_one/tokens"); p.location != "/console/sessions/s_one" {
		t.Errorf("%d to %q", p.status, p.location)
	}
}

func TestFilesOfAJailAreSavedAndNeverShown(t *testing.T) {
	w := withSessions(t)
	name := `we "ird?.html`
	w.sessions.files = []browser.File{{Name: name, Kind: "download", State: "complete", Bytes: 2048, At: time.Now()}, {Name: hostile, State: "in_progress", At: time.Now()}}
	w.sessions.data = map[string][]byte{name: []byte("<script>" + hostile)}
	w.get("acme operator", "/console/sessions/s_one").lacks(t, "ird?.html") // looking is use: nobody does it unasked
	p := w.get("acme operator", "/console/sessions/s_one?files=yes")
	p.holds(t, http.StatusOK, `href="/console/sessions/s_one/files/we%20%22ird%3F.html"`, escaped, "in_progress")
	p = w.get("acme operator", "/console/sessions/s_one/files/we%20%22ird%3F.html")
	for header, want := range map[string]string{"Content-Security-Policy": "default-src 'none'; sandbox", "Content-Type": "application/octet-stream",
		"Content-Disposition": `attachment; filename="we \"ird?.html"`, "X-Content-Type-Options": "nosniff"} {
		if got := p.header.Get(header); got != want {
			t.Errorf("%s is %q, not %q", header, got, want)
		}
	}
	if p.status != http.StatusOK || p.body != "<script>"+hostile {
		t.Errorf("%d %q", p.status, p.body)
	}
	p = w.get("acme operator", "/console/sessions/s_one/recording")
	if p.status != http.StatusOK || p.header.Get("Content-Security-Policy") != shutIn || !strings.HasPrefix(p.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("%d %v", p.status, p.header)
	}
	p = w.get("acme operator", "/console/sessions/s_one/shots/1")
	if p.status != http.StatusOK || p.header.Get("Content-Type") != "image/jpeg" || p.header.Get("Content-Security-Policy") != shutIn || p.body != "picture 1" {
		t.Errorf("%d %v", p.status, p.header)
	}
	w.get("acme operator", "/console/sessions/s_one/shots/x").holds(t, http.StatusNotFound)
	w.get("beta operator", "/console/sessions/s_one/files/a").holds(t, http.StatusNotFound)
	w.get("beta operator", "/console/sessions/s_one/recording").holds(t, http.StatusNotFound)
}

// What was recorded can be removed when the session has ended, by an admin of the tenant alone.
func TestARecordingIsRemovedByAnAdminOfTheTenant(t *testing.T) {
	w := withSessions(t)
	const path, remove = "/console/sessions/s_one", "/console/sessions/s_one/recording/remove"
	w.get("acme admin", path).lacks(t, remove)
	if p := w.post("acme admin", path+"/close"); p.status != http.StatusSeeOther {
		t.Fatalf("%d", p.status)
	}
	w.get("acme admin", path).holds(t, http.StatusOK, remove)
	w.get("acme operator", path).lacks(t, remove)
	for _, who := range []string{"acme operator", "acme viewer", "beta admin"} {
		w.post(who, remove)
	}
	if len(w.sessions.removed) != 0 {
		t.Fatalf("others have removed %v", w.sessions.removed)
	}
	if p := w.post("acme admin", remove); p.status != http.StatusSeeOther || p.location != path {
		t.Errorf("%d %s", p.status, p.location)
	}
	if len(w.sessions.removed) != 1 {
		t.Errorf("removed is %v", w.sessions.removed)
	}
}

// sendFile sends a file as the live view does.
func (w *fixture) sendFile(who, name string, data []byte, script bool) page {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", name)
	if err == nil {
		_, err = part.Write(data)
	}
	if err = errors.Join(err, form.Close()); err != nil {
		w.t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "http://localhost:18780/console/sessions/s_one/files", &body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if script {
		r.Header.Set("HX-Request", "true")
	}
	r.AddCookie(&http.Cookie{Name: w.cookieName(r), Value: who})
	out := httptest.NewRecorder()
	w.ServeHTTP(out, r)
	return page{status: out.Code, body: out.Body.String(), header: out.Header(), location: out.Header().Get("Location")}
}

func TestFileIsPutIntoTheBrowsersFolder(t *testing.T) {
	w := withSessions(t)
	if p := w.sendFile("acme operator", `C:\papers\bill.pdf`, []byte("%PDF"), true); p.status != http.StatusOK || strings.TrimSpace(p.body) != `{"name":"bill.pdf"}` {
		t.Errorf("%d %q", p.status, p.body)
	}
	if p := w.sendFile("acme operator", "b.txt", []byte("b"), false); p.location != "/console/sessions/s_one?files=yes" {
		t.Errorf("%d to %q", p.status, p.location)
	}
	if p := w.sendFile("acme operator", "large", make([]byte, maxUpload+1), true); p.status != http.StatusBadRequest || !strings.Contains(p.header.Get("HX-Trigger"), "32 MiB") {
		t.Errorf("a large one: %d %v", p.status, p.header)
	}
	if p := w.sendFile("acme viewer", "a", []byte("a"), true); p.status != http.StatusForbidden {
		t.Errorf("a viewer: %d", p.status)
	}
	if got := strings.Join(w.sessions.asked, "; "); got != "put bill.pdf %PDF; put b.txt b" {
		t.Error(got)
	}
	w.send("acme operator", http.MethodPost, "/console/sessions/s_one/files", nil).holds(t, http.StatusBadRequest, "no file was sent")
}

func TestLiveViewIsForTheConsolesOwnPages(t *testing.T) {
	w := withSessions(t)
	connect := func(who, origin string) page {
		return w.send(who, http.MethodGet, "/console/sessions/s_one/live", nil, func(r *http.Request) {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
			if origin != "" {
				r.Header.Set("Origin", origin)
			}
		})
	}
	for origin, status := range map[string]int{"": http.StatusForbidden, "http://evil.test": http.StatusForbidden, "http://localhost:3000": http.StatusForbidden,
		"null": http.StatusForbidden, "http://localhost:18780": problem.Status(problem.SessionClosed)} {
		if p := connect("acme operator", origin); p.status != status {
			t.Errorf("from %q: %d, not %d", origin, p.status, status)
		}
	}
	for who, status := range map[string]int{"acme viewer": http.StatusForbidden, "beta operator": http.StatusNotFound, "": http.StatusSeeOther} {
		if p := connect(who, "http://localhost:18780"); p.status != status {
			t.Errorf("%q: %d, not %d", who, p.status, status)
		}
	}
}

func TestWatchPageNeedsNoKeyAndHoldsNothing(t *testing.T) {
	w := withSessions(t)
	p := w.get("", "/console/watch")
	p.holds(t, http.StatusOK, "<h1>Watch a browser</h1>", `data-live=""`, "live.js")
	p.lacks(t, "s_one", "Sign out", "console.js")
}

func TestTimelineSaysWhatWasDoneInWords(t *testing.T) {
	w := withSessions(t)
	note := func(action, target string, result audit.Result, fields audit.Fields) {
		t.Helper()
		err := w.log.Event(w.ctx, audit.Event{Action: action, Result: result, Tenant: "acme", Actor: w.who["acme operator"].Actor(), Session: "s_one", Target: target,
			Detail: audit.NewDetail(fields)})
		if err != nil {
			t.Fatal(err)
		}
	}
	note("session.use", hostile, audit.Refused, audit.Fields{"tool": "eval", "code": "forbidden"})
	note("session.control", "", audit.OK, audit.Fields{"tool": "hand_back"})
	note("session.inject", "", audit.OK, audit.Fields{"cookie_count": 3})
	note("session.new_kind", "", audit.OK, nil)
	for _, who := range []string{"admin", "acme viewer"} {
		p := w.send(who, http.MethodGet, "/console/sessions/s_one/timeline", nil, func(r *http.Request) { r.Header.Set("HX-Request", "true") })
		p.holds(t, http.StatusOK, "ran a script", "forbidden", escaped, "handed it back", "put 3 cookies in", "session: new kind")
		if strings.Contains(p.body, "<html") || strings.Index(p.body, "ran a script") < strings.Index(p.body, "handed it back") {
			t.Errorf("it is a whole page, or not newest first:\n%s", p.body)
		}
	}
	w.get("beta operator", "/console/sessions/s_one/timeline").holds(t, http.StatusNotFound)
}

// fakeTasks are tasks by the session in which they are done.
type fakeTasks map[string]task.Progress

func (f fakeTasks) Running(session string) (task.Progress, bool) { p, ok := f[session]; return p, ok }

func TestATaskIsShownWhileItIsDoneAndStopped(t *testing.T) {
	w := withSessions(t)
	w.Tasks = fakeTasks{"s_one": {Goal: hostile, Model: "m-1", Steps: []task.Step{
		{Number: 3, Max: 25, Do: "click e3", URL: "https://shop.example.com/" + hostile, Code: problem.Timeout, Tokens: 4321}, {Do: task.Opened, Max: 25}}}}
	for _, at := range []string{"", "/task"} {
		p := w.get("acme operator", "/console/sessions/s_one"+at)
		p.holds(t, http.StatusOK, "A task is being done", "<p>"+escaped, "Step 3 of at most 25, 4321 tokens of m-1", "click e3", problem.Timeout, "Stop the task", `action="/console/sessions/s_one/task/stop"`)
		w.get("acme operator", "/console/sessions/s_held"+at).lacks(t, "A task is being done")
	}
	w.get("acme viewer", "/console/sessions/s_one").lacks(t, "A task is being done", "click e3") // who may not see the browser
	w.get("acme viewer", "/console/sessions/s_one/task").lacks(t, "A task is being done", "click e3")
	w.get("beta operator", "/console/sessions/s_one/task").holds(t, http.StatusNotFound)
	w.post("beta operator", "/console/sessions/s_one/task/stop").holds(t, http.StatusNotFound)
	w.follow("acme operator", w.post("acme operator", "/console/sessions/s_held/task/stop")).holds(t, http.StatusOK, "the task is over already") // of a page from before
	if len(w.sessions.asked) != 0 {
		t.Errorf("it did %q", w.sessions.asked)
	}
	w.post("acme operator", "/console/sessions/s_one/task/stop")
	if got := strings.Join(w.sessions.asked, "; "); got != "close s_one" {
		t.Error(got)
	}
}

func TestPartOfTheFactsAsksForTheWholePageWhenTheStateHasChanged(t *testing.T) {
	w := withSessions(t)
	for state, want := range map[string]string{"ready": "", "opening": "true"} {
		if got := w.get("admin", "/console/sessions/s_one/facts?state="+state).header.Get("HX-Refresh"); got != want {
			t.Errorf("from %s: %q", state, got)
		}
	}
}
