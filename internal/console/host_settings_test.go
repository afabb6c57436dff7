package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// deskBrowser is a host browser whose settings are in memory.
type deskBrowser struct {
	settings config.HostBrowser
	version  string
	server   HostServer
	shown    bool
	mute     error // in place of an answer whether it is shown
	restarts int
}

func (b *deskBrowser) Settings() (config.HostBrowser, string, error) {
	return b.settings, b.version, nil
}

func (b *deskBrowser) Change(version string, to config.HostBrowser) error {
	if version != b.version {
		return problem.New(problem.Conflict, "look again", "changed meanwhile")
	}
	if err := to.Validate(); err != nil {
		return err
	}
	b.settings, b.version = to, b.version+"'"
	return nil
}

func (b *deskBrowser) Server(context.Context) (HostServer, error) { return b.server, nil }
func (b *deskBrowser) Restart(context.Context) error              { b.restarts++; return nil }

func (b *deskBrowser) Shows(_ context.Context, origin string) (bool, error) {
	return b.shown && origin == deskOrigin, b.mute
}

const deskOrigin = "http://127.0.0.1:41233"

// desk is the page, with what was told to the person.
type desk struct {
	t       *testing.T
	page    *HostSettings
	browser *deskBrowser
	codes   []string
	ended   []error
	used    int
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, browser: &deskBrowser{settings: config.Default().HostBrowser, version: "1"}}
	var err error
	d.page, err = NewHostSettings(HostSettingsOptions{Browser: d.browser, Origin: deskOrigin, File: "/home/ada/clawjail.yml", Log: slog.New(slog.DiscardHandler),
		Code: func(code string) { d.codes = append(d.codes, code) }, Used: func() { d.used++ }, End: func(why error) { d.ended = append(d.ended, why) }})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *desk) code() string { return d.codes[len(d.codes)-1] }

// ask sends a request as the page itself does; headers are pairs, an empty value takes one away.
func (d *desk) ask(method, path string, fields url.Values, headers ...string) *httptest.ResponseRecorder {
	d.t.Helper()
	r := httptest.NewRequest(method, deskOrigin+path, strings.NewReader(fields.Encode()))
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if method == http.MethodPost {
		r.Header.Set("Origin", deskOrigin)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for n := 0; n < len(headers); n += 2 {
		switch {
		case headers[n] == "Host":
			r.Host = headers[n+1]
		case headers[n+1] == "":
			r.Header.Del(headers[n])
		default:
			r.Header.Set(headers[n], headers[n+1])
		}
	}
	w := httptest.NewRecorder()
	d.page.ServeHTTP(w, r)
	if w.Header().Get("Set-Cookie") != "" {
		d.t.Errorf("%s %s sets a cookie, which other servers of the machine are sent as well", method, path)
	}
	if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "script-src") {
		d.t.Errorf("%s %s may run scripts: %s", method, path, csp)
	}
	if strings.Contains(w.Body.String(), "<script") {
		d.t.Errorf("%s %s has a script", method, path)
	}
	return w
}

var deskKey = regexp.MustCompile(`name="key" value="([^"]+)"`)

// enter types the newest code, and returns the key of the page.
func (d *desk) enter() string {
	d.t.Helper()
	w := d.ask("POST", "/", url.Values{"code": {d.code()}})
	m := deskKey.FindStringSubmatch(w.Body.String())
	if w.Code != 200 || m == nil {
		d.t.Fatalf("the code is answered %d: %s", w.Code, w.Body)
	}
	return m[1]
}

func TestTheHostBrowsersSettingsAreForNoOtherPage(t *testing.T) {
	d := newDesk(t)
	code := url.Values{"code": {d.code()}}
	for name, headers := range map[string][]string{
		"a rebound name":             {"Host", "evil.example:41233"},
		"another port":               {"Host", "127.0.0.1:41234"},
		"localhost":                  {"Host", "localhost:41233"},
		"another site":               {"Sec-Fetch-Site", "cross-site"},
		"another port of the host":   {"Sec-Fetch-Site", "same-site"},
		"a page of another port":     {"Sec-Fetch-Site", "", "Origin", "http://127.0.0.1:3000"},
		"a page in a sandbox":        {"Sec-Fetch-Site", "", "Origin", "null"},
		"a form that hides its site": {"Origin", ""},
	} {
		if w := d.ask("POST", "/", code, headers...); w.Code != http.StatusForbidden || len(d.codes) != 1 {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	if d.used > 0 {
		t.Errorf("others keep it from ending: %d times", d.used)
	}
	// The same code from the page itself is taken, and from the address bar the page is shown.
	if w := d.ask("GET", "/", nil, "Sec-Fetch-Site", "none"); w.Code != 200 || d.used != 1 || !strings.Contains(w.Body.String(), `name="code"`) {
		t.Errorf("the page is answered %d", w.Code)
	}
	if w := d.ask("POST", "/", code); w.Code != 200 {
		t.Errorf("the page itself: %d", w.Code)
	}
}

func TestTheHostBrowsersSettingsNeedTheCode(t *testing.T) {
	d := newDesk(t)
	hidden := func(w *httptest.ResponseRecorder) {
		t.Helper()
		if w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), "control_url") || strings.Contains(w.Body.String(), `name="key"`) {
			t.Errorf("answered %d: %s", w.Code, w.Body)
		}
	}
	for _, path := range []string{"/save", "/restart", "/end"} {
		hidden(d.ask("POST", path, url.Values{"key": {""}}))
		hidden(d.ask("POST", path, url.Values{"key": {"x"}}, "Authorization", "Bearer cjbr_00"))
	}
	first := d.code()
	hidden(d.ask("POST", "/", url.Values{"code": {"0000 000"}}))
	key := d.enter()
	hidden(d.ask("POST", "/", url.Values{"code": {first}})) // it was used
	if w := d.ask("POST", "/restart", url.Values{"key": {key}}); w.Code != 200 || d.browser.restarts != 1 {
		t.Errorf("with the key: %d", w.Code)
	}
	// A page that is opened anew takes the place of the one before.
	second := d.enter()
	hidden(d.ask("POST", "/restart", url.Values{"key": {key}}))
	if w := d.ask("POST", "/end", url.Values{"key": {second}}); w.Code != 200 || len(d.ended) != 1 || d.ended[0] != nil {
		t.Errorf("the end: %d, %v", w.Code, d.ended)
	}
	hidden(d.ask("POST", "/restart", url.Values{"key": {second}}))
	if d.browser.restarts != 1 {
		t.Errorf("%d restarts", d.browser.restarts)
	}
}

func TestCodesOfTheHostBrowsersSettingsCannotBeGuessed(t *testing.T) {
	d := newDesk(t)
	key := d.enter()
	for range maxWrongCodes {
		d.ask("POST", "/", url.Values{"code": {"wrong"}})
	}
	if len(d.ended) != 1 || problem.CodeOf(d.ended[0]) != problem.RateLimited {
		t.Errorf("after %d wrong codes: %v", maxWrongCodes, d.ended)
	}
	if w := d.ask("POST", "/", url.Values{"code": {d.code()}}); w.Code != http.StatusTooManyRequests {
		t.Errorf("the right code afterwards: %d", w.Code)
	}
	if w := d.ask("POST", "/restart", url.Values{"key": {key}}); w.Code != http.StatusUnauthorized {
		t.Errorf("the page that was open: %d", w.Code)
	}
}

func TestTheHostBrowsersSettingsAreNotShownInIt(t *testing.T) {
	d := newDesk(t)
	d.browser.shown = true
	typed := d.code()
	if w := d.ask("POST", "/", url.Values{"code": {typed}}); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), `name="key"`) {
		t.Errorf("in the agent's browser: %d", w.Code)
	}
	// An agent may have read that code: it is good no more, nor is the next, which the person can have typed there as well before
	// the page was closed.
	next := d.code()
	d.browser.shown = false
	d.page.look(t.Context())
	for _, old := range []string{typed, next} {
		if w := d.ask("POST", "/", url.Values{"code": {old}}); w.Code != http.StatusUnauthorized {
			t.Errorf("a code of when it was open there: %d", w.Code)
		}
	}
	d.enter()
	// An agent reads what is typed, and is elsewhere when it comes with it: before it is looked again, and after.
	typed = d.code()
	d.browser.shown = true
	d.page.look(t.Context())
	d.browser.shown = false
	if w := d.ask("POST", "/", url.Values{"code": {typed}}); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), `name="key"`) {
		t.Errorf("just after it was in the agent's browser: %d", w.Code)
	}
	typed = d.code()
	d.page.look(t.Context())
	if w := d.ask("POST", "/", url.Values{"code": {typed}}); w.Code != http.StatusUnauthorized {
		t.Errorf("a code of before it was closed there: %d", w.Code)
	}
	d.enter()
	// Its place is unknown while the browser does not answer, which an agent can bring about.
	typed = d.code()
	d.browser.mute = errors.New("no answer")
	d.page.look(t.Context())
	d.browser.mute = nil
	if w := d.ask("POST", "/", url.Values{"code": {typed}}); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), `name="key"`) {
		t.Errorf("just after the browser did not answer: %d", w.Code)
	}
	d.page.look(t.Context())
	d.enter()
	// Where it was never open, a code lasts.
	typed = d.code()
	d.page.look(t.Context())
	if d.code() != typed {
		t.Error("a code was renewed for nothing")
	}
}

func TestTheHostBrowsersSettingsAreShownAndSaved(t *testing.T) {
	d := newDesk(t)
	d.browser.server = HostServer{Running: true, Browser: true}
	key := d.enter()
	fields := url.Values{"key": {key}, "version": {"1"}, "enabled": {"yes"}, "control_url": {"nowhere"}, "color": {"orange"}, "headless": {"maybe"},
		"executable": {"chromium"}, "listen": {"192.0.2.7:18791"}, "tls_cert": {""}, "tls_key": {""}, "token": {""}}
	w := d.ask("POST", "/save", fields)
	for _, name := range []string{"control_url", "color", "headless", "executable", "tls_cert", "token"} {
		if !strings.Contains(w.Body.String(), `id="f-`+name+`-wrong"`) {
			t.Errorf("%s has no word of what is wrong with it", name)
		}
	}
	if w.Code != http.StatusUnprocessableEntity || d.browser.version != "1" || !strings.Contains(w.Body.String(), `value="nowhere"`) {
		t.Errorf("what is wrong is answered %d: %s", w.Code, w.Body)
	}
	fields.Set("listen", "here")
	w = d.ask("POST", "/save", fields)
	for _, name := range []string{"control_url", "listen"} {
		if !strings.Contains(w.Body.String(), `id="f-`+name+`-wrong"`) {
			t.Errorf("%s has no word of what is wrong with it", name)
		}
	}

	want := config.HostBrowser{Enabled: true, ControlURL: "http://127.0.0.1:4000", Color: "#00ff00", Headless: config.HeadlessNo, AttachOnly: true,
		Executable: "/opt/b"}
	for name, value := range map[string]string{"control_url": want.ControlURL, "color": want.Color, "headless": "false", "attach_only": "yes",
		"executable": "/opt/b", "listen": ""} {
		fields.Set(name, value)
	}
	w = d.ask("POST", "/save", fields)
	if w.Code != 200 || d.browser.settings != want || !strings.Contains(w.Body.String(), "Saved in /home/ada/clawjail.yml") ||
		!strings.Contains(w.Body.String(), "Restart the browser") {
		t.Errorf("%d: %+v\n%s", w.Code, d.browser.settings, w.Body)
	}
	// The file has changed since the page was made.
	if w = d.ask("POST", "/save", fields); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "changed meanwhile") {
		t.Errorf("an old page is answered %d", w.Code)
	}
	d.browser.server.ByHand = true
	if w = d.ask("POST", "/", url.Values{"code": {d.code()}}); strings.Contains(w.Body.String(), `action="/restart"`) {
		t.Error("a restart is offered of what a person has started")
	}
	if _, err := NewHostSettings(HostSettingsOptions{}); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("without options: %v", err)
	}
}
