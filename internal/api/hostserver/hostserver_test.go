package hostserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/browser/host"
	"github.com/clawjail/clawjail/internal/browser/host/hosttest"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server before a keeper. Its browser is not started unless a test does so.
type fixture struct {
	t        *testing.T
	settings config.HostBrowser
	token    host.Token
	keeper   *host.Keeper
	log      bytes.Buffer
	base     string
	devtools string
	served   chan error
}

func serve(t *testing.T, dir string, change func(*config.HostBrowser)) *fixture {
	t.Helper()
	w := &fixture{t: t, settings: config.Default().HostBrowser, served: make(chan error, 1)}
	port := testenv.FreePort(t)
	w.settings.ControlURL = fmt.Sprintf("http://127.0.0.1:%d", port)
	if change != nil {
		change(&w.settings)
	}
	w.base, w.devtools = fmt.Sprintf("http://127.0.0.1:%d", port), fmt.Sprintf("127.0.0.1:%d", port+1)
	var err error
	if w.token, err = host.EnsureToken(filepath.Join(dir, "browser.token")); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.keeper, err = host.New(host.Options{
		Settings: w.settings, Dir: filepath.Join(dir, "data"), Log: log, Now: time.Now,
		Environment: config.Environment{GOOS: runtime.GOOS, Home: dir, Getenv: func(string) string { return "" }},
	})
	if err != nil {
		t.Fatal(err)
	}
	control, devtools, err := Listen(t.Context(), w.settings)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := New(Options{Keeper: w.keeper, Token: w.token, Log: log, EndWithBrowser: true})
	go func() { w.served <- server.Serve(ctx, control, devtools) }()
	t.Cleanup(func() {
		cancel()
		if err := <-w.served; err != nil {
			t.Error(err)
		}
		if err := w.keeper.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if strings.Contains(w.log.String(), w.token.Reveal()) || strings.Contains(w.log.String(), server.ticket) {
			t.Error("the log has the token")
		}
	})
	return w
}

// ask sends a request with the token, and with headers (name, value, …) that are set or, with an empty value, removed.
func (w *fixture) ask(method, url, body string, headers ...string) (int, map[string]any, http.Header) {
	w.t.Helper()
	if strings.HasPrefix(url, "/") {
		url = w.base + url
	}
	r, err := http.NewRequestWithContext(w.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.token.Reveal())
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
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
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}, Timeout: time.Minute}
	response, err := client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(data, &out); err != nil && response.Header.Get("Content-Type") == "application/json" {
		w.t.Errorf("%s %s answers %q: %v", method, url, data, err)
	}
	return response.StatusCode, out, response.Header
}

func TestWebPagesAreKeptAway(t *testing.T) {
	w := serve(t, t.TempDir(), nil)
	tests := []struct {
		name    string
		headers []string
		want    int
	}{
		{"a program", nil, 200},
		{"by name", []string{"Host", "localhost:1"}, 200},
		{"IPv6", []string{"Host", "[::1]:18791"}, 200},
		{"a page of this machine", []string{"Origin", "http://127.0.0.1:3000", "Sec-Fetch-Site", "same-site"}, 200},
		{"the address bar", []string{"Sec-Fetch-Site", "none"}, 200},
		{"no token", []string{"Authorization", ""}, 401},
		{"another token", []string{"Authorization", "Bearer cjbr_0000"}, 401},
		{"another scheme", []string{"Authorization", "Basic " + w.token.Reveal()}, 401},
		{"rebound name", []string{"Host", "evil.example:18791"}, 403},
		{"a name that looks like loopback", []string{"Host", "127.0.0.1.evil.example"}, 403},
		{"another address", []string{"Host", "192.0.2.1:18791"}, 403},
		{"a page", []string{"Origin", "https://evil.example"}, 403},
		{"a page in a sandbox", []string{"Origin", "null"}, 403},
		{"a page's form", []string{"Referer", "https://evil.example/x"}, 403},
		{"a page's request", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"a page without a token", []string{"Authorization", "", "Origin", "https://evil.example"}, 403},
	}
	for _, tt := range tests {
		for _, request := range [][2]string{{"GET", "/"}, {"POST", "/stop"}} {
			if request[0] == "POST" && tt.want == 200 {
				continue // it ends the server; the last test below does that
			}
			status, answer, header := w.ask(request[0], request[1], "", tt.headers...)
			if status != tt.want || header.Get("Server") != Name {
				t.Errorf("%s: %s %s answers %d %v", tt.name, request[0], request[1], status, answer)
			}
			if _, leaks := answer["userDataDir"]; leaks && tt.want != 200 {
				t.Errorf("%s: it says %v", tt.name, answer)
			}
		}
		// The DevTools endpoint keeps the same watch; without a browser it has nothing to say.
		want := tt.want
		if want == 200 {
			want = 409
		}
		if status, answer, _ := w.ask("GET", "http://"+w.devtools+"/json/version", "", tt.headers...); status != want {
			t.Errorf("%s: the DevTools endpoint answers %d %v", tt.name, status, answer)
		}
	}
	if status, answer, _ := w.ask("POST", "/stop", ""); status != 200 || answer["ok"] != true || answer["stopped"] != false {
		t.Errorf("stop answers %d %v", status, answer)
	}
}

func TestErrorsHaveTheShapeOfTheContract(t *testing.T) {
	w := serve(t, t.TempDir(), func(s *config.HostBrowser) { s.Headless = config.HeadlessNo })
	tests := []struct {
		method, path, body string
		status             int
		code, reason, text string
	}{
		{"POST", "/start?headless=maybe", "", 400, problem.BadRequest, "", `Invalid headless value. Use "true" or "false".`},
		{"POST", "/start", "", 409, problem.NoDisplay, "no_display_for_headed_profile", ""},
		{"GET", "/?profile=other", "", 404, problem.NotFound, "", ""},
		{"GET", "/nothing", "", 404, problem.NotFound, "", ""},
		{"PATCH", "/tabs", "", 404, problem.NotFound, "", ""},
		{"POST", "/tabs/open", `{}`, 400, problem.BadURL, "navigation_blocked", "url is required"},
		{"POST", "/tabs/open", `{"url":"file:///etc/passwd"}`, 400, problem.BadURL, "navigation_blocked", ""},
		{"POST", "/tabs/open", `{"url":"about:blank","url":"about:blank"}`, 400, problem.BadJSON, "", ""},
		{"POST", "/tabs/open", `{"uri":"about:blank"}`, 400, problem.BadJSON, "", ""},
		{"POST", "/tabs/focus", `{"targetId":"t1"}`, 409, problem.BrowserNotRunning, "", "browser not running"},
		{"DELETE", "/tabs/t1", "", 409, problem.BrowserNotRunning, "", "browser not running"},
		{"POST", "/act", `{"kind":"click","ref":"e1"}`, 409, problem.BrowserNotRunning, "", "browser not running"},
		{"POST", "/act", `{}`, 400, "ACT_KIND_REQUIRED", "", "kind is required"},
		{"GET", "/cdp?profile=clawd", "", 200, "", "", ""},
	}
	for _, tt := range tests {
		status, answer, _ := w.ask(tt.method, tt.path, tt.body)
		if status != tt.status || tt.code != "" && answer["code"] != tt.code || tt.reason != "" && answer["reason"] != tt.reason ||
			tt.text != "" && answer["error"] != tt.text {
			t.Errorf("%s %s %s: %d %v", tt.method, tt.path, tt.body, status, answer)
		}
	}
	// The client waits whether its body is wanted: it would be interrupted in the middle of it otherwise.
	if status, answer, _ := w.ask("POST", "/eval", `{"js":"`+strings.Repeat("x", 1<<20)+`"}`, "Expect", "100-continue"); status != 400 && status != 413 {
		t.Errorf("a body of more than 1 MB: %d %v", status, answer)
	}
	if status, answer, _ := w.ask("GET", "/tabs", ""); status != 200 || answer["running"] != false || fmt.Sprint(answer["tabs"]) != "[]" {
		t.Errorf("tabs without a browser: %d %v", status, answer)
	}
}

func TestABrowserThatIsSwitchedOffSaysSoAtOnce(t *testing.T) {
	w := serve(t, t.TempDir(), func(s *config.HostBrowser) { s.Enabled = false })
	for _, request := range [][3]string{
		{"POST", "/start"}, {"POST", "/stop"}, {"GET", "/tabs"}, {"POST", "/tabs/open", `{"url":"about:blank"}`}, {"GET", "/doctor"},
		{"GET", "/snapshot"}, {"GET", "/cdp"}, {"GET", "/profiles"}, {"POST", "/act", `{"kind":"nonsense"}`}, {"GET", "/nothing"},
	} {
		status, answer, _ := w.ask(request[0], request[1], request[2])
		if status != 403 || answer["error"] != "Browser disabled in settings" || answer["code"] != problem.BrowserDisabled {
			t.Errorf("%s %s: %d %v", request[0], request[1], status, answer)
		}
	}
	if status, answer, _ := w.ask("GET", "http://"+w.devtools+"/json/version", ""); status != 403 || answer["code"] != problem.BrowserDisabled {
		t.Errorf("the DevTools endpoint: %d %v", status, answer)
	}
	if status, answer, _ := w.ask("GET", "/", ""); status != 200 || answer["enabled"] != false || answer["running"] != false {
		t.Errorf("status: %d %v", status, answer)
	}
}

func TestAPortThatSomebodyHasIsExplained(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Server", "other/1") }))
	defer other.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for address, want := range map[string]string{other.Listener.Addr().String(): `answers HTTP as "other/1"`, mute.Addr().String(): "does not speak HTTP"} {
		_, port, _ := net.SplitHostPort(address)
		s := config.Default().HostBrowser
		s.ControlURL = "http://127.0.0.1:" + port
		_, _, err := Listen(t.Context(), s)
		p, ok := problem.As(err)
		if !ok || p.Code != problem.Conflict || !strings.Contains(p.Message, want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if runtime.GOOS == "linux" && ok && !strings.Contains(p.Message, "hostserver.test") {
			t.Errorf("it does not say which process: %s", p.Message)
		}
	}
	for _, url := range []string{"http://192.0.2.1:18791", "https://browser.example"} {
		s := config.Default().HostBrowser
		s.ControlURL = url
		_, _, err := Listen(t.Context(), s)
		if problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestTheBrowserIsDrivenOverBothServers(t *testing.T) {
	home, ok := hosttest.AsUser(t)
	if !ok {
		return
	}
	testenv.ChromiumFull(t)
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<title>Hello</title><h1>hello there</h1><button>Press</button>")
	}))
	defer pages.Close()
	w := serve(t, home, nil)

	if status, answer, _ := w.ask("POST", "/tabs/open", `{"url":"`+pages.URL+`"}`); status != 200 || answer["tabId"] == nil {
		t.Fatalf("open: %d %v", status, answer)
	}
	status, answer, _ := w.ask("GET", "/", "")
	if status != 200 || answer["running"] != true || answer["headlessSource"] != "linux-display-fallback" || answer["pid"] == nil {
		t.Errorf("status: %d %v", status, answer)
	}
	if status, answer, _ := w.ask("GET", "/snapshot?profile=clawd", ""); status != 200 || !strings.Contains(fmt.Sprint(answer["snapshot"]), "hello there") {
		t.Errorf("snapshot: %d %v", status, answer)
	}
	status, answer, _ = w.ask("POST", "/screenshot", `{}`)
	media, _ := answer["mediaUrl"].(string)
	if status != 200 || !strings.HasPrefix(media, w.base+"/media/") {
		t.Fatalf("screenshot: %d %v", status, answer)
	}
	if status, _, header := w.ask("GET", media, ""); status != 200 || header.Get("Content-Type") != "image/png" {
		t.Errorf("the picture: %d %s", status, header.Get("Content-Type"))
	}
	if status, _, _ := w.ask("GET", media, "", "Authorization", ""); status != 401 {
		t.Errorf("the picture without a token: %d", status)
	}
	if status, answer, _ := w.ask("GET", "/doctor?deep=true", ""); status != 200 || answer["ok"] != true {
		t.Errorf("doctor: %d %v", status, answer)
	}

	// A stock client asks here, and gets an address that it can connect to.
	status, answer, _ = w.ask("GET", "http://"+w.devtools+"/json/version/", "")
	socket, _ := answer["webSocketDebuggerUrl"].(string)
	if status != 200 || !strings.HasPrefix(socket, "ws://"+w.devtools+"/devtools/browser/") || strings.Contains(socket, w.token.Reveal()) {
		t.Fatalf("version: %d %v", status, answer)
	}
	client := dial(t, socket)
	if got := call(t, client, `{"id":1,"method":"Browser.getVersion"}`); !strings.Contains(got, "Chrome/") {
		t.Errorf("got %s", got)
	}
	// The guard is there: what reaches beyond the browser is refused.
	if got := call(t, client, `{"id":3,"method":"Browser.getBrowserCommandLine"}`); !strings.Contains(got, "not allowed") {
		t.Errorf("got %s", got)
	}
	// One client's nonsense ends that client only.
	bad := dial(t, socket)
	if err := bad.Write(t.Context(), websocket.MessageText, []byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := bad.Read(t.Context()); websocket.CloseStatus(err) == -1 {
		t.Errorf("nonsense is answered with %v", err)
	}
	if got := call(t, client, `{"id":2,"method":"Browser.getVersion"}`); !strings.Contains(got, `"id":2`) {
		t.Errorf("got %s", got)
	}
	for name, url := range map[string]string{
		"no ticket":       strings.Split(socket, "?")[0],
		"another ticket":  strings.Split(socket, "?")[0] + "?token=00000000000000000000000000000000",
		"the other token": strings.Split(socket, "?")[0] + "?token=" + w.token.Reveal(),
	} {
		if c, response, err := websocket.Dial(t.Context(), url, nil); err == nil || response == nil || response.StatusCode != 401 {
			t.Errorf("%s: %v, %v", name, response, err)
			if c != nil {
				c.CloseNow()
			}
		}
	}
	// A page may not use the ticket, should it get hold of it; a ticket is nothing to the control server.
	if _, response, err := websocket.Dial(t.Context(), socket, &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"https://evil.example"}}}); err == nil || response.StatusCode != 403 {
		t.Errorf("a page: %v, %v", response, err)
	}
	ticket := socket[strings.Index(socket, "?"):]
	if status, _, _ := w.ask("GET", "/"+ticket, "", "Authorization", ""); status != 401 {
		t.Errorf("a ticket at the control server: %d", status)
	}

	if status, answer, _ := w.ask("POST", "/stop", ""); status != 200 || answer["stopped"] != true {
		t.Errorf("stop: %d %v", status, answer)
	}
	if _, _, err := client.Read(t.Context()); err == nil {
		t.Error("a client outlives the browser")
	}
	select {
	case err := <-w.served:
		w.served <- err
	case <-time.After(10 * time.Second):
		t.Error("a server that was started for the browser outlives it")
	}
}

func dial(t *testing.T, url string) *websocket.Conn {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(1 << 20)
	t.Cleanup(func() { c.CloseNow() })
	return c
}

func call(t *testing.T, c *websocket.Conn, message string) string {
	t.Helper()
	if err := c.Write(t.Context(), websocket.MessageText, []byte(message)); err != nil {
		t.Fatal(err)
	}
	_, answer, err := c.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}
