//go:build linux

package operators

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

// settingsPage is `clawjail browser settings` that runs: its address, and the codes that it prints.
type settingsPage struct {
	d     *desktop
	at    string
	lines chan string
	end   func()
}

func (d *desktop) openSettings() *settingsPage {
	d.t.Helper()
	// The program with which the desktop opens links writes down its arguments.
	bin := filepath.Join(d.home, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "xdg-open"), []byte("#!/bin/sh\necho \"$@\" > "+d.home+"/opened\n"), 0o755); err != nil {
		d.t.Fatal(err)
	}
	cmd := d.command(d.program, "browser", "settings")
	cmd.Env = append(cmd.Env, "PATH="+bin+":/usr/bin:/bin")
	out, in, err := os.Pipe()
	if err != nil {
		d.t.Fatal(err)
	}
	s := &settingsPage{d: d, lines: make(chan string, 100)}
	s.end = d.startTo(cmd, in)
	if err := in.Close(); err != nil {
		d.t.Fatal(err)
	}
	go func() {
		defer close(s.lines)
		defer out.Close()
		for text := bufio.NewScanner(out); text.Scan(); {
			s.lines <- text.Text()
		}
	}()
	s.at = strings.TrimSuffix(strings.TrimPrefix(s.line("open http://127.0.0.1:"), "open "), "/ in your own browser")
	return s
}

// line waits for a line that begins so.
func (s *settingsPage) line(begin string) string {
	s.d.t.Helper()
	limit := time.After(testenv.Patience * 20 * time.Second)
	for {
		select {
		case text, ok := <-s.lines:
			if strings.HasPrefix(text, begin) {
				return text
			}
			if !ok {
				s.d.t.Fatalf("the command has ended without a line %q", begin)
			}
		case <-limit:
			s.d.t.Fatalf("there is no line %q", begin)
		}
	}
}

func (s *settingsPage) code() string {
	s.d.t.Helper()
	return strings.TrimPrefix(strings.TrimSuffix(s.line("code "), ", good once"), "code ")
}

// newest is the code that was printed last, without waiting for one; before when there was none since.
func (s *settingsPage) newest(before string) string {
	s.d.t.Helper()
	for len(s.lines) > 0 {
		before = s.code()
	}
	return before
}

// post sends a form as the person's browser does.
func (s *settingsPage) post(path string, fields ...string) string {
	s.d.t.Helper()
	args := []string{"-s", "-H", "Origin: " + s.at, "-H", "Sec-Fetch-Site: same-origin"}
	for _, f := range fields {
		args = append(args, "--data-urlencode", f)
	}
	out, err := s.d.command(testenv.Tool(s.d.t, "curl"), append(args, s.at+path)...).CombinedOutput()
	if err != nil {
		s.d.t.Fatalf("post %s: %v: %s", path, err, out)
	}
	return string(out)
}

func field(t *testing.T, page, name string) string {
	t.Helper()
	m := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("the page has no %s: %s", name, page)
	}
	return m[1]
}

// TestThePersonAndNoAgentChangesTheHostBrowsersSettings changes them on the page, after an agent with everything that the host
// browser's server gives has tried.
func TestThePersonAndNoAgentChangesTheHostBrowsersSettings(t *testing.T) {
	executable := testenv.ChromiumFull(t)
	d := newDesktop(t)
	port := testenv.FreePort(t)
	d.settings(fmt.Sprintf("  # mine\n  control_url: http://127.0.0.1:%d\n  executable: %s # the distribution's\n  headless: true\n", port, executable))
	t.Cleanup(func() { d.must("stop") })
	d.must("start")
	s := d.openSettings()
	code := s.code()
	testenv.Eventually(t, 10*time.Second, func() bool {
		opened, err := os.ReadFile(filepath.Join(d.home, "opened"))
		return err == nil && strings.TrimSpace(string(opened)) == s.at+"/"
	}, "the person's browser is not opened with the bare address")

	// Another user, root even, gets no answer: the test is one. The person's programs do.
	if response, err := http.Get(s.at + "/"); err == nil {
		text, _ := io.ReadAll(response.Body) // it counts that there was an answer
		response.Body.Close()
		t.Errorf("another user is answered %d: %s", response.StatusCode, text)
	}
	if page := s.post("/", "code=0"); !strings.Contains(page, "this is not the code") {
		t.Fatalf("the person is answered %s", page)
	}
	// The token of the host browser's server opens nothing, and that server has no such page.
	token, err := os.ReadFile(filepath.Join(d.home, ".config", "clawjail", "browser.token"))
	if err != nil {
		t.Fatal(err)
	}
	bearer := "Authorization: Bearer " + strings.TrimSpace(string(token))
	for _, args := range [][]string{{"-X", "POST", "-H", "Origin: " + s.at, s.at + "/save"}, {s.at + "/save"}, {fmt.Sprintf("http://127.0.0.1:%d/save", port)}} {
		out, err := d.command(testenv.Tool(t, "curl"), append([]string{"-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", bearer}, args...)...).CombinedOutput()
		if err != nil || string(out)[0] != '4' {
			t.Errorf("%v with the token: %v %s", args, err, out)
		}
	}
	// An agent sends its browser there, and a person types the code in the wrong window.
	d.must("open", s.at+"/")
	if out := d.must("eval", "document.body.innerText"); !strings.Contains(out, "Code") || strings.Contains(out, "Control URL") {
		t.Errorf("the agent sees %s", out)
	}
	d.must("eval", fmt.Sprintf("document.querySelector('[name=code]').value = '%s'; document.forms[0].submit()", code))
	fresh := s.code()
	testenv.Eventually(t, 20*time.Second, func() bool {
		out, err := d.browser("eval", "document.body.innerText") // there is none while the page is changed for another
		return err == nil && strings.Contains(out, "open in the agent") && !strings.Contains(out, "Control URL")
	}, "the agent's browser does not say that the page is not for it")
	if page := s.post("/", "code="+code); strings.Contains(page, `name="key"`) {
		t.Error("the code that was typed in the agent's browser is still good")
	}
	// It is good no more in another way of the agent's either, when the page is gone there; nor is the newest one, which the
	// person could have typed there as well.
	// A code is printed, too, when the page is looked for while it changes.
	old := s.newest(fresh)
	d.must("navigate", "about:blank")
	fresh = s.code()
	if page := s.post("/", "code="+old); strings.Contains(page, `name="key"`) {
		t.Error("a code of before the page was closed in the agent's browser is still good")
	}

	var page string
	testenv.Eventually(t, 20*time.Second, func() bool {
		fresh = s.newest(fresh)
		page = s.post("/", "code="+fresh)
		return strings.Contains(page, `name="key"`)
	}, "the newest code does not open the page")
	key, version := field(t, page, "key"), field(t, page, "version")
	fields := []string{"key=" + key, "version=" + version, "enabled=yes", "control_url=" + field(t, page, "control_url"), "color=#00AA00", "headless=true",
		"executable=" + executable, "listen=", "tls_cert=", "tls_key=", "token="}
	if page = s.post("/save", fields...); !strings.Contains(page, "Saved in") {
		t.Fatalf("saving is answered %s", page)
	}
	text, err := os.ReadFile(filepath.Join(d.home, ".config", "clawjail", "clawjail.yml"))
	for _, part := range []string{"# mine\n", "# the distribution's\n", `color: "#00AA00"`} {
		if err != nil || !strings.Contains(string(text), part) {
			t.Errorf("the file has no %q: %v\n%s", part, err, text)
		}
	}
	if out := d.must("status"); strings.Contains(out, "#00AA00") {
		t.Errorf("without a restart it is %s", out)
	}
	if page = s.post("/restart", "key="+key); !strings.Contains(page, "has the settings of the file") {
		t.Fatalf("the restart is answered %s", page)
	}
	if out := d.must("status"); !strings.Contains(out, "#00AA00") || !strings.Contains(out, "open") {
		t.Errorf("after the restart it is %s", out)
	}
	s.post("/end", "key="+key)
	for range s.lines { // it is closed when the command has ended
	}
	s.end()
}
