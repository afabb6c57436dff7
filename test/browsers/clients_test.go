//go:build linux

package browsers

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// laboratory is a running instance whose jails reach a lab.
type laboratory struct {
	*testkit.Installation
	lab *testkit.Lab
}

func newLaboratory(t *testing.T) *laboratory {
	t.Helper()
	testenv.Root(t)
	l := testkit.NewLab(t)
	return &laboratory{Installation: testkit.Start(t, instance.Options{Settings: testkit.NoPool + l.Settings()}), lab: l}
}

// open opens a session that a script may drive, and returns what the script needs to know.
func (v *laboratory) open(r session.OpenRequest) (session.Session, map[string]string) {
	v.T.Helper()
	s, err := v.API.Open(v.T.Context(), r)
	if err != nil {
		v.T.Fatalf("%v\nlog of the instance:\n%s", err, v.Log())
	}
	v.T.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := v.API.Close(ctx, s.ID, true); err != nil {
			v.T.Error(err)
		}
	})
	token, err := v.API.SessionToken(v.T.Context(), s.ID, api.TokenRequest{Scope: "cdp"})
	if err != nil {
		v.T.Fatal(err)
	}
	return s, map[string]string{"SITE": strings.TrimSuffix(v.lab.URL("/"), "/"), "CDP_URL": token.CDPURL, "WS_URL": token.WSURL,
		"API": v.URL(), "KEY": v.Key(), "SESSION": s.ID}
}

// operator opens a session with alice's account, and access cdp.
func (v *laboratory) operator(browser string) (session.Session, map[string]string) {
	v.T.Helper()
	file := filepath.Join(v.T.TempDir(), "state.json")
	if err := os.WriteFile(file, []byte(v.lab.State()), 0o600); err != nil {
		v.T.Fatal(err)
	}
	if out, err := v.Run(v.T.Context(), "cookies", "import", file, "--domain", testkit.LabDomain, "--scope", "cdp"); err != nil {
		v.T.Fatalf("%v %s", err, out)
	}
	issued, err := client.Call(v.T.Context(), v.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{testkit.LabDomain}, Access: "cdp"})})
	if err != nil {
		v.T.Fatal(err)
	}
	return v.open(session.OpenRequest{CredentialMode: session.ModeOperator, Domains: []string{testkit.LabDomain}, Grant: grant.ParseToken(issued.Token), Access: "cdp", Browser: browser})
}

var builds = []string{"shell", "full"}

func TestStockClientsWorkUnmodified(t *testing.T) {
	testkit.Clients(t)
	v := newLaboratory(t)
	for _, build := range builds {
		for _, name := range []string{"playwright.mjs", "puppeteer.mjs"} {
			t.Run(build+" "+name, func(t *testing.T) {
				inner := &laboratory{Installation: &testkit.Installation{Instance: v.Instance, T: t, API: v.API}, lab: v.lab}
				s, env := inner.open(session.OpenRequest{Browser: build})
				// Its first page is used by operations, too.
				if _, err := v.API.Navigate(t.Context(), s.ID, browser.Navigate{URL: v.lab.URL("/")}); err != nil {
					t.Fatal(err)
				}
				testkit.Script(t, name, env)
				// A client that has left leaves nothing attached.
				if got, err := v.API.Get(t.Context(), s.ID); err != nil || got.State != session.StateReady {
					t.Errorf("afterwards the session is %s, %v", got.State, err)
				}
				// The attendant of dialogs lets go of the client's pages after it has left.
				testenv.Eventually(t, 10*time.Second, func() bool {
					list, err := client.As[browser.TabsResult](v.API.Drive(t.Context(), s.ID, browser.Tabs{}))
					if err != nil || len(list.Tabs) == 0 {
						t.Fatalf("the tabs are %+v, %v", list, err)
					}
					return !slices.ContainsFunc(list.Tabs, func(tab browser.Tab) bool {
						return tab.Attached && tab.TabID != "t1" // which the operations have
					})
				}, "somebody is still attached")
			})
		}
	}
}

// tap is a wire between a client and the DevTools endpoint that keeps everything the client receives.
type tap struct {
	server *httptest.Server

	mu       sync.Mutex
	received bytes.Buffer
	frames   int
}

func newTap(t *testing.T, target string) *tap {
	t.Helper()
	p := &tap{}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		up, _, err := websocket.Dial(r.Context(), target, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer up.CloseNow() // closed below when all went well
		up.SetReadLimit(256 << 20)
		down, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer down.CloseNow() // likewise
		down.SetReadLimit(64 << 20)
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() { // ends with the connection of the client, or with the other
			defer cancel()
			for {
				kind, frame, err := down.Read(ctx)
				if err != nil || up.Write(ctx, kind, frame) != nil {
					return
				}
			}
		}()
		for {
			kind, frame, err := up.Read(ctx)
			if err != nil {
				_ = up.Close(websocket.StatusNormalClosure, "") // whoever ended it, it is over
				return
			}
			p.mu.Lock()
			p.received.Write(frame)
			p.received.WriteByte('\n')
			p.frames++
			p.mu.Unlock()
			if down.Write(ctx, kind, frame) != nil {
				return
			}
		}
	}))
	t.Cleanup(p.server.Close)
	return p
}

func (p *tap) url() string { return "ws" + strings.TrimPrefix(p.server.URL, "http") + "/" }

// finds says in which form a value went over the wire, and where; empty when it did not.
func (p *tap) finds(value string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.received.Bytes()
	forms := map[string]string{"plain": value, "hex": hex.EncodeToString([]byte(value)), "query": url.QueryEscape(value)}
	for shift := range 3 {
		// Text before it moves its base64 by up to two characters; the ends depend on the neighbours.
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + value))
		forms[fmt.Sprintf("base64 %d", shift)] = text[4 : len(text)-4]
	}
	for name, form := range forms {
		if i := bytes.Index(all, []byte(form)); i >= 0 {
			return fmt.Sprintf("%s: …%s…", name, all[max(0, i-300):min(len(all), i+100)])
		}
	}
	return ""
}

// The list of what was seen to leak, with stock clients, against a session that has an account.
func TestNoStockClientReceivesAnInjectedCookie(t *testing.T) {
	testkit.Clients(t)
	v := newLaboratory(t)
	for _, build := range builds {
		t.Run(build, func(t *testing.T) {
			inner := &laboratory{Installation: &testkit.Installation{Instance: v.Instance, T: t, API: v.API}, lab: v.lab}
			_, env := inner.operator(build)
			wire := newTap(t, env["WS_URL"])
			env["WS_URL"] = wire.url()
			before := v.lab.Visits()
			testkit.Script(t, "leaks.mjs", env)
			if v.lab.Visits() == before {
				t.Error("the account was never used, so nothing was tried")
			}
			if wire.frames < 500 {
				t.Errorf("only %d messages were received", wire.frames)
			}
			for name, value := range map[string]string{"injected": v.lab.Secret, "set anew by the site": v.lab.Rotated} {
				if found := wire.finds(value); found != "" {
					t.Errorf("the %s cookie was received, %s", name, found)
				}
			}
		})
	}
}

// The same script gets the cookie from a browser without the guard, so it is the guard that keeps it.
func TestWithoutTheGuardTheSameClientsReceiveIt(t *testing.T) {
	testkit.Clients(t)
	testenv.Root(t)
	l := testkit.NewLab(t)
	endpoint := bareChromium(t, l)
	wire := newTap(t, endpoint)
	dir, node := testkit.Clients(t)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.ScriptLimit)
	defer cancel()
	// It ends when it likes: without the guard some of what it tries breaks the browser.
	cmd := exec.CommandContext(ctx, node, filepath.Join(dir, "leaks.mjs"))
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "WS_URL="+wire.url(), "SITE=http://"+l.Server.Listener.Addr().String(), "PATIENCE=3000")
	out, err := cmd.CombinedOutput()
	if wire.finds(l.Secret) == "" || wire.finds(l.Rotated) == "" {
		t.Errorf("it received nothing: %v\n%.2000s", err, out)
	}
}

func TestNoStockClientLeavesTheJailsIntent(t *testing.T) {
	testkit.Clients(t)
	v := newLaboratory(t)
	// Answers that a refused attempt may have all the same, because they say nothing and do nothing.
	harmless := []string{"Browser.setDownloadBehavior", "Page.setDownloadBehavior", "other targets", "auto attach to everything", "download elsewhere"}
	for _, build := range builds {
		for _, mode := range []string{session.ModeClean, session.ModeOperator} {
			t.Run(build+" "+mode, func(t *testing.T) {
				inner := &laboratory{Installation: &testkit.Installation{Instance: v.Instance, T: t, API: v.API}, lab: v.lab}
				var env map[string]string
				if mode == session.ModeOperator {
					_, env = inner.operator(build)
				} else {
					_, env = inner.open(session.OpenRequest{Browser: build})
				}
				wire := newTap(t, env["WS_URL"])
				env["WS_URL"] = wire.url()
				tried := 0
				for _, r := range testkit.Script(t, "escapes.mjs", env) {
					if r.Attempt != "" {
						tried++
					}
					switch {
					case r.Attempt == "":
					case strings.Contains(r.Attempt, "other targets"), strings.Contains(r.Attempt, "auto attach"):
						for _, kind := range []string{`"browser"`, "devtools://", "browser_ui"} {
							if strings.Contains(r.Answer, kind) {
								t.Errorf("%s: %s", r.Attempt, r.Answer)
							}
						}
					case slices.ContainsFunc(harmless, func(name string) bool { return strings.HasSuffix(r.Attempt, name) }):
					case mode == session.ModeClean && strings.Contains(r.Attempt, "WebAuthn."):
						// Keys of the client's own, in a browser that has nobody else's.
					case r.Answered && !innocent(r.Answer):
						t.Errorf("%s was answered with %.300s", r.Attempt, r.Answer)
					}
				}
				if tried < 100 {
					t.Errorf("only %d attempts were made", tried)
				}
				for _, file := range []string{"root:x:0:0", "remote-debugging-pipe", "proxy-server="} {
					if found := wire.finds(file); found != "" {
						t.Errorf("a file or the command line was read, %s", found)
					}
				}
			})
		}
	}
	if strings.Contains(v.lab.Uploaded(), "root:") {
		t.Error("a file of the jail was uploaded")
	}
}

// innocent says whether an answer gives nothing away: an empty one, a page that stayed where it was.
func innocent(answer string) bool {
	if strings.HasPrefix(answer, `"about:blank#`) {
		return true
	}
	for _, harmless := range []string{"{}", "null", "undefined", `"none"`, `"nothing"`, `"about:blank"`, `""`} {
		if answer == harmless {
			return true
		}
	}
	return !strings.Contains(answer, "root:") && !strings.Contains(answer, "file:") && !strings.Contains(answer, "chrome:") &&
		!strings.Contains(answer, "sessionId") && !strings.Contains(answer, "browserContextId") && !strings.Contains(answer, "authenticatorId") &&
		!strings.Contains(answer, "commandLine") && !strings.Contains(answer, "arguments") && !strings.Contains(answer, "devtools:")
}
