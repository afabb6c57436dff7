package service

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway/access/accesstest"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// slashFixture is the real gateway with a service that takes encoded slashes or not, and may do what the patterns below its base allow.
func slashFixture(t *testing.T, server http.Handler, base string, how egress.EncodedSlash, rules ...policy.Rule) (w *accesstest.Real, origin string) {
	t.Helper()
	w = realFixture(t)
	origin, tool := w.Lead("http", "registry.example", server)
	w.Secret("svc", token)
	w.Services["svc"] = egress.Service{Name: "svc", Upstream: egress.Upstream{BaseURL: origin + base}, Inject: bearer, EncodedSlash: how}
	for i := range rules {
		path, action := rules[i].Path, rules[i].Action
		rules[i] = tool
		if rules[i].Name, rules[i].Path, rules[i].Action = "rule "+path.String(), path, action; action == policy.Deny {
			rules[i].Address = netip.Addr{}
		}
	}
	w.Permits["svc"] = w.Allow(rules...)
	return w, origin
}

func pathRule(t *testing.T, action policy.Action, pattern string) policy.Rule {
	t.Helper()
	p, err := policy.ParsePathWithSlashes(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Rule{Action: action, Path: p}
}

// TestAnEncodedSlashIsAPartOfItsSegment has GitLab's paths, in all spellings. The server gets the one that was decided about.
func TestAnEncodedSlashIsAPartOfItsSegment(t *testing.T) {
	seen := &accesstest.Seen{}
	w, _ := slashFixture(t, seen.Handler(nil), "/api", egress.EncodedSlashAllow, pathRule(t, policy.Deny, "/api/projects/secret/**"),
		pathRule(t, policy.Allow, "/api/projects/*/issues"), pathRule(t, policy.Allow, "/api/projects/group%2Fone"))
	for path, want := range map[string]string{
		"/projects/group%2Fname/issues":     "/api/projects/group%2Fname/issues",
		"/projects/group%2fname/issues":     "/api/projects/group%2Fname/issues",
		"/projects/a%2Fb%2fc/issues/?x=%2f": "/api/projects/a%2Fb%2Fc/issues/?x=%2f",
		"/projects/%67roup%2Fone":           "/api/projects/group%2Fone",
		"/projects/7/issues":                "/api/projects/7/issues",
		"/projects/group%2Fother":           "", "/projects/group/one": "", "/projects/group%2Fname%2Fissues": "",
		"/projects/group%2f..%2f..%2fadmin": "", "/projects/..%2fx/issues": "", "/projects/%2e%2e%2fx/issues": "", "/projects/a%2f/issues": "",
		"/projects/a%2f%2fb/issues": "", "/projects/a%252fb/issues": "", "/projects/a%5cb/issues": "", "/projects/a%2fb%5c..%5cc/issues": "",
		"/projects/a%2fb/../issues": "", "/projects/a%2f.;x/issues": "", "/projects/a%ef%bc%8fb/issues": "",
		"/projects/secret%2fname/issues": "", "/projects/SECRET%2fname/issues": "", "/projects%2Fsecret/issues": "",
	} {
		before := len(seen.All())
		resp, body := w.Do(http.MethodGet, "/svc/svc"+path, "")
		if want == "" {
			if resp.Header.Get("Clawjail-Refusal") != problem.PathDenied || len(seen.All()) != before {
				t.Errorf("%s: %s %s", path, resp.Status, body)
			}
			continue
		}
		if resp.StatusCode != http.StatusOK || len(seen.All()) != before+1 {
			t.Errorf("%s: %s %s", path, resp.Status, body)
			continue
		}
		got := seen.Last(t)
		if got.Target != want || got.Header.Get("Authorization") != "Bearer "+token {
			t.Errorf("%s: the server got %s", path, got.Target)
		}
		begun := w.Begun()
		if decided, _, _ := strings.Cut(want, "?"); begun[len(begun)-1].Path != decided {
			t.Errorf("%s: on record is %s", path, begun[len(begun)-1].Path)
		}
	}
}

func TestAnEncodedSlashIsRefusedWithWhatAllowsIt(t *testing.T) {
	for _, how := range []egress.EncodedSlash{"", egress.EncodedSlashDeny} {
		seen := &accesstest.Seen{}
		w, _ := slashFixture(t, seen.Handler(nil), "/api", how, pathRule(t, policy.Allow, "/**"))
		resp, body := w.Do(http.MethodGet, "/svc/svc/@scope%2fname", "")
		if resp.Header.Get("Clawjail-Refusal") != problem.PathDenied || !strings.Contains(body, "--encoded-slash allow") || len(seen.All()) != 0 {
			t.Errorf("%q: %s %s", how, resp.Status, body)
		}
		if resp, body = w.Do(http.MethodGet, "/svc/svc/a%2f..%2fb", ""); strings.Contains(body, "--encoded-slash") || len(seen.All()) != 0 {
			t.Errorf("%q: %s %s", how, resp.Status, body)
		}
		if resp, _ = w.Do(http.MethodGet, "/svc/svc/@scope/name", ""); resp.StatusCode != http.StatusOK {
			t.Errorf("%q: a plain path: %s", how, resp.Status)
		}
	}
}

func TestRedirectsKeepEncodedSlashes(t *testing.T) {
	var to string
	w, origin := slashFixture(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", to)
		rw.WriteHeader(http.StatusFound)
	}), "/api", egress.EncodedSlashAllow, pathRule(t, policy.Allow, "/**"))
	for place, want := range map[string]string{
		"/api/@scope%2fname":          "/svc/svc/@scope%2Fname",
		origin + "/api/a%2Fb/c":       "/svc/svc/a%2Fb/c",
		"/api%2Fa":                    origin + "/api%2Fa",
		"/api/a%2f..%2f..%2foutside/": origin + "/api/a%2f..%2f..%2foutside/",
	} {
		to = place
		if resp, _ := w.Do(http.MethodGet, "/svc/svc/x", ""); resp.Header.Get("Location") != want {
			t.Errorf("%s: %s, want %s", place, resp.Header.Get("Location"), want)
		}
	}
}

// registry is npm's, for one package that wants a token. It knows names with a slash in one segment only.
type registry struct {
	origin  func() string
	tarball []byte
}

func newRegistry(t *testing.T, origin func() string) *registry {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	text := `{"name":"@scope/name","version":"1.0.0","main":"index.js"}`
	if err := archive.WriteHeader(&tar.Header{Name: "package/package.json", Mode: 0o644, Size: int64(len(text))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(archive, text); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return &registry{origin, out.Bytes()}
}

func (g *registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Authorization") != "Bearer "+token:
		http.Error(w, `{"error":"no token"}`, http.StatusUnauthorized)
	case r.URL.EscapedPath() == "/@scope%2Fname":
		sum := sha512.Sum512(g.tarball)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"name": "@scope/name", "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{
			"1.0.0": map[string]any{"name": "@scope/name", "version": "1.0.0", "dist": map[string]string{
				"tarball":   g.origin() + "/@scope/name/-/name-1.0.0.tgz",
				"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
			}}}})
	case r.URL.EscapedPath() == "/@scope/name/-/name-1.0.0.tgz":
		_, _ = w.Write(g.tarball)
	default:
		http.NotFound(w, r)
	}
}

// TestNpmInstallsAScopedPackage has the real npm install from a registry that wants a token, which it does not have.
func TestNpmInstallsAScopedPackage(t *testing.T) {
	npm := testenv.Tool(t, "npm")
	for _, c := range []struct {
		how    egress.EncodedSlash
		worked bool
	}{{egress.EncodedSlashAllow, true}, {egress.EncodedSlashDeny, false}} {
		seen := &accesstest.Seen{}
		var origin string
		server := newRegistry(t, func() string { return origin })
		var w *accesstest.Real
		w, origin = slashFixture(t, seen.Handler(server.ServeHTTP), "", c.how, pathRule(t, policy.Allow, "/@scope%2Fname"), pathRule(t, policy.Allow, "/@scope/**"))
		home := t.TempDir()
		if err := os.WriteFile(filepath.Join(home, "package.json"), []byte(`{"name":"a","private":true}`), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), npm, "install", "--registry="+w.URL+"/svc/svc/", "--replace-registry-host=always", "--no-audit", "--no-fund",
			"--ignore-scripts", "--fetch-retries=0", "@scope/name")
		cmd.Dir = home
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "npm_config_update_notifier=false"}
		out, err := cmd.CombinedOutput()
		_, installed := os.Stat(filepath.Join(home, "node_modules", "@scope", "name", "package.json"))
		if (err == nil && installed == nil) != c.worked {
			t.Errorf("%s: %v, %v\n%s\nthe registry got %+v", c.how, err, installed, out, seen.All())
		}
	}
}
