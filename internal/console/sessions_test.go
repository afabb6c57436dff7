package console

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// escaped is [hostile] as it stands in a page.
const escaped = `&lt;img src=x onerror=`

// holds says what a page lacks, and what it has that it should not.
func (p page) holds(t *testing.T, status int, texts ...string) {
	t.Helper()
	if p.status != status {
		t.Errorf("status %d, not %d", p.status, status)
	}
	for _, text := range texts {
		if !strings.Contains(p.body, text) {
			t.Errorf("there is no %q in\n%s", text, p.body)
		}
	}
	if strings.Contains(p.body, hostile) || strings.Contains(p.body, "<img src=x") {
		t.Errorf("markup of somebody else's is in\n%s", p.body)
	}
}

func (p page) lacks(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(p.body, text) {
			t.Errorf("there is %q in\n%s", text, p.body)
		}
	}
}

// withSessions is a fixture with sessions of two tenants.
func withSessions(t *testing.T) *fixture {
	w := newFixture(t)
	furnishSessions(w)
	return w
}

// furnishSessions puts sessions of every kind into a fixture.
func furnishSessions(w *fixture) {
	one := aSession("s_one", "acme")
	one.Label, one.OpenedBy = hostile, w.who["acme operator"].Actor()
	one.Screenshots = []session.Shot{{Number: 1, At: time.Now(), Format: "jpeg", Bytes: 4000}}
	held := aSession("s_held", "acme")
	held.Label, held.CredentialMode, held.Domains, held.Grant, held.Injected = "Invoices", session.ModeOperator, []string{"example.com"}, "g_1", 12
	held.Control = &session.Control{By: "operator:o_x", Name: "Kim " + hostile, Since: time.Now().Add(-time.Minute)}
	held.NeedsRefresh = []session.Refresh{{Domain: "example.com", Reason: session.ReasonLogin, At: time.Now()}}
	gone := aSession("s_gone", "acme")
	teardown := 84.2
	gone.State, gone.Usage, gone.Label = session.StateClosed, nil, "Old"
	gone.Ended = &session.Ended{Cause: session.CauseMemory, Message: "its browser ran out of memory", At: time.Now().Add(-time.Minute), Signal: "killed",
		LimitsHit: nil, Stderr: []string{"[ERROR] " + hostile}, Teardown: &teardown}
	beta := aSession("s_beta", "beta")
	beta.Label = "Of beta"
	w.sessions.all = append(w.sessions.all, one, held, gone, beta)
}

func TestSessionsAreListedForThoseWhoMaySeeThem(t *testing.T) {
	w := withSessions(t)
	p := w.get("admin", "/console/sessions")
	p.holds(t, http.StatusOK, "<h1>Sessions</h1>", escaped, "Invoices", "Kim &lt;img", "ran out of memory", "Of beta", `<th scope="col">Tenant</th>`, "Open a session",
		`href="/console/sessions/s_held"`, "needs a new login")
	p = w.get("acme viewer", "/console/sessions")
	p.holds(t, http.StatusOK, "Invoices")
	p.lacks(t, "Of beta", `<th scope="col">Tenant</th>`, "Open a session")
	newFixture(t).get("admin", "/console/sessions").holds(t, http.StatusOK, "No session is open")
}

func TestManySessionsComeInPages(t *testing.T) {
	w := newFixture(t)
	for n := range openShown + 1 {
		w.sessions.all = append(w.sessions.all, aSession(fmt.Sprintf("s_number%d.", n), "acme"))
	}
	p := w.get("admin", "/console/sessions")
	p.holds(t, http.StatusOK, "s_number100.", "s_number1.", `href="/console/sessions?page=2"`, "101 of at most")
	p.lacks(t, "s_number0.", "Newer")
	p = w.get("admin", "/console/sessions?page=2")
	p.holds(t, http.StatusOK, "s_number0.", `href="/console/sessions?page=1"`)
	p.lacks(t, "s_number1.", "Older")
}

func TestSessionIsOpenedByForm(t *testing.T) {
	w := newFixture(t)
	w.get("acme operator", "/console/sessions?open=yes").holds(t, http.StatusOK, "<h2>Open a session</h2>", "Issue the grant with it")
	p := w.post("acme operator", "/console/sessions", "mode", "clean", "browser", "full", "record", "audit", "label", hostile, "ttl", "45m")
	if p.status != http.StatusSeeOther || p.location != "/console/sessions/s_new1" {
		t.Fatalf("%d to %q\n%s", p.status, p.location, p.body)
	}
	got := w.sessions.opened[0]
	if got.Browser != "full" || got.Record != "audit" || got.Label != hostile || got.TTL != "45m" || !got.Grant.IsZero() {
		t.Errorf("it asked for %+v", got)
	}
	w.follow("acme operator", p).holds(t, http.StatusOK, "The session is open. It took 191 ms.", escaped)
}

func TestASessionIsOpenedAtAnAddress(t *testing.T) {
	w := newFixture(t)
	for _, c := range []struct {
		address string
		err     error
		refused string
		says    string
	}{
		{"https://example.com/a", nil, "", "The session is open. It took"},
		{"example.com:8443/b", nil, "", "The session is open. It took"},
		{"about:blank", nil, "", "The session is open. It took"},
		{"http://blocked.example/", nil, problem.HostDenied, "The session is open, but the gateway refused the page: host_denied"},
		{"https://nowhere.example/", problem.New(problem.NavigationFailed, "see the address", "the page could not be loaded"), "", "The session is open, but the page could not be loaded"},
		{"file:///etc/passwd", nil, "", "The session is open, but"},
	} {
		w.sessions.asked, w.sessions.refused, w.sessions.failing = nil, c.refused, c.err
		p := w.post("acme operator", "/console/sessions", "mode", "clean", "browser", "shell", "record", "off", "url", c.address)
		if !strings.HasPrefix(p.location, "/console/sessions/s_new") {
			t.Fatalf("%s: %d to %q", c.address, p.status, p.location)
		}
		w.follow("acme operator", p).holds(t, http.StatusOK, c.says)
		want := []string{"navigate " + map[bool]string{true: c.address, false: "https://" + c.address}[strings.Contains(c.address, "//") || strings.HasPrefix(c.address, "about:")]}
		if strings.HasPrefix(c.address, "file:") {
			want = nil
		}
		if !slices.Equal(w.sessions.asked, want) {
			t.Errorf("%s: %q", c.address, w.sessions.asked)
		}
	}
}

func TestOperatorSessionComesWithItsGrant(t *testing.T) {
	w := newFixture(t)
	w.account("acme", "example.com", 0)
	w.account("acme", "example.org", 0)
	open := func(pairs ...string) page {
		return w.post("acme operator", "/console/sessions", append([]string{"mode", "operator", "domains", "example.com, example.org"}, pairs...)...)
	}
	if p := open("grant", "yes"); p.status != http.StatusSeeOther {
		t.Fatalf("%d\n%s", p.status, p.body)
	}
	if got := w.sessions.opened[0]; got.Grant.IsZero() || len(got.Domains) != 2 {
		t.Errorf("it asked for %+v", got)
	}
	open().holds(t, http.StatusUnprocessableEntity, "a grant is needed", `value="example.com, example.org"`)
	// A grant whose session does not open is nobody's, and is revoked.
	w.sessions.wrong = problem.New(problem.RateLimited, "close one", "there are 20 sessions")
	open("grant", "yes").holds(t, http.StatusUnprocessableEntity, "there are 20 sessions", "close one")
	grants, err := w.accounts.ListGrants(w.ctx, w.admin, "acme")
	if err != nil || len(grants) != 2 {
		t.Fatalf("%v, %d grants", err, len(grants))
	}
	revoked := 0
	for _, g := range grants {
		if !g.RevokedAt.IsZero() {
			revoked++
		}
	}
	if revoked != 1 {
		t.Errorf("%d of the two grants are revoked", revoked)
	}
}

func TestBadSessionsAreExplainedBesideTheField(t *testing.T) {
	w := newFixture(t)
	for name, c := range map[string]struct {
		pairs []string
		says  string
	}{
		"a time that is none": {[]string{"ttl", "soon", "label", "kept"}, "write a number with s, m, h or d"},
		"no domains":          {[]string{"mode", "operator", "grant", "yes", "label", "kept"}, "at least one domain"},
	} {
		t.Run(name, func(t *testing.T) {
			w.post("acme operator", "/console/sessions", c.pairs...).holds(t, http.StatusUnprocessableEntity, c.says, `value="kept"`, `aria-invalid="true"`)
		})
	}
	if len(w.sessions.opened) != 0 {
		t.Errorf("it opened %+v", w.sessions.opened)
	}
	flaws := problem.ValidationError{Code: problem.BadLimit}
	flaws.Add("ttl", "9h is not between 1s and 8h")
	w.sessions.wrong = flaws.Err()
	w.post("acme operator", "/console/sessions", "ttl", "9h").holds(t, http.StatusUnprocessableEntity, "9h is not between", `aria-describedby="f-ttl-help f-ttl-wrong"`)
}

func TestSessionPageShowsWhatThereIs(t *testing.T) {
	w := withSessions(t)
	err := w.log.Event(w.ctx, audit.Event{Action: "session.use", Tenant: "acme", Actor: w.who["acme operator"].Actor(), Session: "s_one",
		Target: hostile, Detail: audit.NewDetail(audit.Fields{"tool": "navigate"})})
	if err != nil {
		t.Fatal(err)
	}
	p := w.get("admin", "/console/sessions/s_one")
	p.holds(t, http.StatusOK, "<h1>&lt;img", `data-live="/console/sessions/s_one"`, "Take over", "175 MiB", "10.213.0.153", "went to a page", escaped, "operator operator",
		"shots/1", "Share it", "Look into the folder", "Close the session", "Opened in 191 ms, from the warm pool")
	w.get("admin", "/console/sessions/s_held").holds(t, http.StatusOK, "is steering", "Take it from them", "example.com needs a new login", "12 cookies put in")
	p = w.get("admin", "/console/sessions/s_gone")
	p.holds(t, http.StatusOK, "its browser ran out of memory", "removed in 84 ms", "[ERROR] &lt;img")
	p.lacks(t, "data-live", "Close the session", `data-every="5"`)
	w.get("acme operator", "/console/sessions/s_beta").holds(t, http.StatusNotFound, "there is no session")
}

func TestViewerSeesASessionAndDoesNothing(t *testing.T) {
	w := withSessions(t)
	p := w.get("acme viewer", "/console/sessions/s_one")
	p.holds(t, http.StatusOK, "<h2>Facts</h2>", "not what is in its browser")
	p.lacks(t, "data-live=", "Take over", "Close the session", "Share it", "Look into", "shots/1")
	for _, path := range []string{"close", "take-over", "hand-back", "tokens", "tokens/revoke", "files"} {
		p := w.post("acme viewer", "/console/sessions/s_one/"+path, "scope", "view", "life", "1h")
		if told := w.follow("acme viewer", p).body; p.status == http.StatusSeeOther && !strings.Contains(told, "told bad") || p.status == http.StatusOK {
			t.Errorf("%s: %d\n%s", path, p.status, told)
		}
	}
	if len(w.sessions.asked) != 0 || len(w.sessions.tokens) != 0 || w.sessions.all[0].Ended != nil {
		t.Errorf("it did %v", w.sessions.asked)
	}
	for _, path := range []string{"/console/sessions/s_one/files/a", "/console/sessions/s_one/recording", "/console/sessions/s_one/shots/1", "/console/sessions/s_one?files=yes"} {
		if p := w.get("acme viewer", path); p.status != http.StatusForbidden {
			t.Errorf("%s: %d", path, p.status)
		}
	}
	if p := w.post("acme viewer", "/console/sessions", "mode", "clean"); p.status != http.StatusUnprocessableEntity || len(w.sessions.opened) != 0 {
		t.Errorf("open: %d, %v", p.status, w.sessions.opened)
	}
}

func TestSessionIsClosed(t *testing.T) {
	w := withSessions(t)
	p := w.post("acme operator", "/console/sessions/s_one/close")
	w.follow("acme operator", p).holds(t, http.StatusOK, "is closed, and its jail is being removed", escaped)
	if w.sessions.asked[0] != "close s_one" {
		t.Error(w.sessions.asked)
	}
}
