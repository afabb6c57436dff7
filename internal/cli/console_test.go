package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestAConsoleThatIsSwitchedOffSaysSo(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"status":404,"code":"not_found","detail":"there is nothing at \"/v1/console/links\""}`)) // the client says so otherwise
	}))
	defer server.Close()
	t.Setenv("CLAWJAIL_CONFIG", settings(t, t.TempDir()))
	t.Setenv("CLAWJAIL_URL", server.URL)
	t.Setenv("CLAWJAIL_KEY", "cjadm_1")
	var out, errs strings.Builder
	if status := Main(context.Background(), "v1", []string{"console"}, &out, &errs); status != 1 || out.Len() != 0 || !strings.Contains(errs.String(), "the console is switched off") ||
		!strings.Contains(errs.String(), "console.enabled") {
		t.Errorf("status %d, %s%s", status, out.String(), errs.String())
	}
}

// The person who starts clawjail gets a link of the admin's, read from a folder that is not root's.
func TestUpMakesALinkWithTheAdminsKey(t *testing.T) {
	dir := t.TempDir()
	w := startFixture(t, dir)
	c := config.Default()
	c.DataDir = filepath.Join(dir, "data")
	c.Listen = netip.MustParseAddrPort(strings.TrimPrefix(w.url, "http://"))
	link, err := consoleLink(c)(t.Context())
	if err != nil || !strings.HasPrefix(link, fmt.Sprintf("http://localhost:%d/console/sign-in?code=cjlink_", c.Listen.Port())) {
		t.Errorf("%q, %v", link, err)
	}
	path := hostd.AdminKeyPath(c)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if link, err := consoleLink(c)(t.Context()); err == nil {
		t.Errorf("root was led elsewhere: %q", link)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.LoadAdminKey(path); err != nil {
		t.Fatal(err)
	}
	if _, err := consoleLink(c)(t.Context()); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("with another key: %v", err)
	}
	c.Listen = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), testenv.FreePort(t))
	if _, err := consoleLink(c)(t.Context()); problem.CodeOf(err) != problem.ControlPlaneUnreachable {
		t.Errorf("where nothing listens: %v", err)
	}
}

// A link to this machine's own address is of no use to somebody who is on it by SSH, or has no desktop there.
func TestALinkToThisMachineSaysHowItIsOpenedElsewhere(t *testing.T) {
	const link = "http://localhost:18780/console/sign-in?code=c"
	for _, test := range []struct {
		name, link string
		set        map[string]string
		says       bool
	}{
		{"no desktop", link, nil, runtime.GOOS != "darwin"},
		{"by SSH", link, map[string]string{"DISPLAY": ":10", "SSH_CONNECTION": "a"}, true},
		{"a desktop", link, map[string]string{"DISPLAY": ":0"}, false},
		{"Wayland", link, map[string]string{"WAYLAND_DISPLAY": "wayland-0"}, false},
		{"a tunnel is there", link, map[string]string{urlVariable: "http://127.0.0.1:18780"}, false},
		{"a public address", "https://jail.example/console/sign-in?code=c", map[string]string{"SSH_CONNECTION": "a"}, false},
	} {
		p := &program{getenv: func(name string) string { return test.set[name] }}
		var out, errs strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		if err := p.printLink(cmd, test.link); err != nil || out.String() != test.link+"\n" || strings.Contains(errs.String(), "ssh -L 18780:localhost:18780 HOST") != test.says {
			t.Errorf("%s: %v, %q, %q", test.name, err, out.String(), errs.String())
		}
	}
}

// What a client is given is the address for other machines, where there is one.
func TestMCPPrintsThePublicAddress(t *testing.T) {
	dir := t.TempDir()
	w := startFixture(t, dir)
	t.Setenv(keyVariable, w.key)
	unset(t, urlVariable)
	for agent, public := range map[string]string{"there": "https://jail.example/jail", "here": ""} {
		text := fmt.Sprintf("data_dir: %s/data\nlisten: %s\n", dir, strings.TrimPrefix(w.url, "http://"))
		want := w.url
		if public != "" {
			text, want = text+"public_url: "+public+"\n", public
		}
		path := filepath.Join(dir, agent+".yml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs strings.Builder
		status := Main(t.Context(), "v1", []string{"--config", path, "mcp", "--print-config", "claude", "--agent", agent}, &out, &errs)
		if c := connectionOf(t, clientClaude, out.String()); status != 0 || c.URL != want+"/mcp" {
			t.Errorf("public_url %q: %d, %q\n%s", public, status, c.URL, errs.String())
		}
	}
}
