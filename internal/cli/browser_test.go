package cli

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// TestBrowserScripts runs the host browser as an ordinary user without a display, with the program `user clawjail …`.
// The scripts that need a Chromium say so.
func TestBrowserScripts(t *testing.T) {
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if r.URL.Path == "/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
		io.WriteString(w, `<title>Page `+r.URL.Path[1:]+`</title><h1>hello</h1>
<label>Name <input id="name"></label><input type="file" id="file"><button onclick="document.title = 'Hi ' + document.getElementById('name').value">Greet</button>
<script>console.log("a line \x1b[31m")</script>`)
	}))
	t.Cleanup(pages.Close) // the scripts run after this function has returned
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Server", "other/1") }))
	t.Cleanup(other.Close)
	home := cdptest.Dir(t) // the binaries and the scripts are below it, where an ordinary user can go
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:         filepath.Join("testdata", "browser"),
		WorkdirRoot: home,
		Setup: func(e *testscript.Env) error {
			port := testenv.FreePort(t)
			for name, value := range map[string]string{
				"HOME": filepath.Join(e.WorkDir, "home"), "PAGES": pages.URL, "OTHER": other.URL, "TZ": "UTC", "NO_COLOR": "1",
				"URL": fmt.Sprintf("http://127.0.0.1:%d", port), "XDG_CONFIG_HOME": "", "XDG_RUNTIME_DIR": "/tmp", "XDG_DATA_HOME": "", "DISPLAY": "", "WAYLAND_DISPLAY": "",
				"CLAWJAIL_CONFIG": filepath.Join(e.WorkDir, "clawjail.yml"), "TMPDIR": filepath.Join(e.WorkDir, "tmp"),
			} {
				e.Setenv(name, value)
			}
			if err := openToUsers(e.Getenv("PATH")); err != nil {
				return err
			}
			for _, dir := range []string{"home", "tmp"} {
				if err := os.MkdirAll(filepath.Join(e.WorkDir, dir), 0o755); err != nil {
					return err
				}
			}
			text := fmt.Sprintf("browser:\n  control_url: http://127.0.0.1:%d\n", port)
			if err := os.WriteFile(filepath.Join(e.WorkDir, "clawjail.yml"), []byte(text), 0o644); err != nil {
				return err
			}
			cdptest.Give(t, e.WorkDir)
			// A script that fails half-way leaves a server behind, which the browser goes with.
			e.Defer(func() { stopServer(t, e) })
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Geteuid() == 0, nil
			case "chromium":
				testenv.ChromiumFull(t)
				return true, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"user": asUser, "status": wantStatus, "pick": pick, "closed": wantClosed, "browser": setBrowser,
		},
	})
}

// stopServer ends the server that a script's commands had started, if it is there.
func stopServer(t *testing.T, e *testscript.Env) {
	program, _, _ := strings.Cut(e.Getenv("PATH"), ":")
	cmd := exec.Command(filepath.Join(program, "clawjail"), "browser", "stop")
	cmd.Env = e.Vars
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	// Without a server, or with settings that forbid it, there is nothing to end.
	if out, err := cmd.CombinedOutput(); err != nil && testing.Verbose() {
		t.Logf("stop the server: %v: %s", err, out)
	}
}

// openToUsers lets every user run the program of the test, which is the first in the PATH.
func openToUsers(path string) error {
	dir, _, _ := strings.Cut(path, ":")
	for _, at := range []string{dir, filepath.Dir(dir)} {
		if !strings.HasPrefix(at, os.TempDir()+"/") {
			break
		}
		if err := os.Chmod(at, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// asUser is `user PROGRAM …`: a program that is run by an ordinary user. `user -status N PROGRAM …` wants that status.
func asUser(ts *testscript.TestScript, neg bool, args []string) {
	want := "0"
	if len(args) > 2 && args[0] == "-status" {
		want, args = args[1], args[2:]
	}
	if neg || len(args) == 0 {
		ts.Fatalf("usage: user [-status N] PROGRAM …")
	}
	if os.Geteuid() == 0 {
		args = append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}, args...)
	}
	wantStatus(ts, false, append([]string{want}, args...))
}

// setBrowser is `browser SETTINGS`: the settings of the host browser, as YAML.
func setBrowser(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.WriteFile(ts.MkAbs("clawjail.yml"), []byte("browser: "+strings.Join(args, "")+"\n"), 0o644))
}

// wantClosed is `closed URL`: it waits until nobody listens there.
func wantClosed(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(args[0], "http://"))
		if err != nil {
			return
		}
		ts.Check(conn.Close())
		if time.Now().After(deadline) {
			ts.Fatalf("somebody still listens on %s", args[0])
		}
	}
}
