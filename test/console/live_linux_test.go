//go:build linux

package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// operated is a running instance whose console a script looks at, through a cable that can be cut. All that comes
// out of it is kept.
type operated struct {
	*testkit.Installation
	portal   *portal
	cable    *testenv.Relay
	received *testenv.Buffer // by the browser
	env      map[string]string
}

func newOperated(t *testing.T) *operated { return newOperatedWith(t, "") }

func newOperatedWith(t *testing.T, settings string) *operated {
	t.Helper()
	testenv.Root(t)
	testkit.Clients(t)
	chromium := testenv.Chromium(t)
	p := newPortal(t)
	v := &operated{Installation: testkit.Start(t, instance.Options{Settings: testkit.NoPool + p.settings() + settings}), portal: p, received: new(testenv.Buffer)}
	v.cable = testenv.NewRelay(t, v.received)
	v.mend()
	stage := httptest.NewServer(http.HandlerFunc(v.stage))
	t.Cleanup(stage.Close)
	v.env = map[string]string{
		"CHROMIUM": chromium, "API": v.URL(), "CONSOLE": "http://" + v.cable.Addr(), "KEY": v.Key(), "STAGE": stage.URL,
		"SITE": strings.TrimSuffix(p.url("/"), "/"), "PASSWORD": p.password, "CODE": p.code, "SHOTS": os.Getenv("CLAWJAIL_TEST_SHOTS"),
	}
	return v
}

// stage does for a script what is not the operator's to do.
func (v *operated) stage(w http.ResponseWriter, r *http.Request) {
	switch what := strings.TrimPrefix(r.URL.Path, "/"); what {
	case "cut":
		v.cable.Lead("")
	case "mend":
		v.mend()
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

// mend has the cable lead to the console.
func (v *operated) mend() { v.cable.Lead(v.Config.Listen.String()) }

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
		if there != "Hello" && !strings.Contains(v.received.String(), there) {
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
		if strings.Contains(v.received.String(), value) {
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
