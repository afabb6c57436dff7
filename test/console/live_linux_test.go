//go:build linux

package console

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// operated is a running instance whose console a script looks at, through a cable that can be cut and that keeps all the
// script's browser receives.
type operated struct {
	*testkit.Installation
	portal *portal
	cable  *cable
	env    map[string]string
}

func newOperated(t *testing.T) *operated { return newOperatedWith(t, "") }

func newOperatedWith(t *testing.T, settings string) *operated {
	t.Helper()
	testenv.Root(t)
	testkit.Clients(t)
	chromium := testenv.Chromium(t)
	p := newPortal(t)
	v := &operated{Installation: testkit.Start(t, instance.Options{Settings: testkit.NoPool + p.settings() + settings}), portal: p}
	v.cable = newCable(t, v.Config.Listen.String())
	stage := httptest.NewServer(http.HandlerFunc(v.stage))
	t.Cleanup(stage.Close)
	v.env = map[string]string{
		"CHROMIUM": chromium, "API": v.URL(), "CONSOLE": "http://" + v.cable.listener.Addr().String(), "KEY": v.Key(), "STAGE": stage.URL,
		"SITE": strings.TrimSuffix(p.url("/"), "/"), "PASSWORD": p.password, "CODE": p.code, "SHOTS": os.Getenv("CLAWJAIL_TEST_SHOTS"),
	}
	return v
}

// stage does for a script what is not the operator's to do.
func (v *operated) stage(w http.ResponseWriter, r *http.Request) {
	switch what := strings.TrimPrefix(r.URL.Path, "/"); what {
	case "cut":
		v.cable.cut()
	case "mend":
		v.cable.mend()
	case "log-out":
		v.portal.logOut()
	case "uploaded":
		fmt.Fprint(w, v.portal.uploaded())
	case "cookies-refresh": // as an operator at a terminal
		out, err := v.Run(r.Context(), "cookies", "refresh", portalDomain, "--url", v.portal.url("/login"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, strings.TrimSpace(out))
	default:
		http.NotFound(w, r)
	}
}

// script runs one, with what it needs to know and a little more.
func (v *operated) script(t *testing.T, name string, more map[string]string) []testkit.Report {
	t.Helper()
	env := map[string]string{}
	for _, from := range []map[string]string{v.env, more} {
		for key, value := range from {
			env[key] = value
		}
	}
	out := testkit.Script(t, name, env)
	if t.Failed() {
		t.Logf("log of the instance:\n%s", v.Log())
	}
	return out
}

// cable is a wire between a browser and the console.
type cable struct {
	listener net.Listener
	to       string
	all      sync.WaitGroup

	mu       sync.Mutex
	broken   bool
	open     map[net.Conn]struct{}
	received bytes.Buffer // by the browser
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{listener: l, to: to, open: map[net.Conn]struct{}{}}
	c.all.Go(c.accept)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		c.cut()
		c.all.Wait()
	})
	return c
}

func (c *cable) accept() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return // closed at the end of the test
		}
		c.all.Go(func() { c.join(conn) })
	}
}

// join carries one connection until either end leaves, or the cable is cut.
func (c *cable) join(down net.Conn) {
	defer down.Close() // nobody needs to know how closing went
	up, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer up.Close() // likewise
	c.mu.Lock()
	if c.broken {
		c.mu.Unlock()
		return
	}
	c.open[down], c.open[up] = struct{}{}, struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, down)
		delete(c.open, up)
	}()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(up, down) // whichever way it ended
		_ = up.Close()
		_ = down.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(io.MultiWriter(c, down), up) // likewise
		_ = up.Close()
		_ = down.Close()
	})
	both.Wait()
}

// Write keeps what the browser receives.
func (c *cable) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received.Write(p)
}

// cut ends every connection, and lets none through until mend.
func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
	for conn := range c.open {
		_ = conn.Close() // gone in any case
	}
}

func (c *cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = false
}

// carried says whether a text was received.
func (c *cable) carried(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.received.Bytes(), []byte(text))
}

// written is everything in the files of an instance that can be read as it is: the log that it printed, and the audit log,
// in which details are texts.
func (v *operated) written() string {
	v.T.Helper()
	var all strings.Builder
	all.WriteString(v.Log())
	rows, err := v.Run(v.T.Context(), "audit", "list", "--json", "--limit", "1000")
	if err != nil {
		v.T.Fatal(err)
	}
	all.WriteString(rows)
	err = filepath.WalkDir(v.Config.DataDir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})
	if err != nil {
		v.T.Fatal(err)
	}
	return all.String()
}

// Logging in for agents, from the link at the terminal to an agent's session in which the account is open.
func TestALoginForAgentsIsKeptAndNoValueOfItIsSeen(t *testing.T) {
	v := newOperated(t)
	v.script(t, "console_refresh.mjs", nil)
	secrets := map[string]string{"the session cookie": v.portal.session, "the persistent cookie": v.portal.remember, "the password": v.portal.password}
	for _, there := range []string{"portal_session", "Hello", portalCDN} {
		if there != "Hello" && !v.cable.carried(there) {
			t.Errorf("the browser of the operator never received %q, so nothing was looked at", there)
		}
	}
	written := v.written()
	for _, there := range []string{"session.refresh", "cookies.capture"} {
		if !strings.Contains(written, there) {
			t.Errorf("nothing written down says %s", there)
		}
	}
	for name, value := range secrets {
		if v.cable.carried(value) {
			t.Errorf("the browser of the operator received %s", name)
		}
		if i := strings.Index(written, value); i >= 0 {
			t.Errorf("%s is written down: …%.200q", name, written[max(0, i-100):])
		}
	}
}

// A script of an agent's against the hands of an operator.
func TestATakeOverCutsAnAgentsScriptAndShowsItNoKey(t *testing.T) {
	v := newOperated(t)
	v.script(t, "console_takeover.mjs", nil)
}

// They come through a proxy that serves the console below a path, and nothing beside it.
func TestOnePersonSteersAndOthersSeeWho(t *testing.T) {
	var backend *url.URL
	mux := http.NewServeMux()
	mux.Handle("/jail/", http.StripPrefix("/jail", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(backend)
		r.Out.Host = r.In.Host
		r.SetXForwarded()
	}}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/favicon.ico" { // the browser's own idea
			t.Errorf("%s %s is not below the path", r.Method, r.URL)
		}
		http.NotFound(w, r)
	})
	front := httptest.NewServer(mux)
	t.Cleanup(front.Close)
	v := newOperatedWith(t, "behind_proxy: [127.0.0.1/32]\npublic_url: "+front.URL+"/jail\n")
	var err error
	if backend, err = url.Parse(v.URL()); err != nil {
		t.Fatal(err)
	}
	v.script(t, "console_two.mjs", map[string]string{"CONSOLE": front.URL + "/jail"})
}

func TestALostConnectionComesBackWithTheBrowserInHand(t *testing.T) {
	v := newOperated(t)
	v.script(t, "console_lost.mjs", nil)
}
