//go:build linux

package linux

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// driven is a Chromium in a jail, and its pipe.
type driven struct {
	t    *testing.T
	to   io.Writer
	from *bufio.Reader
	last int
	page string // the session of a page
	pid  int    // of its first process
}

// drive starts a Chromium.
func drive(t *testing.T, h *testHost, spec jail.Spec, amend func(*specs.Spec)) *driven {
	t.Helper()
	p := h.place(t, spec)
	in, toJail, err1 := os.Pipe()
	fromJail, out, err2 := os.Pipe()
	log, err3 := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, errors.Join(err1, err2, err3))
	t.Cleanup(func() { must(t, errors.Join(toJail.Close(), fromJail.Close(), log.Close())) })
	h.runtime.amend = amend
	proc, err := h.runtime.Start(context.Background(), p, [3]*os.File{in, out, log})
	h.runtime.amend = nil
	must(t, errors.Join(in.Close(), out.Close(), err))
	must(t, h.runtime.Begin(context.Background(), p, proc))
	must(t, fromJail.SetReadDeadline(time.Now().Add(40*time.Second)))
	d := &driven{t: t, to: toJail, from: bufio.NewReader(fromJail), pid: proc.PID}
	return d
}

// open goes into a new page.
func (d *driven) open() {
	d.t.Helper()
	target, _ := d.call("Target.createTarget", `{"url":"about:blank"}`)["targetId"].(string)
	d.page, _ = d.call("Target.attachToTarget", fmt.Sprintf(`{"targetId":%q,"flatten":true}`, target))["sessionId"].(string)
}

// call is a command and its reply. An error of the browser's is in the member "error".
func (d *driven) call(method, params string) map[string]any {
	d.t.Helper()
	d.last++
	session := ""
	if d.page != "" && !strings.HasPrefix(method, "Target.") {
		session = fmt.Sprintf(`,"sessionId":%q`, d.page)
	}
	_, err := fmt.Fprintf(d.to, `{"id":%d,"method":%q,"params":%s%s}`+"\x00", d.last, method, params, session)
	must(d.t, err)
	for {
		frame, err := d.from.ReadString(0)
		must(d.t, err)
		var m struct {
			ID     int            `json:"id"`
			Result map[string]any `json:"result"`
			Error  any            `json:"error"`
		}
		must(d.t, json.Unmarshal([]byte(strings.TrimSuffix(frame, "\x00")), &m))
		if m.ID == d.last {
			if m.Error != nil {
				return map[string]any{"error": m.Error}
			}
			return m.Result
		}
	}
}

// withoutPolicies takes the administrator's folder away.
func withoutPolicies(s *specs.Spec) {
	for i, m := range s.Mounts {
		if m.Destination == jail.PoliciesDir {
			s.Mounts = append(s.Mounts[:i:i], s.Mounts[i+1:]...)
			return
		}
	}
}

func TestBrowsersOpenNoneOfTheirOwnPages(t *testing.T) {
	template := testenv.Template(t)
	h := newTestHost(t, func(o *Options) { o.Templates = filepath.Dir(template) })
	addresses := []string{"file:///etc/passwd", "chrome://version/", "chrome://policy/", "devtools://devtools/bundled/inspector.html",
		"chrome-extension://mhjfbmdgcfjbbpaeojofohoefgiehjai/index.html", "chrome-untrusted://print/", "view-source:http://site.test/"}
	const blocked = "net::ERR_BLOCKED_BY_ADMINISTRATOR"
	t.Run("with the file", func(t *testing.T) {
		d := drive(t, h, chromiumSpec("chromium", "--headless=new"), nil)
		for _, address := range addresses {
			d.open()
			if text := d.call("Page.navigate", fmt.Sprintf(`{"url":%q}`, address))["errorText"]; text != blocked {
				t.Errorf("%s: %v", address, text)
			}
		}
		d.open()
		d.call("Page.navigate", `{"url":"data:text/html,hello"}`)
		// A page that is still being loaded is not printed.
		testenv.Eventually(t, 20*time.Second, func() bool { return d.call("Page.printToPDF", `{}`)["data"] != nil },
			"a page cannot be printed to a file for a client")
	})
	t.Run("without it", func(t *testing.T) {
		d := drive(t, h, chromiumSpec("chromium", "--headless=new"), withoutPolicies)
		for _, address := range addresses[:3] {
			d.open()
			if text := d.call("Page.navigate", fmt.Sprintf(`{"url":%q}`, address))["errorText"]; text == blocked {
				t.Errorf("%s is blocked without the file: this test shows nothing", address)
			}
		}
	})
}

// strangers is a site inside of a jail's network whose certificate nobody trusts.
func (d *driven) strangers() (address string) {
	d.t.Helper()
	netns := fmt.Sprintf("/proc/%d/ns/net", d.pid)
	out, err := exec.Command("nsenter", "--net="+netns, "ip", "link", "set", "lo", "up").CombinedOutput()
	if err != nil {
		d.t.Fatalf("%v: %s", err, out)
	}
	var listener net.Listener
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		f, err := os.Open(netns)
		if err == nil {
			err = errors.Join(unix.Setns(int(f.Fd()), unix.CLONE_NEWNET), f.Close())
		}
		if err == nil {
			listener, err = net.Listen("tcp", "127.0.0.1:0")
		}
		done <- err
	}()
	must(d.t, <-done)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<title>past</title>")
	}))
	must(d.t, server.Listener.Close())
	server.Listener = listener
	server.Config.ErrorLog = nil
	server.StartTLS()
	d.t.Cleanup(server.Close)
	return server.URL
}

// past says whether one of the ways past a certificate that nobody trusts ends at the site within some time.
func (d *driven) past(address string, script bool, within time.Duration) bool {
	d.t.Helper()
	d.open()
	if text := d.call("Page.navigate", fmt.Sprintf(`{"url":%q}`, address))["errorText"]; text != "net::ERR_CERT_AUTHORITY_INVALID" {
		d.t.Fatalf("the certificate is no reason: %v", text)
	}
	evaluate := func(script string) any {
		result, _ := d.call("Runtime.evaluate", fmt.Sprintf(`{"expression":%q,"returnByValue":true}`, script))["result"].(map[string]any)
		return result["value"]
	}
	testenv.Eventually(d.t, 10*time.Second, func() bool { return evaluate("document.readyState") == "complete" }, "no page of an error")
	if script {
		evaluate("certificateErrorPageController.proceed()")
	} else {
		for _, key := range "thisisunsafe" {
			d.call("Input.dispatchKeyEvent", fmt.Sprintf(`{"type":"keyDown","text":"%c","key":"%c"}`, key, key))
			d.call("Input.dispatchKeyEvent", fmt.Sprintf(`{"type":"keyUp","key":"%c"}`, key))
		}
	}
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if evaluate("document.title") == "past" {
			return true
		}
	}
	return false
}

func TestNothingGoesPastACertificateThatNobodyTrusts(t *testing.T) {
	template := testenv.Template(t)
	h := newTestHost(t, func(o *Options) { o.Templates = filepath.Dir(template) })
	for _, c := range []struct {
		name, program string
		amend         func(*specs.Spec)
		past          bool
	}{
		{"full", "chromium", nil, false},
		{"full without the policies", "chromium", withoutPolicies, true},
		{"shell", "chromium-headless-shell", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var more []string
			if c.program == "chromium" {
				more = []string{"--headless=new"}
			}
			d := drive(t, h, chromiumSpec(c.program, more...), c.amend)
			address := d.strangers()
			within := 2 * time.Second
			if c.past {
				within = 20 * time.Second // it ends when it is there
			}
			if d.past(address, false, within) != c.past {
				t.Errorf("the word that goes past it: got there: %v", !c.past)
			}
			if !c.past && d.past(address, true, within) {
				t.Error("a script of the page went past it")
			}
		})
	}
}
