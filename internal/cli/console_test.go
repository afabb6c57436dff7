package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	w, end, err := start(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}()
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
