//go:build linux

package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// ordinary is a user with a home and nothing else, as tests have one that are run by root.
const ordinary = 65534

// TestAnOrdinaryUserHasABrowserForTheAgent is the way of somebody who has no root and no display: three commands, and a
// stock client at the endpoint.
func TestAnOrdinaryUserHasABrowserForTheAgent(t *testing.T) {
	testenv.Root(t)
	testenv.ChromiumFull(t)
	program, err := testkit.Program()
	if err != nil {
		t.Fatal(err)
	}
	home := cdptest.Dir(t)
	own := filepath.Join(home, "clawjail") // the folder that it is built in is closed to others
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, content, 0o755); err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(home, ".config", "clawjail")
	if err := os.MkdirAll(settings, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("browser:\n  control_url: http://127.0.0.1:%d\n", testenv.FreePort(t))
	if err := os.WriteFile(filepath.Join(settings, "clawjail.yml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cdptest.Give(t, home)
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, own, append([]string{"browser"}, args...)...)
		cmd.Dir = home
		cmd.Env = []string{"HOME=" + home, "PATH=/usr/local/bin:/usr/bin:/bin", "XDG_RUNTIME_DIR=" + home}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
		cmd.WaitDelay = 5 * time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("clawjail browser %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	t.Cleanup(func() { run("stop") })
	// That it has no window is said.
	if out := run("start"); !strings.Contains(out, "no display") && !strings.Contains(out, "without a window") {
		t.Errorf("start says %s", out)
	}
	l := testkit.NewLab(t)
	site := "http://" + l.Server.Listener.Addr().String()
	run("open", site+"/login")
	if out := run("snapshot"); !strings.Contains(out, "Log in") || !strings.Contains(out, "[ref=") {
		t.Errorf("the snapshot is %s", out)
	}
	var endpoint struct {
		CDP string `json:"cdp_url"`
		WS  string `json:"ws_url"`
	}
	if err := json.Unmarshal([]byte(run("cdp", "--json")), &endpoint); err != nil || endpoint.CDP == "" || endpoint.WS == "" {
		t.Fatalf("the endpoint is %+v, %v: %s", endpoint, err, run("cdp", "--json"))
	}
	for _, r := range testkit.Script(t, "host.mjs", map[string]string{"SITE": site, "CDP_URL": endpoint.CDP, "WS_URL": endpoint.WS}) {
		if r.Attempt == "without a token" && r.Answered {
			t.Error("a client without a token was let in")
		}
	}
}
