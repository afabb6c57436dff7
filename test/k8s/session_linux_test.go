//go:build k8s

package k8s

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/template"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

const browserImage = "clawjail.test/browser:1"

// importBrowser makes an image of the template browser, once.
func (c *cluster) importBrowser() {
	c.t.Helper()
	if c.ctr("images", "check", "name=="+browserImage).Run() == nil && strings.Contains(c.images(), browserImage) {
		return
	}
	store, err := template.New(template.Config{Dir: filepath.Dir(testenv.Template(c.t)), Clock: time.Now})
	c.must(err)
	file, err := os.Create(filepath.Join(c.dir, "browser.tar"))
	c.must(err)
	_, err = store.Export(c.t.Context(), "browser", template.ExportOptions{Tag: browserImage, Shim: c.dir + "/shim"}, file)
	c.must(err)
	c.must(file.Close())
	if out, err := c.ctr("images", "import", "--base-name", browserImage, file.Name()).CombinedOutput(); err != nil {
		c.t.Fatalf("import %s: %v: %s", browserImage, err, out)
	}
	c.must(os.Remove(file.Name()))
}

func (c *cluster) images() string {
	out, err := c.ctr("images", "ls", "-q").Output()
	c.must(err)
	return string(out)
}

// enforce has the node let pods reach two ports and nothing else, as a network that enforces policies does, until the test ends.
func (c *cluster) enforce(ports ...int) {
	c.t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf("table inet clawjail_test { chain in { type filter hook input priority 0; iifname cni0 tcp dport { %d, %d } accept; iifname cni0 reject; }; }\n", ports[0], ports[1]))
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	c.t.Cleanup(func() { c.must(exec.Command("nft", "delete", "table", "inet", "clawjail_test").Run()) })
}

// settings are those of a control plane whose jails are pods.
func (c *cluster) settings(namespace string) string {
	c.t.Helper()
	return fmt.Sprintf("kubernetes:\n  namespace: %s\n  address: %s\n  server: %s\n  authority: %s\n  token: %s\n  images: {browser: %q}\n  seccomp: clawjail.json\n",
		namespace, nodeAddress, apiAddress, c.dir+"/pki/apiserver.crt", c.account(), browserImage)
}

// Sessions are pods of a cluster, and stock clients drive them as they are.
func TestSessionsArePods(t *testing.T) {
	testkit.Clients(t)
	c := theCluster(t)
	c.importBrowser()
	c.furnish("sessions")
	lab := testkit.NewLab(t)
	v := testkit.Prepare(t, instance.Options{Settings: testkit.NoPool + lab.Settings() + c.settings("sessions")})
	c.enforce(18795, 3000)
	v.Up()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s", c.kubectl("", "-n", "sessions", "get", "events"), v.Log())
		}
	})
	open := func(r api.OpenRequest) (session.Session, map[string]string) {
		t.Helper()
		began := time.Now()
		s, err := v.API.Open(t.Context(), r)
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, c.kubectl("", "-n", "sessions", "get", "events"), v.Log())
		}
		t.Logf("a session is there after %s: %+v", time.Since(began).Round(time.Millisecond), s.Timing)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := v.API.Close(ctx, s.ID, true); err != nil {
				t.Error(err)
			}
		})
		token, err := v.API.SessionToken(t.Context(), s.ID, api.TokenRequest{Scope: "cdp"})
		c.must(err)
		return s, map[string]string{"SITE": strings.TrimSuffix(lab.URL("/"), "/"), "CDP_URL": token.CDPURL, "WS_URL": token.WSURL, "API": v.URL(), "KEY": v.Key(), "SESSION": s.ID}
	}
	for _, build := range []string{"shell", "full"} {
		t.Run(build, func(t *testing.T) {
			_, env := open(api.OpenRequest{Browser: build})
			testkit.Script(t, "playwright.mjs", env)
		})
	}
	t.Run("operator", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "state.json")
		c.must(os.WriteFile(file, []byte(lab.State()), 0o600))
		if out, err := v.Run(t.Context(), "cookies", "import", file, "--domain", testkit.LabDomain, "--scope", "cdp"); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		issued, err := client.Call(t.Context(), v.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{testkit.LabDomain}, Access: "cdp"})})
		c.must(err)
		_, env := open(api.OpenRequest{CredentialMode: session.ModeOperator, Domains: []string{testkit.LabDomain}, Grant: grant.ParseToken(issued.Token), Access: "cdp", Browser: "full"})
		testkit.Script(t, "leaks.mjs", env)
	})
}
