package cli

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// withoutKey takes the variables of keys away for one test.
func withoutKey(t *testing.T) {
	t.Helper()
	unset(t, keyVariable, oldKeyVariable)
}

// unset takes variables away for one test.
func unset(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		t.Setenv(name, "") // so that the test's end puts back what was there
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
}

// withAdminKey is a configuration whose admin key is there.
func withAdminKey(t *testing.T) (c config.Config, admin string) {
	t.Helper()
	c = config.Default()
	c.DataDir = t.TempDir()
	path := hostd.AdminKeyPath(c)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.LoadAdminKey(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return c, strings.TrimSpace(string(text))
}

// CLAWJAIL_URL may lead anywhere. Root's key of this machine goes to this machine's control plane alone, by whatever name that has.
func TestTheAdminKeyIsForTheOwnControlPlaneAlone(t *testing.T) {
	c, admin := withAdminKey(t)
	c.Listen = netip.MustParseAddrPort("192.0.2.10:18780")
	c.PublicURL = "https://proxy.example.org/jail"
	site := httptest.NewTLSServer(http.NotFoundHandler()) // its certificate is example.com's
	defer site.Close()
	pair := site.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	c.TLS = config.TLS{Cert: filepath.Join(c.DataDir, "tls.crt"), Key: filepath.Join(c.DataDir, "tls.key")}
	for path, block := range map[string]*pem.Block{c.TLS.Cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, c.TLS.Key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for at, own := range map[string]bool{
		"http://127.0.0.1:18780": true, "http://localhost:1": true, "https://[::1]:1": true, "https://192.0.2.10:18780": true,
		"https://proxy.example.org/jail": true, "https://proxy.example.org:443": true, "https://Example.com:18780": true,
		"https://other.example": false, "https://192.0.2.11:18780": false, "https://proxy.example.org:8443": false, "https://example.org": false,
		"https://127.0.0.1.other.example": false, "https://example.com.other.example": false, "": false,
	} {
		set := map[string]string{urlVariable: at}
		p := &program{lookupEnv: func(name string) (string, bool) { v, ok := set[name]; return v, ok }}
		if key, err := p.key(c); own && (key != admin || err != nil) || !own && (key != "" || !errors.Is(err, errNoKey)) {
			t.Errorf("%s: the key %q, %v", at, key, err)
		}
		set[keyVariable] = "cjop_1"
		if key, err := p.key(c); key != "cjop_1" || err != nil {
			t.Errorf("%s, with a key: %q, %v", at, key, err)
		}
	}
}

func TestAnAddressThatIsSetAndEmptyIsNotThisMachine(t *testing.T) {
	for _, text := range []string{"", "\n"} {
		p := &program{lookupEnv: func(string) (string, bool) { return text, true }}
		if at, err := p.controlURL(config.Default()); problem.CodeOf(err) != problem.BadUsage {
			t.Errorf("%q: %v, %v", text, at, err)
		}
	}
	p := &program{lookupEnv: func(string) (string, bool) { return "", false }}
	if at, err := p.controlURL(config.Default()); err != nil || at.Host != config.Default().Listen.String() {
		t.Errorf("not set: %v, %v", at, err)
	}
}

func TestAKeyThatIsSetAndEmptyIsNotTheAdmins(t *testing.T) {
	c, admin := withAdminKey(t)
	for _, test := range []struct {
		name string
		set  map[string]string
		key  string
		code string
	}{
		{"nothing is set", nil, admin, ""},
		{"a key", map[string]string{keyVariable: "cjop_1\n"}, "cjop_1", ""},
		{"the other name", map[string]string{oldKeyVariable: "cjadm_2"}, "cjadm_2", ""},
		{"empty", map[string]string{keyVariable: ""}, "", problem.BadUsage},
		{"a line end only", map[string]string{keyVariable: "\n"}, "", problem.BadUsage},
		{"empty, and the other name is set", map[string]string{keyVariable: "", oldKeyVariable: "cjadm_2"}, "", problem.BadUsage},
		{"the other name is empty", map[string]string{oldKeyVariable: ""}, "", problem.BadUsage},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &program{lookupEnv: func(name string) (string, bool) { v, ok := test.set[name]; return v, ok }}
			key, err := p.key(c)
			if key != test.key {
				t.Errorf("the key is %q", key)
			}
			said, coded := problem.As(err)
			if (err != nil) != (test.code != "") || coded && (said.Code != test.code || said.Hint == "") {
				t.Errorf("%v", err)
			}
		})
	}
}

// A configuration with the database's password is for the control plane's user alone. Who names a control plane and has a key needs nothing of it.
func TestAConfigurationThatIsNotForTheCallerIsNotNeededWithAnAddressAndAKey(t *testing.T) {
	unreadable := fmt.Errorf("read it: %w", fs.ErrPermission)
	both := map[string]string{urlVariable: "https://example.com", keyVariable: "cjop_1"}
	for _, test := range []struct {
		name string
		set  map[string]string
		err  error
		want error
	}{
		{"both", both, unreadable, nil},
		{"no key", map[string]string{urlVariable: "https://example.com"}, unreadable, unreadable},
		{"no address", map[string]string{keyVariable: "cjop_1"}, unreadable, unreadable},
		{"a mistake in it", both, fs.ErrInvalid, fs.ErrInvalid},
		{"it is read", nil, nil, nil},
	} {
		p := &program{getenv: func(name string) string { return test.set[name] },
			lookupEnv: func(name string) (string, bool) { v, ok := test.set[name]; return v, ok }}
		if _, err := p.excuse(config.Config{}, test.err); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// Somebody without a key is told whether clawjail runs: only then a key is what is missing. The service has its data elsewhere than a user.
func TestWithoutAKeyItIsSaidWhetherClawjailRuns(t *testing.T) {
	runs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/health" || r.Header.Get("Authorization") != "" {
			t.Errorf("it is asked for %s, with %q", r.URL, r.Header.Get("Authorization"))
		}
		fmt.Fprintln(w, `{"status":"ok"}`)
	}))
	defer runs.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, `{}`) }))
	defer other.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, test := range []struct {
		name, at  string
		elsewhere bool
		code      string
		holds     []string
	}{
		{"it runs", runs.URL, false, problem.Unauthorized, []string{"clawjail runs at", "you have no key", keyVariable}},
		{"it runs elsewhere", runs.URL, true, problem.Unauthorized, []string{"clawjail runs at", "you have no key", keyVariable, "operator create", "admin.key"}},
		{"it does not run", gone.URL, false, problem.ControlPlaneUnreachable, []string{"does not answer", "sudo clawjail up"}},
		{"nobody is there", gone.URL, true, problem.ControlPlaneUnreachable, []string{"no control plane answers", urlVariable}},
		{"somebody else is there", other.URL, true, problem.ControlPlaneUnreachable, []string{"no control plane answers"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := config.Default()
			c.DataDir = t.TempDir()
			at, err := url.Parse(test.at)
			if err != nil {
				t.Fatal(err)
			}
			set := map[string]string{}
			if test.elsewhere {
				set[urlVariable] = test.at
			}
			p := &program{getenv: func(name string) string { return set[name] }, lookupEnv: func(string) (string, bool) { return "", false }}
			_, cause := p.key(c)
			err = p.withoutKey(at, c, cause)
			said, _ := problem.As(err)
			if problem.CodeOf(err) != test.code {
				t.Fatalf("%v", err)
			}
			for _, text := range test.holds {
				if !strings.Contains(said.Message+" "+said.Hint, text) {
					t.Errorf("%q, hint %q: without %q", said.Message, said.Hint, text)
				}
			}
		})
	}
}

// The folder is the control plane's: its user must not have root present another file's text.
func TestRootPresentsNothingButAnAdminKey(t *testing.T) {
	c := config.Default()
	c.DataDir = t.TempDir()
	path := hostd.AdminKeyPath(c)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	p := &program{lookupEnv: func(string) (string, bool) { return "", false }}
	other := filepath.Join(c.DataDir, "roots")
	if err := os.WriteFile(other, []byte("of root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func() error{
		"a link":       func() error { return os.Symlink(other, path) },
		"another name": func() error { return os.Link(other, path) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		if key, err := p.key(c); err == nil || key != "" {
			t.Errorf("%s: %q is presented", name, key)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.key(c); !errors.Is(err, errNoKey) {
		t.Errorf("without a file: %v", err)
	}
	if _, err := identity.LoadAdminKey(path); err != nil {
		t.Fatal(err)
	}
	if key, err := p.key(c); err != nil || key == "" {
		t.Errorf("the admin key: %q, %v", key, err)
	}
}

func TestOneJailIsAsItShouldBe(t *testing.T) {
	for n, want := range map[int]string{
		0: "nothing to remove; 0 jails are as they should be\n", 1: "nothing to remove; 1 jail is as it should be\n", 2: "nothing to remove; 2 jails are as they should be\n",
	} {
		var out bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		if err := showReap(cmd, jail.ReapReport{Jails: n}, false); err != nil || out.String() != want {
			t.Errorf("%q %v", out.String(), err)
		}
	}
}

// A proxy may serve the control plane below a path.
func TestTheAddressOfTheControlPlaneMayHaveAPath(t *testing.T) {
	for text, want := range map[string]string{
		"https://example.com/jail": "https://example.com/jail", "https://example.com/jail/": "https://example.com/jail", "http://127.0.0.1:1/": "http://127.0.0.1:1",
		"https://example.com/jail?a=b": "", "https://example.com/jail#a": "", "http://example.com/jail": "", "https://a:b@example.com/jail": "",
	} {
		p := &program{lookupEnv: func(string) (string, bool) { return text, true }}
		at, err := p.controlURL(config.Default())
		if err != nil && (want != "" || problem.CodeOf(err) != problem.BadURL) || err == nil && at.String() != want {
			t.Errorf("%s: %v, %v", text, at, err)
		}
	}
}

func TestAKeyWithCharactersThatNoKeyHasIsRefused(t *testing.T) {
	for key, want := range map[string]string{"cjop_1": "", " cjop_1\n": "", "cjop_1\ncjop_2": problem.BadUsage, "cjop_1 x": problem.BadUsage, "cjop_é": problem.BadUsage} {
		p := &program{lookupEnv: func(name string) (string, bool) { return key, name == keyVariable }}
		_, err := p.key(config.Default())
		if want == "" && err != nil || want != "" && (problem.CodeOf(err) != want || !strings.Contains(err.Error(), "$"+keyVariable)) {
			t.Errorf("%q: %v", key, err)
		}
	}
}
